"""How far an engine agrees with exact search: the part of the exact first hits that it finds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import scipy.sparse as sp

from splade_rescale.engines import Documents
from splade_rescale.errors import UserError
from splade_rescale.exact import best_rows, blocks_of
from splade_rescale.vectors import ids_file, quantise, read_vectors

DEPTH = 10
_ROWS = 1 << 14
_QUERIES = 128


def exact_recall(
    found: Sequence[list[str]],
    queries: sp.csr_matrix,
    query_ids: Sequence[str],
    corpus: Sequence[Path],
    quantization: int,
    *,
    remove_self_hits: bool,
) -> tuple[float | None, int]:
    """The mean part of the exact first ten hits that stands among an engine's first ten.

    Equal scores go by document id, so exactly one list of ten is right. Where there are fewer exact
    hits than ten, it is the part of those; a query without any does not count.

    Args:
        found: document ids of the engine's first hits, per query.
        queries: quantised weights [queries, vocab].
        query_ids: id of each query.
        corpus: vectors of the corpus; one shard is in memory at a time.
        quantization: of the corpus.
        remove_self_hits: whether hits whose document id is the query id were dropped.

    Returns:
        The mean, None if no query counts; and the number of queries that count.

    Raises:
        UserError: a shard is missing, damaged or of another vocabulary.
    """
    if not corpus or not queries.nnz:
        return None, 0
    documents = Documents.read(*map(ids_file, corpus))
    recalls = []
    for start in range(0, queries.shape[0], _QUERIES):
        part = slice(start, start + _QUERIES)
        blocks = blocks_of(_parts(corpus, quantization, queries.shape[1]))
        # one more, in case that it is the query itself
        best = best_rows(queries[part], blocks, documents.ranks, DEPTH + 1)
        for query_id, ours, exact in zip(query_ids[part], found[part], best, strict=True):
            right = [doc_id for doc_id, _ in documents.hits(*exact)]
            if remove_self_hits:
                right = [doc_id for doc_id in right if doc_id != query_id]
            if right := right[:DEPTH]:
                recalls.append(len({*right} & {*ours}) / len(right))
    return (sum(recalls) / len(recalls) if recalls else None), len(recalls)


def _parts(corpus: Sequence[Path], quantization: int, vocabulary: int) -> Iterator[sp.csr_matrix]:
    for npz in corpus:
        vectors, _ = read_vectors(npz)
        if vectors.shape[1] != vocabulary:
            raise UserError(f"{npz}: has {vectors.shape[1]} terms, the queries have {vocabulary}")
        quantised = quantise(vectors, quantization, npz)
        for start in range(0, quantised.shape[0], _ROWS):
            yield quantised[start : start + _ROWS]

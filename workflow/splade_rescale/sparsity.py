"""How sparse the vectors of a cell are: active terms, empty texts, FLOPS."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from scipy import sparse

from splade_rescale.errors import UserError


def load_vectors(path: Path) -> sparse.csr_array:
    """Read term weights [texts, vocab] that encoding wrote.

    Raises:
        UserError: the file is missing or broken; the message names it.
    """
    try:
        return sparse.csr_array(sparse.load_npz(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (BadZipFile, ValueError, KeyError, EOFError, OSError) as error:
        raise UserError(f"{path}: not a file of vectors ({error})") from None


def expected_flops(queries: sparse.csr_array, documents: sparse.csr_array) -> float:
    """Expected number of multiplications to score one query with one document.

    sum over terms v of p_q(v) p_d(v), where p is the part of the texts with term v active
    (Paria et al., 2020, arXiv 2004.05665; as reported for SPLADE by Formal et al., 2021).

    Args:
        queries: weights [queries, vocab].
        documents: weights [documents, vocab].

    Raises:
        ValueError: there are no queries or no documents, or the vocabularies differ.
    """
    if not queries.shape[0] or not documents.shape[0]:
        raise ValueError("FLOPS of no texts is not defined")
    parts = [_document_frequency(x) / x.shape[0] for x in (queries, documents)]
    return float(parts[0] @ parts[1])


def sparsity(
    queries_npz: Path, corpus_npzs: Iterable[Path], quantization: int | None = None
) -> dict[str, Any]:
    """Sparsity of a cell's vectors; one corpus shard is in memory at a time.

    Args:
        queries_npz: weights [queries, vocab].
        corpus_npzs: weights [documents, vocab] of each shard.
        quantization: count a term as active where round(quantization x weight) >= 1, as the
            impact index does; None: where the weight is above 0.

    Returns:
        queries, documents: number of texts; active_terms_q, active_terms_d: mean number of active
        terms per text; empty_queries, empty_documents: texts with none; flops: see
        `expected_flops`; quantization.

    Raises:
        UserError: a file is missing or broken, holds no texts, or has another vocabulary.
    """
    queries = _active(load_vectors(queries_npz), quantization)
    if not queries.shape[0]:
        raise UserError(f"{queries_npz}: holds no queries")
    query_frequency = _document_frequency(queries)
    document_frequency = np.zeros_like(query_frequency)
    documents = empty_documents = 0
    for path in corpus_npzs:
        shard = _active(load_vectors(path), quantization)
        if shard.shape[1] != queries.shape[1]:
            raise UserError(
                f"{path}: has {shard.shape[1]} terms, {queries_npz} has {queries.shape[1]}"
            )
        document_frequency += _document_frequency(shard)
        documents += shard.shape[0]
        empty_documents += _empty(shard)
    if not documents:
        raise UserError(f"{queries_npz.parent}: the corpus shards hold no documents")
    return {
        "queries": queries.shape[0],
        "documents": documents,
        "active_terms_q": float(query_frequency.sum() / queries.shape[0]),
        "active_terms_d": float(document_frequency.sum() / documents),
        "empty_queries": _empty(queries),
        "empty_documents": empty_documents,
        "flops": float((query_frequency / queries.shape[0]) @ (document_frequency / documents)),
        "quantization": quantization,
    }


def _active(vectors: sparse.csr_array, quantization: int | None) -> sparse.csr_array:
    if quantization is not None:
        vectors.data = np.rint(vectors.data.astype(np.float64) * quantization)
    vectors.eliminate_zeros()
    return vectors


def _document_frequency(vectors: sparse.csr_array) -> np.ndarray:
    """Number of rows in which each term stands, [vocab]."""
    return np.bincount(vectors.indices[vectors.data != 0], minlength=vectors.shape[1])


def _empty(vectors: sparse.csr_array) -> int:
    return int((np.diff(vectors.indptr) == 0).sum())

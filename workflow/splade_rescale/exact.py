"""Exact search: a sparse matrix product of queries and documents, in blocks of documents."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

#: Documents in a block; the places in it fit 16 bits.
BLOCK = 1 << 16
_FLOAT32_IS_EXACT = 2**24


class Block(NamedTuple):
    """Documents by term: weights [vocab, documents] of documents numbered from `first` on."""

    first: int
    weights: sp.csr_matrix


def blocks_of(parts: Iterable[sp.csr_matrix]) -> Iterator[Block]:
    """Blocks of at most `BLOCK` documents from matrices [documents, vocab] of any height."""
    first, waiting, height = 0, [], 0
    for part in parts:
        while height + part.shape[0] >= BLOCK:
            cut = BLOCK - height
            waiting.append(part[:cut])
            yield _block(first, waiting)
            part = part[cut:]
            first, waiting, height = first + BLOCK, [], 0
        if part.shape[0]:
            waiting.append(part)
            height += part.shape[0]
    if waiting:
        yield _block(first, waiting)


def _block(first: int, parts: list[sp.csr_matrix]) -> Block:
    columns = sp.vstack(parts, format="csr").tocsc()
    shape = columns.shape[1], columns.shape[0]
    return Block(first, sp.csr_matrix((columns.data, columns.indices, columns.indptr), shape))


def best_rows(
    queries: sp.csr_matrix, blocks: Iterable[Block], ranks: np.ndarray, most: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The documents with the largest dot products with each query.

    A score is the exact integer product, then rounded to float32 as trec_eval holds it. Documents
    that share no term with the query are not among them.

    Args:
        queries: integer weights [queries, vocab].
        blocks: all documents.
        ranks: place of each document among equal scores, [documents].
        most: documents wanted per query.

    Returns:
        Document numbers and scores of each query, in no order; `most` of them at most, the right
        ones where scores are equal at the cut.
    """
    largest = int(queries.sum(axis=1).max()) if queries.nnz else 0
    found = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in range(queries.shape[0])]
    for first, weights in blocks:
        bound = largest * int(weights.data.max(initial=0))
        exact = np.float32 if bound < _FLOAT32_IS_EXACT else np.float64
        product = queries.astype(exact) @ weights.astype(exact)
        scores = product.data.astype(np.float32)
        for n, (rows, known) in enumerate(found):
            part = slice(product.indptr[n], product.indptr[n + 1])
            new, own = product.indices[part], scores[part]
            if len(known) == most:
                enough = own >= known.min()
                new, own = new[enough], own[enough]
            rows = np.concatenate([rows, new.astype(np.int64) + first])
            known = np.concatenate([known, own])
            kept = _largest(known, ranks[rows], most)
            found[n] = rows[kept], known[kept]
    return found


def _largest(scores: np.ndarray, ranks: np.ndarray, most: int) -> np.ndarray:
    """Places of the `most` largest scores; among equal ones those of lower rank."""
    if len(scores) <= most:
        return np.arange(len(scores))
    last = np.partition(scores, -most)[-most]
    above, equal = np.flatnonzero(scores > last), np.flatnonzero(scores == last)
    wanted = most - len(above)
    equal = equal[np.argpartition(ranks[equal], wanted - 1)[:wanted]]
    return np.concatenate([above, equal])

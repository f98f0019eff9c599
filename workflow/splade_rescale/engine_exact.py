"""The engine `exact`: every score is computed, by a sparse matrix product."""

import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from splade_rescale.engines import Corpus, Documents, Found
from splade_rescale.errors import UserError
from splade_rescale.exact import Block, best_rows, blocks_of
from splade_rescale.settings import IndexSettings, SearchSettings

_QUERIES = 64  # a block of products has at most this many rows
_NAME = "block-{:05d}.npz"


def build(
    folder: Path, corpus: Corpus, settings: IndexSettings, *, threads: int, memory_mb: int | None
) -> tuple[int, int]:
    """Write the documents by term, a file per block; see `engines.Engine`."""
    ids: list[str] = []

    def weights() -> Iterator[sp.csr_matrix]:
        for batch in corpus:
            ids.extend(batch.ids)
            yield batch.weights

    postings = 0
    for number, block in enumerate(blocks_of(weights())):
        part = block.weights
        postings += part.nnz
        np.savez(
            folder / _NAME.format(number),
            shape=part.shape,
            indptr=part.indptr,
            documents=part.indices.astype(np.uint16),
            weights=part.data.astype(np.min_scalar_type(part.data.max())),
        )
    Documents(ids).write(folder)
    return len(ids), postings


def _read(path: Path, first: int) -> Block:
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = file["weights"].astype(np.int32), file["documents"].astype(np.int32)
            matrix = sp.csr_matrix((*parts, file["indptr"]), tuple(file["shape"]))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; delete the index and index again") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path}: not a readable block of documents ({error}); delete the index and index again"
        ) from None
    return Block(first, matrix)


def search(
    folder: Path,
    queries: sp.csr_matrix,
    settings: SearchSettings,
    *,
    most: int,
    threads: int,
    memory_mb: int | None,
) -> Iterator[Found]:
    """Search; see `engines.Engine`. Queries go through in chunks, whose mean time each takes."""
    documents = Documents.read(folder / Documents.FILE)
    ranks = documents.ranks

    def blocks() -> Iterator[Block]:
        first = number = 0
        while first < len(ranks):
            block = _read(folder / _NAME.format(number), first)
            yield block
            first, number = first + block.weights.shape[1], number + 1

    def found(start: int) -> list[Found]:
        began = time.perf_counter()
        part = queries[start : start + _QUERIES]
        hits = [documents.hits(*best) for best in best_rows(part, blocks(), ranks, most)]
        seconds = (time.perf_counter() - began) / len(hits)
        return [Found(each, seconds) for each in hits]

    # the product runs outside Python's lock
    with ThreadPoolExecutor(threads) as pool:
        for chunk in pool.map(found, range(0, queries.shape[0], _QUERIES)):
            yield from chunk

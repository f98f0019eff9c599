"""The engine `bmp`: blocks of documents, the most promising first.

Mallia, Suel and Tonellotto, SIGIR 2024. The package holds document weights in 8 bits, query
weights in 5 and scores in 16; it finds the best documents by *its* scores, which are coarser than
those of the other engines. Three of its habits are met here:

- Weights and scores that are too large wrap round to small ones. Documents are scaled so that
  their largest weight is 255; queries so that no score can exceed 65,535.
- Of the blocks worth looking at, it leaves out the last, and it fails where there is none. So the
  last block is one of our own, which every query finds.
- Up to 1,000 hits it begins with a threshold which may leave out that block, or documents of
  equal score. So it is asked for more.
"""

import itertools
import multiprocessing
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from splade_rescale.engines import Corpus, Documents, Found, rows_of
from splade_rescale.errors import UserError
from splade_rescale.settings import IndexSettings, SearchSettings

_FILE = "index.bmp"
_LIMITS = "limits.npz"
_LARGEST_WEIGHT = 255
_LARGEST_SCORE = 65_535
_LEVELS = 32  # of query weights
_TERMS = 1 << 16
_ASK = 1001
_SENTINEL, _SCALE = "_", "*"
_CHUNK = 32


def build(
    folder: Path, corpus: Corpus, settings: IndexSettings, *, threads: int, memory_mb: int | None
) -> tuple[int, int]:
    """Write the blocks; see `engines.Engine`."""
    import bmp

    # one time through for the largest weight of each term
    largest: Any = 0
    for weights, _ in corpus:
        if weights.shape[1] >= _TERMS:
            raise UserError(
                f"the vectors have {weights.shape[1]} terms; the engine bmp tells {_TERMS - 1} "
                "apart: choose another index.engine"
            )
        largest = np.maximum(largest, weights.max(axis=0).toarray().ravel())
    scale = min(1.0, _LARGEST_WEIGHT / max(1, np.max(largest)))

    size = settings.bmp.block_size
    indexer = bmp.Indexer(str(folder / _FILE), bsize=size, compress_range=settings.bmp.compress)
    ids: list[str] = []
    postings = 0
    for weights, names in corpus:
        terms = [str(term) for term in range(weights.shape[1])]
        for number, (which, values) in enumerate(rows_of(weights), start=len(ids)):
            held = dict(zip([terms[t] for t in which.tolist()], _held(values, scale), strict=True))
            indexer.add_document(str(number), held)
        ids += names
        postings += weights.nnz
    for number in range(-len(ids) % size):
        indexer.add_document(str(len(ids) + number), {})
    indexer.add_document(_SENTINEL, {_SENTINEL: 1})
    indexer.finish()
    np.savez(folder / _LIMITS, largest=np.array(_held(largest, scale)))
    Documents(ids).write(folder)
    return len(ids), postings


def _held(weights: np.ndarray, scale: float) -> list[int]:
    """Weights as the index holds them; none above 0 becomes 0."""
    return np.where(weights > 0, np.rint(weights * scale).clip(1), 0).astype(int).tolist()


def _levels(weights: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Query weights as the index takes them, at most 32, such that no score exceeds 16 bits.

    Where even weights of 1 are too many, the terms that can matter least are left out (0).

    Args:
        weights: of the query's terms.
        largest: weight of each of these terms in the index.
    """
    for most in range(_LEVELS, 0, -1):
        levels = np.rint(weights * (most / weights.max())).clip(1).astype(np.int64)
        if levels @ largest < _LARGEST_SCORE:
            return levels
    by_use = np.argsort(-(weights * largest), kind="stable")
    fits = np.cumsum(largest[by_use]) < _LARGEST_SCORE
    levels[by_use[~fits]] = 0
    return levels


class _Searcher:
    """Searches chunks of queries; a forked process has it with the index of its parent."""

    def __init__(self, folder: Path, documents: int, most: int) -> None:
        import bmp

        path = folder / _FILE
        if not path.is_file():
            raise UserError(f"{path}: no such file; delete the index and index again")
        try:
            self.index = bmp.Searcher(str(path))
        except BaseException as error:
            if not _is_panic(error):
                raise
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{path}: not a readable BMP index ({reason}); delete the index and index again"
            ) from None
        try:
            with np.load(folder / _LIMITS, allow_pickle=False) as file:
                self.largest = file["largest"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{folder / _LIMITS}: not readable ({error}); delete the index and index again"
            ) from None
        self.documents = documents
        self.most = most

    def __call__(
        self, queries: sp.csr_matrix, alpha: float, beta: float
    ) -> list[tuple[np.ndarray, np.ndarray, float]]:
        """Document numbers, scores and seconds of each query."""
        return [self._search(*row, alpha, beta) for row in rows_of(queries)]

    def _search(
        self, terms: np.ndarray, weights: np.ndarray, alpha: float, beta: float
    ) -> tuple[np.ndarray, np.ndarray, float]:
        began = time.perf_counter()
        if not len(terms):
            return np.empty(0, np.int64), np.empty(0), 0.0
        levels = _levels(weights, self.largest[terms])
        query = {
            str(t): float(n) for t, n in zip(terms.tolist(), levels.tolist(), strict=True) if n
        }
        # a term that no document has, of the largest weight, keeps the package from scaling
        query |= {_SENTINEL: 1.0, _SCALE: float(_LEVELS)}
        try:
            names, scores = self.index.search(
                query, k=max(_ASK, self.most + 1), alpha=alpha, beta=beta
            )
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise RuntimeError(f"BMP failed: {error}") from None
        found = [(int(n), s) for n, s in zip(names, scores, strict=True) if n != _SENTINEL]
        rows, values = map(np.array, zip(*found, strict=True)) if found else ((), ())
        return (
            np.asarray(rows, np.int64)[: self.most],
            np.asarray(values, np.float64)[: self.most],
            time.perf_counter() - began,
        )


def _is_panic(error: BaseException) -> bool:
    """Whether Rust gave up, which is no Exception in Python."""
    return type(error).__name__ == "PanicException"


_searcher: _Searcher | None = None


def _search_chunk(*arguments: Any) -> list[tuple[np.ndarray, np.ndarray, float]]:
    assert _searcher is not None
    return _searcher(*arguments)


def search(
    folder: Path,
    queries: sp.csr_matrix,
    settings: SearchSettings,
    *,
    most: int,
    threads: int,
    memory_mb: int | None,
) -> Iterator[Found]:
    """Search; see `engines.Engine`. The package holds Python's lock, so threads are processes."""
    global _searcher
    documents = Documents.read(folder / Documents.FILE)
    most = min(most, len(documents.ids))
    _searcher = _Searcher(folder, len(documents.ids), most)
    options = settings.bmp.alpha, settings.bmp.beta
    chunks = [queries[n : n + _CHUNK] for n in range(0, queries.shape[0], _CHUNK)]
    try:
        if threads == 1:
            results = (_search_chunk(chunk, *options) for chunk in chunks)
            for rows, scores, seconds in itertools.chain.from_iterable(results):
                yield Found(documents.hits(rows, scores), seconds)
            return
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(threads, mp_context=fork) as pool:
            alphas, betas = ([value] * len(chunks) for value in options)
            for part in pool.map(_search_chunk, chunks, alphas, betas):
                for rows, scores, seconds in part:
                    yield Found(documents.hits(rows, scores), seconds)
    finally:
        _searcher = None

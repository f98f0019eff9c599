"""Vectors with the statistics of SPLADE's, in any number: Zipfian terms, long-tailed weights."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from splade_rescale.sparsity import expected_flops

VOCABULARY = 30_522
DOCUMENT_TERMS, QUERY_TERMS = 120, 30
_FLAT = 30  # ranks over which the law is flat (Mandelbrot): no term is in every document
_PART = 5_000  # documents drawn with a seed of their own
_ROWS = 50_000  # in a shard


def _probabilities() -> np.ndarray:
    """Zipf-Mandelbrot with exponent 1 over term ids in random order, [vocab]."""
    law = 1 / (np.arange(VOCABULARY) + _FLAT + 1)
    return np.random.default_rng(0).permutation(law / law.sum())


def _draws(probabilities: np.ndarray, wanted: float) -> float:
    """Draws with which a text has `wanted` distinct terms on average."""
    low, high = wanted, 4 * wanted
    for _ in range(40):
        middle = (low + high) / 2
        distinct = -np.expm1(middle * np.log1p(-probabilities)).sum()
        low, high = (middle, high) if distinct < wanted else (low, middle)
    return low


def vectors(rng: np.random.Generator, rows: int, terms: float) -> sp.csr_matrix:
    """Weights float32 [rows, vocab] with `terms` terms per row on average.

    Weights are log(1 + x) with x log-normal: around 0.7, rarely above 3, as log(1 + relu) gives.
    """
    probabilities = _probabilities()
    law = np.cumsum(probabilities)
    counts = rng.poisson(_draws(probabilities, terms), rows).clip(1)
    places = np.repeat(np.arange(rows), counts)
    drawn = np.searchsorted(law, rng.random(len(places)) * law[-1], side="right")
    keys = np.unique(places * VOCABULARY + drawn.clip(max=VOCABULARY - 1))
    weights = np.log1p(rng.lognormal(0.0, 0.8, len(keys))).astype(np.float32)
    return sp.csr_matrix((weights, (keys // VOCABULARY, keys % VOCABULARY)), (rows, VOCABULARY))


def write(npz: Path, matrix: sp.csr_matrix, first: int, letter: str) -> Path:
    """Write vectors as the encoder does, with ids beside."""
    sp.save_npz(npz, matrix, compressed=False)
    ids = [f"{letter}{number}" for number in range(first, first + matrix.shape[0])]
    pq.write_table(pa.table({"id": pa.array(ids)}), npz.with_suffix(".ids.parquet"))
    return npz


def write_corpus(folder: Path, documents: int) -> list[Path]:
    """Write the shards of a corpus; a smaller one is the beginning of a larger one."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for number, first in enumerate(range(0, documents, _ROWS)):
        rows = min(_ROWS, documents - first)
        parts = [
            vectors(np.random.default_rng([1, part]), _PART, DOCUMENT_TERMS)
            for part in range(first // _PART, -(-(first + rows) // _PART))
        ]
        matrix = sp.vstack(parts, format="csr")[:rows]
        shards.append(write(folder / f"corpus-{number:05d}.npz", matrix, first, "d"))
    return shards


def write_queries(folder: Path, queries: int) -> Path:
    """Write query vectors."""
    folder.mkdir(parents=True, exist_ok=True)
    matrix = vectors(np.random.default_rng([2, 0]), queries, QUERY_TERMS)
    return write(folder / "queries.npz", matrix, 0, "q")


def statistics(queries: Path, shard: Path) -> dict[str, float]:
    """Terms per text and FLOPS, from the queries and one shard."""
    q, d = (sp.csr_array(sp.load_npz(path)) for path in (queries, shard))
    return {
        "terms_q": q.nnz / q.shape[0],
        "terms_d": d.nnz / d.shape[0],
        "flops": expected_flops(q, d),
        "most_frequent": float(np.bincount(d.indices).max() / d.shape[0]),
    }

"""Vectors made up for tests of indexes, and their dot products by plain arithmetic."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp


def write_vectors(npz, weights, ids):
    sp.save_npz(npz, sp.csr_matrix(np.asarray(weights, np.float32)))
    pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), npz.with_suffix(".ids.parquet"))
    return npz


def ranked(run):
    """The hits of each query in the order of the file's scores; equal scores by id, descending."""
    return {
        query: sorted(hits.items(), key=lambda hit: (hit[1], hit[0]), reverse=True)
        for query, hits in run.items()
    }


def dot_products(queries, documents, ids, hits, quantization=100):
    """For each query the expected hits: plain integer arithmetic, no library's rounding."""

    def quantised(rows):
        return [[round(quantization * float(w)) for w in row] for row in rows]

    scores = np.array(quantised(queries), np.int64) @ np.array(quantised(documents), np.int64).T
    return [
        sorted(((s, i) for s, i in zip(row.tolist(), ids, strict=True) if s > 0), reverse=True)[
            :hits
        ]
        for row in scores
    ]


def random_weights(rng, rows, terms, density, levels):
    """Weights on a grid of halves of a hundredth: many ties, and halves to round."""
    weights = rng.integers(1, levels, (rows, terms)) / 200
    return np.where(rng.random((rows, terms)) < density, weights, 0).astype(np.float32)

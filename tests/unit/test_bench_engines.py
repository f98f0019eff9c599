import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from bench import engines, synthetic
from splade_rescale.vectors import read_vectors

ROOT = Path(__file__).parents[2]


def test_made_up_vectors_have_the_statistics_that_are_named(tmp_path):
    corpus = synthetic.write_corpus(tmp_path, 6000)
    queries = synthetic.write_queries(tmp_path, 500)
    found = synthetic.statistics(queries, corpus[0])
    assert found["terms_d"] == pytest.approx(synthetic.DOCUMENT_TERMS, rel=0.01)
    assert found["terms_q"] == pytest.approx(synthetic.QUERY_TERMS, rel=0.02)
    assert 1 < found["flops"] < 4
    vectors, ids = read_vectors(corpus[0])
    assert vectors.shape == (6000, synthetic.VOCABULARY)
    assert ids[5999] == "d5999"
    often = np.sort(np.bincount(vectors.indices, minlength=vectors.shape[1]))[::-1] / 6000
    assert often[0] < 0.6
    # Zipf: the number of documents falls as one over the rank
    assert often[200] / often[2000] == pytest.approx(2031 / 231, rel=0.15)


def test_a_small_corpus_is_the_beginning_of_a_large_one(tmp_path):
    small, large = (
        sp.load_npz(synthetic.write_corpus(tmp_path / str(size), size)[0]) for size in (700, 7000)
    )
    assert (small != large[:700]).nnz == 0


def test_ratios(tmp_path):
    rows = [
        {"engine": engine, "documents": size, "threads": threads}
        | {"build_cpu_seconds": cost * size, "queries_per_second": threads * 1000 / cost / size}
        for engine, cost in (("lucene", 2.0), ("exact", 1.0))
        for size in (10, 100)
        for threads in (1, 2)
    ]
    engines.relate(rows)
    last = rows[-1]
    assert last["build_vs_lucene"] == 0.5
    assert last["build_growth"] == 10
    assert last["speed_vs_lucene"] == 2
    assert last["speed_vs_smallest"] == pytest.approx(0.1)
    assert last["speedup"] == 2


def test_the_benchmark_runs_and_goes_on_where_it_was(tmp_path):
    command = [sys.executable, "-m", "bench.engines", "--sizes", "300,600", "--engines", "exact"]
    command += ["--threads", "1", "--queries", "20", "--out", tmp_path / "out.csv"]
    command += ["--folder", tmp_path / "kept"]
    environment = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'workflow'}", "PATH": "/usr/bin:/bin"}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["engine"], row["documents"]) for row in rows] == [
        ("exact", "300"),
        ("exact", "600"),
    ]
    assert {row["exact_recall@10"] for row in rows} == {"1.0"}
    assert float(rows[1]["queries_per_second"]) > 0
    assert "seconds" not in first.stdout
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout == first.stdout

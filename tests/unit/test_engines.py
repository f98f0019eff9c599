import itertools
import json
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from made_vectors import dot_products, random_weights, ranked, write_vectors
from splade_rescale import digest, engine_bmp, exact
from splade_rescale.agreement import exact_recall
from splade_rescale.config import load_experiment
from splade_rescale.errors import UserError
from splade_rescale.index import build_impact_index
from splade_rescale.runs import read_run
from splade_rescale.search import search_impact
from splade_rescale.settings import IndexSettings, SearchSettings

ENGINES = ["lucene", "exact", "bmp", "seismic"]
OTHERS = ENGINES[1:]
ODD_IDS = ["007", "7", "a b", "tab\tid", "line\nbreak", "naïve", "50%", "%20", "😀", "～", " x "]
# all of a query's lists are searched, and no cluster is skipped unless it promises much less
CAREFUL = {"seismic": {"query_cut": 1000, "heap_factor": 0.5}}


@pytest.fixture
def run_engine(tmp_path):
    """A function: index documents and search by an engine; returns the run and both statistics."""

    def run(
        engine, documents, ids, queries, query_ids, *, shards=1, threads=1, own=False, factor=100,
        hits=1000, build=True, **search,
    ):  # fmt: skip
        cuts = [len(ids) * n // shards for n in range(shards + 1)]
        files = [
            write_vectors(tmp_path / f"corpus-{n}.npz", documents[a:b], ids[a:b])
            for n, (a, b) in enumerate(itertools.pairwise(cuts))
        ]
        index = tmp_path / engine
        if build:
            settings = IndexSettings(engine=engine, quantization=factor)
            build_impact_index(files, index, settings, threads=threads)
        found = search_impact(
            index,
            write_vectors(tmp_path / "queries.npz", queries, query_ids),
            tmp_path / "run.trec.gz",
            SearchSettings(hits=hits, **search),
            remove_self_hits=own,
            corpus=files,
            threads=threads,
        )
        built = json.loads((index / "index.json").read_text())
        return tmp_path / "run.trec.gz", built, found

    return run


@pytest.fixture
def sample():
    rng = np.random.default_rng(11)
    documents = random_weights(rng, 1200, 80, 0.15, 500)
    queries = random_weights(rng, 300, 80, 0.1, 400)
    ids = [f"d{n}" for n in rng.permutation(1200)]
    return documents, ids, queries, [f"q{n}" for n in range(300)]


@pytest.mark.parametrize(("shards", "threads", "hits"), [(1, 1, 1000), (3, 2, 40), (4, 1, 7)])
def test_exact_gives_the_integer_dot_products_in_trec_order(
    run_engine, monkeypatch, shards, threads, hits
):
    monkeypatch.setattr(exact, "BLOCK", 500)
    rng = np.random.default_rng(shards)
    documents = random_weights(rng, 2300, 60, 0.05, 4)
    queries = random_weights(rng, 80, 60, 0.1, 6)
    ids = [f"d{n}" for n in rng.permutation(2300)]
    query_ids = [f"q{n}" for n in range(80)]
    inputs = documents, ids, queries, query_ids
    file, built, found = run_engine("exact", *inputs, shards=shards, threads=threads, hits=hits)
    run = ranked(read_run(file))
    for query, row in zip(query_ids, dot_products(queries, documents, ids, hits), strict=True):
        assert run.get(query, []) == [(doc_id, score) for score, doc_id in row]
    assert built["engine"] == found["engine"] == "exact"
    assert built["indexed"] + built["empty"] == 2300
    exactly = file.read_bytes()
    lucene, *_ = run_engine("lucene", *inputs, shards=shards, threads=threads, hits=hits)
    assert lucene.read_bytes() == exactly


def test_exact_holds_sums_beyond_float32(run_engine):
    """4095 x 4097 + 1 is 2^24, the last whole number of float32 without a gap."""
    file, *_ = run_engine("exact", [[4095.0, 1.0]], ["a"], [[4097.0, 3.0]], ["q"], factor=1)
    assert read_run(file) == {"q": {"a": float(np.float32(4095 * 4097 + 3))}}


@pytest.mark.parametrize("engine", ENGINES)
def test_agreement_with_exact(run_engine, sample, engine):
    _, built, found = run_engine(engine, *sample, exact_queries=30, **CAREFUL)
    assert built["engine"] == found["engine"] == engine
    assert found["exact_queries"] == 30
    lowest = {"lucene": 1, "exact": 1, "bmp": 0.9, "seismic": 0.95}[engine]
    assert lowest <= found["exact_recall@10"] <= 1
    assert 0 < found["ms_per_query_median"] <= found["ms_per_query_p95"]
    assert found["ms_per_query"] > 0
    documents = np.rint(sample[0].astype(float) * 100)
    assert built["postings"] == np.count_nonzero(documents)


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_change_nothing_in_a_search(run_engine, sample, engine):
    one = run_engine(engine, *sample, hits=20)[0].read_bytes()
    two = run_engine(engine, *sample, hits=20, threads=2, build=False)[0].read_bytes()
    assert one == two


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_takes_empty_vectors_and_odd_ids(run_engine, engine):
    documents = [[(n + 1) / 100, 0.0, 0.0] for n in range(len(ODD_IDS))] + [[0.0] * 3, [0.001] * 3]
    queries = [[1.0, 0.0, 0.0], [0.0] * 3, [0.001, 0.0, 0.0], [0.0, 1.0, 0.0]]
    ids = [*ODD_IDS, "empty", "tiny"]
    file, built, found = run_engine(engine, documents, ids, queries, [*ODD_IDS[:2], "r", "s"])
    assert (built["documents"], built["indexed"], built["empty"]) == (13, 11, 2)
    assert built["empty_examples"] == ["empty", "tiny"]
    run = read_run(file)
    assert run.keys() == {ODD_IDS[0]}
    assert [doc_id for doc_id, _ in ranked(run)[ODD_IDS[0]]] == ODD_IDS[::-1]
    assert (found["queries"], found["queries_empty"], found["queries_without_hits"]) == (4, 2, 3)
    assert (found["exact_queries"], found["exact_recall@10"]) == (1, 1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_takes_a_corpus_without_terms_and_no_queries(run_engine, engine):
    ids = [f"d{n}" for n in range(30)]
    nothing = np.zeros((30, 4))
    file, built, found = run_engine(engine, nothing, ids, np.ones((2, 4)), ["q", "r"], shards=2)
    assert read_run(file) == {}
    assert (built["indexed"], built["empty"], built["postings"]) == (0, 30, 0)
    assert (found["exact_queries"], found["exact_recall@10"]) == (0, None)
    file, _, found = run_engine(engine, np.ones((30, 4)), ids, np.zeros((0, 4)), [])
    assert (found["queries"], found["ms_per_query"], found["exact_recall@10"]) == (0, 0, None)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_self_hits_are_removed_before_the_cut_and_in_what_is_compared(run_engine, engine, own):
    documents = [[4.0, 0.0], [3.0, 0.0], [2.0, 0.0], [1.0, 0.0]]
    file, _, found = run_engine(engine, documents, [*"abcd"], [[1.0, 0.0]], ["a"], hits=2, own=own)
    assert list(read_run(file)["a"]) == (["b", "c"] if own else ["a", "b"])
    assert found["exact_recall@10"] == (2 / 3 if own else 2 / 4)


@pytest.mark.parametrize("engine", OTHERS)
def test_equal_scores_go_by_id(run_engine, engine):
    ids = ["～", "b", "😀", "a", "10", "9"]
    documents = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    file, *_ = run_engine(engine, documents, ids, [[1.0, 0.0]], ["q"])
    assert list(read_run(file)["q"]) == ["a", "😀", "～", "b", "9", "10"]


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("damage", ["missing", "cut", "ids"])
def test_a_damaged_index_is_named(run_engine, tmp_path, engine, damage):
    inputs = np.ones((3, 4)), [*"abc"], np.ones((1, 4)), ["q"]
    run_engine(engine, *inputs)
    name = {"exact": "block-00000.npz", "bmp": "index.bmp", "seismic": "seismic.index.seismic"}
    file = tmp_path / engine / ("ids.parquet" if damage == "ids" else name[engine])
    whole = file.read_bytes()
    (tmp_path / engine / "SHA256SUMS").unlink()  # the engine itself must notice
    file.unlink()
    if damage != "missing":
        file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{file}: "):
        run_engine(engine, *inputs, build=False)


def test_seismic_scores_are_the_dot_products(run_engine, sample):
    documents, ids, queries, query_ids = sample
    run = read_run(run_engine("seismic", *sample)[0])
    every = dot_products(queries, documents, ids, 1200)
    for query, row in zip(query_ids, every, strict=True):
        scores = {doc_id: score for score, doc_id in row}
        assert run[query] == {doc_id: scores[doc_id] for doc_id in run[query]}


@pytest.mark.parametrize("engine", ["bmp", "seismic"])
def test_a_vocabulary_beyond_16_bits(run_engine, engine):
    documents = sp.random(40, 70_000, 0.002, format="lil", random_state=1, dtype=np.float32)
    documents[7, 69_999] = 3.0
    query = sp.csr_matrix(([1.0], ([0], [69_999])), (1, 70_000), np.float32)
    inputs = documents.toarray(), [f"d{n}" for n in range(40)], query.toarray(), ["q"]
    if engine == "seismic":
        assert "d7" in read_run(run_engine(engine, *inputs)[0])["q"]
        return
    with pytest.raises(UserError, match=r"70000 terms; the engine bmp tells 65535 apart"):
        run_engine(engine, *inputs)


def test_seismic_refuses_weights_that_it_cannot_hold(run_engine):
    with pytest.raises(UserError, match=r"70000 .* seismic holds 65504 .* smaller index\.quantiz"):
        run_engine("seismic", [[700.0]], ["a"], [[1.0]], ["q"])


@pytest.mark.parametrize("rows", [3, 60, 1000])
@pytest.mark.parametrize("hits", [5, 9, 99, 1000])
def test_bmp_gives_the_best_by_its_own_scores(run_engine, rows, hits):
    """All of them, also in small indexes, where the package by itself leaves out a block."""
    rng = np.random.default_rng(rows)
    documents = random_weights(rng, rows, 60, 0.2, 500)
    queries = random_weights(rng, 20, 60, 0.2, 900)
    ids, query_ids = [f"d{n}" for n in range(rows)], [f"q{n}" for n in range(20)]
    run = read_run(run_engine("bmp", documents, ids, queries, query_ids, hits=hits)[0])
    held = np.rint(np.rint(documents.astype(float) * 100).clip(0, 255)).astype(int)
    for query_id, weights in zip(query_ids, np.rint(queries.astype(float) * 100), strict=True):
        used = weights > 0
        levels = np.zeros(60, int)
        levels[used] = engine_bmp._levels(weights[used], held.max(axis=0)[used])
        scores = held @ levels
        assert sorted(run[query_id].values()) == sorted(scores[scores > 0])[-hits:]
        own = {f"d{n}": score for n, score in enumerate(scores)}
        assert all(own[doc_id] == score for doc_id, score in run[query_id].items())


def test_bmp_scales_large_weights_and_dense_queries_instead_of_wrapping_them(run_engine):
    rng = np.random.default_rng(3)
    documents = rng.integers(1, 1000, (200, 600)) / 100
    documents[17] = 10.0
    queries = rng.integers(200, 300, (4, 600)) / 100
    ids = [f"d{n}" for n in range(200)]
    file, _, found = run_engine("bmp", documents, ids, queries, [*"wxyz"])
    for hits in read_run(file).values():
        assert max(hits, key=hits.get) == "d17"
        assert 0 < min(hits.values()) < max(hits.values()) <= 65_535
    assert found["exact_recall@10"] > 0.3


@pytest.mark.parametrize(
    ("found", "own", "expected"),
    [
        ([["a", "b"]], False, 2 / 3),
        ([["c", "b", "a", "x"]], False, 1.0),
        ([["x"]], False, 0.0),
        ([["b", "c"]], True, 1.0),
    ],
)
def test_recall_of_the_exact_hits_by_hand(tmp_path, found, own, expected):
    shards = [
        write_vectors(tmp_path / "1.npz", [[1, 0], [2, 0]], ["a", "b"]),
        write_vectors(tmp_path / "2.npz", [[3, 0], [0, 1]], ["c", "d"]),
    ]
    query = sp.csr_matrix(np.array([[100, 0]], np.int32))
    assert exact_recall(found, query, ["a"], shards, 100, remove_self_hits=own) == (expected, 1)


def test_only_ten_are_compared_ties_by_id_and_queries_without_hits_do_not_count(tmp_path):
    ids = [f"{n:02}" for n in range(30)]
    shard = write_vectors(tmp_path / "1.npz", [[1.0, 0.0]] * 30, ids)
    queries = sp.csr_matrix(np.array([[5, 0], [0, 5], [1, 1]], np.int32))
    found = [ids[:-11:-1], [], [*ids[:-6:-1], *ids[:5]]]
    recall = exact_recall(found, queries, [*"xyz"], [shard], 100, remove_self_hits=False)
    assert recall == ((1 + 0.5) / 2, 2)


def test_a_sample_of_the_queries_is_compared(run_engine, sample):
    for wanted, compared in ((0, 0), (7, 7), (10_000, 300)):
        found = run_engine("exact", *sample, exact_queries=wanted)[2]
        assert found["exact_queries"] == compared
        assert found["exact_recall@10"] == (1.0 if compared else None)


def test_a_missing_package_is_refused_before_any_job(monkeypatch, run_engine, sample):
    config = {
        "backbones": ["tiny-bert"], "scales": [1], "datasets": ["pydocs"],
        "train": {"dataset": "pydocs"}, "rescale": {"tying": "untied"},
    }  # fmt: skip
    registries = digest.Path(digest.__file__).parents[2] / "config"
    for name, module, package in (
        ("bmp", "bmp", "bmp>="),
        ("seismic", "seismic", "pyseismic-lsr>="),
    ):
        chosen = {**config, "index": {"engine": name}}
        load_experiment(chosen, registries, "my.yaml")
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            message = rf"my\.yaml: index\.engine: the engine {name} needs {package}.* not installed"
            with pytest.raises(UserError, match=message):
                load_experiment(chosen, registries, "my.yaml")
            with pytest.raises(UserError, match=f"the engine {name} needs {package}"):
                run_engine(name, *sample)
    with pytest.raises(UserError, match=r"index\.engine: .*'lucene', 'seismic', 'bmp' or 'exact'"):
        load_experiment({**config, "index": {"engine": "elastic"}}, registries, "my.yaml")

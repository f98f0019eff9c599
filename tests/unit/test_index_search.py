import gzip
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_vectors import dot_products, random_weights, ranked, write_vectors
from splade_rescale.errors import UserError
from splade_rescale.index import build_bm25_index, build_impact_index
from splade_rescale.runs import read_run
from splade_rescale.search import search_bm25, search_impact
from splade_rescale.settings import Bm25Settings, IndexSettings, SearchSettings

ODD_IDS = ["007", "7", "a b", "tab\tid", "line\nbreak", "naïve", "50%", "%20", "😀", "～", " x "]


def write_texts(parquet, columns):
    pq.write_table(pa.table({k: pa.array(v, pa.string()) for k, v in columns.items()}), parquet)
    return parquet


@pytest.fixture
def impact(tmp_path):
    """A function: index documents and search; returns the run file and both statistics."""

    def run(
        documents, ids, queries, query_ids, *, hits=1000, shards=1, threads=1, own=False, factor=100
    ):
        cuts = [len(ids) * n // shards for n in range(shards + 1)]
        files = [
            write_vectors(tmp_path / f"corpus-{n}.npz", documents[a:b], ids[a:b])
            for n, (a, b) in enumerate(itertools.pairwise(cuts))
        ]
        built = build_impact_index(
            files, tmp_path / "index", IndexSettings(quantization=factor), threads=threads
        )
        found = search_impact(
            tmp_path / "index",
            write_vectors(tmp_path / "queries.npz", queries, query_ids),
            tmp_path / "run.trec.gz",
            SearchSettings(hits=hits),
            remove_self_hits=own,
            threads=threads,
        )
        return tmp_path / "run.trec.gz", built, found

    return run


@pytest.fixture
def bm25(tmp_path):
    """The same over texts."""

    def run(corpus, queries, *, k1=0.9, b=0.4, hits=1000, own=False):
        titles = corpus.get("title", [""] * len(corpus["text"]))
        corpus = {"doc_id": corpus["doc_id"], "title": titles, "text": corpus["text"]}
        built = build_bm25_index(write_texts(tmp_path / "c.parquet", corpus), tmp_path / "bm25")
        found = search_bm25(
            tmp_path / "bm25",
            write_texts(tmp_path / "q.parquet", queries),
            tmp_path / "bm25.trec.gz",
            SearchSettings(hits=hits),
            Bm25Settings(k1=k1, b=b),
            remove_self_hits=own,
        )
        return read_run(tmp_path / "bm25.trec.gz"), built, found

    return run


@pytest.mark.parametrize(("shards", "threads", "hits"), [(1, 1, 1000), (3, 1, 40), (4, 3, 7)])
def test_scores_are_the_integer_dot_products_and_ties_go_by_id(impact, shards, threads, hits):
    rng = np.random.default_rng(shards)
    documents = random_weights(rng, 2300, 60, 0.05, 4)
    queries = random_weights(rng, 80, 60, 0.1, 6)
    ids = [f"d{n}" for n in rng.permutation(2300)]
    query_ids = [f"q{n}" for n in range(80)]
    file, built, found = impact(
        documents, ids, queries, query_ids, hits=hits, shards=shards, threads=threads
    )
    expected = dot_products(queries, documents, ids, hits)
    tied_at_the_cut = [
        row[-1][0] == more[-1][0]
        for row, more in zip(expected, dot_products(queries, documents, ids, hits + 1), strict=True)
        if len(more) > hits
    ]
    assert hits == 1000 or sum(tied_at_the_cut) > 20
    run = ranked(read_run(file))
    for query, row in zip(query_ids, expected, strict=True):
        assert run.get(query, []) == [(doc_id, score) for score, doc_id in row]
    postings = sum(round(100 * float(w)) > 0 for w in documents.flat)
    assert (built["documents"], built["postings"]) == (2300, postings)
    assert built["indexed"] + built["empty"] == 2300
    assert built["empty"] > 0
    assert found["queries"] == 80
    assert found["mean_hits"] == sum(map(len, expected)) / 80


@pytest.mark.parametrize("threads", [1, 3])
def test_many_segments_give_the_same_hits(impact, tmp_path, monkeypatch, threads):
    """As in a large index, where Lucene searches groups of at most five segments side by side."""
    monkeypatch.setattr("splade_rescale.lucene._BUFFER_MB", 0.1)
    rng = np.random.default_rng(8)
    documents, queries = random_weights(rng, 4000, 60, 0.4, 4), random_weights(rng, 70, 60, 0.1, 4)
    ids, query_ids = [f"d{n}" for n in rng.permutation(4000)], [f"q{n}" for n in range(70)]
    file, *_ = impact(documents, ids, queries, query_ids, hits=15, threads=threads)
    assert len([*(tmp_path / "index").glob("*.si")]) > 5
    run = ranked(read_run(file))
    for query, row in zip(query_ids, dot_products(queries, documents, ids, 15), strict=True):
        assert run.get(query, []) == [(doc_id, score) for score, doc_id in row]


def test_real_weights_with_long_tails(impact):
    rng = np.random.default_rng(5)
    documents = np.log1p(np.maximum(rng.normal(-1, 3, (300, 500)), 0)).astype(np.float32)
    queries = np.log1p(np.maximum(rng.normal(-3, 2, (20, 500)), 0)).astype(np.float32)
    ids, query_ids = [f"d{n}" for n in range(300)], [f"q{n}" for n in range(20)]
    run = ranked(read_run(impact(documents, ids, queries, query_ids, hits=10)[0]))
    expected = dot_products(queries, documents, ids, 10)
    assert [run[q] for q in query_ids] == [[(i, s) for s, i in row] for row in expected]


def test_the_order_in_the_file_is_the_ranking(impact):
    """Greater ids first among equal scores, by code point: UTF-16 would put 😀 below ～."""
    ids = ["～", "b", "😀", "a", "10", "9"]
    documents = [[1.0], [1.0], [1.0], [2.0], [1.0], [1.0]]
    file = impact(documents, ids, [[1.0]], ["q"], hits=5)[0]
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert [tuple(line.split()[2:5]) for line in lines] == [
        ("a", "1", "20000"),
        ("😀", "2", "10000"),
        ("～", "3", "10000"),
        ("b", "4", "10000"),
        ("9", "5", "10000"),
    ]


def test_threads_and_shards_do_not_change_the_run(impact):
    rng = np.random.default_rng(2)
    documents, queries = random_weights(rng, 1500, 40, 0.1, 4), random_weights(rng, 90, 40, 0.1, 4)
    ids, query_ids = [f"d{n}" for n in range(1500)], [f"q{n}" for n in range(90)]
    runs = [
        impact(documents, ids, queries, query_ids, hits=20, shards=s, threads=t)[0].read_bytes()
        for s, t in ((1, 1), (5, 4))
    ]
    assert runs[0] == runs[1]


def test_the_largest_exact_score(impact):
    file, *_ = impact([[4095.0], [4094.0]], ["a", "b"], [[4097.0]], ["q"], factor=1)
    assert read_run(file) == {"q": {"a": 2**24 - 1, "b": 4094 * 4097}}


def test_weights_are_rounded_halves_to_even_and_zeros_are_not_indexed(impact):
    documents = [[0.125, 0.375, 0.004, 0.0051, 0.0]]
    file, built, _ = impact(documents, ["d"], np.eye(5) / 100, [*"abcde"])
    assert read_run(file) == {"a": {"d": 12}, "b": {"d": 38}, "d": {"d": 1}}
    assert built["postings"] == 3


def test_a_query_with_thousands_of_terms(impact):
    rng = np.random.default_rng(3)
    documents, query = rng.integers(0, 300, (40, 5000)) / 100, rng.integers(1, 300, (1, 5000)) / 100
    ids = [f"d{n}" for n in range(40)]
    run = ranked(read_run(impact(documents, ids, query, ["q"])[0]))
    assert run["q"] == [(i, np.float32(s)) for s, i in dot_products(query, documents, ids, 40)[0]]


def test_a_term_in_every_document_counts(impact):
    documents = [[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]
    file, *_ = impact(documents, [*"abc"], [[1.0, 0.0], [0.1, 5.0]], ["q", "r"])
    assert read_run(file) == {
        "q": {"a": 10000, "b": 20000, "c": 30000},
        "r": {"a": 1000, "b": 2000, "c": 53000},
    }


def test_a_corpus_of_one_document(impact):
    file, built, found = impact([[0.0, 1.5]], ["only"], [[1.0, 1.0], [1.0, 0.0]], ["q", "r"])
    assert read_run(file) == {"q": {"only": 15000}}
    assert (built["documents"], built["indexed"], built["empty"]) == (1, 1, 0)
    assert (found["queries"], found["queries_without_hits"], found["queries_empty"]) == (2, 1, 0)


def test_empty_vectors_are_counted_on_both_sides(impact):
    documents = [[0.0, 0.0], [1.0, 0.0], [0.004, 0.0], [0.0, 2.0]]
    file, built, found = impact(
        documents, [*"abcd"], [[0.0, 0.0], [0.001, 0.0], [1.0, 1.0]], ["none", "tiny", "q"]
    )
    assert read_run(file) == {"q": {"b": 10000, "d": 20000}}
    assert (built["documents"], built["indexed"], built["empty"]) == (4, 2, 2)
    assert built["empty_examples"] == ["a", "c"]
    assert (found["queries"], found["queries_without_hits"], found["queries_empty"]) == (3, 2, 2)


def test_a_corpus_that_encodes_to_nothing(impact, tmp_path):
    ids = [f"d{n}" for n in range(30)]
    file, built, found = impact(np.zeros((30, 4)), ids, np.ones((2, 4)), ["q", "r"], shards=2)
    assert read_run(file) == {}
    assert (built["documents"], built["indexed"], built["empty"]) == (30, 0, 30)
    assert built["postings"] == 0
    assert built["empty_examples"] == ids[:10]
    assert found["queries_without_hits"] == 2
    assert json.loads((tmp_path / "index" / "index.json").read_text()) == built


def test_no_queries(impact):
    file, _, found = impact([[1.0]], ["a"], np.zeros((0, 1)), [])
    assert read_run(file) == {}
    assert (found["queries"], found["mean_hits"]) == (0, 0)


def test_ids_of_any_kind_survive(impact, bm25):
    scores = {doc_id: 100.0 * (n + 1) for n, doc_id in enumerate(ODD_IDS)}
    weights = [[score / 10000] for score in scores.values()]
    file, *_ = impact(weights, ODD_IDS, np.ones((len(ODD_IDS), 1)), ODD_IDS)
    assert read_run(file) == {query: scores for query in ODD_IDS}
    texts = [f"apple {'pear ' * n}" for n in range(len(ODD_IDS))]
    run, *_ = bm25(
        {"doc_id": ODD_IDS, "text": texts}, {"query_id": ODD_IDS, "text": ["apple"] * len(ODD_IDS)}
    )
    assert {query: set(hits) for query, hits in run.items()} == {q: {*ODD_IDS} for q in ODD_IDS}


@pytest.mark.parametrize("own", [False, True])
def test_self_hits_are_removed_before_the_cut(impact, bm25, own):
    documents = [[4.0], [3.0], [2.0], [1.0]]
    file, *_ = impact(documents, [*"abcd"], [[1.0]] * 3, ["a", "d", "other"], hits=2, own=own)
    first = {"b": 30000, "c": 20000} if own else {"a": 40000, "b": 30000}
    both = {"a": 40000, "b": 30000}
    assert read_run(file) == {"a": first, "d": both, "other": both}
    texts = [f"apple {'pear ' * n}" for n in range(4)]
    run, *_ = bm25(
        {"doc_id": [*"abcd"], "text": texts},
        {"query_id": ["a"], "text": ["apple"]},
        hits=2,
        own=own,
    )
    assert set(run["a"]) == ({"b", "c"} if own else {"a", "b"})


def test_more_hits_wanted_than_java_can_count(impact):
    file, *_ = impact([[1.0], [2.0]], ["a", "b"], [[1.0]], ["q"], hits=2**31, own=True)
    assert read_run(file) == {"q": {"a": 10000, "b": 20000}}


def test_anserini_reads_the_impact_index_and_agrees(impact, tmp_path):
    from jnius import autoclass

    rng = np.random.default_rng(4)
    documents, query = random_weights(rng, 50, 30, 0.3, 400), random_weights(rng, 1, 30, 0.5, 400)
    ids = [f"d{n}" for n in range(50)]
    file, *_ = impact(documents, ids, query, ["q"])
    terms = autoclass("java.util.HashMap")()
    number = autoclass("java.lang.Integer")
    for term, weight in enumerate(query[0]):
        if round(100 * float(weight)):
            terms.put(f"t{term}", number(round(100 * float(weight))))
    searcher = autoclass("io.anserini.search.SimpleImpactSearcher")(str(tmp_path / "index"))
    hits = searcher.search(terms, 1000)
    assert {hit.docid: hit.score for hit in hits} == read_run(file)["q"]
    searcher.close()


CORPUS = {
    "doc_id": ["d1", "d2", "d3", "d4", "d5"],
    "title": ["Apples", "", "The pear", "", ""],
    "text": ["an apple a day", "pear pear apple", "green trees", "", "cherries of the house"],
}
# what is left of them: stop words go (an, a, the, of), Porter's stems stay
STEMS = [["appl", "appl", "dai"], ["pear", "pear", "appl"], ["pear", "green", "tree"]]
STEMS += [["cherri", "hous"]]


def bm25_by_hand(query, k1, b):
    average = sum(map(len, STEMS)) / len(STEMS)
    scores = {}
    for doc_id, stems in zip(["d1", "d2", "d3", "d5"], STEMS, strict=True):
        score = 0.0
        for term in query:
            having = sum(term in other for other in STEMS)
            idf = math.log(1 + (len(STEMS) - having + 0.5) / (having + 0.5))
            if count := stems.count(term):
                score += idf * count / (count + k1 * (1 - b + b * len(stems) / average))
        if score:
            scores[doc_id] = score
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.0), (2.0, 1.0)])
def test_bm25_equals_a_hand_calculation(bm25, tmp_path, k1, b):
    queries = {
        "one": ("apple", ["appl"]),
        "two": ("The pears, apples!", ["pear", "appl"]),
        "twice": ("apple apple green", ["appl", "appl", "green"]),
        "stops": ("of the an", []),
        "none": ("", []),
        "unknown": ("zebra", []),
    }
    texts = {"query_id": [*queries], "text": [text for text, _ in queries.values()]}
    run, built, found = bm25(CORPUS, texts, k1=k1, b=b)
    expected = {q: bm25_by_hand(stems, k1, b) for q, (_, stems) in queries.items() if stems}
    assert run == {q: pytest.approx(scores, rel=1e-6) for q, scores in expected.items()}
    assert (built["documents"], built["indexed"], built["empty"]) == (5, 4, 1)
    assert built["empty_examples"] == ["d4"]
    assert (found["queries"], found["queries_without_hits"]) == (6, 3)


def test_anserini_reads_the_bm25_index_and_agrees(bm25, tmp_path):
    from jnius import autoclass

    rng = np.random.default_rng(6)
    words = [f"word{chr(97 + n)}x" for n in range(20)]
    texts = [" ".join(rng.choice(words, rng.integers(1, 80))) for _ in range(60)]
    query = "wordax wordbx wordbx wordcx"
    run, *_ = bm25(
        {"doc_id": [f"d{n}" for n in range(60)], "text": texts},
        {"query_id": ["q"], "text": [query]},
        k1=1.1,
        b=0.6,
    )
    searcher = autoclass("io.anserini.search.SimpleSearcher")(str(tmp_path / "bm25"))
    searcher.set_bm25(1.1, 0.6)
    hits = searcher.search(query, 1000)
    # Anserini lowers each of several equal scores a little, so that their order is fixed
    assert {hit.docid: hit.score for hit in hits} == pytest.approx(run["q"], abs=1e-4)
    searcher.close()


def test_bm25_over_texts_that_are_all_empty(bm25):
    run, built, found = bm25(
        {"doc_id": ["a", "b"], "text": ["", "  "]}, {"query_id": ["q"], "text": ["apple"]}
    )
    assert run == {}
    assert (built["documents"], built["indexed"], built["empty"]) == (2, 0, 2)
    assert found["queries_without_hits"] == 1


def _cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def _other_matrix(path):
    np.savez(path, a=np.ones(3))


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (lambda d: (d / "b.npz").unlink(), "b.npz", "no such file"),
        (lambda d: _cut(d / "b.npz"), "b.npz", "not a readable sparse matrix"),
        (lambda d: (d / "b.npz").write_bytes(b""), "b.npz", "not a readable sparse matrix"),
        (lambda d: (d / "b.npz").write_text("text"), "b.npz", "not a readable sparse matrix"),
        (lambda d: _other_matrix(d / "b.npz"), "b.npz", "not a readable sparse matrix"),
        (lambda d: (d / "b.ids.parquet").unlink(), "b.ids.parquet", "no such file"),
        (lambda d: _cut(d / "b.ids.parquet"), "b.ids.parquet", "not a readable parquet"),
        (
            lambda d: pq.write_table(pa.table({"id": [1, 2]}), d / "b.ids.parquet"),
            "b.ids.parquet",
            "expected a string column 'id'; found id: int64",
        ),
        (
            lambda d: write_texts(d / "b.ids.parquet", {"id": ["x", None]}),
            "b.ids.parquet",
            "column id has a null",
        ),
        (
            lambda d: write_texts(d / "b.ids.parquet", {"id": ["x"]}),
            "b.ids.parquet",
            "1 ids for the 2 rows of b.npz",
        ),
        (
            lambda d: write_vectors(d / "b.npz", [[1, 0, 0], [1, 0, -0.5]], ["x", "y"]),
            "b.npz",
            r"row 1 .*, term 2: weight -0.5; expected finite weights >= 0",
        ),
        (
            lambda d: write_vectors(d / "b.npz", [[0, np.nan, 0], [1, 0, 1]], ["x", "y"]),
            "b.npz",
            "row 0 .*, term 1: weight nan",
        ),
        (
            lambda d: write_vectors(d / "b.npz", [[0, 0, 0], [np.inf, 0, 1]], ["x", "y"]),
            "b.npz",
            "row 1 .*, term 0: weight inf",
        ),
        (
            lambda d: write_vectors(d / "b.npz", [[0, 3e7, 0], [0, 0, 0]], ["x", "y"]),
            "b.npz",
            "row 0 .*, term 1: weight 30000000.0",
        ),
        (
            lambda d: write_vectors(d / "b.npz", [[0, 0, 0], [9e6, 9e6, 9e6]], ["x", "y"]),
            "b.npz",
            "row 1 .*: weights sum to 2700000000 .*expected less than 2\\^31",
        ),
        (
            lambda d: write_vectors(d / "b.npz", [[1, 2], [3, 4]], ["x", "y"]),
            "b.npz",
            "has 2 terms, the shards before it 3",
        ),
    ],
)
def test_bad_vectors_are_refused_and_an_older_index_stays(tmp_path, damage, name, message):
    shards = [write_vectors(tmp_path / f"{n}.npz", np.eye(3)[:2], [f"{n}1", f"{n}2"]) for n in "ab"]
    out = tmp_path / "index"
    before = build_impact_index(shards, out, IndexSettings())
    files = sorted(tmp_path.iterdir())
    damage(tmp_path)
    with pytest.raises(UserError, match=f"{name}: .*{message}"):
        build_impact_index(shards, out, IndexSettings())
    assert json.loads((out / "index.json").read_text()) == before
    assert set(tmp_path.iterdir()) <= set(files)  # nothing half-written
    if "shards" not in message:
        with pytest.raises(UserError, match=f"{name}: .*{message}"):
            search_impact(
                out,
                tmp_path / "b.npz",
                tmp_path / "run.trec.gz",
                SearchSettings(),
                remove_self_hits=False,
            )
        assert not (tmp_path / "run.trec.gz").exists()


def test_search_refuses_an_index_of_another_kind_or_none(impact, bm25, tmp_path):
    impact([[1.0, 2.0]], ["a"], [[1.0, 1.0]], ["q"])
    bm25({"doc_id": ["a"], "text": ["apple"]}, {"query_id": ["q"], "text": ["apple"]})
    out, settings = tmp_path / "new.trec.gz", SearchSettings()

    def by_vectors(index, queries="queries.npz"):
        search_impact(tmp_path / index, tmp_path / queries, out, settings, remove_self_hits=False)

    def by_text(index, queries="q.parquet"):
        search_bm25(
            tmp_path / index,
            tmp_path / queries,
            out,
            settings,
            Bm25Settings(),
            remove_self_hits=False,
        )

    with pytest.raises(UserError, match=r"bm25/index\.json: .* 'impact', found 'bm25'"):
        by_vectors("bm25")
    with pytest.raises(UserError, match=r"index/index\.json: .* 'bm25', found 'impact'"):
        by_text("index")
    with pytest.raises(UserError, match=r"nothing/index\.json: no such file"):
        by_text("nothing")
    assert not (tmp_path / "nothing").exists()
    write_vectors(tmp_path / "wide.npz", np.ones((1, 3)), ["q"])
    with pytest.raises(UserError, match=r"wide\.npz: has 3 terms, the documents in .*index have 2"):
        by_vectors("index", "wide.npz")
    with pytest.raises(UserError, match=r"c\.parquet: expected a string column 'query_id'"):
        by_text("bm25", "c.parquet")
    next((tmp_path / "index").glob("segments_*")).unlink()
    with pytest.raises(UserError, match=r"index/segments_\w+: no such file"):
        by_vectors("index")
    for file in (tmp_path / "bm25").glob("_*.si"):
        file.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"bm25/_\w+\.si: its SHA-256 is not that"):
        by_text("bm25")
    # Of an index without sums Lucene says itself what it can.
    (tmp_path / "index" / "SHA256SUMS").unlink()
    (tmp_path / "bm25" / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match="index: not a readable Lucene index"):
        by_vectors("index")
    with pytest.raises(UserError, match="bm25: not a readable Lucene index"):
        by_text("bm25")
    assert not out.exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"doc_id": ["a"], "title": ["t"]}, "expected a string column 'text'"),
        ({"doc_id": ["a"], "title": [None], "text": ["t"]}, "column title has a null"),
    ],
)
def test_a_bad_corpus_is_refused(tmp_path, columns, message):
    corpus = write_texts(tmp_path / "c.parquet", columns)
    with pytest.raises(UserError, match=rf"c\.parquet: {message}"):
        build_bm25_index(corpus, tmp_path / "index")
    assert [*tmp_path.iterdir()] == [corpus]


def test_a_shard_given_twice_is_refused(tmp_path):
    shard = write_vectors(tmp_path / "a.npz", np.ones((1, 3)), ["a"])
    same = tmp_path / "x" / ".." / "a.npz"
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match=r"a\.npz: given more than once"):
        build_impact_index([shard, same], tmp_path / "index", IndexSettings())
    assert not (tmp_path / "index").exists()


def test_what_is_no_index_is_left_alone(tmp_path):
    columns = {"doc_id": ["a"], "title": [""], "text": ["t"]}
    (tmp_path / "mine").mkdir()
    corpus = write_texts(tmp_path / "mine" / "c.parquet", columns)
    with pytest.raises(UserError, match=r"mine: exists and holds no index\.json"):
        build_bm25_index(corpus, tmp_path / "mine")
    assert [*corpus.parent.iterdir()] == [corpus]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_lucene_refuses_is_named_and_leaves_nothing(tmp_path, threads):
    ids = ["a", "x" * 40_000]
    shard = write_vectors(tmp_path / "a.npz", np.ones((2, 3)), ids)
    before = set(tmp_path.iterdir())
    message = r"(?s)index: indexing failed: java\.lang\.IllegalArgumentException: .*immense term"
    with pytest.raises(RuntimeError, match=message):
        build_impact_index([shard], tmp_path / "index", IndexSettings(), threads=threads)
    assert set(tmp_path.iterdir()) == before


def test_a_bar_is_shown_only_when_asked_for(impact, tmp_path, capfd):
    impact(np.eye(3), [*"abc"], np.eye(3), [*"abc"])
    assert capfd.readouterr().err == ""
    build_impact_index(
        [tmp_path / "corpus-0.npz"], tmp_path / "new", IndexSettings(), progress=True
    )
    assert "3/3" in capfd.readouterr().err
    search_impact(
        tmp_path / "new",
        tmp_path / "queries.npz",
        tmp_path / "run.trec.gz",
        SearchSettings(),
        remove_self_hits=False,
        progress=True,
    )
    assert "3/3" in capfd.readouterr().err


def test_kill_9_while_indexing_leaves_nothing_that_passes_for_an_index(tmp_path):
    ids = [f"d{n}" for n in range(1500)]
    first = write_vectors(tmp_path / "first.npz", np.ones((1500, 4)), ids)
    second = write_vectors(tmp_path / "second.npz", np.ones((2, 4)), ["x", "y"])
    out = tmp_path / "results" / "index"
    command = [sys.executable, "-m", "splade_rescale", "index", "impact", out, first, second]
    command += ["--threads", "1"]
    # a pipe that nobody writes to stops the command after the first shard
    whole = second.read_bytes()
    second.unlink()
    os.mkfifo(second)
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + 60
        while not [*tmp_path.glob("results/.index.*.tmp/write.lock")]:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not out.exists()
    assert len([*out.parent.iterdir()]) == 1
    second.unlink()
    second.write_bytes(whole)
    subprocess.run(command, check=True)
    assert [*out.parent.iterdir()] == [out]
    assert json.loads((out / "index.json").read_text())["indexed"] == 1502

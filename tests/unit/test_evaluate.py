import json
from math import log2

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytrec_eval
from splade_rescale.errors import UserError
from splade_rescale.evaluate import check_measures, evaluate, read_qrels, score_run, write_metrics
from splade_rescale.runs import write_run

MEASURES = ["nDCG@10", "RR@10", "R@100", "R(rel=2)@1000", "AP", "P@5", "Success@1"]

# Graded judgements, one below 0 (spam); `missing` has no hits, `nothing` no relevant document.
QRELS = {
    "graded": {"d1": 3, "d2": 2, "d3": 1, "d4": 0, "d5": -1, "d6": 2},
    "tied": {"b": 1},
    "missing": {"d1": 1, "d2": 2},
    "nothing": {"d1": 0},
}
# Order: d5, x, d2, d4, d1 (d1 and d4 are equal: the greater id comes first), then 5 others, d3;
# d6 is not found. `tied`: c, b, a.
RUN = {
    "graded": {
        **{"d5": 9.0, "x": 8.0, "d2": 7.0, "d1": 6.0, "d4": 6.0, "d3": 0.5},
        **{f"y{n}": 5.0 for n in range(5)},
    },
    "tied": {"a": 1.0, "b": 1.0, "c": 1.0},
    "nothing": {"d1": 2.0, "z": 1.0},
    "not judged": {"d1": 1.0},
}
IDEAL = 3 / log2(2) + 2 / log2(3) + 2 / log2(4) + 1 / log2(5)
EXPECTED = {
    "graded": {
        "nDCG@10": (2 / log2(4) + 3 / log2(6)) / IDEAL,
        "RR@10": 1 / 3,
        "R@100": 3 / 4,
        "R(rel=2)@1000": 2 / 3,
        "AP": (1 / 3 + 2 / 5 + 3 / 11) / 4,
        "P@5": 2 / 5,
        "Success@1": 0,
    },
    "tied": {
        "nDCG@10": 1 / log2(3),
        "RR@10": 1 / 2,
        "R@100": 1,
        "R(rel=2)@1000": 0,
        "AP": 1 / 2,
        "P@5": 1 / 5,
        "Success@1": 0,
    },
    "missing": dict.fromkeys(MEASURES, 0),
    "nothing": dict.fromkeys(MEASURES, 0),
}


def write_qrels(path, rows):
    frame = pd.DataFrame(rows, columns=["query_id", "doc_id", "relevance"])
    frame.to_parquet(path, index=False)
    return path


@pytest.fixture
def files(tmp_path):
    rows = [(q, d, rel) for q, judged in QRELS.items() for d, rel in judged.items()]
    results = [
        (q, sorted(hits.items(), key=lambda hit: (hit[1], hit[0]), reverse=True))
        for q, hits in RUN.items()
    ]
    write_run(tmp_path / "run.trec.gz", results, "tag")
    return tmp_path / "run.trec.gz", write_qrels(tmp_path / "qrels.parquet", rows)


def test_measures_equal_the_hand_calculation(files):
    means, frame = evaluate(*files, MEASURES)
    per_query = frame.pivot(index="query_id", columns="measure", values="value").to_dict("index")
    assert per_query == {q: pytest.approx(values) for q, values in EXPECTED.items()}
    assert means == pytest.approx({m: sum(v[m] for v in EXPECTED.values()) / 4 for m in MEASURES})
    assert [*means] == MEASURES
    assert frame[["measure", "query_id"]].to_numpy().tolist() == [
        [m, q] for m in MEASURES for q in QRELS
    ]


def test_measures_equal_trec_evals_own(files):
    """trec_eval itself on the scores with their ties, its own names, mean as with `-c`."""
    names = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "AP": "map", "P@5": "P_5"}
    judge = pytrec_eval.RelevanceEvaluator(QRELS, {"ndcg_cut", "recall", "map", "P"})
    values = judge.evaluate({q: hits for q, hits in RUN.items() if q in QRELS})
    means, _ = evaluate(*files, [*names])
    assert means == pytest.approx(
        {m: sum(v[name] for v in values.values()) / len(QRELS) for m, name in names.items()}
    )


@pytest.mark.parametrize(("rank", "value"), [(1, 1.0), (10, 0.1), (11, 0.0)])
def test_the_cutoff_of_reciprocal_rank(rank, value):
    hits = {f"d{n:02d}": 100.0 - n for n in range(1, 13)}
    means, _ = score_run({"q": hits}, {"q": {f"d{rank:02d}": 1}}, ["RR@10", "RR"])
    assert means == {"RR@10": pytest.approx(value), "RR": pytest.approx(1 / rank)}


@pytest.mark.parametrize(
    ("scores", "rank"),
    [
        ((1.0, 1.0), 2),
        # equal in single precision, as trec_eval compares
        ((16777216.0, 16777217.0), 2),
        ((1 + 1e-9, 1.0), 2),
        ((1 + 1e-6, 1.0), 1),
        ((-2.0, -1.0), 2),
    ],
)
def test_equal_scores_are_ordered_by_id_for_every_measure(scores, rank):
    """Reciprocal rank with a cutoff comes from another judge, with another order of ties."""
    run = {"q": dict(zip("ab", scores, strict=True))}
    means, _ = score_run(run, {"q": {"a": 1}}, ["RR@10", "RR", "nDCG@10", "P@1"])
    assert means == pytest.approx(
        {"RR@10": 1 / rank, "RR": 1 / rank, "nDCG@10": 1 / log2(rank + 1), "P@1": float(rank == 1)}
    )


def test_ids_are_ordered_by_code_point():
    """UTF-16, which Java and others compare, would put 😀 first."""
    means, _ = score_run({"q": {"～": 1.0, "😀": 1.0}}, {"q": {"😀": 1}}, ["RR@10"])
    assert means == {"RR@10": 1.0}


def test_a_run_without_hits_scores_0():
    means, frame = score_run({}, QRELS, MEASURES)
    assert means == dict.fromkeys(MEASURES, 0.0)
    assert len(frame) == len(QRELS) * len(MEASURES)


def test_written_files(files, tmp_path):
    out = tmp_path / "deep" / "metrics.json", tmp_path / "deep" / "per_query.parquet"
    summary = write_metrics(*files, MEASURES, *out)
    assert json.loads(out[0].read_text()) == summary
    assert summary["measures"] == evaluate(*files, MEASURES)[0]
    assert {k: v for k, v in summary.items() if k != "measures"} == {
        "queries": 4,
        "queries_without_hits": 1,
        "queries_not_judged": 1,
    }
    pd.testing.assert_frame_equal(pd.read_parquet(out[1]), evaluate(*files, MEASURES)[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ndcg@10", r"unknown measure 'ndcg@10'; is nDCG@10 meant\?"),
        ("rr@10", r"is RR@10 meant\?"),
        ("MRR@10", r"is RR@10 meant\?"),
        ("recall_100", r"is R@100 meant\?"),
        ("ndcg_cut_10", r"is nDCG@10 meant\?"),
        ("nDCG@10 ", r"is nDCG@10 meant\?"),
        ("nDGC@10", r"unknown measure 'nDGC@10' \(valid are for example nDCG@10, RR@10"),
        ("", "unknown measure ''"),
        ("nDCG@0", "cutoff and rel must be at least 1"),
        ("R(rel=0)@10", "cutoff and rel must be at least 1"),
        ("P@-1", "unknown measure 'P@-1'"),
        ("nDCG@2.5", "measure 'nDCG@2.5': cutoff is missing or wrong"),
        ("R", "measure 'R': cutoff is missing or wrong"),
        ("ERR@20", "measure 'ERR@20' is not available"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_read(tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        check_measures(["RR@10", name])
    nothing = tmp_path / "nothing"
    with pytest.raises(UserError, match=message):
        write_metrics(nothing, nothing, [name], tmp_path / "m.json", tmp_path / "p.parquet")
    assert [*tmp_path.iterdir()] == []


def test_a_name_twice_is_refused():
    with pytest.raises(UserError, match=r"measures stand twice: R@100, RR@10"):
        check_measures(["RR@10", "R@100", "RR@10", "AP", "R@100"])


def test_right_names_pass():
    assert [str(measure) for measure in check_measures(MEASURES)] == MEASURES


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"query_id": ["q"], "doc_id": ["d"]},
            "no column relevance; found query_id, doc_id",
        ),
        ({"query_id": ["q"], "doc_id": ["d"], "relevance": [1.5]}, "relevance is of type double"),
        ({"query_id": [7], "doc_id": ["d"], "relevance": [1]}, "query_id is of type int64"),
        (
            {"query_id": ["q", None], "doc_id": ["d", "e"], "relevance": [1, 1]},
            "query_id is of type string with 1 nulls",
        ),
        (
            {"query_id": ["q", "q"], "doc_id": ["d", "d"], "relevance": [1, 0]},
            "query 'q', document 'd': judged 1 and 0",
        ),
        (
            {
                "query_id": pa.array([], pa.string()),
                "doc_id": pa.array([], pa.string()),
                "relevance": pa.array([], pa.int64()),
            },
            "no judgements",
        ),
    ],
)
def test_bad_qrels_are_named(tmp_path, table, message):
    path = tmp_path / "qrels.parquet"
    pq.write_table(pa.table(table), path)
    with pytest.raises(UserError, match=f"qrels.parquet: .*{message}"):
        read_qrels(path)


def test_qrels_that_are_no_file_or_no_parquet(tmp_path):
    path = tmp_path / "qrels.parquet"
    with pytest.raises(UserError, match=r"qrels\.parquet: no such file"):
        read_qrels(path)
    path.write_text("q 0 d 1\n")
    with pytest.raises(UserError, match=r"qrels\.parquet: not a readable parquet file"):
        read_qrels(path)


def test_an_equal_judgement_twice_is_one(tmp_path):
    path = write_qrels(tmp_path / "q.parquet", [("007", "d", 1), ("007", "d", 1), ("7", "d", 2)])
    assert read_qrels(path) == {"007": {"d": 1}, "7": {"d": 2}}

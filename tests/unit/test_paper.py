import math

import pandas as pd
import pytest
from splade_rescale.errors import UserError
from splade_rescale.figures import curves, flops_against_score, points, score_against_k
from splade_rescale.paper import BEIR_13, CQADUPSTACK, beir, mean_of, table1, table2, verdict
from splade_rescale.settings import PaperSettings

SETTINGS = PaperSettings()
EMPTY = math.nan


def cell(dataset, backbone="roberta", k="16", seed=42, arm="", **values):
    row = {"arm": arm, "dataset": dataset, "backbone": backbone, "k": k, "seed": seed}
    row |= {"status": "ok", "FLOPS": 2.0, "k_used": 16.0 if k == "auto" else float(k or "nan")}
    return row | {key.replace("_at_", "@"): value for key, value in values.items()}


def grid(**key):
    """One model on all data sets of Table 2; BEIR's values are .1, .2, ..., 1.3."""
    rows = [
        cell("msmarco-dev", **key, RR_at_10=0.25, R_at_1000=0.95),
        cell("trec-dl-2019", **key, nDCG_at_10=0.6),
    ]
    rows += [cell(name, **key, nDCG_at_10=i / 10) for i, name in enumerate(BEIR_13, start=1)]
    return rows


PUBLISHED = {
    ("roberta", "16", "msmarco-dev", "RR@10"): 0.245,
    ("roberta", "16", "beir-13", "nDCG@10"): 0.5,
    ("bert-base", "1", "msmarco-dev", "RR@10"): 0.254,
    ("roberta", "", "", "norm_mean"): 3.645,
    ("albert", "", "", "norm_mean"): 0.407,
}


def test_thirteen_sets():
    assert len(set(BEIR_13)) == 13
    assert len(set(CQADUPSTACK)) == 12


@pytest.mark.parametrize(
    ("ours", "published", "word"),
    [(0.25, 0.26, "reproduced"), (0.25, 0.2401, "reproduced"), (0.25, 0.2399, "differs"),
     (EMPTY, 0.2, ""), (0.2, EMPTY, "")],
)  # fmt: skip
def test_verdict(ours, published, word):
    assert verdict(ours, published, 0.01) == word


def test_table_2_has_published_values_beside_ours():
    table = table2(pd.DataFrame(grid()), PUBLISHED, SETTINGS).set_index(["backbone", "k"])
    row = table.loc[("roberta", "16")]
    assert row["msmarco-dev RR@10"] == 0.25
    assert row["msmarco-dev RR@10 difference"] == pytest.approx(0.005)
    assert row["msmarco-dev RR@10 verdict"] == "reproduced"
    assert row["beir-13 nDCG@10"] == pytest.approx(0.7)
    assert row["beir-13 nDCG@10 verdict"] == "differs"
    assert row["trec-dl-2019 nDCG@10 verdict"] == ""
    assert row["missing"] == ""
    assert not [column for column in table if column.endswith("std")]


def test_a_published_row_that_was_not_run_is_empty_and_named():
    table = table2(pd.DataFrame(grid()), PUBLISHED, SETTINGS).set_index(["backbone", "k"])
    row = table.loc[("bert-base", "1")]
    assert math.isnan(row["msmarco-dev RR@10"])
    assert row["msmarco-dev RR@10 published"] == 0.254
    assert row["missing"] == "not run"


def test_a_mean_without_one_data_set_is_refused_unless_asked_for():
    rows = [row for row in grid() if row["dataset"] not in ("nq", "trec-dl-2019")]
    row = table2(pd.DataFrame(rows), {}, SETTINGS).iloc[0]
    assert math.isnan(row["beir-13 nDCG@10"])
    assert math.isnan(row["trec-dl-2019 nDCG@10"])
    assert row["missing"] == "trec-dl-2019 nDCG@10; beir-13: 12 of 13, no nq"
    row = table2(pd.DataFrame(rows), {}, PaperSettings(partial_means=True)).iloc[0]
    assert row["beir-13 nDCG@10"] == pytest.approx((9.1 - 0.8) / 12)
    assert "beir-13: 12 of 13, no nq" in row["missing"]


def test_seeds_have_mean_and_spread():
    rows = grid() + grid(seed=7)
    rows[15]["RR@10"] = 0.35
    row = table2(pd.DataFrame(rows), PUBLISHED, SETTINGS).iloc[0]
    assert row["seeds"] == 2
    assert row["msmarco-dev RR@10"] == pytest.approx(0.3)
    assert row["msmarco-dev RR@10 std"] == pytest.approx(0.1 / math.sqrt(2))
    assert row["trec-dl-2019 nDCG@10 std"] == 0


def test_a_seed_that_lacks_a_value_leaves_the_mean_empty():
    rows = grid() + grid(seed=7)[1:]
    row = table2(pd.DataFrame(rows), PUBLISHED, SETTINGS).iloc[0]
    assert math.isnan(row["msmarco-dev RR@10"])
    assert row["missing"] == "msmarco-dev RR@10; msmarco-dev R@1000"


def test_arms_have_rows_without_published_values():
    rows = grid() + grid(arm="untied")
    table = table2(pd.DataFrame(rows), PUBLISHED, SETTINGS)
    assert list(table.arm) == ["", "untied", ""]
    assert math.isnan(table.iloc[1]["msmarco-dev RR@10 published"])
    assert table.iloc[1]["msmarco-dev RR@10"] == 0.25


def test_table_1():
    norms = pd.DataFrame(
        {"backbone": ["roberta", "mine"], "mean": ["3.66", "1.0"], "max": ["4.5", "2.0"],
         "anisotropy": ["0.02", "0.1"]}
    )  # fmt: skip
    table = table1(norms, PUBLISHED, SETTINGS).set_index("backbone")
    assert list(table.index) == ["roberta", "mine", "albert"]
    assert table.loc["roberta", "norm_mean difference"] == pytest.approx(0.015)
    assert table.loc["roberta", "norm_mean verdict"] == "reproduced"
    assert table.loc["mine", "norm_mean verdict"] == ""
    assert math.isnan(table.loc["albert", "norm_mean"])
    assert table.loc["albert", "missing"] == "not measured"


def test_beir_table_and_the_twelve_forums():
    forums = [cell(name, nDCG_at_10=0.25) for name in CQADUPSTACK]
    baseline = cell("nq", backbone="bm25", k=None, seed=None, nDCG_at_10=0.3)
    table = beir(pd.DataFrame([baseline, *grid(), *forums]), SETTINGS)
    assert list(table.backbone) == ["bm25", "roberta"]
    assert table.iloc[1]["cqadupstack"] == 0.25
    assert table.iloc[1]["beir-13"] == pytest.approx(0.7)
    assert table.iloc[0]["nq"] == 0.3
    assert math.isnan(table.iloc[0]["beir-13"])
    table = beir(pd.DataFrame([*grid(), *forums[1:]]), SETTINGS)
    assert "cqadupstack" not in table
    assert table.iloc[0]["missing"] == "cqadupstack: 11 of 12, no cqadupstack-android"
    assert "cqadupstack" not in beir(pd.DataFrame(grid()), SETTINGS)
    with pytest.raises(UserError, match="no column nDCG@10"):
        beir(pd.DataFrame([cell("x", RR_at_10=1)]), SETTINGS)


def test_mean_of_nothing_is_empty():
    value, missing = mean_of(pd.Series(dtype=float), ("a", "b"), partial=True)
    assert math.isnan(value)
    assert missing == ["a", "b"]


def test_figures_and_their_data(tmp_path):
    rows = [*grid(k="1"), *grid(k="16"), *grid(k="16", seed=7), *grid(arm="untied")]
    rows[0]["status"] = "collapsed-zero"
    headline = dict.fromkeys([row["dataset"] for row in rows], "nDCG@10")
    headline["msmarco-dev"] = "RR@10"
    data = points(pd.DataFrame(rows), headline)
    assert len(data) == 2 * 16
    beir_13 = data[data.dataset == "beir-13"]
    assert beir_13.score.tolist() == pytest.approx([0.7, 0.7])
    for draw in (flops_against_score, score_against_k):
        path = tmp_path / f"{draw.__name__}.svg"
        draw(data, path)
        first = path.read_bytes()
        assert b"beir-13" in first
        assert len(pd.read_csv(path.with_suffix(".csv"))) == len(data)
        draw(data, path)
        assert path.read_bytes() == first
    log = pd.DataFrame(
        {"arm": "", "backbone": "b", "k": ["1", "1", "auto"], "seed": 1, "step": [1, 2, 1],
         "loss": [900.0, math.inf, 2.0]}
    )  # fmt: skip
    curves(log, "loss", "training loss", tmp_path / "curves.svg")
    assert b"k = auto" in (tmp_path / "curves.svg").read_bytes()

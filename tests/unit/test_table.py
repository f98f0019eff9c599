import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from splade_rescale.cells import CellFiles, cells_of
from splade_rescale.config import ArmGrid, Grid
from splade_rescale.errors import UserError
from splade_rescale.norms_table import write_norms_tables
from splade_rescale.table import build_table, format_table, read_table, write_table

QUERIES = ["q1", "007", "q 3", "é"]
MEASURES = {"alpha": ["nDCG@10", "R@100"], "beta": ["RR@10"]}
MAIN = ArmGrid(backbones=["two", "one"], scales=["16", "1", "0.5"], seeds=[7])
GRID = Grid(
    arms={"": MAIN},
    measures=MEASURES,
    corpora={dataset: dataset for dataset in MEASURES},
    baselines=["bm25"],
    baseline_backbone="one",
)


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def values_of(backbone, k, dataset):
    rng = np.random.default_rng(sum(map(ord, f"{backbone}{k}{dataset}")))
    return rng.uniform(size=len(QUERIES)).round(3)


def write_measured(folder, measures, values):
    """Measures of a run; `values` are the headline's, the others are half of them."""
    rows = [
        {"query_id": query, "measure": measure, "value": value / (1 + i)}
        for i, measure in enumerate(measures)
        for query, value in zip(QUERIES, values, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    frame.sample(frac=1, random_state=0).to_parquet(folder / "per_query.parquet", index=False)
    means = frame.groupby("measure")["value"].mean()
    write(folder / "metrics.json", {"measures": {m: means[m] for m in measures}})
    write(folder / "index" / "index.json", {"bytes": 2_500_000})
    compared = {"engine": "bmp", "exact_queries": 3, "exact_recall@10": 0.95}
    write(folder / "search.json", {"ms_per_query": 1.25, **compared})


@pytest.fixture
def results(tmp_path):
    results = tmp_path / "results"
    for dataset, measures in MEASURES.items():
        write_measured(results / "bm25" / dataset, measures, values_of("bm25", "", dataset))
        for backbone in MAIN.backbones:
            for k in MAIN.scales:
                folder = results / backbone / f"k{k}" / "seed7" / dataset
                write_measured(folder, measures, values_of(backbone, k, dataset))
                sparse = {"active_terms_q": 3.5, "active_terms_d": 80.25, "flops": 0.125}
                write(folder / "sparsity.json", {**sparse, "empty_documents": 2})
                for shard, (texts, seconds) in enumerate([(100, 2.0), (50, 3.0)]):
                    write(
                        folder / "vectors" / f"corpus-0000{shard}-of-00002.json",
                        {"texts": texts, "seconds": seconds, "shards": 2},
                    )
    for backbone in MAIN.backbones:
        for k in MAIN.scales:
            init = {
                "k": float(k),
                "norms_before": {"mean": 4.0},
                "norms_after": {"mean": 4.0 / float(k)},
            }
            write(results / backbone / f"k{k}" / "init" / "rescale.json", init)
            trained = {"status": "ok", "first_loss": 9.5, "last_loss": 0.25}
            trained |= {"seconds": 61.0, "examples_per_second": 20.5}
            write(results / backbone / f"k{k}" / "seed7" / "model" / "train.json", trained)
    return results


def build(results, **other):
    return build_table(cells_of(GRID, results), baseline="one", **other)


def row_of(table, dataset, backbone, k):
    rows = table[(table.dataset == dataset) & (table.backbone == backbone)]
    rows = rows[rows.k.isna()] if k is None else rows[rows.k == k]
    assert len(rows) == 1
    return rows.iloc[0]


def edit(path, **changes):
    write(path, {**json.loads(path.read_text()), **changes})


def test_rows_are_in_order(results):
    table = build(results)
    keys = [("bm25", None)]
    keys += [(backbone, k) for backbone in ("two", "one") for k in ("0.5", "1", "16")]
    expected = [(dataset, *key) for dataset in ("alpha", "beta") for key in keys]
    found = table[["dataset", "backbone", "k"]].astype(object)
    assert list(found.where(found.notna(), None).itertuples(index=False, name=None)) == expected


def test_k_and_seed_sort_by_number_and_names_last(results):
    cells = [
        CellFiles.of_cell(results, "one", k, seed, "beta", ["RR@10"])
        for k in ("auto", "10", "2", "0.25")
        for seed in (42, 7)
    ]
    from splade_rescale.table import _sorted

    assert [(cell.k, cell.seed) for cell in _sorted(cells)] == [
        (k, seed) for k in ("0.25", "2", "10", "auto") for seed in (7, 42)
    ]


def test_values_of_a_cell(results):
    row = row_of(build(results), "alpha", "two", "16")
    values = values_of("two", "16", "alpha")
    assert row["nDCG@10"] == pytest.approx(values.mean())
    assert row["R@100"] == pytest.approx(values.mean() / 2)
    assert pd.isna(row["RR@10"])
    assert row["seed"] == 7
    assert row["status"] == "ok"
    assert row["norm_before"] == 4
    assert row["norm_after"] == 0.25
    assert row["first_loss"] == 9.5
    assert row["last_loss"] == 0.25
    assert row["active_terms_q"] == 3.5
    assert row["active_terms_d"] == 80.25
    assert row["FLOPS"] == 0.125
    assert row["empty_documents"] == 2
    assert row["engine"] == "bmp"
    assert row["exact_recall@10"] == 0.95
    assert row["index_mb"] == 2.5
    assert row["ms_per_query"] == 1.25
    assert row["train_seconds"] == 61
    assert row["examples_per_second"] == 20.5
    assert row["docs_per_second"] == 150 / 5


def test_bm25_has_measures_and_an_index_and_nothing_else(results):
    row = row_of(build(results), "alpha", "bm25", None)
    assert row["nDCG@10"] == pytest.approx(values_of("bm25", "", "alpha").mean())
    assert row["index_mb"] == 2.5
    filled = set(row[row.notna()].index)
    assert filled == {"arm", "dataset", "backbone", "nDCG@10", "R@100", "index_mb", "ms_per_query"}


def test_without_exact_hits_there_is_no_recall(results):
    path = results / "two" / "k1" / "seed7" / "alpha" / "search.json"
    edit(path, **{"exact_queries": 0, "exact_recall@10": None})
    assert math.isnan(row_of(build(results), "alpha", "two", "1")["exact_recall@10"])
    edit(path, exact_queries=1)
    with pytest.raises(
        UserError, match=r"search\.json: exact_recall@10 is None, expected a number"
    ):
        build(results)


def test_significance_is_the_paired_t_test_by_query(results):
    table = build(results)
    ours = values_of("two", "16", "alpha")
    for name, theirs in {
        "k1": values_of("two", "1", "alpha"),
        "baseline": values_of("one", "1", "alpha"),
    }.items():
        difference = ours - theirs
        n = len(difference)
        t = difference.mean() / (difference.std(ddof=1) / math.sqrt(n))
        row = row_of(table, "alpha", "two", "16")
        assert row[f"delta_vs_{name}"] == pytest.approx(difference.mean())
        assert row[f"p_vs_{name}"] == pytest.approx(2 * stats.t.sf(abs(t), n - 1))


def test_a_cell_is_not_compared_with_itself(results):
    table = build(results)
    names = ["delta_vs_k1", "p_vs_k1", "delta_vs_baseline", "p_vs_baseline"]
    assert row_of(table, "beta", "one", "1")[names].isna().all()
    row = row_of(table, "beta", "two", "1")
    assert row[names].isna().tolist() == [True, True, False, False]


def test_equal_results_have_p_1(results):
    folder = results / "two" / "k16" / "seed7" / "beta"
    write_measured(folder, MEASURES["beta"], values_of("one", "1", "beta"))
    row = row_of(build(results), "beta", "two", "16")
    assert row["delta_vs_baseline"] == 0
    assert row["p_vs_baseline"] == 1


def test_without_k1_in_the_grid_nothing_is_compared(results):
    grid = GRID.model_copy(update={"arms": {"": MAIN.model_copy(update={"scales": ["16"]})}})
    table = build_table(cells_of(grid, results), baseline="one")
    assert table[["p_vs_k1", "p_vs_baseline"]].isna().all().all()


def test_other_queries_than_the_compared_cell_are_an_error(results):
    path = results / "two" / "k16" / "seed7" / "alpha" / "per_query.parquet"
    frame = pd.read_parquet(path)
    frame[frame.query_id != "007"].to_parquet(path)
    with pytest.raises(UserError, match=r"k16.*per_query\.parquet and .*k1/.*not the same queries"):
        build(results)


@pytest.mark.parametrize("status", ["diverged", "collapsed-zero", "collapsed-dense"])
def test_status_is_carried(status, results, tmp_path):
    edit(results / "two" / "k1" / "seed7" / "model" / "train.json", status=status)
    table = build(results)
    assert list(table[table.status == status].dataset) == ["alpha", "beta"]
    assert row_of(table, "alpha", "two", "1")["status"] == status
    assert status in format_table(table)


def test_a_loss_that_diverged_is_written_as_nan_and_not_as_nothing(results, tmp_path):
    path = results / "two" / "k1" / "seed7" / "model" / "train.json"
    edit(path, status="diverged", first_loss=1e4, last_loss=None)
    write_table(build(results), tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    fields = dict(zip(lines[0].split(","), lines[3].split(","), strict=True))
    assert (fields["backbone"], fields["k"], fields["status"]) == ("two", "1", "diverged")
    assert (fields["first_loss"], fields["last_loss"]) == ("10000.0000", "nan")
    bm25 = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert (bm25["backbone"], bm25["first_loss"], bm25["last_loss"]) == ("bm25", "", "")
    edit(path, status="ok")
    with pytest.raises(UserError, match=r"train\.json: last_loss is None, expected a number"):
        build(results)


FILES = [
    "bm25/alpha/metrics.json",
    "bm25/alpha/per_query.parquet",
    "bm25/beta/index/index.json",
    "bm25/beta/search.json",
    "two/k16/init/rescale.json",
    "two/k16/seed7/model/train.json",
    "two/k16/seed7/beta/metrics.json",
    "two/k16/seed7/beta/per_query.parquet",
    "two/k16/seed7/beta/sparsity.json",
    "two/k16/seed7/beta/index/index.json",
    "two/k16/seed7/beta/search.json",
    "two/k16/seed7/beta/vectors/corpus-00000-of-00002.json",
    "two/k16/seed7/beta/vectors/corpus-00001-of-00002.json",
]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name, results):
    (results / name).unlink()
    with pytest.raises(UserError, match=f"{results / name}: no such file"):
        build(results)


@pytest.mark.parametrize("name", FILES)
def test_half_a_file_is_named(name, results):
    content = (results / name).read_bytes()
    (results / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=f"{results / name}: not "):
        build(results)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_an_empty_object_is_named(name, results):
    write(results / name, {})
    with pytest.raises(UserError, match=f"{results / name}: has no "):
        build(results)


def test_no_shard_at_all_is_an_error(results):
    folder = results / "two" / "k16" / "seed7" / "beta" / "vectors"
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(UserError, match=f"{folder}: no corpus"):
        build(results)


def test_shards_of_two_runs_are_an_error(results):
    folder = results / "two" / "k16" / "seed7" / "beta" / "vectors"
    shard = {"texts": 1, "seconds": 1.0, "shards": 3}
    write(folder / "corpus-00002-of-00003.json", shard)
    with pytest.raises(UserError, match=f"{folder}: shards of two runs"):
        build(results)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("two/k1/seed7/model/train.json", {"status": "fine"}, "status is 'fine', expected one of"),
        ("two/k1/seed7/model/train.json", {"last_loss": None}, "last_loss is None, expected a nu"),
        ("two/k1/seed7/model/train.json", {"last_loss": "0.1"}, "last_loss is '0.1', expected a"),
        ("two/k1/seed7/alpha/sparsity.json", {"flops": math.nan}, "flops is nan, expected a fini"),
        ("two/k1/seed7/alpha/metrics.json", {"measures": {"nDCG@10": 0.5}}, r"no measures\.R@100"),
        (
            "two/k1/seed7/alpha/metrics.json",
            {"measures": {"nDCG@10": math.nan, "R@100": 0.5}},
            "measures.nDCG@10 is nan",
        ),
    ],
)
def test_a_value_that_is_no_number_is_named(name, changes, message, results):
    edit(results / name, **changes)
    with pytest.raises(UserError, match=f"{results / name}: .*{message}"):
        build(results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="value"), r"has no columns \['value'\]"),
        (lambda frame: frame[frame.measure == "R@100"], "has no values of nDCG@10"),
        (lambda frame: pd.concat([frame, frame.head(8)]), "one finite nDCG@10 per query"),
        (lambda frame: frame.assign(value=math.nan), "one finite nDCG@10 per query"),
    ],
)
def test_bad_values_per_query_are_named(change, message, results):
    path = results / "bm25" / "alpha" / "per_query.parquet"
    change(pd.read_parquet(path)).to_parquet(path)
    with pytest.raises(UserError, match=f"{path}: .*{message}"):
        build(results)


def test_no_cells_are_an_error():
    with pytest.raises(UserError, match="no cells"):
        build_table([])


HEADER = "backbone,k,dataset,measure,value,source\n"


def test_published_values_and_differences(results, tmp_path):
    published = tmp_path / "published.csv"
    published.write_text(
        HEADER
        + 'two,16.0,alpha,R@100,0.25,"Table 2, row 1"\n'
        + "bm25,,alpha,R@100,0.125,elsewhere\n"
        + "two,16,gamma,nDCG@10,0.9,another data set\n"
        + "two,8,alpha,nDCG@10,0.9,another k\n"
    )
    table = build(results, published=published)
    assert list(table.columns)[-2:] == ["R@100_published", "R@100_difference"]
    assert "nDCG@10_published" not in table.columns
    row = row_of(table, "alpha", "two", "16")
    assert row["R@100_published"] == 0.25
    assert row["R@100_difference"] == pytest.approx(row["R@100"] - 0.25)
    assert row_of(table, "alpha", "bm25", None)["R@100_published"] == 0.125
    assert table["R@100_published"].notna().sum() == 2
    assert "published" not in format_table(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backbone,k\n", r"has the columns backbone, k, expected backbone, k, dataset"),
        ("", "not a CSV file"),
        (HEADER + "a,1,b,c,0.1,x\na,1.0,b,c,0.2,y\n", "line 3: a second value of a, 1, b, c"),
        (HEADER + "a,1,b,c,many,x\n", "line 2: could not convert string to float: 'many'"),
        (HEADER + "a,1,b,c,nan,x\n", "line 2: value is nan"),
        (HEADER + "a,1,b,c,,x\n", "line 2: "),
        (HEADER + "a,-1,b,c,0.1,x\n", "line 2: k must be a finite number above 0"),
    ],
)
def test_bad_published_values_are_named(text, message, results, tmp_path):
    (tmp_path / "published.csv").write_text(text)
    with pytest.raises(UserError, match=rf"published\.csv(, |: ){message}"):
        build(results, published=tmp_path / "published.csv")


def test_written_table(results, tmp_path):
    table = build(results)
    path = tmp_path / "out" / "table.csv"
    write_table(table, path)
    text = path.read_text()
    first, *lines = text.splitlines()
    assert first == (
        "arm,dataset,backbone,k,seed,status,nDCG@10,R@100,RR@10,k_used,delta_vs_k1,p_vs_k1,"
        "p_holm_vs_k1,"
        "delta_vs_baseline,p_vs_baseline,p_holm_vs_baseline,norm_before,norm_after,first_loss,last_loss,"
        "active_terms_q,active_terms_d,FLOPS,empty_documents,engine,exact_recall@10,index_mb,"
        "ms_per_query,train_seconds,"
        "examples_per_second,docs_per_second"
    )
    bm25 = values_of("bm25", "", "alpha").mean()
    assert lines[0] == f",alpha,bm25,,,,{bm25:.4f},{bm25 / 2:.4f}" + "," * 19 + "2.50,1.250,,,"
    assert lines[6].startswith(",alpha,one,16,7,ok,")
    assert lines[6].endswith(
        ",4.0000,0.2500,9.5000,0.2500,3.50,80.25,0.1250,2,bmp,0.9500,2.50,1.250,61.0,20.5,30.0"
    )
    write_table(build(results), path)
    assert path.read_text() == text

    again = read_table(path)
    assert list(again.columns) == list(table.columns)
    assert list(again.k[1:4]) == ["0.5", "1", "16"]
    assert pd.isna(again.k[0])
    np.testing.assert_allclose(again["nDCG@10"], table["nDCG@10"], atol=5.1e-5)
    assert again.dtypes.equals(table.dtypes)


def test_reading_no_table_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"table\.csv: no such file"):
        read_table(tmp_path / "table.csv")
    (tmp_path / "table.csv").write_text("")
    with pytest.raises(UserError, match=r"table\.csv: not a results table"):
        read_table(tmp_path / "table.csv")


def test_table_for_people(results):
    text = format_table(build(results))
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == [
        *["dataset", "backbone", "k", "status", "nDCG@10", "R@100", "RR@10"],
        *["p_holm_vs_k1", "terms q", "terms d", "FLOPS", "norm"],
    ]
    assert set("".join(cells[1])) == {"-", ":"}
    assert cells[2][:4] == ["alpha", "bm25", "", ""]
    assert cells[8][:4] == ["alpha", "one", "16", "ok"]
    assert cells[8][-4:] == ["3.50", "80.25", "0.1250", "0.2500"]


def test_seed_is_shown_where_there_are_several(results):
    table = build(results)
    table.loc[table.index[-1], "seed"] = 8
    assert "| seed |" in format_table(table).splitlines()[0]


def test_norms_tables(tmp_path):
    keys = {"V": 100, "d": 8, "tied": True, "mean": 1.5, "max": 2.0, "anisotropy": 0.25}
    for scale, backbone in enumerate(["b", "a"], start=1):
        bias = None if scale == 1 else 0.5
        write(tmp_path / backbone / "norms.json", {**keys, "mean": 1.5 * scale, "bias_mean": bias})
        (tmp_path / backbone / "activation.csv").write_text(f"k,loss\n1,{scale}.50\n16,nan\n")
    write_norms_tables(["b", "a"], tmp_path)
    assert (tmp_path / "norms.csv").read_text().splitlines() == [
        "backbone,mean,max,anisotropy,V,d,tied,bias_mean",
        "b,1.500000,2.000000,0.250000,100,8,True,",
        "a,3.000000,2.000000,0.250000,100,8,True,0.500000",
    ]
    assert (tmp_path / "activation.csv").read_text().splitlines() == [
        "backbone,k,loss",
        "b,1,1.50",
        "b,16,nan",
        "a,1,2.50",
        "a,16,nan",
    ]
    (tmp_path / "a" / "activation.csv").write_text("k\n1\n")
    with pytest.raises(UserError, match=r"a/activation\.csv: its columns are not those of b"):
        write_norms_tables(["b", "a"], tmp_path)
    write(tmp_path / "a" / "norms.json", {**keys, "extra": 1})
    with pytest.raises(UserError, match=r"a/norms\.json: its keys .*bias_mean.*extra"):
        write_norms_tables(["b", "a"], tmp_path)
    with pytest.raises(UserError, match=r"absent/norms\.json: no such file"):
        write_norms_tables(["absent"], tmp_path)


def test_torch_is_not_imported():
    code = (
        "import sys, splade_rescale.table, splade_rescale.sparsity, splade_rescale.text;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_arm_has_rows_of_its_own(results):
    shutil.copytree(results, results / "arms" / "untied", dirs_exist_ok=False, ignore=arms_only)
    folder = results / "arms/untied/one/k16/seed7/alpha"
    write_measured(folder, MEASURES["alpha"], np.full(4, 0.5))
    arm = ArmGrid(backbones=["one"], scales=["1", "16"], seeds=[7])
    grid = GRID.model_copy(update={"arms": {"": MAIN, "untied": arm}})
    table = build_table(cells_of(grid, results), baseline="one")
    assert list(table.arm[:-4]) == [""] * (len(table) - 4)
    rows = table[table.arm == "untied"]
    assert list(zip(rows.dataset, rows.k, strict=True)) == [
        ("alpha", "1"),
        ("alpha", "16"),
        ("beta", "1"),
        ("beta", "16"),
    ]
    row = rows.iloc[1]
    assert row["nDCG@10"] == 0.5
    expected = 0.5 - values_of("one", "1", "alpha").mean()
    assert row.delta_vs_k1 == pytest.approx(expected)
    assert row.delta_vs_baseline == pytest.approx(expected)
    assert rows.iloc[0].delta_vs_baseline == 0
    assert math.isnan(rows.iloc[0].delta_vs_k1)


def arms_only(folder, names):
    return [name for name in names if name == "arms"]


def test_a_shared_corpus_has_one_index(results):
    for folder in (results / "one").glob("k*/seed7/beta"):
        shutil.rmtree(folder / "index")
        shutil.rmtree(folder / "vectors")
    shutil.rmtree(results / "bm25/beta/index")
    with pytest.raises(UserError, match=r"beta/index/index\.json"):
        build(results)
    arms = {"": MAIN.model_copy(update={"backbones": ["one"]})}
    shared = {"alpha": "alpha", "beta": "alpha"}
    grid = GRID.model_copy(update={"arms": arms, "corpora": shared})
    table = build_table(cells_of(grid, results), baseline="one")
    assert set(table.index_mb) == {2.5}
    assert set(table.docs_per_second.dropna()) == {30.0}


def test_a_chosen_scale_shows_its_value(results):
    shutil.copytree(results / "one" / "k16", results / "one" / "kauto")
    arms = {"": ArmGrid(backbones=["one"], scales=["auto", "1"], seeds=[7])}
    grid = GRID.model_copy(update={"arms": arms})
    table = build_table(cells_of(grid, results), baseline="one")
    row = row_of(table, "alpha", "one", "auto")
    assert row.k_used == 16
    assert list(table[table.dataset == "alpha"].k.dropna()) == ["1", "auto"]


def test_p_is_corrected_over_the_data_set(results):
    table = build(results)
    alpha = table[(table.dataset == "alpha") & table.p_vs_k1.notna()]
    p = alpha.p_vs_k1.to_numpy()
    assert len(p) == 4
    ranks = p.argsort().argsort()
    largest = [max(min(1, (4 - r) * q) for r, q in zip(ranks, p, strict=True) if r <= mine)
               for mine in ranks]  # fmt: skip
    assert alpha.p_holm_vs_k1.to_numpy() == pytest.approx(largest)


@pytest.mark.parametrize("side", ["q", "d"])
@pytest.mark.parametrize(("trained", "shown"), [("ok", "collapsed-zero"), ("diverged", "diverged")])
def test_a_cell_without_any_term_has_collapsed(results, side, trained, shown):
    run = results / "one/k16/seed7"
    edit(run / "model/train.json", status=trained)
    edit(run / "alpha/sparsity.json", **{f"active_terms_{side}": 0.0})
    table = build(results)
    assert row_of(table, "alpha", "one", "16").status == shown
    assert row_of(table, "beta", "one", "16").status == trained

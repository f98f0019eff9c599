import json
import shlex
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from miniature import MINI, PYDOCS, ROOT, Workflow
from splade_rescale.table import read_table

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("miniature")]


def test_every_cell_is_a_row(finished):
    table = read_table(finished.folder / "results" / "table.csv")
    rows = set(zip(table.backbone, table.k.fillna(""), strict=True))
    cells = {(backbone, k) for backbone in MINI["backbones"] for k in ("1", "16")}
    assert rows == cells | {("bm25", "")}
    assert table["nDCG@10"].notna().all()
    bm25 = table[table.backbone == "bm25"].iloc[0]
    assert bm25["nDCG@10"] > 0.3
    assert pd.isna(bm25.seed)


def test_the_twin_at_its_gain_is_the_same_run(finished):
    results = finished.folder / "results"
    plain, twin = (
        results / backbone / f"k{k}" / "seed7"
        for backbone, k in (("mini-bert", 1), ("mini-x16", 16))
    )
    for file in ("model/model.safetensors", "mini/run.trec.gz", "mini/per_query.parquet"):
        assert (plain / file).read_bytes() == (twin / file).read_bytes()
    table = read_table(results / "table.csv").set_index(["backbone", "k"])
    for column in ("nDCG@10", "RR@10", "first_loss", "last_loss", "active_terms_d", "FLOPS"):
        assert table.loc[("mini-bert", "1"), column] == table.loc[("mini-x16", "16"), column]
    first = table.first_loss
    assert first[("mini-x16", "1")] > first[("mini-bert", "1")]


def test_settings_lie_beside_each_result(finished):
    root = finished.folder / "results" / "mini-bert" / "k1"
    train = json.loads((root / "seed7" / "model" / "train.json").read_text())
    assert train["settings"]["learning_rate"] == 5e-4
    assert train["seed"] == 7
    rescale = json.loads((root / "init" / "rescale.json").read_text())
    assert (rescale["k"], rescale["tying"], rescale["bias"]) == (1.0, "untied", "scale")


def test_a_second_run_has_nothing_to_do(finished):
    for target in ("results/table.csv", "all"):
        assert "Nothing to be done" in finished.run("--dry-run", "--cores", "2", target).stdout


def test_key_order_changes_nothing(finished):
    def turned(value):
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return value

    before = (finished.folder / "mini.yaml").read_text()
    try:
        finished.configure(turned(MINI))
        assert finished.planned() == set()
    finally:
        (finished.folder / "mini.yaml").write_text(before)


@pytest.mark.parametrize(
    ("change", "runs", "stays"),
    [
        ({"train": {**MINI["train"], "learning_rate": 1e-3}}, {"train", "table"}, {"rescale"}),
        ({"bm25": {"b": 0.75}}, {"search_bm25", "table"}, {"train", "index", "search"}),
        ({"index": {"quantization": 50}}, {"index", "search", "evaluate"}, {"encode_corpus"}),
        (
            {"index": {"engine": "bmp"}},
            {"index", "search", "table"},
            {"encode_corpus", "index_bm25"},
        ),
        ({"search": {"exact_queries": 5}}, {"search", "table"}, {"index", "search_bm25"}),
    ],
)
def test_a_setting_reruns_its_stage_and_what_follows(finished, change, runs, stays):
    before = (finished.folder / "mini.yaml").read_text()
    try:
        finished.configure({**MINI, **change})
        planned = finished.planned()
    finally:
        (finished.folder / "mini.yaml").write_text(before)
    assert runs <= planned
    assert not stays & planned


def test_editing_code_reruns_its_stage_only(finished, tmp_path):
    """In a copy of the project: a comment reruns nothing, evaluation code does not retrain."""
    copy = tmp_path / "project"
    for name in ("workflow", "config"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "Snakefile", copy)
    package = copy / "workflow" / "splade_rescale"
    workflow = Workflow(finished.folder, MINI, project=copy)

    def planned():
        return workflow.planned("results/table.csv")

    def edit(module, text):
        with (package / f"{module}.py").open("a") as file:
            file.write(text)

    # The file of published values, an input of the table, lies elsewhere.
    assert planned() == {"table"}
    edit("evaluate", "\n# a comment\n")
    edit("train", "\n# a comment\n")
    assert planned() == {"table"}
    edit("evaluate", "\nANSWER = 42\n")
    assert planned() & {"evaluate", "train", "index"} == {"evaluate"}
    edit("train", "\nANSWER = 42\n")
    assert {"train", "encode_corpus", "table"} <= planned()


def test_another_engine_finds_the_same_on_the_same_vectors(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    before = read_table(finished.folder / "results" / "table.csv")
    workflow = Workflow(tmp_path / "copy", {**MINI, "index": {"engine": "exact"}})
    workflow.run("--cores", "2", "results/table.csv")
    table = read_table(workflow.folder / "results" / "table.csv")
    trained = before.k.notna()
    assert set(before.engine[trained]) == {"lucene"}
    assert set(table.engine[trained]) == {"exact"}
    assert set(before["exact_recall@10"].dropna()) == {1.0}
    for column in ("nDCG@10", "RR@10", "exact_recall@10", "p_vs_k1", "last_loss"):
        pd.testing.assert_series_equal(table[column], before[column])
    cell = "results/mini-bert/k1/seed7/mini/"
    for engine in ("bmp", "seismic"):
        workflow = Workflow(workflow.folder, {**MINI, "index": {"engine": engine}})
        workflow.run("--cores", "2", f"{cell}metrics.json")
        found = json.loads((workflow.folder / cell / "search.json").read_text())
        assert found["engine"] == engine
        assert found["exact_queries"] == PYDOCS["queries"]
        assert found["exact_recall@10"] > 0.5


def test_the_embedded_experiment_goes_by_its_file(tmp_path):
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    plan = subprocess.run(
        [*command, "--dry-run", "--printshellcmds", "--cores", "1", "results/report/index.html"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (command,) = [line for line in plan.splitlines() if "report page" in line]
    words = shlex.split(command)
    source = json.loads(words[words.index("--experiment") + 1])["source"]
    assert (tmp_path / source).resolve() == ROOT / "config/config.yaml"


def test_the_embedded_grid_does_not_leak_into_another_file(finished):
    plan = finished.run("--dry-run", "--forceall", "--cores", "2").stdout
    assert "tiny-bert" not in plan
    assert "pydocs" not in plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scales": [1, 0]}, ["mini.yaml: scales[1]", "found 0"]),
        ({"train": {"dataset": "mini", "lr": 1}}, ["mini.yaml: train.lr", "unknown key"]),
    ],
)
def test_a_bad_configuration_stops_before_any_job(tmp_path, change, words):
    workflow = Workflow(tmp_path, {**MINI, **change})
    done = workflow.run("--cores", "2", check=False)
    assert done.returncode
    for word in words:
        assert word in done.stdout
    assert not (tmp_path / "results").exists()


def test_a_broken_file_is_an_error_that_names_it(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    workflow = Workflow(tmp_path / "copy", MINI)
    broken = workflow.folder / "results" / "mini-bert" / "k1" / "seed7" / "mini" / "metrics.json"
    broken.write_text(broken.read_text()[:20])
    (workflow.folder / "results" / "table.csv").unlink()
    arguments = ("--cores", "2", "results/table.csv", "--rerun-triggers", "params")
    done = workflow.run(*arguments, check=False)
    assert done.returncode
    assert "metrics.json: not valid JSON" in done.stdout
    assert not (workflow.folder / "results" / "table.csv").exists()


def test_an_ad_hoc_cell_outside_the_grid(finished):
    plan = finished.planned("results/mini-modernbert/k2.5/seed3/mini/metrics.json")
    assert {"download_backbone", "rescale", "train", "evaluate"} <= plan


def test_not_canonical_scales_are_no_targets(finished):
    for k in ("16.0", "016", "0x10"):
        target = f"results/mini-bert/k{k}/seed7/mini/metrics.json"
        assert finished.run("--dry-run", "--cores", "2", target, check=False).returncode


def test_written_configuration_is_what_the_tests_think(finished):
    assert yaml.safe_load((finished.folder / "mini.yaml").read_text()) == MINI


def test_an_arm_at_a_chosen_scale(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    arm = {"rescale": {"bias": "keep"}, "backbones": ["mini-bert"], "scales": ["auto"]}
    workflow = Workflow(tmp_path / "copy", {**MINI, "arms": {"bias-kept": arm}})
    planned = workflow.planned()
    assert {"choose_k", "rescale", "train", "encode_corpus", "table"} <= planned
    assert not planned & {"norms", "download_backbone", "index_bm25"}
    workflow.run("--cores", "2", "all", "results/paper/table2.csv")

    results = workflow.folder / "results"
    table = read_table(results / "table.csv")
    assert len(table) == len(MINI["backbones"]) * len(MINI["scales"]) + 1 + 1
    row = table[table.arm == "bias-kept"].iloc[0]
    chosen = json.loads((results / "arms/bias-kept/mini-bert/auto.json").read_text())["k"]
    rescaled = results / "arms/bias-kept/mini-bert/kauto/init/rescale.json"
    assert row.k == "auto"
    assert row.k_used == float(chosen) == json.loads(rescaled.read_text())["k"]
    assert json.loads(rescaled.read_text())["bias"] == "keep"
    paper = pd.read_csv(results / "paper/table2.csv")
    assert list(paper.arm.dropna()) == ["bias-kept"]
    assert "beir-13: 0 of 13" in paper.missing.iloc[0]
    assert "Nothing to be done" in workflow.run("--dry-run", "--cores", "2").stdout

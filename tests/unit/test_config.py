import copy
import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from splade_rescale.config import json_schemas, load_experiment, read_experiment, read_yaml
from splade_rescale.errors import UserError
from splade_rescale.evaluate import check_measures
from splade_rescale.scale import canonical_k

ROOT = Path(__file__).parents[2]
REGISTRIES = ROOT / "config"
SMALL = {
    "backbones": ["tiny-bert"],
    "scales": [1, 16],
    "datasets": ["pydocs"],
    "train": {"dataset": "pydocs"},
}


def load(**changes):
    data = copy.deepcopy(SMALL)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            data[key] = {**data[key], **value}
        else:
            data[key] = value
    return load_experiment(data, REGISTRIES, "my.yaml")


@pytest.mark.parametrize(
    ("value", "text"),
    [(16, "16"), (16.0, "16"), ("16", "16"), ("16.0", "16"), (0.5, "0.5"), ("2.50", "2.5"),
     (1e-3, "0.001"), (100, "100"), ("1e2", "100"), (" 4 ", "4")],
)  # fmt: skip
def test_equal_scales_are_one_path(value, text):
    assert canonical_k(value) == text


@pytest.mark.parametrize(
    "value", [0, -1, "nan", float("nan"), "inf", float("inf"), True, None, "x", "", [1], "1e999"]
)
def test_bad_scales_are_refused(value):
    with pytest.raises(UserError, match="finite number above 0"):
        canonical_k(value)


@pytest.mark.parametrize("value", [1e308, "1e-300", 10**300, "1." + "3" * 60])
def test_scales_that_no_folder_can_be_named_after_are_refused(value):
    with pytest.raises(UserError, match="k must be from 1e-30 to 1e30, with 50 digits") as error:
        canonical_k(value)
    assert len(str(error.value)) < 200
    assert len(canonical_k(1e-30)) < 50 and canonical_k(1e30) == "1" + "0" * 30


def test_the_embedded_configuration_is_valid():
    experiment = read_experiment(ROOT / "config" / "config.yaml", REGISTRIES)
    assert experiment.config.scales == ["1", "4", "16"]
    assert set(experiment.grid().measures) == {"pydocs", "pydocs-ood"}


def test_the_paper_and_its_small_sister_are_valid():
    paper = read_experiment(ROOT / "config/paper.yaml", REGISTRIES)
    assert len(paper.config.backbones) == 7 and len(paper.config.scales) == 5
    assert paper.corpus_of("trec-dl-2019") == paper.corpus_of("trec-dl-2020") == "msmarco-dev"
    recipe = paper.config.train
    assert (recipe.gpus, recipe.batch_size, recipe.accumulation) == (8, 64, 1)
    assert (recipe.lambda_q, recipe.lambda_d, recipe.ramp) == (5e-2, 3e-3, 1 / 3)
    small = read_experiment(ROOT / "config/small.yaml", REGISTRIES)
    assert small.config.train.gpus == small.config.encode.gpus == 1
    names = set(paper.config.datasets) | set(small.config.datasets)
    assert {n for n in names if paper.datasets[n].remove_self_hits} == {
        "arguana",
        "quora",
        "nanobeir-arguana",
        "nanobeir-quora",
    }


def test_every_measure_of_the_registry_exists():
    registry = read_yaml(REGISTRIES / "datasets.yaml")
    for entry in registry.values():
        if "measures" in entry:
            check_measures(entry["measures"])


def test_shards_of_the_configuration_go_before_those_of_the_registry():
    assert load().shards("msmarco-dev") == 16
    assert load().shards("pydocs") == 1
    assert load(encode={"shards": 2}).shards("msmarco-dev") == 2
    assert load(encode={"shards": 1}).shards("msmarco-dev") == 1


def test_published_values_belong_to_the_paper_s_grid():
    paper = read_experiment(ROOT / "config/paper.yaml", REGISTRIES)
    table = pd.read_csv(ROOT / "config/published.csv", dtype=str, keep_default_na=False)
    assert set(table["backbone"]) <= set(paper.config.backbones)
    assert set(table["k"]) - {""} <= set(paper.config.scales)
    assert set(table["dataset"]) - {""} <= {*paper.config.datasets, "beir-13"}
    assert not table.duplicated(["backbone", "k", "dataset", "measure"]).any()
    assert (table["value"].astype(float) >= 0).all()
    norms = table[table["dataset"] == ""]
    assert set(norms["measure"]) == {"norm_mean", "norm_max", "anisotropy"}
    assert set(norms["backbone"]) == set(paper.config.backbones)
    for (slug, measure), rows in table[~table["dataset"].isin(["", "beir-13"])].groupby(
        ["dataset", "measure"]
    ):
        assert measure in paper.datasets[slug].measures, rows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"learning_rat": 1}}, ["my.yaml", "train.learning_rat", "learning_rate"]),
        ({"sclaes": [1]}, ["my.yaml", "sclaes", "did you mean scales?"]),
        ({"backbones": ["tiny-bret"]}, ["backbones[0]", "tiny-bret", "did you mean tiny-bert?"]),
        ({"datasets": ["nope"]}, ["datasets[0]", "nope", "pydocs"]),
        ({"train": {"dataset": "nope"}}, ["train.dataset", "nope"]),
        ({"scales": [1, 0]}, ["scales[1]", "found 0"]),
        ({"scales": [1, -2]}, ["scales[1]", "found -2"]),
        ({"scales": ["nan"]}, ["scales[0]", "nan"]),
        ({"scales": ["big"]}, ["scales[0]", "big"]),
        ({"scales": []}, ["scales", "at least 1"]),
        ({"scales": [16, 16.0]}, ["scales", "more than once", "16"]),
        ({"backbones": ["tiny-bert", "tiny-bert"]}, ["backbones", "more than once", "tiny-bert"]),
        ({"backbones": ["Tiny-BERT"]}, ["backbones[0]", "Tiny-BERT"]),
        ({"backbones": ["../x"]}, ["backbones[0]", "../x"]),
        ({"seeds": [1, 1]}, ["seeds", "more than once"]),
        ({"seeds": [-1]}, ["seeds[0]", "found -1"]),
        ({"train": {"max_steps": 5, "epochs": 2}}, ["max_steps", "epochs", "overlap"]),
        ({"train": {"learning_rate": float("nan")}}, ["train.learning_rate", "nan"]),
        ({"train": {"loss": "hinge"}}, ["train.loss", "contrastive", "hinge"]),
        ({"train": {"dataset": "pydocs-ood"}}, ["pydocs-ood", "no training rows"]),
        ({"train": {"document_length": 9999}}, ["tiny-bert", "max_positions", "9999"]),
        ({"baseline_backbone": "tiny-modernbert"}, ["baseline_backbone", "tiny-modernbert"]),
        ({"backbones": ["tiny-bert-x16"]}, ["tiny-bert-x16", "head_gain", "untied"]),
        ({"scales": ["Auto"]}, ["scales[0]", "Auto", "or auto"]),
        ({"scales": ["auto", "auto"]}, ["scales", "more than once", "auto"]),
        ({"arms": {"a b": {}}}, ["arms", "a b"]),
        ({"arms": {"x": {"train": {"lr": 1}}}}, ["arms.x.train: lr: unknown key", "learning_rate"]),
        ({"arms": {"x": {"rescale": {"tying": "no"}}}}, ["arms.x.rescale", "tying", "shared"]),
        ({"arms": {"x": {"index": {}}}}, ["arms.x.index", "unknown key"]),
        ({"arms": {"x": {"scales": [2, 2.0]}}}, ["arms.x", "scales", "more than once"]),
        ({"arms": {"x": {"backbones": ["no"]}}}, ["arms.x", "backbones", "unknown slug 'no'"]),
        ({"arms": {"x": {"train": {"document_length": 999}}}}, ["arms.x", "max_positions", "999"]),
        ({"arms": {"x": {"train": {}}}}, ["my.yaml: arms.x: changes nothing"]),
        ({"seeds": [True]}, ["seeds[0]", "found True"]),
        ({"train": {"batch_size": True}}, ["my.yaml: train.batch_size: expected no boolean"]),
        ({"encode": {"gpus": False}}, ["encode.gpus", "found False"]),
    ],
)  # fmt: skip
def test_errors_name_the_file_the_key_and_what_is_allowed(changes, words):
    with pytest.raises(UserError) as error:
        load(**changes)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("registry", "words"),
    [
        ({"backbones": {"tiny-bert": {"source": "path", "path": "x"}}}, ["tiny-bert", "taken by"]),
        ({"backbones": {"bm25": {"source": "path", "path": "x"}}}, ["bm25", "reserved"]),
        ({"datasets": {"model": {"source": "path", "path": "x"}}}, ["datasets.model", "reserved"]),
        (
            {"backbones": {"a": {"source": "path", "path": "x", "head_gain": True}}},
            ["registry.backbones.a.head_gain: expected no boolean"],
        ),
        ({"backbones": {"A": {"source": "path", "path": "x"}}}, ["registry.backbones.A: "]),
        ({"backbones": {"a": {"source": "zip"}}}, ["registry.backbones.a", "zip", "path"]),
        ({"backbones": {"a": {"source": "path"}}}, ["registry.backbones.a.path", "missing"]),
        (
            {"backbones": {"a": {"source": "hub", "id": "o/n", "trust_remote_code": True}}},
            ["registry.backbones.a", "40-digit commit"],
        ),
        (
            {"datasets": {"a": {"source": "path", "path": "x", "qrel": "y"}}},
            ["registry.datasets.a.qrel", "unknown key"],
        ),
    ],
)
def test_errors_in_own_registry_entries(registry, words):
    with pytest.raises(UserError) as error:
        load(registry=registry)
    for word in ["my.yaml", *words]:
        assert word in str(error.value)


def test_missing_files_of_used_entries_are_found_before_any_job(tmp_path):
    entry = {"source": "path", "path": str(tmp_path / "absent")}
    load(registry={"datasets": {"mine": entry}})  # not used: not looked at
    with pytest.raises(UserError, match="absent"):
        load(registry={"datasets": {"mine": entry}}, datasets=["mine"])
    with pytest.raises(UserError, match=r"config\.json"):
        load(registry={"backbones": {"mine": entry}}, backbones=["mine"])


def test_a_backbone_of_the_user_s_must_have_positions_for_the_longest_text(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    config = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    entries = {
        "mine": {"source": "path", "path": "~/mine"},
        "twin": {"source": "twin", "of": "mine"},
    }
    for slug in entries:
        load(registry={"backbones": entries}, backbones=[slug], encode={"document_length": 512})
        with pytest.raises(UserError, match=f"{slug}: path: ~/mine: takes 512 tokens.* say 513"):
            load(registry={"backbones": entries}, backbones=[slug], encode={"document_length": 513})
    (tmp_path / "mine" / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"mine/config\.json: expected a JSON object, found list"):
        load(registry={"backbones": entries}, backbones=["mine"])


def test_a_twin_of_itself_is_refused():
    twins = {"a": {"source": "twin", "of": "b"}, "b": {"source": "twin", "of": "a"}}
    with pytest.raises(UserError, match="twin of itself"):
        load(registry={"backbones": twins}, backbones=["a"])


def test_measures_are_checked_before_any_job(tmp_path):
    (tmp_path / "corpus.jsonl").write_text("")
    (tmp_path / "queries.jsonl").write_text("")
    (tmp_path / "qrels.trec").write_text("")
    entry = {"source": "path", "path": str(tmp_path), "measures": ["nDCG@ten"]}
    with pytest.raises(UserError, match="nDCG@ten"):
        load(registry={"datasets": {"mine": entry}}, datasets=["mine"])


def test_key_order_changes_nothing():
    turned = dict(reversed(list(SMALL.items())))
    first = load_experiment(SMALL, REGISTRIES, "a")
    assert first.config == load_experiment(turned, REGISTRIES, "a").config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", ["line 2", "'a'", "line 1"]),
        ("train:\n  x: 1\n  X: 2\n", ["line 3", "'X'"]),
        ("- 1\n", ["expected a mapping", "list"]),
        ("a: [1\n", ["not valid YAML"]),
        ("a: 1\n? [1]\n: 2\n", ["line 2", "cannot be a key"]),
        ("", ["expected a mapping"]),
    ],
)
def test_yaml_errors_name_file_and_line(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_yaml(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_yaml_anchors_and_merge_keys_work(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\n")
    assert read_yaml(path)["b"] == {"x": 3, "y": 2}


def test_committed_schemas_are_those_of_the_types():
    for name, schema in json_schemas().items():
        written = json.loads((ROOT / "config" / "schema" / name).read_text())
        assert written == schema, f"{name} has drifted: run `make schema`"


def test_conda_pins_agree_with_the_lock():
    lock = dict(
        line.partition(";")[0].strip().split("==")
        for line in (ROOT / "envs" / "requirements.txt").read_text().splitlines()
        if "==" in line
    )
    lock = {name.replace("_", "-"): version for name, version in lock.items()}
    names = {
        "matplotlib-base": "matplotlib",
        "pytorch": "torch",
        "snakemake-minimal": "snakemake",
        "huggingface_hub": "huggingface-hub",
    }
    conda = yaml.safe_load((ROOT / "envs" / "environment.yaml").read_text())["dependencies"]
    pip = next(part["pip"] for part in conda if isinstance(part, dict))
    pins = dict(part.split("=") for part in conda if isinstance(part, str) and "=" in part)
    pins |= dict(part.split("==") for part in pip if "==" in part)
    assert pins.pop("python") == "3.11"
    assert int(pins.pop("openjdk")) >= 21
    assert pins == {name: lock[names.get(name, name)] for name in pins}
    assert len(pins) > 15


def test_an_arm_is_the_experiment_with_its_own_options():
    arms = {
        "untied": {"rescale": {"tying": "untied"}, "scales": [2]},
        "slow": {"train": {"ramp": 1}},
    }
    experiment = load(arms=arms, rescale={"bias": "keep"}, train={"max_steps": 5})
    untied, slow = experiment.arm("untied"), experiment.arm("slow")
    assert (untied.rescale.tying, untied.rescale.bias) == ("untied", "keep")
    assert experiment.config.rescale.tying == "shared"
    assert (slow.train.ramp, slow.train.max_steps, slow.train.dataset) == (1, 5, "pydocs")
    assert slow.rescale == experiment.config.rescale
    grid = experiment.grid()
    assert list(grid.arms) == ["", "untied", "slow"]
    assert grid.arms["untied"].scales == ["2"]
    assert grid.arms["slow"] == grid.arms[""]


HUB = {"id": "a/b", "files": ["x.jsonl"]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"corpus_from": "nope"}, ["corpus_from", "unknown slug 'nope'"]),
        ({"corpus_from": "other"}, ["corpus_from", "other has no corpus of its own"]),
        ({"corpus_from": "pydocs", "corpus": HUB}, ["corpus and corpus_from overlap"]),
        ({}, ["corpus (or corpus_from), queries and qrels go together"]),
    ],
)
def test_a_corpus_is_shared_with_a_data_set_that_has_one(change, words):
    shared = {"source": "hub", "queries": HUB, "qrels": HUB}
    entries = {"other": {**shared, "corpus_from": "pydocs"}, "mine": {**shared, **change}}
    with pytest.raises(UserError) as error:
        load(registry={"datasets": entries}, datasets=["mine"])
    for word in words:
        assert word in str(error.value)


def test_data_sets_that_share_a_corpus():
    entry = {"source": "hub", "queries": HUB, "qrels": HUB, "corpus_from": "pydocs"}
    experiment = load(registry={"datasets": {"mine": entry}}, datasets=["mine", "pydocs"])
    assert experiment.grid().corpora == {"mine": "pydocs", "pydocs": "pydocs"}

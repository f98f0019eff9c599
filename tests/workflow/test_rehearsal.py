"""A slice of `make rehearse`: the paper's configuration against a miniature of the hub."""

import gzip
import json
import math

import pandas as pd
import pytest
import yaml
from hub.rehearse import ROOT, overlay, rehearse
from splade_rescale.settings import TrainSettings
from splade_rescale.table import read_table

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("rehearsal")]
BACKBONES = ["roberta", "modernbert"]
DATASETS = ["msmarco-dev", "trec-dl-2019", "arguana"]
TARGETS = ["results/paper/table2.csv"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rehearsal")
    grid = {"backbones": BACKBONES, "scales": [16], "datasets": DATASETS}
    config = overlay(ROOT / "config/paper.yaml", **grid)
    done = rehearse(config, folder, TARGETS, warm=True)
    assert done.returncode == 0
    return folder


def cell(folder, backbone, dataset=""):
    return folder / "results" / backbone / "k16" / "seed42" / dataset


def test_every_cell_has_its_measures(folder):
    table = read_table(folder / "results/table.csv")
    rows = set(zip(table["backbone"], table["dataset"], strict=True))
    assert rows == {(b, d) for b in [*BACKBONES, "bm25"] for d in DATASETS}
    for dataset, measures in {
        "msmarco-dev": ["RR@10", "R@1000"],
        "trec-dl-2019": ["nDCG@10", "R(rel=2)@1000"],
        "arguana": ["nDCG@10", "R@100"],
    }.items():
        assert table.loc[table["dataset"] == dataset, measures].notna().all().all()
    trained = table[table["backbone"] != "bm25"]
    assert (trained["norm_after"] * 16).round(3).equals(trained["norm_before"].round(3))
    assert trained["last_loss"].map(math.isfinite).all()


def test_bm25_finds_the_texts_that_queries_were_made_of(folder):
    table = read_table(folder / "results/table.csv").set_index(["backbone", "dataset"])
    assert table.loc[("bm25", "msmarco-dev"), "RR@10"] > 0.8
    assert table.loc[("bm25", "trec-dl-2019"), "nDCG@10"] > 0.4


def test_one_corpus_and_index_serve_all_of_ms_marco(folder):
    for backbone in BACKBONES:
        assert (cell(folder, backbone, "msmarco-dev") / "index").is_dir()
        assert not (cell(folder, backbone, "trec-dl-2019") / "index").exists()
        vectors = cell(folder, backbone, "trec-dl-2019") / "vectors"
        assert not list(vectors.glob("corpus*"))


def test_no_query_finds_itself(folder):
    for backbone in BACKBONES:
        with gzip.open(cell(folder, backbone, "arguana") / "run.trec.gz", "rt") as file:
            hits = [line.split()[:3:2] for line in file]
        documents = pd.read_parquet(folder / "resources/datasets/arguana/corpus.parquet")
        assert {query for query, _ in hits} <= set(documents["doc_id"])
        assert not [query for query, document in hits if query == document]


def test_provenance_goes_back_to_the_hub_s_commits(folder):
    registry = yaml.safe_load((ROOT / "config/backbones.yaml").read_text())
    for backbone in BACKBONES:
        path = folder / "results" / backbone / "k16" / "init" / "rescale.json"
        provenance = json.loads(path.read_text())
        assert provenance["backbone"]["commit"] == registry[backbone]["revision"]
        assert provenance["backbone"]["settings"]["id"] == registry[backbone]["id"]
        assert (provenance["tying"], provenance["bias"]) == ("shared", "scale")
        # ModernBERT's logits are wider than its tokenizer.
        wider = provenance["norms_after"]["V"] > provenance["tokens"]
        assert wider == (backbone == "modernbert")


def test_the_table_has_the_published_values_and_names_what_is_missing(folder):
    table = pd.read_csv(folder / "results/paper/table2.csv", dtype=str, keep_default_na=False)
    row = table[(table["backbone"] == "modernbert") & (table["k"] == "16")].iloc[0]
    values = " ".join(row)
    assert "0.250" in values and "0.948" in values and "0.609" in values
    assert row["beir-13 nDCG@10"] == ""
    assert "scifact" in row["missing"] and "arguana" not in row["missing"].split(", ")


def test_only_steps_lengths_devices_and_shards_are_cut():
    paper = yaml.safe_load((ROOT / "config/paper.yaml").read_text())
    cut = overlay(ROOT / "config/paper.yaml")
    changed = {
        f"{stage}.{key}"
        for stage in paper | cut
        if isinstance(cut[stage], dict)
        for key in paper.get(stage, {}) | cut[stage]
        if paper.get(stage, {}).get(key) != cut[stage].get(key)
    }
    assert {key for key in changed if not key.startswith("norms.")} == {
        "train.epochs",
        "train.max_steps",
        "train.batch_size",
        "train.query_length",
        "train.document_length",
        "train.precision",
        "train.gpus",
        "train.log_steps",
        "train.save_steps",
        "encode.query_length",
        "encode.document_length",
        "encode.token_budget",
        "encode.precision",
        "encode.gpus",
        "encode.shards",
    }
    assert {key: value for key, value in paper.items() if not isinstance(value, dict)} == {
        key: value for key, value in cut.items() if not isinstance(value, dict)
    }
    TrainSettings.model_validate(cut["train"])


def test_a_second_run_has_nothing_to_do(folder):
    files = [path for path in (folder / "results").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    config = yaml.safe_load((folder / "rehearsal.yaml").read_text())
    assert rehearse(config, folder, TARGETS).returncode == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}

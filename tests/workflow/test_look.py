"""What a user looks at after a run: show, query, model cards."""

import gzip
import json
import os
import shutil

import pandas as pd
import pytest
from docs.blocks import blocks, run
from huggingface_hub import ModelCard
from miniature import MINI, Workflow
from splade_rescale.card import card, write_card
from splade_rescale.cell_place import CellPlace
from splade_rescale.errors import UserError
from splade_rescale.query import ask, format_answer
from splade_rescale.runs import read_run
from splade_rescale.settings import SearchSettings
from splade_rescale.show import show

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("miniature")]


def cell(finished: Workflow, k: int = 1) -> CellPlace:
    return CellPlace.of(finished.folder / f"results/mini-bert/k{k}/seed7/mini")


def test_show_tells_what_the_files_say(finished):
    text = show(cell(finished, 16))
    folder = cell(finished, 16).files.folder
    measures = json.loads((folder / "metrics.json").read_text())["measures"]
    assert f"nDCG@10 {measures['nDCG@10']:.4f}" in text
    losses = pd.read_csv(folder.parent / "model/train_log.csv")["loss"]
    assert f"  {losses.iloc[0]:.4g} to {losses.iloc[-1]:.4g}" in text
    assert "not there" not in text
    logs = [line.split()[-1] for line in text.splitlines() if line.endswith(".log")]
    stages = ["rescale", "train", "encode", "encode", "encode", "index", "search", "evaluate"]
    assert len(logs) == len(stages)
    assert all(f"logs/{stage}/" in line for stage, line in zip(stages, logs, strict=True))


def test_query_finds_what_the_run_found_and_the_terms_add_up(finished):
    place = cell(finished)
    queries = pd.read_parquet(place.dataset_folder / "queries.parquet")
    with gzip.open(place.files.folder / "run.trec.gz", "rt") as file:
        run = [line.split() for line in file]
    for row in queries.iloc[:3].itertuples():
        answer = ask(place, row.text, 4)
        expected = [(hit[2], float(hit[4])) for hit in run if hit[0] == row.query_id][:4]
        assert [(hit.doc_id, hit.score) for hit in answer.hits] == expected
        for hit in answer.hits:
            assert sum(part for _, part in hit.matched) == hit.score
            assert {name for name, _ in hit.matched} <= {name for name, _ in answer.terms}
        printed = format_answer(answer, terms=3)
        assert printed.count("\n\n") == 4
        assert f"1. {expected[0][0]}  score {expected[0][1]:g}\n" in printed


@pytest.mark.parametrize(
    ("index", "options"),
    [
        ({"engine": "exact"}, {}),
        ({"engine": "bmp"}, {"bmp": {"beta": 0.3}}),
        ({"engine": "seismic", "seismic": {"n_postings": 2}}, {"seismic": {"query_cut": 1}}),
    ],
)
def test_query_searches_as_the_cell_was_searched(finished, tmp_path, index, options):
    """With options under which bmp and seismic find fewer documents than by default."""
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    workflow = Workflow(tmp_path / "copy", {**MINI, "index": index, "search": options})
    workflow.run("--cores", "2", "results/mini-bert/k1/seed7/mini/metrics.json")
    place = cell(workflow)
    queries = pd.read_parquet(place.dataset_folder / "queries.parquet")
    found, otherwise = {}, {}
    for row in queries.itertuples():
        for answers, settings in ((found, None), (otherwise, SearchSettings())):
            answer = ask(place, row.text, 1000, settings)
            assert answer.engine == index["engine"]
            answers[row.query_id] = {hit.doc_id: hit.score for hit in answer.hits}
    for query_id, hits in found.items():
        assert (len(hits) < len(otherwise[query_id])) == bool(options)
    if index["engine"] != "bmp":  # whose beta cuts by chance among terms of equal weight
        assert found == read_run(place.files.folder / "run.trec.gz")


def test_query_says_what_to_make_first(finished):
    place = CellPlace.of(finished.folder / "results/mini-bert/k3/seed7/mini")
    with pytest.raises(
        UserError, match=r"make it with: snakemake .* results/mini-bert/k3/seed7/mo"
    ):
        ask(place, "text", 3)


def test_every_trained_model_has_a_card_with_its_scores(finished):
    folders = sorted((finished.folder / "results").glob("*/k*/seed*/model"))
    assert len(folders) == 4
    for folder in folders:
        card = ModelCard.load(folder / "README.md")
        measures = json.loads((folder.parent / "mini/metrics.json").read_text())["measures"]
        results = {each.metric_type: each.metric_value for each in card.data.eval_results}
        assert results == {name: round(value, 4) for name, value in measures.items()}
        assert f"k = {folder.parents[1].name[1:]}, seed 7" in card.text
        for value in measures.values():
            assert f"{value:.4f}" in card.text
    # Written beside the outputs of training, which Snakemake takes for unchanged.
    assert not finished.planned("results/table.csv")


def test_the_code_of_a_card_runs_and_gives_one_result(finished):
    folder = finished.folder / "results/mini-bert/k1/seed7/model"
    ours, plain = blocks(folder / "README.md")
    check = """
import torch
assert weights.shape == queries.shape and (weights > 0).any()
torch.testing.assert_close(weights, queries.to_dense().cpu())
print("equal")
"""
    joined = plain._replace(text=f"{ours.text}\n{plain.text}\n{check}")
    assert run(joined, folder).endswith("equal\n")


def test_a_card_leaves_out_scores_of_another_training_and_says_where_it_failed(finished, tmp_path):
    shutil.copytree(finished.folder / "results/mini-bert/k1/seed7", tmp_path / "seed7")
    model = tmp_path / "seed7/model"
    made = json.loads((model / "train.json").read_text())
    (model / "train.json").write_text(json.dumps({**made, "status": "collapsed-zero"}))
    os.utime(tmp_path / "seed7/mini/metrics.json", (1, 1))
    text = card(model)
    assert "Not evaluated yet." in text
    assert "model-index" not in text
    assert "**Training ended as collapsed-zero" in text
    entry = {"name": "r", "commit": "abc", "settings": {"source": "hub", "id": "a/b"}}
    init = {**made["init"], "backbone": entry}
    (model / "train.json").write_text(json.dumps({**made, "init": init}))
    os.utime(model / "train.json", (0, 0))
    write_card(model)
    found = ModelCard.load(model / "README.md")
    assert found.data.base_model == "a/b"
    assert "| commit | abc |" in found.text
    assert found.data.eval_results

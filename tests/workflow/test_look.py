"""What a user looks at after a run: show and query."""

import gzip
import json

import pandas as pd
import pytest
from miniature import Workflow
from splade_rescale.cell_place import CellPlace
from splade_rescale.errors import UserError
from splade_rescale.query import ask, format_answer
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
        answer = ask(place, row.text, 4, SearchSettings())
        expected = [(hit[2], float(hit[4])) for hit in run if hit[0] == row.query_id][:4]
        assert [(hit.doc_id, hit.score) for hit in answer.hits] == expected
        for hit in answer.hits:
            assert sum(part for _, part in hit.matched) == hit.score
            assert {name for name, _ in hit.matched} <= {name for name, _ in answer.terms}
        printed = format_answer(answer, terms=3)
        assert printed.count("\n\n") == 4
        assert f"1. {expected[0][0]}  score {expected[0][1]:g}\n" in printed


def test_query_says_what_to_make_first(finished):
    place = CellPlace.of(finished.folder / "results/mini-bert/k3/seed7/mini")
    with pytest.raises(
        UserError, match=r"make it with: snakemake .* results/mini-bert/k3/seed7/mo"
    ):
        ask(place, "text", 3, SearchSettings())

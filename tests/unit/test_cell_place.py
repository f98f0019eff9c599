import json
import shlex
from pathlib import Path

import pytest
from splade_rescale.cell_place import CellPlace
from splade_rescale.errors import UserError
from splade_rescale.show import show


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@pytest.mark.parametrize("root", ["", "a/results/b", "/x"])
@pytest.mark.parametrize("arm", ["", "slow"])
def test_a_path_tells_the_cell(root, arm):
    cell = "results/" + (f"arms/{arm}/" if arm else "") + "my-bert/k0.5/seed7/data"
    place = CellPlace.of(Path(root) / cell)
    assert place == CellPlace(Path(root), arm, "my-bert", "0.5", 7, "data")
    assert place.files.folder == Path(root) / cell
    assert place.files.corpus_folder == Path(root) / cell


@pytest.mark.parametrize("path", ["results", "my-bert/k1/seed7/data", "results/bm25/data", "x"])
def test_other_paths_are_refused(path):
    with pytest.raises(UserError, match=r"expected the folder of a cell, results/\[arms"):
        CellPlace.of(path)


def test_the_corpus_may_be_another_data_sets(tmp_path):
    entry = tmp_path / "resources/datasets/part/dataset.json"
    touch(entry)
    entry.write_text(json.dumps({"settings": {"corpus_from": "whole"}}))
    place = CellPlace.of(tmp_path / "results/b/k1/seed7/part")
    assert place.files.corpus_folder == tmp_path / "results/b/k1/seed7/whole"
    names = ["encode/b-k1-seed7-whole.log", "index/b-k1-seed7-whole.log"]
    names += ["search/b-k1-seed7-part.log"]
    for name in [*names, "search/b-k1-seed7-whole.log", "index/b-k1-seed7-part.log"]:
        touch(tmp_path / "logs" / name)
    assert place.logs() == [tmp_path / "logs" / name for name in names]


def test_show_names_what_is_missing_and_a_cell_of_nearly_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(Path("results/tiny-bert/k16/seed42/pydocs/metrics.json"))
    text = show(CellPlace.of("results/tiny-bret/k16/seed42/pydocs"))
    assert "snakemake --cores all results/tiny-bret/k16/seed42/pydocs/metrics.json" in text
    assert text.endswith("did you mean results/tiny-bert/k16/seed42/pydocs?")
    touch(Path("results/tiny-bert/k4/seed42/checkpoints/checkpoint-5/x"))
    text = show(CellPlace.of("results/tiny-bert/k4/seed42/pydocs"))
    assert "not finished; it goes on from results/tiny-bert/k4/seed42/checkpoints" in text


def test_show_names_a_damaged_file(tmp_path):
    place = CellPlace.of(tmp_path / "results/b/k1/seed7/data")
    touch(place.files.folder / "metrics.json")
    (place.files.folder / "metrics.json").write_text('{"queries": 3}')
    with pytest.raises(UserError, match=r"metrics\.json: lacks 'measures'"):
        show(place)


@pytest.mark.parametrize("root", [".", "it's a $HOME; folder"])
def test_commands_are_quoted_for_the_shell(root):
    place = CellPlace.of(Path(root) / "results/b/k1/seed7/my $data; x")
    words = shlex.split(place.command(place.files.folder / "metrics.json"))
    where = [] if root == "." else ["--directory", root]
    target = "results/b/k1/seed7/my $data; x/metrics.json"
    assert words == ["snakemake", "--cores", "all", *where, target]
    assert shlex.join(words) in show(place)

"""A few of the damaged files, full disks and shared folders of `make reliability`."""

import random

import pytest

from .damage import NEXT, damage
from .disk import copy_to, fill, small_disk
from .kills import STAGES
from .miniature import Miniature
from .together import same_elsewhere, skew, start_two

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("faults")]


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("corpus.parquet", "flipped bit"),
        ("train.parquet", "cut short"),
        ("init/model.safetensors", "flipped bit"),
        ("model/model.safetensors", "cut short"),
        ("queries.npz", "flipped bit"),
        ("corpus-00000-of-00002.npz", "cut short"),
        ("index/*.cfs", "flipped bit"),
        ("run.trec.gz", "cut short"),
        ("train.json", "flipped bit"),
    ],
)
def test_a_damaged_file_is_named(bench, file, kind):
    (glob,) = [glob for glob in NEXT if glob.endswith(file)]
    found = damage(bench, glob, kind, random.Random(3))
    assert (found.outcome, found.fault) == ("named", "")


@pytest.mark.parametrize("rule", ["download_dataset", "rescale", "train", "encode_corpus", "index"])
def test_a_full_disk(finished, tmp_path, rule):
    stage = next(stage for stage in STAGES if stage.rule == rule)
    with small_disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("only root may mount a small disk")
        bench = copy_to(finished, tmp_path / "disk" / "work", tmp_path / "aside")
        found = fill(bench, stage, random.Random(5))
    assert found.fault == ""
    assert found.outcome == "stopped"


def test_a_disk_too_full_for_snakemake_itself(finished, tmp_path):
    with small_disk(tmp_path / "disk", 2**20) as mounted:
        if not mounted:
            pytest.skip("only root may mount a small disk")
        work = tmp_path / "disk" / "work"
        miniature = Miniature(work, finished.environment)
        (tmp_path / "disk" / "filler").write_bytes(bytes(2**20 - 2**15))
        (work / "run.log").symlink_to(tmp_path / "run.log")
        status, output = miniature.run("resources/datasets/mini")
        assert status and ".snakemake: cannot be written (No space left on device)" in output
        assert "Traceback" not in output


def test_two_workflows_in_one_folder(bench):
    assert start_two(bench, random.Random(1)).fault == ""


def test_a_clock_that_was_ahead(bench):
    assert skew(bench, "a day ahead", random.Random(2)).fault == ""


def test_the_same_from_another_clone_with_more_cores(finished, tmp_path):
    """In folders whose paths have blanks and quotes of both kinds."""
    assert same_elsewhere(tmp_path, 8, finished) == ""

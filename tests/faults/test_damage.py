"""A few of the damaged files, full disks and shared folders of `make reliability`."""

import random

import pytest

from .damage import NEXT, damage
from .disk import copy_to, fill, small_disk
from .kills import STAGES
from .together import SKEWS, same_elsewhere, skew, start_two

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
        found = fill(copy_to(finished, tmp_path / "disk"), stage, random.Random(5))
    assert found.fault == ""
    assert found.outcome == "stopped"


def test_two_workflows_in_one_folder(bench):
    assert start_two(bench, random.Random(1)).fault == ""


@pytest.mark.parametrize("kind", SKEWS)
def test_wrong_clocks(bench, kind):
    assert skew(bench, kind, random.Random(2)).fault == ""


def test_the_same_from_another_clone_with_more_cores(finished, tmp_path):
    """In folders whose paths have blanks and quotes of both kinds."""
    assert same_elsewhere(tmp_path, 8, finished) == ""

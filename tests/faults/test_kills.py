"""A seeded few of the kills of `make reliability`."""

import re
import time

import pytest

from .kills import STAGES, Pace, trials
from .miniature import ROOT
from .processes import arguments, members, send, wait_for_end

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("faults")]
#: Most stages of the miniature are done in this time.
PACE = Pace(seconds=0.7, writing=0.1)


def test_every_rule_is_killed():
    files = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    rules = {name for file in files for name in re.findall(r"(?m)^rule (\w+):", file.read_text())}
    assert rules - {"all"} == {stage.rule for stage in STAGES}, (
        "see STAGES in tests/faults/kills.py"
    )


def test_a_signal_to_the_workflow_reaches_its_jobs(bench):
    """Also those that are forked from a warm process."""
    stage = next(stage for stage in STAGES if stage.rule == "download_backbone")
    bench.clear(stage)
    process = bench.miniature.start(*stage.outputs)
    while not (job := bench.job(process.pid, stage)):
        assert process.poll() is None
        time.sleep(0.01)
    forked, deadline = [], time.monotonic() + 30
    while not forked and bench.job(process.pid, stage):
        assert time.monotonic() < deadline
        forked = [p for p in members(process.pid) if "warm.py" in " ".join(arguments(p))]
    assert forked and job not in forked
    send(9, members(process.pid))
    process.wait()
    assert wait_for_end(process.pid, 5)
    assert not any(arguments(p) for p in forked)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.command.replace(" ", "-"))
def test_a_killed_stage_is_done_again_alone(bench, stage):
    trial, chance = list(trials(stage, 5, seed=11))[4]
    assert bench.kill(trial, PACE, chance).fault == ""


def test_a_killed_workflow_ends_with_the_same_tables(bench):
    stage = next(stage for stage in STAGES if stage.rule == "train")
    trial, chance = next(found for found in trials(stage, 2, seed=11) if found[0].whole)
    assert bench.kill(trial, PACE, chance).fault == ""

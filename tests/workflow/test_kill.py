"""SIGKILL in the middle of a stage, then the same command again."""

import os
import shutil
import signal
import subprocess
import time

import pytest
from conftest import MINI, Workflow

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("miniature")]

CELL = "results/mini-bert/k1/seed7"
TARGET = f"{CELL}/mini/metrics.json"
# stage -> a glob that shows that it has begun to write, and what is missing before, itself first
STAGES = {
    "train": ("checkpoints/checkpoint-*/COMPLETE", ["model", "mini"]),
    "encode": ("mini/vectors/.*.tmp", ["mini/vectors", "mini/index", "mini/run.trec.gz"]),
    "index": ("mini/.index.*.tmp", ["mini/index", "mini/run.trec.gz"]),
}


def kill_when(workflow: Workflow, begun, attempts: int = 5) -> bool:
    """Start the workflow and kill all of it with SIGKILL as soon as `begun()`."""
    process = subprocess.Popen(
        workflow.command("--cores", "1", TARGET),
        cwd=workflow.folder,
        env=workflow.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            if begun():
                return True
            time.sleep(0.001)
        return False
    finally:
        # The jobs have sessions of their own only if they ask for it; all belong to this group.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_the_middle_of_a_stage(finished, tmp_path, stage):
    writing, missing = STAGES[stage]
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder, symlinks=True)
    workflow = Workflow(folder, MINI)
    root = folder / CELL
    expected = {
        name: (root / name).read_bytes()
        for name in ("model/model.safetensors", "mini/run.trec.gz", "mini/per_query.parquet")
    }

    for _ in range(5):
        for name in [*missing, "mini/metrics.json"]:
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).unlink(missing_ok=True)
        if kill_when(workflow, lambda: any(root.glob(writing))):
            break
    else:
        pytest.fail(f"{stage} was never caught at work")
    assert not (root / "mini/metrics.json").exists()

    workflow.run("--cores", "1", TARGET)
    for name, content in expected.items():
        assert (root / name).read_bytes() == content, name
    assert not list(root.rglob(".*.tmp"))
    assert not (root / "checkpoints").exists()
    assert "Nothing to be done" in workflow.run("--dry-run", "--cores", "1", TARGET).stdout

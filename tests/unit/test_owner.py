import subprocess
import sys

import pytest
from splade_rescale import owner

HOLD = """
import sys, time
from pathlib import Path
from splade_rescale.owner import release_stale_locks
handle = release_stale_locks(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def locks(folder):
    (folder / ".snakemake" / "locks").mkdir(parents=True, exist_ok=True)
    (folder / ".snakemake" / "locks" / "0.input.lock").touch()
    return folder / ".snakemake" / "locks"


def test_locks_of_a_living_workflow_stay(holder, tmp_path):
    folder = locks(tmp_path)
    assert owner.release_stale_locks(tmp_path) is None
    assert folder.exists()


def test_locks_of_a_killed_workflow_go(holder, tmp_path):
    folder = locks(tmp_path)
    holder.kill()
    holder.wait()
    with owner.release_stale_locks(tmp_path):
        assert not folder.exists()


def test_locks_of_another_host_stay(holder, tmp_path, monkeypatch):
    folder = locks(tmp_path)
    holder.kill()
    holder.wait()
    monkeypatch.setattr(owner.socket, "gethostname", lambda: "elsewhere")
    with owner.release_stale_locks(tmp_path):
        assert folder.exists()
    monkeypatch.undo()
    with owner.release_stale_locks(tmp_path):
        assert not folder.exists()


def test_locks_of_an_unknown_owner_stay(tmp_path):
    folder = locks(tmp_path)
    with owner.release_stale_locks(tmp_path):
        assert folder.exists()

"""No two processes hold one GPU: real processes and the kernel's locks, no GPU needed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from splade_rescale import gpus
from splade_rescale.errors import UserError

JOB = """
import os, sys, time
from pathlib import Path
from splade_rescale.gpus import acquire
count, seconds, log = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
acquire(count, "train.gpus")
names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
# A file of each device, there only while the device is used: two users would meet.
files = [log / f"using-{name}" for name in names]
for file in files:
    file.touch(exist_ok=False)
(log / f"has-{os.getpid()}").write_text(" ".join(names))
time.sleep(seconds)
for file in files:
    file.unlink()
"""
AGENT = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
time.sleep(600)
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of its own: no nvidia-smi, its own locks."""
    for variable in ("SLURM_JOB_ID", "LOCAL_RANK", "SPLADE_RESCALE_GPU_HOLDER"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PYTHONPATH", str(Path(gpus.__file__).parents[1]))
    gpus._listed.cache_clear()
    yield tmp_path
    gpus._listed.cache_clear()


def start(*arguments, gpus="0,1,2", **environment) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def job(count, seconds, log, **options) -> subprocess.Popen:
    return start("-c", JOB, count, seconds, log, **options)


def devices_of(process: subprocess.Popen, log: Path, seconds: float = 20) -> list[str]:
    """Wait until the process holds devices, and return their names."""
    file = log / f"has-{process.pid}"
    return wait_for(lambda: file.exists() and file.read_text().split(), seconds)


def wait_for(condition, seconds: float = 20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def test_many_jobs_never_share_a_device(machine):
    jobs = [job(count, 0.2, machine) for count in (1, 2, 1, 3, 1, 2, 1, 1)]
    assert [process.wait(timeout=60) for process in jobs] == [0] * len(jobs), [
        process.stderr.read() for process in jobs
    ]
    had = [devices_of(process, machine) for process in jobs]
    assert [len(names) for names in had] == [1, 2, 1, 3, 1, 2, 1, 1]
    assert {name for names in had for name in names} == {"0", "1", "2"}


def test_a_killed_job_gives_its_devices_up(machine):
    killed = job(2, 600, machine)
    other = job(1, 600, machine)
    had = devices_of(killed, machine)
    assert set(had) | set(devices_of(other, machine)) == {"0", "1", "2"}
    waiting = job(1, 0, machine)
    message = waiting.stderr.readline()
    assert "waiting for 1 free GPU of 0, 1, 2" in message
    killed.kill()
    killed.wait()
    for name in had:
        (machine / f"using-{name}").unlink()
    assert devices_of(waiting, machine)[0] in had
    assert waiting.wait(timeout=20) == 0
    other.kill()
    other.wait()


def test_jobs_of_several_devices_do_not_lock_each_other_out(machine):
    jobs = [job(2, 0.05, machine, gpus="0,1") for _ in range(6)]
    assert [process.wait(timeout=60) for process in jobs] == [0] * 6


def test_workers_hold_what_their_launcher_took(machine):
    """As under torchrun: the worker goes on when its launcher is killed, and keeps the device."""
    module = ("-m", "splade_rescale", "with-gpus", 2, sys.executable, "-c", AGENT, JOB)
    agent = start(*module, 2, 600, machine)
    (has,) = wait_for(lambda: list(machine.glob("has-*")))
    worker = int(has.name.removeprefix("has-"))
    assert worker != agent.pid
    assert wait_for(has.read_text).split() == ["0", "1"]
    agent.kill()
    agent.wait()
    other = job(1, 0, machine)
    assert devices_of(other, machine) == ["2"]
    assert other.wait(timeout=20) == 0
    waiting = job(3, 0, machine)
    assert "waiting for 3" in waiting.stderr.readline()
    os.kill(worker, signal.SIGKILL)
    for name in ("0", "1"):
        (machine / f"using-{name}").unlink()
    assert sorted(devices_of(waiting, machine)) == ["0", "1", "2"]
    assert waiting.wait(timeout=20) == 0


def test_a_worker_that_comes_too_late_stops(machine):
    launcher = start("-c", "")
    launcher.wait()
    late = job(1, 0, machine, gpus="1", SPLADE_RESCALE_GPU_HOLDER=str(launcher.pid))
    assert late.wait(timeout=20)
    assert f"process {launcher.pid}, which held the GPUs 1, has ended" in late.stderr.read()


@pytest.mark.parametrize(
    ("value", "names"),
    [("", []), ("-1", []), ("NoDevFiles", []), ("2,0", ["2", "0"]), ("1,-1,2", ["1"])],
)
def test_what_is_visible(machine, monkeypatch, value, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert gpus.visible() == names


def test_more_than_there_are(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UserError, match=r"train\.gpus is 2, but there are 1 GPUs here .*'0'"):
        gpus.acquire(2, "train.gpus")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=r"encode\.gpus is 1, but there are 0 GPUs"):
        gpus.acquire(1, "encode.gpus")


def test_no_gpu_is_asked_for(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpus.acquire(0, "train.gpus")
    assert not list((machine / "tmp").iterdir())


def fake_nvidia_smi(machine, *uuids):
    listing = "\n".join(f"GPU {n}: NVIDIA X (UUID: {uuid})" for n, uuid in enumerate(uuids))
    program = machine / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{listing}\n  MIG 1g.5gb Device 0: (UUID: MIG-9)'\n")
    program.chmod(0o755)


def test_devices_are_locked_by_uuid(machine, monkeypatch):
    """One job names them by number, one by UUID, one not at all: the same devices."""
    fake_nvidia_smi(machine, "GPU-aa", "GPU-bb")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.visible() == ["GPU-aa", "GPU-bb"]
    first = job(1, 600, machine, gpus="1")
    assert devices_of(first, machine) == ["1"]
    second = job(1, 600, machine, gpus="GPU-bb,GPU-aa")
    assert devices_of(second, machine) == ["GPU-aa"]
    third = job(1, 0, machine, gpus="0")
    assert "waiting for 1 free GPU of 0" in third.stderr.readline()
    for process in (first, second):
        process.kill()
        process.wait()
    assert third.wait(timeout=20) == 0


def test_slurm_s_choice_is_kept(machine):
    """Jobs that Slurm gave just what they ask for keep to it, even if it lets two share."""
    careless = JOB.replace("file.touch(exist_ok=False)", "pass")
    jobs = [start("-c", careless, 1, 1, machine, gpus="0", SLURM_JOB_ID=number) for number in "78"]
    assert [devices_of(process, machine) for process in jobs] == [["0"], ["0"]]
    assert not list((machine / "tmp").iterdir())
    for process in jobs:
        process.kill()
        process.wait()


def test_jobs_of_one_slurm_allocation_share_it_out(machine):
    jobs = [job(1, 5, machine, gpus="4,5", SLURM_JOB_ID="7") for _ in range(2)]
    assert sorted(devices_of(process, machine)[0] for process in jobs) == ["4", "5"]
    for process in jobs:
        process.kill()
        process.wait()


def test_a_command_that_is_not_there(machine):
    done = start("-m", "splade_rescale", "with-gpus", 1, "no-such-program", "--option")
    assert done.wait(timeout=30) == 1
    assert "no-such-program: No such file" in done.stderr.read()

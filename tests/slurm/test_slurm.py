"""The miniature on a real Slurm, through the profile as a user fills it in.

One workflow goes on while all of this happens to it: a job runs out of memory, the training is
preempted by an urgent job, and then cancelled. Beside it another workflow asks for a GPU, and its
training fails, since there is none behind Slurm's. All of it takes a few minutes.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from miniature import MINI, ROOT, Workflow
from snakemake.utils import available_cpu_count
from splade_rescale.table import read_table

from slurm.cluster import ACCOUNT, MEMORY_MB, Cluster, cluster, missing

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

# So many that the training still goes on when a signal reaches it, seconds after it was sent.
STEPS = 2000
CONFIG = {
    **MINI,
    "backbones": ["mini-bert"],
    "scales": [1],
    "baselines": [],
    "train": {**MINI["train"], "max_steps": STEPS, "log_steps": 50, "save_steps": 20},
}
ARM = {"train": {"gpus": 1}, "backbones": ["mini-bert"], "scales": [1]}
MODEL = "results/mini-bert/k1/seed7/model"
ARM_MODEL = f"results/arms/on-gpu/{MODEL.removeprefix('results/')}"
# Python with torch and two Snakemakes need more than 400 MB, and less than 1600.
LITTLE = "400 * 2 ** (attempt - 1)"
RETRIES = 2
ON_GPU = ("train", "encode_corpus", "encode_queries")


@dataclass(frozen=True)
class Run:
    """A run of a job, as Slurm's accounting has it."""

    job: str
    state: str
    memory: str
    partition: str
    account: str
    resources: str
    comment: str

    def is_of(self, rule: str) -> bool:
        return self.comment.startswith(f"rule_{rule}_wildcards_")


def runs(slurm: Cluster) -> list[Run]:
    """All runs of all jobs, those that Slurm started again included."""
    fields = "JobIDRaw,State,ReqMem,Partition,Account,AllocTRES,Comment"
    whole = ("-X", "-D", "-n", "--parsable2", "--units=M", "-S", "now-1day")
    listing = slurm.call("sacct", *whole, "-o", fields)
    return [Run(*line.split("|")) for line in listing.splitlines()]


def profile(folder: Path, **memory: str) -> Path:
    """The profile with its one place filled in, and the memory of rules as the manual says."""
    text = (ROOT / "workflow/profiles/slurm/config.yaml").read_text()
    for name, value in {"account": ACCOUNT, "partition": "cpu", "gpu_partition": "gpu"}.items():
        text, found = re.subn(rf'^(  {name}: )""', rf"\g<1>{value}", text, flags=re.M)
        assert found == 1
    lines = "".join(f"  {rule}:\n    mem_mb: {value}\n" for rule, value in memory.items())
    text = text.replace("\nset-resources:\n", f"\nset-resources:\n{lines}")
    folder.mkdir()
    (folder / "config.yaml").write_text(text)
    return folder


def python_elsewhere(folder: Path) -> str:
    """This Python from an environment whose path has a blank and a quote."""
    environment = folder / "it's an environment"
    if not environment.exists():
        environment.symlink_to(sys.prefix)
    return str(environment / "bin" / Path(sys.executable).name)


def start(slurm: Cluster, workflow: Workflow, profile: Path, *targets: str) -> subprocess.Popen:
    """Start Snakemake as a user does; only the first look at the jobs' states comes sooner."""
    sooner = ("--slurm-init-seconds-before-status-checks", "3")
    _, *options = workflow.command("--profile", str(profile), *sooner, *targets)
    with (workflow.folder / "snakemake.log").open("w") as log:
        return subprocess.Popen(
            [python_elsewhere(workflow.folder.parent), *options],
            cwd=workflow.folder,
            env={**workflow.environment, "PATH": slurm.environment["PATH"]},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def until(condition, what: str, process: subprocess.Popen, seconds: float = 900):
    """Wait for `condition()` while the workflow goes on."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        assert process.poll() is None, f"the workflow ended before: {what}"
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def train_job(slurm: Cluster, state: str) -> str | None:
    """Number of the training job in a state, if there is one."""
    for line in slurm.call("squeue", "-h", "-o", "%i|%T|%k").splitlines():
        number, now, comment = line.split("|")
        if comment.startswith("rule_train_") and now == state:
            return number
    return None


class Disturbed:
    """What the disturbed workflow and the one beside it left behind."""

    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm = slurm
        self.main = Workflow(folder / "it's a cluster", CONFIG)
        self.beside = Workflow(folder / "gpu", {**CONFIG, "arms": {"on-gpu": ARM}})
        self.resumed: list[str] = []
        process = start(
            slurm, self.main, profile(folder / "profile", norms=LITTLE), "results/table.csv"
        )
        other = None
        try:
            checkpoints = self.main.folder / "results/mini-bert/k1/seed7/checkpoints"
            until(lambda: list(checkpoints.glob("*/COMPLETE")), "a first checkpoint", process)
            self.preempt(process)
            shutil.copytree(self.main.folder / "resources", self.beside.folder / "resources")
            plain = profile(folder / "plain")
            other = start(slurm, self.beside, plain, ARM_MODEL)
            self.cancel(process)
            self.wait_for_resume(process)
            self.codes = [process.wait(timeout=900), other.wait(timeout=900)]
        finally:
            for one in (process, other):
                if one is not None and one.poll() is None:
                    one.kill()  # the cluster ends its jobs
                    one.wait()
            for workflow in (self.main, self.beside):
                log = workflow.folder / "snakemake.log"
                print(f"{log}:\n{log.read_text()[-4000:]}" if log.exists() else "")
        self.runs = runs(slurm)

    @property
    def log(self) -> Path:
        return self.main.folder / "logs/train/mini-bert-k1-seed7.log"

    def preempt(self, process: subprocess.Popen) -> None:
        """An urgent job needs the memory that the training has."""
        memory = MEMORY_MB - 15_000
        urgent = ("sbatch", "-A", ACCOUNT, "-p", "urgent", f"--mem={memory}", "--output=/dev/null")
        self.slurm.call(*urgent, "--wrap", "sleep 1")
        number = until(lambda: train_job(self.slurm, "PENDING"), "the preemption", process)
        # Slurm lets a preempted job wait for two minutes.
        self.slurm.call("scontrol", "update", f"JobId={number}", "StartTime=now")
        self.wait_for_resume(process)

    def wait_for_resume(self, process: subprocess.Popen) -> None:
        """Wait until the training has gone on from another checkpoint than the last time."""

        def resumed() -> str | None:
            try:
                log = self.log.read_text()
            except FileNotFoundError:  # Snakemake takes it away when the job starts again
                return None
            found = re.search(r"resuming from \S*checkpoint-(\d+)", log)
            return found[1] if found and found[1] not in self.resumed else None

        self.resumed.append(until(resumed, "the training goes on", process))

    def cancel(self, process: subprocess.Popen) -> None:
        checkpoints = self.main.folder / "results/mini-bert/k1/seed7/checkpoints"

        def further() -> bool:
            names = [path.parent.name for path in checkpoints.glob("*/COMPLETE")]
            return any(int(name.split("-")[1]) > int(self.resumed[-1]) for name in names)

        until(further, "a checkpoint after the preemption", process)
        self.slurm.call("scancel", train_job(self.slurm, "RUNNING"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if reason := missing():
        pytest.skip(f"no Slurm test: {reason}")
    with cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def disturbed(slurm, tmp_path_factory) -> Disturbed:
    return Disturbed(slurm, tmp_path_factory.mktemp("cluster"))


def of_rule(disturbed: Disturbed, rule: str, arm: bool = False) -> list[Run]:
    found = [run for run in disturbed.runs if run.is_of(rule)]
    return [run for run in found if ("on-gpu" in run.comment) == arm]


def test_the_table_is_there(disturbed):
    assert disturbed.codes[0] == 0, (disturbed.main.folder / "snakemake.log").read_text()[-5000:]
    table = read_table(disturbed.main.folder / "results/table.csv")
    assert list(zip(table["backbone"], table["k"], strict=True)) == [("mini-bert", "1")]
    assert table["nDCG@10"].notna().all()


def test_jobs_go_to_the_account_and_partition_of_the_profile(disturbed):
    jobs = [run for run in disturbed.runs if run.comment.startswith("rule_")]
    assert {run.account for run in jobs} == {ACCOUNT}
    for run in jobs:
        on_gpu = any(run.is_of(rule) for rule in ON_GPU)
        assert run.partition == ("gpu" if on_gpu else "cpu"), run
    (index,) = of_rule(disturbed, "index")
    assert "cpu=8," in index.resources and "mem=8000M" in index.resources


def test_a_job_out_of_memory_gets_more(disturbed):
    attempts = of_rule(disturbed, "norms")
    assert [run.memory for run in attempts] == ["400M", "800M", "1600M"][: len(attempts)]
    assert len(attempts) > 1
    assert [run.state for run in attempts[:-1]].count("COMPLETED") == 0
    assert attempts[-1].state == "COMPLETED"
    steps = disturbed.slurm.call("sacct", "-n", "--parsable2", "-j", attempts[0].job, "-o", "State")
    assert ("OUT_OF_MEMORY" if disturbed.slurm.cgroups else "CANCELLED") in steps


def test_a_preempted_and_cancelled_training_goes_on(disturbed):
    first, second, third = of_rule(disturbed, "train")
    assert (first.state, second.state.split()[0], third.state) == (
        "PREEMPTED",
        "CANCELLED",
        "COMPLETED",
    )
    assert first.job == second.job != third.job
    assert (second.memory, third.memory) == ("16000M", "32000M")
    assert 0 < int(disturbed.resumed[0]) < int(disturbed.resumed[1]) < STEPS


def test_it_ends_with_the_weights_of_an_undisturbed_one(disturbed, tmp_path):
    folder = disturbed.main.folder
    out = tmp_path / "undisturbed"
    init, pairs = folder / "results/mini-bert/k1/init", folder / "resources/datasets/mini"
    threads = str(min(8, available_cpu_count()))  # the job's Snakemake knows the real machine
    command = ["train", init, pairs / "train.parquet", out]
    options = ["--settings", folder / MODEL / "train.json", "--seed", "7", "--threads", threads]
    subprocess.run(
        [sys.executable, "-m", "splade_rescale", *command, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "OMP_WAIT_POLICY": "passive"},
        check=True,
    )
    for name in ("model.safetensors", "train_log.csv"):
        assert (folder / MODEL / name).read_bytes() == (out / name).read_bytes(), name


def test_a_job_that_fails_is_tried_again_and_then_given_up(disturbed):
    assert disturbed.codes[1] != 0
    attempts = of_rule(disturbed, "train", arm=True)
    assert [run.state for run in attempts] == ["FAILED"] * (1 + RETRIES)
    assert [run.memory for run in attempts] == ["16000M", "32000M", "64000M"]
    assert all("gres/gpu=1" in run.resources for run in attempts)
    folder = disturbed.beside.folder
    log = (folder / "logs/train/arms/on-gpu/mini-bert-k1-seed7.log").read_text()
    assert "train.gpus is 1, but torch finds no CUDA device" in log
    assert not (folder / ARM_MODEL).exists()


def test_nothing_is_left_to_do(disturbed):
    plan = disturbed.main.run("--dry-run", "--cores", "1", "results/table.csv").stdout
    assert "Nothing to be done" in plan

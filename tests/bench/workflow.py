"""The workflow's own cost: `python -m bench.workflow` (run in the folder of a finished table).

Where the time of the jobs went, by rule, from Snakemake's benchmark files; which part of it is
start-up (loading libraries, starting Java), measured now; and how long the plan of the paper's
configuration takes, as a part of the 30 seconds that it may take.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
from splade_rescale.files import atomic_file

ROOT = Path(__file__).parents[2]
PLAN_SECONDS = 30
JAVA = "from splade_rescale.java import start_jvm; start_jvm()"
#: What a job of each rule file loads before its own work begins.
START_UP = {
    "download": "import splade_rescale.download",
    "norms": "import splade_rescale.norms",
    "rescale": "import splade_rescale.rescale",
    "train": "import splade_rescale.train",
    "encode": "import splade_rescale.encode",
    "index": f"import splade_rescale.index; {JAVA}",
    "search": f"import splade_rescale.search; {JAVA}",
    "evaluate": "import splade_rescale.evaluate, splade_rescale.sparsity",
    "table": "import splade_rescale.table",
}


def start_up_seconds(statement: str, repeats: int = 3) -> float:
    """Shortest wall time of a Python process that runs `statement` on one thread."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "workflow"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    spans = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
        spans.append(time.perf_counter() - began)
    return min(spans)


def job_times(benchmarks: Path) -> pd.DataFrame:
    """Wall seconds of each job: columns stage (a rule file) and seconds.

    Raises:
        SystemExit: there are no benchmark files.
    """
    rows = [
        (path.relative_to(benchmarks).parts[0].removesuffix(".tsv"), seconds)
        for path in sorted(benchmarks.rglob("*.tsv"))
        for seconds in pd.read_csv(path, sep="\t")["s"]
    ]
    if not rows:
        raise SystemExit(f"{benchmarks}: no benchmark files; run `make table` first")
    return pd.DataFrame(rows, columns=["stage", "seconds"])


def stage_shares(jobs: pd.DataFrame, start_up: dict[str, float]) -> pd.DataFrame:
    """One row per stage: jobs, its part of all jobs' time, and start-up's part of its own time."""
    total = jobs.seconds.sum()
    rows = [
        {
            "stage": stage,
            "jobs": len(seconds),
            "share_of_time": seconds.sum() / total,
            "start_up_share": min(1.0, len(seconds) * start_up[stage] / seconds.sum()),
        }
        for stage, seconds in jobs.groupby("stage").seconds
        if stage in start_up
    ]
    started = sum(row["start_up_share"] * row["share_of_time"] for row in rows)
    rows.append(
        {
            "stage": "all",
            "jobs": len(jobs),
            "share_of_time": 1.0,
            "start_up_share": started,
        }
    )
    return pd.DataFrame(rows)


def plan(config: Path, folder: Path) -> tuple[int, float]:
    """Number of jobs that Snakemake plans for `config` in an empty folder, and the seconds."""
    began = time.perf_counter()
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    done = subprocess.run(
        [
            *snakemake,
            *("--dry-run", "--quiet", "rules"),
            *("--directory", str(folder)),
            *("--configfile", str(config)),
        ],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.perf_counter() - began
    found = re.search(r"^total +(\d+)$", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no job counts in Snakemake's plan:\n{done.stdout}")
    return int(found[1]), seconds


def main() -> None:
    """Print both and write results/bench/workflow.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmarks", type=Path, default=Path("benchmarks"))
    parser.add_argument("--config", type=Path, default=ROOT / "config" / "paper.yaml")
    parser.add_argument("--out", type=Path, default=Path("results/bench/workflow.csv"))
    options = parser.parse_args()

    jobs = job_times(options.benchmarks)
    start_up = {stage: start_up_seconds(START_UP[stage]) for stage in START_UP}
    frame = stage_shares(jobs, start_up)
    print(frame.to_string(index=False, float_format="{:.3f}".format))
    with atomic_file(options.out) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.4f")
    jobs_planned, seconds = plan(options.config.resolve(), options.out.parent)
    print(
        f"{options.config}: {jobs_planned} jobs planned in {seconds / PLAN_SECONDS:.0%} "
        f"of {PLAN_SECONDS} seconds"
    )


if __name__ == "__main__":
    main()

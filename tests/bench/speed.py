"""`make bench`: speed and memory side by side with sentence-transformers and the plain formula.

Writes a CSV and a plot for each part and prints the table: ratios, never seconds. It stops with
an error if the sides do not compute the same.

    PYTHONPATH=tests:workflow python -m bench.speed --parts training --cases bert-2x128
"""

import argparse
import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench import encoding, training
from bench.cases import CASES
from bench.measure import Process
from bench.plot import draw
from bench.tables import markdown, short
from splade_rescale.files import atomic_file

ROOT = Path(__file__).parents[2]
Rows = list[dict[str, Any]]


class Part(NamedTuple):
    """A table."""

    #: Rows of a case, given its name, repetitions, threads and the machine's FLOP/s.
    compare: Callable[[str, int, int, float], Rows]
    cases: tuple[str, ...] = tuple(CASES)  # those that it is made for


PARTS = {
    "training": Part(training.compare),
    "encoding": Part(encoding.compare),
    "encoding-memory": Part(encoding.grow, ("bert-2x128",)),
}


def write_csv(path: Path, rows: Rows) -> None:
    """Write rows of equal columns, numbers to four digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: short(value, 4) for key, value in row.items()} for row in rows)


def main() -> None:
    """Run the parts and cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default: all")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated; default: all")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench")
    options = parser.parse_args()

    with Process("measure", {}, options.threads) as process:
        gemm_rate = process()["gemm_rate"]
    for part in options.parts.split(","):
        rows: Rows = []
        for case in options.cases.split(","):
            if case not in PARTS[part].cases:
                continue
            rows += PARTS[part].compare(case, options.repetitions, options.threads, gemm_rate)
            write_csv(options.out / f"{part}.csv", rows)
            if "speed_median" in rows[0]:
                draw(rows, options.out / f"{part}.svg", part)
        if rows:
            print(f"{part}, {options.threads} threads\n\n{markdown(rows)}\n", flush=True)


if __name__ == "__main__":
    main()

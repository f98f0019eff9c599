"""Two workflows in one folder, clocks that are wrong, many cores, two clones."""

import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from hub.warm import warm_commands

from .damage import remove
from .kills import Bench
from .miniature import ROOT, TABLE, TARGETS, Miniature, variables


@dataclass
class Pair:
    """Two workflows started in one folder: how the second ended, and what was wrong."""

    outcome: str = ""
    fault: str = ""


def start_two(bench: Bench, chance: random.Random) -> Pair:
    """Start two a random moment apart, wait, and give the same command once more."""
    for name in ("results/table.csv", "results/mini-bert/k1/seed7/mini", "results/paper"):
        remove(bench.folder / name)
    first = bench.miniature
    second = Miniature(bench.folder, first.environment, forked=first.forked)
    second.log = bench.folder / "second.log"
    processes = [first.start(*TARGETS)]
    time.sleep(chance.choice((0.0, chance.uniform(0, 6))))
    processes.append(second.start(*TARGETS))
    ended = [process.wait() for process in processes]
    outputs = [log.read_text(errors="replace") for log in (first.log, second.log)]
    refused = [output for output, status in zip(outputs, ended, strict=True) if status]
    pair = Pair(("both ended well", "one was refused", "both failed")[len(refused)])
    if len(refused) == 2 or not all("cannot be locked" in output for output in refused):
        pair.fault = "\n".join(output[-3000:] for output in refused)
    status, output = bench.miniature.run(*TARGETS)
    if status:
        pair.fault = f"the same command ended with {status}:\n{output[-3000:]}"
    pair.fault = pair.fault or bench.difference(("results", "resources"))
    return pair


@dataclass
class Skew:
    """Files with wrong times: the table was `same`, or the command `named` one and stopped."""

    kind: str
    outcome: str = ""
    fault: str = ""


SKEWS = {"a day ahead": 86400.0, "an hour back": -3600.0, "twenty years back": -20 * 365 * 86400.0}


def skew(bench: Bench, kind: str, chance: random.Random) -> Skew:
    """Give a random half of all files a wrong time, remove the table, run."""
    found, now = Skew(kind), time.time()
    paths = [path for top in ("results", "resources") for path in (bench.folder / top).rglob("*")]
    for path in sorted(paths):
        if chance.random() < 0.5:
            os.utime(path, (now + SKEWS[kind], now + SKEWS[kind]))
    remove(bench.folder / TABLE)
    status, output = bench.miniature.run(*TARGETS)
    found.outcome = "named" if status else "same"
    if status and "older modification time" not in output:
        found.fault = output[-3000:]
    if not status:
        found.fault = bench.difference(("results", "resources"))
    return found


def clone(folder: Path) -> Path:
    """A copy of the checkout, as far as a workflow uses it."""
    for name in ("workflow", "config", "envs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


def same_elsewhere(folder: Path, cores: int, expected: Miniature) -> str:
    """Run the miniature from a clone, in a folder of its own; what differs, if anything does."""
    project = clone(folder / 'it\'s a "clone"')
    package = project / "workflow" / "splade_rescale"
    with warm_commands(variables(project), package) as environment:
        miniature = Miniature(folder / 'it\'s a "work folder"', environment, project)
        miniature.make(*TARGETS, cores=cores)
    ours, theirs = miniature.contents(), expected.contents()
    names = sorted(name for name in ours.keys() | theirs.keys() if "/index/" not in name)
    return ", ".join(name for name in names if ours.get(name) != theirs.get(name))

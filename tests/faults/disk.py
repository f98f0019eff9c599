"""A disk that is full before a stage is done."""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .damage import messages, remove
from .kills import Bench, Stage
from .miniature import TARGETS, Miniature

ROOM = 64 * 2**20


@contextmanager
def small_disk(folder: Path, size: int = ROOM) -> Iterator[bool]:
    """A tmpfs of so many bytes at `folder`; yields whether this process may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass
class Full:
    """A stage on a full disk: it `stopped`, or what was left was `enough`."""

    stage: Stage
    outcome: str = ""
    fault: str = ""


def fill(bench: Bench, stage: Stage, chance: random.Random) -> Full:
    """Leave less room than the stage's output takes, run it, make room, run it again."""
    found, folder = Full(stage), bench.folder
    outputs = (*stage.outputs, *stage.witness)
    size = sum(
        path.stat().st_size
        for name in stage.outputs
        for path in [folder / name, *(folder / name).rglob("*")]
        if path.is_file()
    )
    for name in outputs:
        remove(folder / name)
    filler = folder / "filler"
    left = chance.randrange(size)
    free = shutil.disk_usage(folder).free
    filler.write_bytes(bytes(max(free - left - 2**15, 0)))
    with filler.open("ab") as file:  # by single pages, as far as it goes
        while shutil.disk_usage(folder).free > max(left, 4096):
            file.write(bytes(4096))
            file.flush()
    status, output = bench.miniature.run(*outputs)
    filler.unlink()
    if status == 0:
        found.outcome, found.fault = "enough", bench.difference(outputs)
        return found
    found.outcome = "stopped"
    written = [name for name in stage.outputs if (folder / name).exists()]
    if not any(name in messages(output) for name in (*stage.outputs, *stage.places)):
        found.fault = f"the error names none of {stage.outputs}:\n{output[-3000:]}"
    elif written and (difference := bench.difference(tuple(written))):
        found.fault = f"half-written: {difference}"
    status, output = bench.miniature.run(*outputs)
    if status:
        found.fault = found.fault or f"with room again: {output[-3000:]}"
    found.fault = found.fault or bench.difference(outputs)
    bench.miniature.make(*TARGETS)  # what is newer now is an input of other stages
    if left_behind := bench.miniature.temporaries():
        found.fault = found.fault or f"left behind: {left_behind}"
    return found


def copy_to(finished: Miniature, folder: Path, aside: Path) -> Bench:
    """The finished miniature on another disk, but for Snakemake's records and logs in `aside`.

    So the stage meets the full disk, and not Snakemake before it.
    """
    shutil.copytree(finished.folder, folder, symlinks=True)
    aside.mkdir()
    for name in (".snakemake", "logs", "benchmarks", "run.log"):
        shutil.move(folder / name, aside / name)
        (folder / name).symlink_to(aside / name)
    return Bench(Miniature(folder, finished.environment, forked=finished.forked))

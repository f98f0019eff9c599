"""Checkpoints that a killed training resumes from.

A checkpoint counts only once its mark is set, and only for the very run that wrote it: the
fingerprint of everything that a run's weights follow from lies beside the checkpoints. The mark
holds the SHA-256 of every file, so that a damaged checkpoint is not resumed from.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splade_rescale.checksums import check_sums, sha256, sums
from splade_rescale.digest import code_digest
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, canonical_json, read_json, sync, write_json
from splade_rescale.loss_table import LOSSES
from splade_rescale.settings import TrainSettings

_COMPLETE = "COMPLETE"
_FINGERPRINT = "fingerprint.json"
_SAVE_MEMORY = "SAVE_MEMORY"
_LOCK = "lock-"


@contextmanager
def exclusive(folder: Path, process: int = 0) -> Iterator[None]:
    """Hold `folder` against other trainings, made if need be; wait while another one holds it.

    The kernel gives the lock up when its process dies, however it dies. So a training whose
    Snakemake was killed, and which lives on, is waited for.

    Args:
        folder: of the checkpoints; removed at the end if it is empty.
        process: rank in a distributed training. Each rank waits for its own predecessor, so that
            none waits at a barrier for longer than that allows.
    """
    path = folder / f"{_LOCK}{process}"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = path.open("a+")
        except FileNotFoundError:
            continue  # the last holder has just removed the folder
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            print(f"{folder}: {holder} trains here; waiting for its end", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Holders remove the file: a lock on a removed one holds nothing.
        if path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat()):
            break
        handle.close()
    try:
        handle.truncate(0)
        handle.write(f"process {os.getpid()} of {platform.node()}\n")
        handle.flush()
        yield
    finally:
        path.unlink()
        handle.close()
        with suppress(OSError):  # checkpoints to resume from, or another training's lock
            folder.rmdir()


def fingerprint(
    init: Path, train_parquet: Path, settings: TrainSettings, seed: int, processes: int
) -> str:
    """A hash over everything that a run's weights follow from."""
    files = sorted(p for p in init.rglob("*") if p.is_file())
    made_of = {
        "init": {p.relative_to(init).as_posix(): sha256(p) for p in files},
        "train": sha256(train_parquet),
        "settings": settings.model_dump(),
        "seed": seed,
        "processes": processes,
        "code": code_digest("train", LOSSES[settings.loss].module),
    }
    return hashlib.sha256(canonical_json(made_of).encode()).hexdigest()


def prepare(folder: Path, run: str) -> None:
    """Leave nothing in the held `folder` but whole checkpoints of one run.

    What is incomplete or damaged is removed; a damaged one is named on stderr, since the training
    then starts anew.

    Args:
        folder: held by `exclusive`.
        run: fingerprint.

    Raises:
        UserError: there is something in the folder that no training of ours put there.
    """
    mark = folder / _FINGERPRINT
    if not mark.exists():
        foreign = [
            path.name
            for path in folder.iterdir()
            if not path.name.startswith((_LOCK, f".{_FINGERPRINT}."))
        ]
        if foreign:
            raise UserError(
                f"{folder}: holds {', '.join(sorted(foreign)[:3])} and no {_FINGERPRINT}, so these "
                "are not the checkpoints of an interrupted training; name another folder"
            )
    try:
        same = mark.exists() and read_json(mark) == run
    except UserError:
        same = False
    for checkpoint in folder.glob("checkpoint-*"):
        if not same or not _is_whole(checkpoint):
            _discard(checkpoint)
    if not same:
        (folder / _SAVE_MEMORY).unlink(missing_ok=True)
        write_json(mark, run)


def _is_whole(checkpoint: Path) -> bool:
    if not (checkpoint / _COMPLETE).exists():
        return False
    try:
        check_sums(checkpoint, name=_COMPLETE)
    except UserError as error:
        print(f"not resuming from {checkpoint}: {error}", file=sys.stderr)
        return False
    return True


def save_memory(folder: Path) -> None:
    """Note in the held and prepared `folder` that this run needs more memory than there is."""
    (folder / _SAVE_MEMORY).touch()


def saves_memory(folder: Path) -> bool:
    """Whether the run of `folder` shall do with less memory, at the price of time."""
    return (folder / _SAVE_MEMORY).exists()


def last_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint of most steps, or None."""
    complete = [p for p in folder.glob("checkpoint-*") if (p / _COMPLETE).exists()]
    return max(complete, key=lambda p: int(p.name.split("-")[1]), default=None)


def complete(checkpoint: Path) -> None:
    """Mark a checkpoint as whole, once it is on the disk, and remove all others."""
    sync(checkpoint)
    with atomic_file(checkpoint / _COMPLETE) as mark:
        mark.write_text(sums(checkpoint), encoding="utf-8")
    for other in checkpoint.parent.glob("checkpoint-*"):
        if other != checkpoint:
            _discard(other)


def remove(folder: Path) -> None:
    """Remove what a training that has ended left in the held `folder`."""
    for checkpoint in folder.glob("checkpoint-*"):
        _discard(checkpoint)
    (folder / _SAVE_MEMORY).unlink(missing_ok=True)
    (folder / _FINGERPRINT).unlink(missing_ok=True)


def _discard(checkpoint: Path) -> None:
    (checkpoint / _COMPLETE).unlink(missing_ok=True)  # first: a kill may come in between
    shutil.rmtree(checkpoint)

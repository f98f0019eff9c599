"""Processes as /proc shows them: descendants, groups, command lines."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_GONE = (FileNotFoundError, ProcessLookupError)


def arguments(process: int) -> list[str]:
    """The command line; empty for a process that is no more."""
    try:
        return (PROC / str(process) / "cmdline").read_bytes().decode().split("\0")[:-1]
    except _GONE:
        return []


def descendants(process: int) -> Iterator[int]:
    """Living children, and theirs."""
    with suppress(*_GONE):
        for task in (PROC / str(process) / "task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(*_GONE):
                # The command stands in brackets and may hold blanks; state, parent, group follow.
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state not in "ZX":
                    found.append(int(entry.name))
    return found


def send(signal: int, processes: list[int]) -> None:
    """Send a signal to each that still lives."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal)


def wait_for_end(group: int, seconds: float) -> bool:
    """Wait until a process group has no member left; whether that happened in time."""
    deadline = time.monotonic() + seconds
    while members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

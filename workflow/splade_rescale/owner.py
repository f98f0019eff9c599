"""The folder in which Snakemake keeps its records, and locks that a killed one left there."""

import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import IO

from splade_rescale.errors import UserError

_ROOM = 64 * 1024  # bytes; a lock and a mark are a block each


def check_writable(folder: Path) -> None:
    """Check that Snakemake can keep its records in `folder`, which it does before any job.

    Raises:
        UserError: there is no space, or no permission.
    """
    state = folder / ".snakemake"
    try:
        state.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=state) as file:
            file.write(bytes(_ROOM))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"{state}: cannot be written ({error.strerror}); Snakemake keeps its records there"
        ) from None


def release_stale_locks(folder: Path) -> IO[str] | None:
    """Become the one live workflow in `folder` and remove the locks that a killed one left.

    Snakemake's own locks are files, which outlive a process that gets SIGKILL. A kernel lock
    does not: whoever holds the one on `.snakemake/owner` is alive. When it is free, and the last
    holder ran on this host, no workflow of this project runs in the folder, so any lock file
    there is stale. Not every network file system carries kernel locks from host to host, so the
    locks of another host are left alone.

    Returns:
        The open file that holds the kernel lock, to be kept for the life of the process, or
        None when another workflow lives in the folder (Snakemake's own locks then decide).
    """
    state = folder / ".snakemake"
    state.mkdir(parents=True, exist_ok=True)
    handle = open(state / "owner", "a+", encoding="utf-8")  # noqa: SIM115 - held until exit
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    handle.seek(0)
    ours = handle.read() == socket.gethostname()
    if ours:
        shutil.rmtree(state / "locks", ignore_errors=True)
    # Not written without need: on a full disk it would be lost, and the next locks never go.
    if not ours and not any((state / "locks").glob("*")):
        handle.truncate(0)
        handle.write(socket.gethostname())
        handle.flush()
    return handle

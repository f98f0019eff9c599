"""GPUs for the jobs of one machine: no two of them get the same device.

A device is taken by a kernel lock (flock) on an empty file of its own. The kernel gives it up when
the processes that hold it end, however they end, so nothing has to be cleared away after a kill.
The folder of the files is one for all users of the machine:

- `devices.lock` is held while devices are chosen and waited for, so one process at a time takes
  all that it needs: two jobs of several devices cannot each wait for what the other one has;
- `{device}.lock` is held exclusively while it is taken, and then shared by the process that took
  the device and the workers that it starts (torchrun's). A worker that outlives its launcher thus
  keeps the device.
"""

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

from splade_rescale.errors import UserError

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HOLDER = "SPLADE_RESCALE_GPU_HOLDER"
_POLL_SECONDS = 0.5
# Descriptors of the locks that this process holds; never closed.
_held: list[int] = []


def visible() -> list[str]:
    """Names of the devices that this process may use, in the form that CUDA_VISIBLE_DEVICES takes.

    Where that variable is set (by the user or by Slurm) it decides. Else all that `nvidia-smi -L`
    lists, or, without that program, one for each device file.
    """
    value = os.environ.get(_VISIBLE)
    if value is not None:
        names = (name.strip() for name in value.split(","))
        # CUDA reads up to the first entry that is none; Slurm writes NoDevFiles for no device.
        return list(takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names))
    return _listed() or [str(n) for n, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def acquire(count: int, setting: str) -> None:
    """Take `count` GPUs for the life of this process, and let CUDA see no others.

    To be called before anything asks CUDA for its devices. Waits until enough are free. What
    `run` took serves all that descends from it: a worker of torchrun joins in holding it. A worker
    that was started without `run`, and a Slurm job that was given just `count` devices, keep to
    what they see.

    Args:
        count: number of devices; 0 changes nothing.
        setting: name of the setting that asks for them, for messages.

    Raises:
        UserError: the machine has fewer.
    """
    if count == 0:
        return
    names = visible()
    holder = os.environ.get(_HOLDER)
    if holder is not None:
        _join(int(holder), names)
        return
    if "LOCAL_RANK" in os.environ:
        return
    if not names and _VISIBLE not in os.environ:
        return  # no device that we know of: torch has the last word
    if len(names) < count:
        raise UserError(
            f"{setting} is {count}, but there are {len(names)} GPUs here"
            + (f" ({_VISIBLE} is {os.environ[_VISIBLE]!r})" if _VISIBLE in os.environ else "")
        )
    if "SLURM_JOB_ID" in os.environ and len(names) == count and _VISIBLE in os.environ:
        return
    os.environ[_VISIBLE] = ",".join(_take(count, names))


def run(count: int, command: list[str]) -> None:
    """Take `count` GPUs and become `command`, which holds them until it and its workers end."""
    acquire(count, "the number of GPUs")
    if _held:
        os.environ[_HOLDER] = str(os.getpid())
        for descriptor in _held:
            os.set_inheritable(descriptor, True)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}") from None


def _take(count: int, names: list[str]) -> list[str]:
    everyone = _open("devices")
    fcntl.flock(everyone, fcntl.LOCK_EX)
    try:
        taken = _try(count, names)
        if taken is None:
            wanted = f"{count} free GPU{'s' if count > 1 else ''} of {', '.join(names)}"
            print(f"waiting for {wanted} (locks: {_folder()})", file=sys.stderr, flush=True)
        while taken is None:
            time.sleep(_POLL_SECONDS)
            taken = _try(count, names)
    finally:
        os.close(everyone)
    _held.extend(taken.values())
    return list(taken)


def _try(count: int, names: list[str]) -> dict[str, int] | None:
    """Take `count` of the devices: their names and locks, or None if not so many are free."""
    taken: dict[str, int] = {}
    for name in names:
        if len(taken) == count:
            break
        descriptor = _open(_identity(name))
        if _lock(descriptor, fcntl.LOCK_EX):
            taken[name] = descriptor
        else:
            os.close(descriptor)
    if len(taken) < count:
        for descriptor in taken.values():
            os.close(descriptor)
        return None
    for descriptor in taken.values():
        _lock(descriptor, fcntl.LOCK_SH)
    return taken


def _join(holder: int, names: list[str]) -> None:
    """Hold what `holder`, this process or one that it descends from, has taken."""
    if holder == os.getpid():
        return
    descriptors = [_open(_identity(name)) for name in names]
    shared = all(_lock(descriptor, fcntl.LOCK_SH) for descriptor in descriptors)
    # If the holder still lives now, the devices were never free in between.
    if not (shared and _lives(holder)):
        raise UserError(f"process {holder}, which held the GPUs {', '.join(names)}, has ended")
    _held.extend(descriptors)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def _folder() -> Path:
    return Path(tempfile.gettempdir(), "splade-rescale-gpus")


def _open(name: str) -> int:
    """Open a lock file, made if need be. Reading is enough to lock it, so that no user of the
    machine needs to be let write to another one's file."""
    folder = _folder()
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    path = folder / f"{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.lock"
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
        os.fchmod(descriptor, 0o644)
        os.close(descriptor)
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _identity(name: str) -> str:
    """A device's UUID where it can be told, so that jobs that name it differently agree on it."""
    listed = _listed()
    return listed[int(name)] if name.isdecimal() and int(name) < len(listed) else name


@cache
def _listed() -> list[str]:
    """UUIDs of the GPUs as nvidia-smi lists them; none without that program.

    Several GPUs of different makes are in the order of their bus here, which CUDA follows if
    CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return re.findall(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)", done.stdout, re.MULTILINE)

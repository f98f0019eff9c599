"""Writing files so that a reader never sees half of one.

What is written lies under a temporary name until it is whole and on the disk. That name tells the
writer's machine, boot and process, so that what a killed writer left behind is cleared away by the
next one of the same file, also after a restart of the machine.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from splade_rescale.checksums import write_sums
from splade_rescale.errors import UserError


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


_TORCH_WRITING = ("failed writing file", "iostream error", "unexpected pos ")


@cache
def _process_space() -> str:
    """Where process ids mean what they mean here: this boot of this kernel, this pid namespace.

    Host names would not do: containers share them, or differ in them on one machine. Where the
    system does not tell (it is not Linux), a name that no other process has.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        text = boot + os.readlink("/proc/self/ns/pid")
    except OSError:
        text = uuid.uuid4().hex
    return _short(text)


@cache
def _machine() -> tuple[str, float]:
    """A name of this machine that outlives a boot, and when it was booted, seconds since 1970.

    Where the system does not tell (as in many containers), the name of the process space.
    """
    try:
        name = Path("/etc/machine-id").read_text(encoding="ascii").strip()
        stat = Path("/proc/stat").read_text(encoding="ascii")
        booted = float(re.search(r"^btime (\d+)$", stat, re.MULTILINE)[1])
    except (OSError, ValueError, TypeError):
        name, booted = "", 0.0
    return _short(name or _process_space()), booted


def _started(process: int) -> str | None:
    """When a process began, in clock ticks since the boot; None when it has ended.

    A process id alone would not do: ids are used again, and a killed process whose parent is
    dead keeps its id for as long as nobody reaps it, which in many containers is for ever.
    Where the system does not tell (it is not Linux), "0" for every live process.
    """
    try:
        # The name, in parentheses, may hold spaces and parentheses itself.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return None
        except PermissionError:  # it is another user's
            pass
        return "0"
    return None if fields[0] in "ZX" else fields[19]


def _own_mark() -> str:
    return f"{_process_space()}-{os.getpid()}-{_started(os.getpid())}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_left_over(temporary: Path, boot: str, process: int, started: str) -> bool:
    """Whether a temporary of this machine has no writer any more."""
    if boot == _process_space():
        return _started(process) != started
    # Of another boot or of a container. Images give machines of one cluster the same name, so
    # the age counts as well: nothing was written to it since this machine was started.
    parts = [temporary, *temporary.rglob("*")]
    return max(part.lstat().st_mtime for part in parts) < _machine()[1]


def _temporary_beside(path: Path) -> Path:
    """A new name beside `path`; removes what dead processes of this machine left under such."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}.{_machine()[0]}-"
    # A writer may write its temporary by way of another one, which begins with a dot more.
    lefts = [
        left for dots in ("", ".") for left in path.parent.glob(f"{dots}{glob.escape(prefix)}*.tmp")
    ]
    for left in lefts:
        found = re.search(r"-([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}\.tmp$", left.name)
        with suppress(FileNotFoundError):  # its writer has just ended
            if found and _is_left_over(left, found[1], int(found[2]), found[3]):
                _remove(left)
    own = f"{prefix}{_own_mark()}-{uuid.uuid4().hex[:8]}.tmp"
    return path.with_name(own)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk."""
    if path.is_dir():
        for part in path.iterdir():
            if not part.is_symlink():
                sync(part)
    _sync(path)


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no such thing for folders.
        if not path.is_dir() or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Give an error of the disk the name of what could not be written.

    Libraries raise it without a name (pyarrow), or as an error of their own (safetensors, torch),
    and the name of the temporary would tell a user little.

    Raises:
        OSError: of `path`.
    """
    temporary = temporary or path
    try:
        yield
    except OSError as error:
        if error.errno is None or not str(error.filename or temporary).startswith(str(temporary)):
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    except UserError:
        raise
    except Exception as error:
        number = _disk_error(error, path.parent)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _disk_error(error: BaseException, folder: Path) -> int | None:
    """The errno of a full disk or the like that the text of `error` tells of."""
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS):
        if os.strerror(number) in str(error):
            return number
    if any(text in str(error) for text in _TORCH_WRITING):  # without saying why
        full = shutil.disk_usage(folder).free < 2**20
        return errno.ENOSPC if full else errno.EIO
    return None


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends well.

    On an exception the temporary file is removed and `path` stays as it was.
    """
    path = Path(path)
    temporary = _temporary_beside(path)
    try:
        with naming(path, temporary):
            yield temporary
            sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _holds_something(path: Path) -> bool:
    """Whether a file stands at `path`, or a folder with more in it than hidden files."""
    if path.is_dir():
        return any(not part.name.startswith(".") for part in path.iterdir())
    return path.exists()


def _exchange(new: Path, path: Path, old: Path) -> None:
    """Put the folder `new` at `path`, and what may be there at `old`."""
    while True:
        if path.exists():
            with suppress(FileNotFoundError):
                os.replace(path, old)
        try:
            os.replace(new, path)
            return
        except OSError as error:
            # Another writer of the same folder came in between: the job of a killed workflow.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _remove(old)


@contextmanager
def atomic_folder(
    path: str | Path, mark: str | None = None, *, sums: bool = False
) -> Iterator[Path]:
    """Yield a new empty folder beside `path`; put it in its place when the block ends well.

    On an exception the new folder is removed and `path` stays as it was. Should the process die
    while it replaces one folder by another, `path` is missing, never half of either.

    Args:
        path: of the folder.
        mark: file that tells folders of this kind; anything else that stands at `path`, other
            than an empty folder, is somebody's and not replaced. Without it the caller checks.
        sums: write SHA256SUMS over its files when the block ends.

    Raises:
        UserError: `path` holds something without `mark`.
    """
    path = Path(path)
    if mark is not None and not (path / mark).is_file() and _holds_something(path):
        raise UserError(f"{path}: exists and holds no {mark}; name another folder to write to")
    temporary, old = _temporary_beside(path), _temporary_beside(path)
    temporary.mkdir()
    try:
        with naming(path, temporary):
            yield temporary
            if sums:
                write_sums(temporary)
            sync(temporary)
        _exchange(temporary, path, old)
        _sync(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        _remove(temporary)
        _remove(old)


def canonical_json(value: Any) -> str:
    """JSON on one line with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, atomically."""
    with atomic_file(path) as temporary:
        text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing or is not JSON; the message names it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Read a JSON file that holds an object (keys and values).

    Raises:
        UserError: as `read_json`, or the file holds something else.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_text_csv(path: str | Path) -> Any:
    """Read a CSV file as a data frame, all columns as text, nothing taken for a missing value.

    Raises:
        UserError: the file is missing or is not CSV; the message names it.
    """
    import pandas as pd  # most users of this module do without

    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ValueError as error:
        raise UserError(f"{path}: not a CSV file ({error})") from None

"""Writing files so that a reader never sees half of one.

What is written lies under a temporary name until it is whole. That name holds the writer's process
id, so that what a killed writer left behind is cleared away by the next one of the same file.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from splade_rescale.errors import UserError


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
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _temporary_beside(path: Path) -> Path:
    """A new name beside `path`; removes what dead processes of this machine left under such."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}.{_process_space()}-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        process = re.fullmatch(r"(\d+)-[0-9a-f]{8}\.tmp", left.name.removeprefix(prefix))
        if process and not _is_alive(int(process[1])):
            _remove(left)
    return path.with_name(f"{prefix}{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block ends well.

    On an exception the temporary file is removed and `path` stays as it was.
    """
    path = Path(path)
    temporary = _temporary_beside(path)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _holds_something(path: Path) -> bool:
    """Whether a file stands at `path`, or a folder with more in it than hidden files."""
    if path.is_dir():
        return any(not part.name.startswith(".") for part in path.iterdir())
    return path.exists()


@contextmanager
def atomic_folder(path: str | Path, mark: str | None = None) -> Iterator[Path]:
    """Yield a new empty folder beside `path`; put it in its place when the block ends well.

    On an exception the new folder is removed and `path` stays as it was. Should the process die
    while it replaces one folder by another, `path` is missing, never half of either.

    Args:
        path: of the folder.
        mark: file that tells folders of this kind; anything else that stands at `path`, other
            than an empty folder, is somebody's and not replaced. Without it the caller checks.

    Raises:
        UserError: `path` holds something without `mark`.
    """
    path = Path(path)
    if mark is not None and not (path / mark).is_file() and _holds_something(path):
        raise UserError(f"{path}: exists and holds no {mark}; name another folder to write to")
    temporary, old = _temporary_beside(path), _temporary_beside(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
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

"""SHA-256 of a folder's files, kept beside them in the format of `sha256sum`.

Neither safetensors nor JSON would show a flipped bit. `sha256sum --check SHA256SUMS` in such a
folder does what `check_sums` does.
"""

import hashlib
import re
from fnmatch import fnmatch
from pathlib import Path

from splade_rescale.errors import UserError

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums(folder: Path) -> str:
    """The text of a SHA256SUMS over all files below `folder`, hidden ones and itself left out."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    listed = [name for name in names if name != SUMS and not Path(name).name.startswith(".")]
    return "".join(f"{sha256(folder / name)}  {name}\n" for name in listed)


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS into a folder that is complete."""
    (folder / SUMS).write_text(sums(folder), encoding="utf-8")


def check_sums(folder: Path, *patterns: str, name: str = SUMS) -> None:
    """Check files against what was written; a folder without sums is not ours and passes.

    Args:
        folder: holds the files.
        patterns: shell patterns of the names to check; all files if there are none.
        name: of the file of sums.

    Raises:
        UserError: names a file that is missing or has changed, or a file of sums that is damaged.
    """
    path = folder / name
    if not path.is_file():
        return
    lines = path.read_bytes().splitlines()
    if not lines:
        raise UserError(f"{path}: is empty, expected the SHA-256 of files; it is damaged")
    for number, line in enumerate(lines, start=1):
        entry = _LINE.fullmatch(line.decode("utf-8", errors="replace"))
        if entry is None:
            raise UserError(f"{path}:{number}: expected a SHA-256 and a file name; it is damaged")
        if patterns and not any(fnmatch(entry[2], pattern) for pattern in patterns):
            continue
        file = folder / entry[2]
        if not file.is_file():
            raise UserError(f"{file}: no such file, but {name} beside it has its SHA-256")
        if sha256(file) != entry[1]:
            raise UserError(
                f"{file}: its SHA-256 is not that in {name} beside it; it was damaged or edited "
                "after it was written"
            )

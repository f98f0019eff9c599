"""Rows of data files (JSON lines, Parquet), each with its place for error messages."""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from splade_rescale.errors import UserError
from splade_rescale.parquet_files import ERRORS, read_batches

BATCH_ROWS = 10_000


def place(path: Path, number: int) -> str:
    """Where a row stands: `file:line`, or `file row n` in Parquet (both count from 1)."""
    return f"{path} row {number}" if path.suffix == ".parquet" else f"{path}:{number}"


def stem(path: Path) -> str:
    """The file's name without `.gz`."""
    return path.name.removesuffix(".gz")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of every line that is not blank, unpacking `.gz`.

    Lines end at `\\n` only: a line separator within a text splits nothing.

    Raises:
        UserError: unreadable file, damaged gzip data, or a line that is not UTF-8.
    """
    number = 0
    try:
        if path.suffix == ".gz" and not path.stat().st_size:  # nothing compressed takes 20 bytes
            raise EOFError("it is empty")
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if text.strip(" "):
                    yield number, text
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: not UTF-8 ({error})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path}:{number + 1}: truncated or damaged gzip data ({error}); fetch the file again"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in read_lines(path):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON ({error})") from None
        if not isinstance(row, dict):
            raise UserError(
                f"{path}:{number}: found {text[:60]!r}, expected a JSON object on each line"
            )
        yield number, row


def _parquet_rows(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            found = file.schema_arrow.names
            if not set(required) <= set(found):
                raise UserError(
                    f"{path}: found columns {found}, expected {list(required)}"
                    + (f" and optionally {list(optional)}" if optional else "")
                )
            columns = [name for name in (*required, *optional) if name in found]
            number = 0
            for batch in read_batches(file, path, batch_size=BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except ERRORS as error:
        raise UserError(f"{path}: cannot be read as Parquet ({error})") from None


@dataclass(frozen=True)
class Rows:
    """The rows of data files in order; may be iterated any number of times.

    Iterating yields (path, number, row): number is the line, or the row of a Parquet file, from 1.

    Raises:
        UserError: a file that cannot be read, is of an unknown format, or (Parquet) lacks a
            required column. A key that a JSON line lacks is the consumer's to find.
    """

    files: tuple[Path, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[tuple[Path, int, dict[str, Any]]]:
        for path in self.files:
            if path.suffix == ".parquet":
                rows = _parquet_rows(path, self.required, self.optional)
            elif stem(path).endswith(".jsonl"):
                rows = _json_rows(path)
            else:
                raise UserError(f"{path}: unknown format, expected .jsonl, .jsonl.gz or .parquet")
            for number, row in rows:
                yield path, number, row

"""TREC run files, gzipped: `query_id Q0 doc_id rank score tag`, six fields to a line.

Whitespace, control characters and `%` inside ids are percent-escaped (UTF-8), nothing else, so
that every id survives and ordinary ids stand as they are.
"""

import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file

Run = dict[str, dict[str, float]]
Hits = list[tuple[str, float]]


# \s is what str.split() splits on; the ranges are the control characters (Unicode's Cc)
_ESCAPED = re.compile(r"[%\s\x00-\x1f\x7f-\x9f]")


def escape_id(text: str) -> str:
    """Percent-escape whitespace, control characters and `%`.

    Raises:
        UserError: the id is empty, which no run file can hold.
    """
    if not text:
        raise UserError("an empty query or document id cannot stand in a run file")
    return _ESCAPED.sub(lambda match: quote(match[0], safe=""), text)


def unescape_id(text: str) -> str:
    """The inverse of `escape_id`."""
    return unquote(text, errors="strict") if "%" in text else text


def write_run(path: Path, results: Iterable[tuple[str, Hits]], tag: str) -> int:
    """Write the hits of each query, in the order given, as a gzipped TREC run.

    Equal results give equal bytes (the gzip header holds neither time nor name).

    Args:
        path: the file to write, atomically.
        results: (query_id, [(doc_id, score), ...]); scores are float32 values, printed with the
            nine digits that hold them exactly.
        tag: name of the run, the last field of each line.

    Returns:
        The number of lines.

    Raises:
        UserError: an empty id.
    """
    lines = 0
    with (
        atomic_file(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as out,
    ):
        for query_id, hits in results:
            query = escape_id(query_id)
            for rank, (doc_id, score) in enumerate(hits, start=1):
                out.write(f"{query} Q0 {escape_id(doc_id)} {rank} {score:.9g} {tag}\n")
            lines += len(hits)
    return lines


def read_run(path: Path) -> Run:
    """Read a gzipped TREC run as {query_id: {doc_id: score}}; the rank column is not used.

    Raises:
        UserError: no such file, a damaged or truncated one, a malformed line, or a document twice
            for one query; the message names file and line.
    """
    run: Run = {}
    number = 0
    try:
        if not path.stat().st_size:  # which gzip takes for nothing compressed
            raise EOFError("it is empty")
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.split()
                if len(fields) != 6:
                    raise UserError(
                        f"{path}:{number}: expected 6 fields (query_id Q0 doc_id rank score tag), "
                        f"found {len(fields)}: {line.rstrip()[:200]!r}"
                    )
                where = f"{path}:{number}"
                query_id, doc_id = (_id(fields[n], where) for n in (0, 2))
                score = _score(fields[4], where)
                hits = run.setdefault(query_id, {})
                if doc_id in hits:
                    raise UserError(
                        f"{path}:{number}: document {doc_id!r} stands twice for query {query_id!r}"
                    )
                hits[doc_id] = score
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}:{number + 1}: damaged or truncated gzip file ({error}); delete it and search "
            "again"
        ) from None
    return run


def _id(text: str, where: str) -> str:
    try:
        return unescape_id(text)
    except UnicodeDecodeError:
        raise UserError(f"{where}: {text!r} is not percent-escaped UTF-8") from None


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{where}: expected a finite number as score, found {text!r}")
    return score

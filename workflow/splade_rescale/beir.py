"""BEIR-layout data: from corpus, queries, qrels and training files to checked Arrow batches.

Ids are text from end to end: they are never parsed as numbers, stripped or changed in case.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from splade_rescale.errors import UserError
from splade_rescale.rows import BATCH_ROWS, Rows, place, read_lines, stem
from splade_rescale.schemas import SCHEMAS, Batches, Parts, train_schema
from splade_rescale.settings import PathDataset

QRELS_HEADER = ("query-id", "corpus-id", "score")
# Tables often carry scores as 1.0
_INTEGER = re.compile(r"([+-]?[0-9]{1,18})(\.0+)?")


def _batches(records: Iterator[tuple], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(records, BATCH_ROWS)):
        columns = zip(zip(*chunk, strict=True), schema.types, strict=True)
        yield pa.record_batch([pa.array(values, kind) for values, kind in columns], schema=schema)


def _text(where: str, row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        found = f"{value!r:.60}" if key in row else f"no such key among {sorted(row)}"
        raise UserError(f"{where}: {key!r} must be a string, found {found}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: {key!r} is not valid Unicode ({error})") from None
    return value


def _id(path: Path, number: int, row: dict[str, Any], key: str) -> str:
    """An id as text. Parquet is typed, so its whole numbers have one spelling; JSON's have not."""
    where, value = place(path, number), row.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        if path.suffix == ".parquet":
            return str(value)
        raise UserError(
            f'{where}: {key!r} is the number {value}, expected a string: write "{value}" in quotes'
        )
    if not (text := _text(where, row, key)):
        raise UserError(f"{where}: {key!r} is empty, expected a non-empty string")
    return text


def _identified(rows: Rows) -> Iterator[tuple[str, Path, int, dict[str, Any]]]:
    seen = set()
    for path, number, row in rows:
        identifier = _id(path, number, row, "_id")
        if identifier in seen:
            # The first place is looked up again: places of millions of ids are not worth keeping.
            first = next(place(p, n) for p, n, r in rows if _id(p, n, r, "_id") == identifier)
            raise UserError(
                f"{place(path, number)}: duplicate '_id' {identifier!r}, first found at {first}"
            )
        seen.add(identifier)
        yield identifier, path, number, row


def _documents(rows: Rows) -> Iterator[tuple[str, str, str]]:
    for identifier, path, number, row in _identified(rows):
        where = place(path, number)
        title = "" if row.get("title") is None else _text(where, row, "title")
        yield identifier, title, _text(where, row, "text")


def read_corpus(files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """Yield batches (doc_id, title, text); a title that is null or missing becomes "".

    Raises:
        UserError: at the first bad row, naming its place: `_id` not a non-empty string or seen
            before (both places), `text` missing or not a string, broken file.
    """
    return _batches(_documents(Rows(tuple(files), ("_id", "text"), ("title",))), SCHEMAS["corpus"])


def read_queries(files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """Yield batches (query_id, text). Raises: as `read_corpus`."""
    rows = Rows(tuple(files), ("_id", "text"))
    records = (
        (identifier, _text(place(path, number), row, "text"))
        for identifier, path, number, row in _identified(rows)
    )
    return _batches(records, SCHEMAS["queries"])


def _relevance(where: str, value: Any) -> int:
    if isinstance(value, str) and (whole := _INTEGER.fullmatch(value)):
        return int(whole[1])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and abs(value) < 2**63 and value == int(value):
        return int(value)
    raise UserError(f"{where}: relevance must be a whole number, found {value!r}")


def _judgements_in_lines(path: Path) -> Iterator[tuple[int, str, str, Any]]:
    """Judgements of a BEIR .tsv (3 columns between tabs) or a TREC file (4 between blanks)."""
    form = None
    for number, line in read_lines(path):
        fields = line.split("\t")
        if form is None:
            form = "BEIR" if len(fields) == 3 else "TREC"
            if (
                form == "BEIR"
                and tuple(f.lower().replace("_", "-") for f in fields) == QRELS_HEADER
            ):
                continue
        if form == "TREC":
            fields = line.split()
            fields = [fields[0], *fields[2:]] if len(fields) == 4 else []
        if len(fields) != 3 or not fields[0] or not fields[1]:
            expected = {
                "BEIR": "3 columns between tabs (query-id, corpus-id, score), as in the first line",
                "TREC": "4 columns between blanks (query, iteration, document, relevance) or "
                "3 between tabs (query-id, corpus-id, score)",
            }[form]
            raise UserError(f"{path}:{number}: found {line[:80]!r}, expected {expected}")
        yield number, *fields


def _judgements_in_rows(path: Path) -> Iterator[tuple[int, str, str, Any]]:
    *ids, score = QRELS_HEADER
    scored = None
    for _, number, row in Rows((path,), tuple(ids), (score,)):
        # Sets without graded judgements (NanoBEIR) have no score: what is listed is relevant.
        scored = score in row if scored is None else scored
        value = row.get(score) if scored else 1
        yield number, *(_id(path, number, row, key) for key in ids), value


def _judgements(files: Iterable[Path], queries: set[str]) -> Iterator[tuple[str, str, int]]:
    seen: dict[tuple[str, str], tuple[str, int]] = {}
    for path in files:
        rows = path.suffix == ".parquet" or stem(path).endswith(".jsonl")
        for number, query, document, score in (
            _judgements_in_rows(path) if rows else _judgements_in_lines(path)
        ):
            where = place(path, number)
            if query not in queries:
                raise UserError(f"{where}: query {query!r} is not among the queries")
            relevance = _relevance(where, score)
            if known := seen.get((query, document)):
                first, value = known
                if value != relevance:
                    raise UserError(
                        f"{where}: relevance {relevance} of document {document!r} for query "
                        f"{query!r} contradicts relevance {value} at {first}"
                    )
                continue
            seen[query, document] = where, relevance
            yield query, document, relevance


def read_qrels(files: Iterable[Path], queries: set[str]) -> Iterator[pa.RecordBatch]:
    """Yield batches (query_id, doc_id, relevance); the first line of a text file tells its format.

    Args:
        files: BEIR .tsv[.gz] with or without header, TREC qrels[.gz], .jsonl[.gz] or .parquet
            (query-id, corpus-id, optional score: 1 where there is no such column).
        queries: the known query ids.

    Raises:
        UserError: naming file and line: a query that is not among `queries`, a judgement that
            contradicts an earlier one (a repeated one counts once), a relevance that is not whole,
            a wrong number of columns.
    """
    return _batches(_judgements(files, queries), SCHEMAS["qrels"])


def read_train(files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """Yield batches of query, positive [, negative [, positive_score, negative_score]].

    The first row tells which columns there are; every other row must have the same.

    Raises:
        UserError: naming file and line: a column missing, of the wrong type, or new.
    """
    names = tuple(SCHEMAS["train"].names)
    rows = Rows(tuple(files), names[:2], names[2:])
    first = next(iter(rows), None)
    if first is None:
        return iter(())
    path, number, row = first
    schema = train_schema(name for name in names if row.get(name) is not None)
    if tuple(schema.names) not in (names[:2], names[:3], names):
        raise UserError(
            f"{place(path, number)}: found {schema.names}, expected query and positive, "
            "optionally negative, and with it optionally both positive_score and negative_score"
        )

    def records() -> Iterator[tuple]:
        for path, number, row in rows:
            where = place(path, number)
            if new := [n for n in names if row.get(n) is not None and n not in schema.names]:
                raise UserError(f"{where}: {new[0]!r} is here but not in the first row")
            yield tuple(
                _score(where, row, name) if name.endswith("_score") else _text(where, row, name)
                for name in schema.names
            )

    return _batches(records(), schema)


def _score(where: str, row: dict[str, Any], key: str) -> float:
    value = row.get(key)
    try:
        score = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{where}: {key!r} must be a finite number, found {value!r:.80}")
    return score


def read_titles(files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """Yield training pairs title -> text of the documents that have both."""
    rows = Rows(tuple(files), ("_id", "text"), ("title",))
    pairs = ((title, text) for _, title, text in _documents(rows) if title.strip() and text.strip())
    return _batches(pairs, train_schema(["query", "positive"]))


def judged_tables(
    corpus: Iterable[Path],
    queries: Iterable[Path],
    qrels: Iterable[Path],
    *,
    only_judged: bool = False,
) -> dict[str, Batches]:
    """The three tables of an evaluation; queries are read at once, the others as they are used.

    Args:
        corpus: files of `read_corpus`.
        queries: files of `read_queries`.
        qrels: files of `read_qrels`.
        only_judged: leave out queries without a judgement, where the files hold the queries of
            all splits (MS MARCO: 509,962, of which 6,980 are judged in the dev split).
    """
    query_batches = list(read_queries(queries))
    known = {query for batch in query_batches for query in batch.column("query_id").to_pylist()}
    judgements: Batches = read_qrels(qrels, known)
    if only_judged:
        judgements = list(judgements)
        judged = pa.array(
            {query for batch in judgements for query in batch.column("query_id").to_pylist()},
            pa.string(),
        )
        query_batches = [
            batch.filter(pc.is_in(batch.column("query_id"), value_set=judged))
            for batch in query_batches
        ]
    return {"corpus": read_corpus(corpus), "queries": query_batches, "qrels": judgements}


def _one_of(folder: Path, names: list[str], wanted: str) -> Path:
    found = sorted(path for name in names for path in folder.glob(name) if path.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(f"{folder}: no {wanted}; expected {' or '.join(names)}")
    listed = ", ".join(str(path.relative_to(folder)) for path in found)
    raise UserError(f"{folder}: more than one {wanted}: {listed}; expected one")


def _qrels_file(folder: Path, named: str | None) -> Path:
    if named is not None:
        return folder / named
    tests = ["qrels/test.tsv", "qrels/test.tsv.gz"]
    if any((folder / name).is_file() for name in tests):
        return _one_of(folder, tests, "test qrels file")
    other = ["qrels.trec", "qrels.tsv", "qrels/*.trec", "qrels/*.tsv"]
    names = [name + packed for name in other for packed in ("", ".gz")]
    return _one_of(folder, names, "qrels file (name one with the data set's key 'qrels')")


def _folder_files(entry: PathDataset) -> list[Path]:
    """The files of a user's folder: corpus, queries, qrels, and training rows if they have one."""
    folder = Path(os.path.expanduser(entry.path))  # Path's own method fails on an unknown user
    if not folder.is_dir():
        raise UserError(f"{entry.path}: no such folder; expected a data set in BEIR layout")
    files = [
        _one_of(folder, ["corpus.jsonl", "corpus.jsonl.gz"], "corpus file"),
        _one_of(folder, ["queries.jsonl", "queries.jsonl.gz"], "queries file"),
        _qrels_file(folder, entry.qrels),
    ]
    if entry.train not in (None, "title"):
        files.append(folder / entry.train)
    for path in files:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
    return files


def check_folder(entry: PathDataset) -> None:
    """Check that the files of a user's folder are there, without reading any.

    Raises:
        UserError: a missing folder or file, or more than one candidate.
    """
    _folder_files(entry)


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def read_folder(entry: PathDataset) -> Parts:
    """The tables of a user's folder; provenance has size and SHA-256 of each file read.

    Raises:
        UserError: as `check_folder` does, and (when the tables are used) whatever the readers of
            the tables raise.
    """
    files = _folder_files(entry)
    corpus, queries, qrels, *train = files
    tables = judged_tables([corpus], [queries], [qrels])
    if train:
        tables["train"] = read_train(train)
    elif entry.train == "title":
        tables["train"] = read_titles([corpus])
    return Parts(tables, {"files": {str(path): _fingerprint(path) for path in files}})

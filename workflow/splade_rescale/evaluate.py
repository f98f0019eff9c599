"""Measures of a run against relevance judgements, over all judged queries.

The order of a run is trec_eval's: score (as float32) descending, then document id descending.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyarrow as pa

from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, write_json
from splade_rescale.parquet_files import ERRORS, read_table
from splade_rescale.runs import Run, read_run

Qrels = dict[str, dict[str, int]]

EXAMPLES = "nDCG@10, RR@10, R@100, R(rel=2)@1000, AP, P@5, Success@1"
# ir_measures' own choice, in its order, without the providers that need Perl or other packages:
# trec_eval's code for all measures that it has, and MS MARCO's for RR with a cutoff
_PROVIDER = ir_measures.providers.FallbackProvider(
    [ir_measures.pytrec_eval, ir_measures.judged, ir_measures.msmarco]
)


def _canonical(name: str) -> str | None:
    """The canonical name that was probably meant, or None."""
    head, at, cutoff = name.strip().partition("@")
    head, bracket, parameters = head.partition("(")
    known = {key.lower(): key for key in ir_measures.measures.registry}
    guess = known.get(head.strip().lower(), head) + bracket + parameters + at + cutoff
    for parse in (ir_measures.parse_measure, ir_measures.parse_trec_measure):
        try:
            parsed = parse(guess)
        except (ValueError, NameError):
            continue
        return str(parsed[0] if isinstance(parsed, list) else parsed)
    return None


def _parse(name: str) -> ir_measures.Measure:
    try:
        measure = ir_measures.parse_measure(name)
        right = str(measure) == name
    except (ValueError, NameError):
        right = False
    if not right:
        meant = _canonical(name)
        hint = f"; is {meant} meant?" if meant else ""
        raise UserError(f"unknown measure {name!r}{hint} (valid are for example {EXAMPLES})")
    # trec_eval's code ends the process on these, so they must not get that far
    if measure.params.get("cutoff", 1) < 1 or measure.params.get("rel", 1) < 1:
        raise UserError(f"measure {name!r}: cutoff and rel must be at least 1")
    try:
        supported = _PROVIDER.supports(measure)
    except AssertionError as error:  # how ir_measures reports a missing or wrong parameter
        parameter = re.search(r"param (\w+)=", str(error))
        raise UserError(
            f"measure {name!r}: {parameter[1] if parameter else 'a parameter'} is missing or wrong "
            f"(valid are for example {EXAMPLES})"
        ) from None
    if not supported:
        raise UserError(f"measure {name!r} is not available (valid are for example {EXAMPLES})")
    return measure


def check_measures(measures: Sequence[str]) -> list[ir_measures.Measure]:
    """Parse measures named as ir_measures prints them.

    Raises:
        UserError: a name is unknown, not in its canonical form, or stands twice.
    """
    repeated = {name for name in measures if measures.count(name) > 1}
    if repeated:
        raise UserError(f"measures stand twice: {', '.join(sorted(repeated))}")
    return [_parse(name) for name in measures]


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def read_qrels(path: Path) -> Qrels:
    """Read qrels.parquet (query_id, doc_id, relevance) as {query_id: {doc_id: relevance}}.

    Raises:
        UserError: the file is missing, empty, lacks a column, holds a null or another type than
            strings and integers, or judges a pair in two ways.
    """
    types = {"query_id": _is_text, "doc_id": _is_text, "relevance": pa.types.is_integer}
    try:
        table = read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ERRORS as error:
        raise UserError(f"{path}: not a readable parquet file ({error})") from None
    missing = [name for name in types if name not in table.column_names]
    if missing:
        raise UserError(
            f"{path}: no column {', '.join(missing)}; found {', '.join(table.column_names)}"
        )
    for name, is_right in types.items():
        kind, nulls = table[name].type, table[name].null_count
        if nulls or not is_right(kind):
            raise UserError(
                f"{path}: expected strings in query_id and doc_id and integers in relevance; "
                f"{name} is of type {kind} with {nulls} nulls"
            )
    qrels: Qrels = {}
    for query_id, doc_id, relevance in zip(*(table[c].to_pylist() for c in types), strict=True):
        judged = qrels.setdefault(query_id, {})
        if judged.setdefault(doc_id, relevance) != relevance:
            raise UserError(
                f"{path}: query {query_id!r}, document {doc_id!r}: judged {judged[doc_id]} and "
                f"{relevance}"
            )
    if not qrels:
        raise UserError(f"{path}: no judgements; expected at least one")
    return qrels


def _without_ties(hits: Mapping[str, float]) -> dict[str, float]:
    """The same order with scores n, n-1, ..., 1.

    trec_eval puts the greater id first among equal scores, MS MARCO's script the smaller one.
    Scores without ties make every provider see one order.
    """
    order = sorted(hits, reverse=True)
    order.sort(key=lambda doc_id: -np.float32(hits[doc_id]))  # stable: ids stay descending
    return {doc_id: float(len(order) - position) for position, doc_id in enumerate(order)}


def score_run(
    run: Run, qrels: Qrels, measures: Sequence[str]
) -> tuple[dict[str, float], pd.DataFrame]:
    """Measures of a run: their values over all judged queries, and per query.

    A judged query is one that stands in the qrels, be it with relevance 0 only; one without hits
    counts as 0. So the mean is that of `trec_eval -c`. Queries of the run that nobody judged are
    ignored.

    Returns:
        {measure: value} and a frame with the columns query_id, measure, value: one row for each
        measure and judged query, in the order of `measures` and of the qrels.

    Raises:
        UserError: see `check_measures`.
    """
    parsed = check_measures(measures)
    judged = {query: _without_ties(hits) for query, hits in run.items() if query in qrels}
    aggregated, per_query = _PROVIDER.calc(parsed, qrels, judged)
    values = {(str(m.measure), m.query_id): float(m.value) for m in per_query}
    rows = [(query, name, values[name, query]) for name in measures for query in qrels]
    frame = pd.DataFrame(rows, columns=["query_id", "measure", "value"])
    return {str(m): float(aggregated[m]) for m in parsed}, frame


def evaluate(
    run: Path, qrels: Path, measures: Sequence[str]
) -> tuple[dict[str, float], pd.DataFrame]:
    """`score_run` of a run file against a qrels file.

    Raises:
        UserError: a measure or a file is wrong (see `check_measures`, `read_run`, `read_qrels`).
    """
    return score_run(read_run(run), read_qrels(qrels), measures)


def write_metrics(
    run: Path, qrels: Path, measures: Sequence[str], metrics: Path, per_query: Path
) -> dict[str, Any]:
    """Evaluate a run file and write metrics.json and per_query.parquet.

    Returns:
        What metrics.json holds: measures {name: value}, queries (judged), queries_without_hits
        (judged, absent from the run), queries_not_judged (in the run, ignored).

    Raises:
        UserError: as `evaluate`.
    """
    check_measures(measures)  # before the long reading
    hits, judgements = read_run(run), read_qrels(qrels)
    values, frame = score_run(hits, judgements, measures)
    summary = {
        "measures": values,
        "queries": len(judgements),
        "queries_without_hits": len(judgements.keys() - hits.keys()),
        "queries_not_judged": len(hits.keys() - judgements.keys()),
    }
    with atomic_file(per_query) as temporary:
        frame.to_parquet(temporary, index=False, write_page_checksum=True)
    write_json(metrics, summary)
    return summary

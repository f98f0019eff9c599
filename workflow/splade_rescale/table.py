"""The results table: one row per cell, read from the files that the stages wrote.

Nothing is filled in: a file or a value that should be there and is not is an error that names the
file. An empty field means that the column does not apply to the row (a measure of another data
set, the training of a baseline, a comparison with a cell outside the grid).
"""

import math
from collections.abc import Iterable
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from splade_rescale.cells import CellFiles
from splade_rescale.checksums import check_sums
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, read_json
from splade_rescale.parquet_files import ERRORS
from splade_rescale.parquet_files import read_table as read_parquet
from splade_rescale.published import read_published
from splade_rescale.scale import AUTO
from splade_rescale.significance import holm, paired_p

STATUSES = ("ok", "diverged", "collapsed-zero", "collapsed-dense")

# Columns before and after those of the measures, each with the format it is written in. The
# marked ones are measured times: they alone differ between two runs of the same cell.
_KEYS = {"arm": "s", "dataset": "s", "backbone": "s", "k": "s", "seed": "d", "status": "s"}
_VALUES = {
    "k_used": ".6g",  # differs from k where that is auto
    "delta_vs_k1": ".4f",
    "p_vs_k1": ".4g",
    "p_holm_vs_k1": ".4g",
    "delta_vs_baseline": ".4f",
    "p_vs_baseline": ".4g",
    "p_holm_vs_baseline": ".4g",
    "norm_before": ".4f",
    "norm_after": ".4f",
    "first_loss": ".4f",
    "last_loss": ".4f",
    "active_terms_q": ".2f",
    "active_terms_d": ".2f",
    "FLOPS": ".4f",
    "empty_documents": "d",
    "engine": "s",
    "exact_recall@10": ".4f",  # of a sample of the queries
    "index_mb": ".2f",
    "ms_per_query": ".3f",  # time
    "train_seconds": ".1f",  # time
    "examples_per_second": ".1f",  # time
    "docs_per_second": ".1f",  # time
}
_MEASURE_FORMAT = ".4f"


def build_table(
    cells: Iterable[CellFiles], *, baseline: str | None = None, published: Path | None = None
) -> pd.DataFrame:
    """One row per cell: the main arm, then the others; data sets by name, backbones in the order
    given, k by number, then seed.

    `status` is training's; a cell whose queries or documents have no term at all is
    collapsed-zero in any case. The baseline (bm25) comes first in each data set. `delta_*` and
    `p_*` compare the headline measure query by query (difference of the means, and p of the
    two-sided paired t-test) with the same data set and seed:

    - `*_vs_k1`: of the same backbone at k = 1 in the same arm;
    - `*_vs_baseline`: of the backbone `baseline` at k = 1 in the main arm, the untouched and
      known model.

    `p_holm_*` is that p corrected by Holm over all comparisons of its kind on the data set.
    They are empty for the row compared with itself, and where that cell is not in `cells`.

    Args:
        cells: the rows.
        baseline: a backbone's name.
        published: CSV with the columns backbone, k, dataset, measure, value and source. Each
            measure for which it has a value of some row gets the columns `{measure}_published`
            and `{measure}_difference` (ours - published).

    Raises:
        UserError: names a file that is missing, damaged, or lacks a value.
    """
    cells = _sorted(list(cells))
    if not cells:
        raise UserError("the table has no cells: expected at least one backbone, k and data set")
    rows = [_row(cell) for cell in cells]
    _add_significance(cells, rows, baseline)
    measures = list(dict.fromkeys(name for cell in cells for name in cell.measures))
    columns = [*_KEYS, *measures, *_VALUES]
    if published is not None:
        columns += _add_published(cells, rows, published, measures)
    return pd.DataFrame(rows, columns=columns).astype(
        {c: "Int64" for c, f in {**_KEYS, **_VALUES}.items() if f == "d"}
        | {c: "float64" for c in columns if _format(c)[-1] in "fg"}
        | {c: "str" for c, f in {**_KEYS, **_VALUES}.items() if f == "s"}
    )


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table as CSV, in a fixed number format, so that equal results give equal text.

    Measures, losses and norms have 4 decimals, p has 4 significant digits. A value that does not
    apply is empty; a loss that was not finite is written as `nan`.
    """
    with atomic_file(path) as temporary:
        _as_text(table).to_csv(temporary, index=False, lineterminator="\n")


def read_table(path: Path) -> pd.DataFrame:
    """Read what `write_table` wrote; k stays text.

    Raises:
        UserError: the file is missing or is no results table.
    """
    try:
        return pd.read_csv(
            path,
            dtype={"arm": "str", "dataset": "str", "backbone": "str", "k": "str", "seed": "Int64"}
            | {"status": "str", "empty_documents": "Int64", "engine": "str"},
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ValueError as error:
        raise UserError(f"{path}: not a results table ({error})") from None


def format_table(table: pd.DataFrame) -> str:
    """A narrow table for people, in Markdown: keys, measures, sparsity and norm."""
    measures = [c for c in table.columns if _is_measure(c)]
    names = {"active_terms_q": "terms q", "active_terms_d": "terms d", "norm_after": "norm"}
    columns = ["arm", "dataset", "backbone", "k", "seed", "status", *measures]
    columns += ["p_holm_vs_k1", "active_terms_q", "active_terms_d", "FLOPS", "norm_after"]
    if table["seed"].nunique() < 2:
        columns.remove("seed")
    if not table["arm"].any():
        columns.remove("arm")
    text = _as_text(table)[columns].rename(columns=names)
    left = [column in ("arm", "dataset", "backbone", "status") for column in columns]
    lines = [list(text.columns), *text.to_numpy().tolist()]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = [
        "-" * width if is_left else "-" * (width - 1) + ":"
        for width, is_left in zip(widths, left, strict=True)
    ]
    lines.insert(1, rule)
    padded = [
        [
            value.ljust(width) if is_left else value.rjust(width)
            for value, width, is_left in zip(line, widths, left, strict=True)
        ]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def _sorted(cells: list[CellFiles]) -> list[CellFiles]:
    backbones = list(dict.fromkeys(cell.backbone for cell in cells))

    def key(cell: CellFiles) -> tuple:
        # a scale that is not a number (auto) comes after those that are
        named = cell.k == AUTO
        scale = Decimal(0) if cell.k is None or named else Decimal(cell.k)
        seed = -1 if cell.seed is None else cell.seed
        trained = cell.k is not None  # baselines come first
        order = cell.arm, cell.dataset, trained, backbones.index(cell.backbone)
        return (*order, named, scale, cell.k or "", seed)

    return sorted(cells, key=key)


def _row(cell: CellFiles) -> dict[str, Any]:
    row: dict[str, Any] = {"dataset": cell.dataset, "backbone": cell.backbone, "arm": cell.arm}
    metrics = cell.folder / "metrics.json"
    for measure in cell.measures:
        row[measure] = _number(metrics, "measures", measure)
    row["index_mb"] = _number(cell.corpus_folder / "index" / "index.json", "bytes") / 1e6
    searched = cell.folder / "search.json"
    row["ms_per_query"] = _number(searched, "ms_per_query")
    if cell.model_folder is None or cell.init_folder is None:
        return row

    rescaled = cell.init_folder / "rescale.json"
    trained = cell.model_folder / "train.json"
    sparse = cell.folder / "sparsity.json"
    status = _value(trained, "status")
    if status not in STATUSES:
        raise UserError(f"{trained}: status is {status!r}, expected one of {', '.join(STATUSES)}")
    terms = {name: _number(sparse, f"active_terms_{name}") for name in ("q", "d")}
    # Training judges a window of steps, in which a last term may have gone out.
    if status == "ok" and 0 in terms.values():
        status = "collapsed-zero"
    # Only a run that diverged may have a loss that is not finite, which JSON has as null.
    loss = _number_or_nan if status == "diverged" else _number
    # No exact hits, no recall.
    compared = _value(searched, "exact_queries")
    recall = _number(searched, "exact_recall@10") if compared else math.nan
    return row | {
        "engine": _value(searched, "engine"),
        "exact_recall@10": recall,
        "k": cell.k,
        "k_used": _number(rescaled, "k"),
        "seed": cell.seed,
        "status": status,
        "norm_before": _number(rescaled, "norms_before", "mean"),
        "norm_after": _number(rescaled, "norms_after", "mean"),
        "first_loss": loss(trained, "first_loss"),
        "last_loss": loss(trained, "last_loss"),
        "train_seconds": _number(trained, "seconds"),
        "examples_per_second": _number(trained, "examples_per_second"),
        "active_terms_q": terms["q"],
        "active_terms_d": terms["d"],
        "FLOPS": _number(sparse, "flops"),
        "empty_documents": int(_number(sparse, "empty_documents")),
        "docs_per_second": _docs_per_second(cell.corpus_folder / "vectors"),
    }


def _docs_per_second(vectors: Path) -> float:
    """Encoding rate over all shards, per process."""
    first = sorted(vectors.glob("corpus-*-of-*.json"))
    if not first:
        raise UserError(f"{vectors}: no corpus-*-of-*.json; expected the statistics of each shard")
    shards = int(_number(first[0], "shards"))
    paths = [vectors / f"corpus-{i:05d}-of-{shards:05d}.json" for i in range(shards)]
    if set(first) - set(paths):
        raise UserError(f"{vectors}: shards of two runs lie here, {first[0].name} and others")
    texts = sum(_number(path, "texts") for path in paths)
    seconds = sum(_number(path, "seconds") for path in paths)
    if seconds <= 0:
        raise UserError(f"{paths[0]}: seconds are {seconds}, expected more than 0")
    return texts / seconds


def _value(path: Path, *keys: str) -> Any:
    check_sums(path.parent, path.name)
    value = read_json(path)
    for depth, key in enumerate(keys):
        if not isinstance(value, dict) or key not in value:
            raise UserError(f"{path}: has no {'.'.join(keys[: depth + 1])}")
        value = value[key]
    return value


def _number_or_nan(path: Path, *keys: str) -> float:
    return math.nan if _value(path, *keys) is None else _number(path, *keys)


def _number(path: Path, *keys: str) -> float:
    value = _value(path, *keys)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path}: {'.'.join(keys)} is {value!r}, expected a number")
    if not math.isfinite(value):
        raise UserError(f"{path}: {'.'.join(keys)} is {value}, expected a finite number")
    return value


def _add_significance(
    cells: list[CellFiles], rows: list[dict[str, Any]], baseline: str | None
) -> None:
    at_k1 = {(c.arm, c.dataset, c.backbone, c.seed): c for c in cells if c.k == "1"}
    known: dict[CellFiles, pd.Series] = {}

    def values(cell: CellFiles) -> pd.Series:
        if cell not in known:
            known[cell] = _per_query(cell)
        return known[cell]

    for cell, row in zip(cells, rows, strict=True):
        values(cell)  # also where nothing is compared: a broken file must not go unseen
        for name, arm, backbone in (("k1", cell.arm, cell.backbone), ("baseline", "", baseline)):
            other = at_k1.get((arm, cell.dataset, backbone, cell.seed))
            if other is None or other is cell:
                continue
            ours, theirs = values(cell), values(other)
            if not ours.index.equals(theirs.index):
                raise UserError(
                    f"{_per_query_path(cell)} and {_per_query_path(other)}: not the same queries"
                )
            row[f"delta_vs_{name}"] = float((ours - theirs).mean())
            row[f"p_vs_{name}"] = paired_p(ours.to_numpy(), theirs.to_numpy())
    for name, dataset in product(("k1", "baseline"), {cell.dataset for cell in cells}):
        family = [r for r in rows if r["dataset"] == dataset and f"p_vs_{name}" in r]
        corrected = holm([row[f"p_vs_{name}"] for row in family])
        for row, p in zip(family, corrected, strict=True):
            row[f"p_holm_vs_{name}"] = p


def _per_query_path(cell: CellFiles) -> Path:
    return cell.folder / "per_query.parquet"


def _per_query(cell: CellFiles) -> pd.Series:
    """Values of the headline measure, by query_id in sorted order."""
    path, measure = _per_query_path(cell), cell.measures[0]
    try:
        frame = read_parquet(path).to_pandas()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ERRORS as error:
        raise UserError(f"{path}: not a parquet file ({error})") from None
    missing = [c for c in ("query_id", "measure", "value") if c not in frame.columns]
    if missing:
        raise UserError(f"{path}: has no columns {missing}, found {list(frame.columns)}")
    frame = frame[frame["measure"] == measure]
    if frame.empty:
        raise UserError(f"{path}: has no values of {measure}")
    values = frame.set_index("query_id")["value"].sort_index()
    if not values.index.is_unique or not np.isfinite(values.to_numpy(dtype=float)).all():
        raise UserError(f"{path}: expected one finite {measure} per query")
    return values.astype(float)


def _add_published(
    cells: list[CellFiles], rows: list[dict[str, Any]], path: Path, measures: list[str]
) -> list[str]:
    values = read_published(path)
    found: set[str] = set()
    for cell, row in zip(cells, rows, strict=True):
        for measure in cell.measures:
            value = values.get((cell.backbone, cell.k or "", cell.dataset, measure))
            if value is not None:
                row[f"{measure}_published"] = value
                row[f"{measure}_difference"] = row[measure] - value
                found.add(measure)
    return [f"{m}_{kind}" for m in measures if m in found for kind in ("published", "difference")]


def _is_measure(column: str) -> bool:
    kinds = ("_published", "_difference")
    return column not in _KEYS and column not in _VALUES and not column.endswith(kinds)


def _format(column: str) -> str:
    return _KEYS.get(column) or _VALUES.get(column) or _MEASURE_FORMAT


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """All values as text; a loss of a trained cell is never empty."""
    trained = table["status"].notna()
    text = pd.DataFrame(index=table.index)
    for column in table.columns:
        empty = table[column].isna()
        if column in ("first_loss", "last_loss"):
            empty &= ~trained
        text[column] = [
            "" if is_empty else format(value, _format(column))
            for value, is_empty in zip(table[column], empty, strict=True)
        ]
    return text

"""Tables of the report: values as text, and by what they sort."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from splade_rescale.scale import AUTO

#: Table column -> heading; the rest of the columns is in results/table.csv.
HEADINGS = {
    "arm": "arm",
    "dataset": "data set",
    "backbone": "backbone",
    "k": "k",
    "seed": "seed",
    "status": "status",
    "delta_vs_k1": "Δ to k = 1",
    "p_holm_vs_k1": "p",
    "active_terms_q": "terms q",
    "active_terms_d": "terms d",
    "FLOPS": "FLOPS",
    "norm_after": "norm",
    "last_loss": "last loss",
    "exact_recall@10": "exact",
}
_TEXT = frozenset({"arm", "dataset", "backbone", "status"})
_FORMATS = {
    "seed": ".0f",
    "delta_vs_k1": "+.3f",
    "p_holm_vs_k1": ".2g",
    "active_terms_q": ".1f",
    "active_terms_d": ".1f",
    "FLOPS": ".5g",
    "norm_after": ".3f",
    "last_loss": ".3f",
    "exact_recall@10": ".3f",
}


@dataclass(frozen=True)
class Column:
    """A column of the page: its heading, and whether it holds numbers."""

    name: str
    heading: str
    number: bool


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and the value that it sorts by (empty: after all others)."""

    text: str
    value: str


@dataclass(frozen=True)
class Row:
    """A run: its cells by column, and how it is set off."""

    cells: dict[str, Cell]
    best: bool = False
    failed: bool = False
    baseline: bool = False
    classes: str = field(init=False)

    def __post_init__(self) -> None:
        names = [name for name in ("best", "failed", "baseline") if getattr(self, name)]
        object.__setattr__(self, "classes", " ".join(names))


def columns_of(table: pd.DataFrame, measures: Sequence[str]) -> list[Column]:
    """The columns that say something of this table: arms, seeds and engines only where they vary.

    Args:
        table: the results table.
        measures: names of the measures, in the order in which they are shown.
    """
    names = list(HEADINGS)
    place = names.index("status") + 1
    names[place:place] = [name for name in measures if name in table]
    if not table["arm"].fillna("").any():
        names.remove("arm")
    if table["seed"].nunique() < 2:
        names.remove("seed")
    if not (table["exact_recall@10"] < 1).any():
        names.remove("exact_recall@10")
    return [Column(name, HEADINGS.get(name, name), name not in _TEXT) for name in names]


def rows_of(table: pd.DataFrame, columns: Iterable[Column], best: pd.DataFrame) -> list[Row]:
    """A row per cell of the experiment, in the order of the table.

    Args:
        table: the results table.
        columns: of `columns_of`.
        best: of `best_scales`; all seeds of the best k are set off.
    """
    keys = best[["arm", "dataset", "backbone", "best_k"]].itertuples(index=False, name=None)
    chosen = set(keys)
    rows = []
    for values in table.to_dict("records"):
        arm, k = _text(values["arm"]), _text(values["k"])
        trained = not pd.isna(values["seed"])
        rows.append(
            Row(
                cells={column.name: _cell(column, values) for column in columns},
                best=trained and (arm, values["dataset"], values["backbone"], k) in chosen,
                failed=trained and values["status"] != "ok",
                baseline=not trained,
            )
        )
    return rows


def number(value: Any, form: str = ".3f") -> str:
    """A number as text; empty where there is none, `not finite` where it is infinite."""
    if value is None or pd.isna(value):
        return ""
    return "not finite" if math.isinf(value) else format(value, form).replace("-", "−")


def _text(value: Any) -> str:
    return "" if pd.isna(value) else str(value)


def _cell(column: Column, values: dict[str, Any]) -> Cell:
    value = values[column.name]
    if column.name == "k":
        shown = _text(value)
        if shown == AUTO:
            shown = f"{AUTO} ({values['k_used']:g})"
        return Cell(shown, "" if pd.isna(values["k_used"]) else repr(float(values["k_used"])))
    if not column.number:
        return Cell(_text(value), _text(value))
    if column.name == "last_loss" and pd.isna(value) and not pd.isna(values["seed"]):
        return Cell("not finite", "inf")
    if pd.isna(value):
        return Cell("", "")
    return Cell(number(value, _FORMATS.get(column.name, ".3f")), repr(float(value)))


def comparisons(table: pd.DataFrame, means: pd.DataFrame) -> list[dict[str, Any]]:
    """Published values beside ours: backbone, k, dataset, measure, ours, published, difference.

    Args:
        table: the results table, whose columns `*_published` have values of single data sets;
            arms are left out, as nothing is published of them.
        means: of `paper.table2`, for means over several data sets.
    """
    main = table[table["arm"].fillna("") == ""]
    rows = []
    for column in [name for name in main.columns if name.endswith("_published")]:
        measure = column.removesuffix("_published")
        known = main[main[column].notna()]
        for (dataset, backbone, k), cells in known.groupby(
            ["dataset", "backbone", "k"], sort=False, dropna=False
        ):
            ours, published = cells[measure].mean(skipna=False), cells[column].iloc[0]
            rows.append(_comparison(backbone, _text(k), dataset, measure, ours, published))
    mean = "beir-13 nDCG@10"
    known = means[(means["arm"] == "") & means[mean].notna() & means[f"{mean} published"].notna()]
    for values in known.to_dict("records"):
        dataset, measure = mean.split()
        of = values["backbone"], values["k"], f"{dataset} (mean)", measure
        rows.append(_comparison(*of, values[mean], values[f"{mean} published"]))
    return rows


def _comparison(
    backbone: str, k: str, dataset: str, measure: str, ours: float, published: float
) -> dict[str, Any]:
    names = {"backbone": backbone, "k": k, "dataset": dataset, "measure": measure}
    return names | {"ours": ours, "published": published, "difference": ours - published}

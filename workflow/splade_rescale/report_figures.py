"""The figures of the report, each with its data as CSV beside it."""

from pathlib import Path

import pandas as pd

from splade_rescale.best import best_scales
from splade_rescale.cells import CellFiles
from splade_rescale.errors import UserError
from splade_rescale.figures import (
    curves,
    flops_against_score,
    loss_curves,
    norm_bars,
    points,
    score_against_k,
)
from splade_rescale.files import read_text_csv
from splade_rescale.table import read_table

#: Figures in the order of the report.
NAMES = ("norms", "score-against-k", "flops-against-score", "loss", "active-d", "active-q")


def narrow(path: Path) -> Path:
    """The file of the same figure in a single column."""
    return path.with_name(f"{path.stem}-narrow.svg")


def norms_beside_best(norms: pd.DataFrame, best: pd.DataFrame) -> pd.DataFrame:
    """backbone, mean, max (row norms of the untouched head), best_k, best_norm (mean after it).

    Args:
        norms: results/norms.csv.
        best: of `best_scales`; the first data set of the main arm counts.
    """
    missing = {"backbone", "mean", "max"} - set(norms.columns)
    if missing:
        raise UserError(f"norms.csv: has no columns {', '.join(sorted(missing))}")
    first = best[best["arm"] == ""].drop_duplicates("backbone").set_index("backbone")
    frame = norms[["backbone", "mean", "max"]].astype({"mean": float, "max": float})
    frame["best_k"] = frame["backbone"].map(first["best_k"]).fillna("")
    frame["best_norm"] = frame["backbone"].map(first["best_norm"])
    return frame


def write_figures(cells: list[CellFiles], results: Path, out: Path) -> None:
    """Write each of `NAMES` as .svg, as -narrow.svg (one column) and as .csv.

    Args:
        cells: the rows of the experiment.
        results: folder with table.csv and norms.csv.
        out: folder to write to.

    Raises:
        UserError: names a file that is missing or damaged.
    """
    table = read_table(results / "table.csv")
    headline = {cell.dataset: cell.measures[0] for cell in cells}
    scores = points(table, headline)
    training = loss_curves(cells)
    norms = norms_beside_best(
        read_text_csv(results / "norms.csv"), best_scales(in_order(table, headline), headline)
    )
    drawings = {
        "norms": (norm_bars, norms),
        "score-against-k": (score_against_k, scores),
        "flops-against-score": (flops_against_score, scores),
        "loss": (curves, training, "loss", "training loss"),
        "active-d": (curves, training, "active_d", "active terms of a document"),
        "active-q": (curves, training, "active_q", "active terms of a query"),
    }
    for name, (draw, *arguments) in drawings.items():
        path = out / f"{name}.svg"
        draw(*arguments, narrow(path), columns=1)
        draw(*arguments, path)


def in_order(table: pd.DataFrame, headline: dict[str, str]) -> pd.DataFrame:
    """The table with data sets in the order of the configuration, that of `headline`."""
    order = {dataset: place for place, dataset in enumerate(headline)}
    return table.sort_values("dataset", key=lambda column: column.map(order), kind="stable")

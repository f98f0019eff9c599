"""Writes the paper's tables and figures into one folder."""

from pathlib import Path

import pandas as pd

from splade_rescale.cells import CellFiles
from splade_rescale.figures import (
    curves,
    flops_against_score,
    loss_curves,
    points,
    score_against_k,
)
from splade_rescale.files import atomic_file, read_text_csv
from splade_rescale.paper import beir, table1, table2
from splade_rescale.published import read_published
from splade_rescale.settings import PaperSettings
from splade_rescale.table import read_table


def write_paper(
    cells: list[CellFiles], results: Path, published: Path, out: Path, settings: PaperSettings
) -> None:
    """Write table1.csv, table2.csv, beir.csv, and figure2, figure3 and figure4 as .svg and .csv.

    Args:
        cells: the rows of the experiment.
        results: folder with table.csv and norms.csv.
        published: CSV of published values.
        out: folder to write to.
        settings: tolerances.

    Raises:
        UserError: names a file that is missing or damaged.
    """
    table, known = read_table(results / "table.csv"), read_published(published)
    table["arm"] = table["arm"].fillna("")
    norms = read_text_csv(results / "norms.csv")
    tables = {
        "table1": table1(norms, known, settings),
        "table2": table2(table, known, settings),
        "beir": beir(table, settings),
    }
    for name, frame in tables.items():
        _write(frame, out / f"{name}.csv")
    data = points(table, {cell.dataset: cell.measures[0] for cell in cells})
    flops_against_score(data, out / "figure2.svg")
    score_against_k(data, out / "figure3.svg")
    curves(loss_curves(cells), "loss", "training loss", out / "figure4.svg")


def _write(frame: pd.DataFrame, path: Path) -> None:
    with atomic_file(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.4f", lineterminator="\n")

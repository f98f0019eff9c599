"""The rows of the table, and where the files of each lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from splade_rescale.config import Grid


@dataclass(frozen=True)
class CellFiles:
    """A row of the table and where its files lie.

    `k` (canonical text, or auto), `seed`, `model_folder` and `init_folder` are None for a baseline
    (bm25). `corpus_folder` holds vectors and index of the corpus, which may be another data set's.
    `measures` are the data set's, the first one the headline that is tested for significance.
    """

    dataset: str
    measures: tuple[str, ...]
    backbone: str
    folder: Path
    corpus_folder: Path
    k: str | None = None
    seed: int | None = None
    model_folder: Path | None = None
    init_folder: Path | None = None
    arm: str = ""

    @classmethod
    def of_cell(
        cls,
        results: Path,
        backbone: str,
        k: str,
        seed: int,
        dataset: str,
        measures: Sequence[str],
        *,
        corpus: str | None = None,
        arm: str = "",
    ) -> "CellFiles":
        """The files of a cell under the results folder."""
        scaled = (results / "arms" / arm if arm else results) / backbone / f"k{k}"
        run = scaled / f"seed{seed}"
        return cls(
            dataset=dataset,
            measures=tuple(measures),
            backbone=backbone,
            folder=run / dataset,
            corpus_folder=run / (corpus or dataset),
            arm=arm,
            k=k,
            seed=seed,
            model_folder=run / "model",
            init_folder=scaled / "init",
        )

    @classmethod
    def of_baseline(
        cls,
        results: Path,
        name: str,
        dataset: str,
        measures: Sequence[str],
        *,
        corpus: str | None = None,
    ) -> "CellFiles":
        """The files of a baseline without training (bm25) on a data set."""
        return cls(
            dataset=dataset,
            measures=tuple(measures),
            backbone=name,
            folder=results / name / dataset,
            corpus_folder=results / name / (corpus or dataset),
        )


def cells_of(grid: Grid, results: Path) -> list[CellFiles]:
    """The rows of a grid, baselines included, with their files under the results folder."""
    cells = []
    for dataset, measures in grid.measures.items():
        where: dict[str, Any] = {"measures": measures, "corpus": grid.corpora[dataset]}
        for name in grid.baselines:
            cells.append(CellFiles.of_baseline(results, name, dataset, **where))
        for arm, models in grid.arms.items():
            for backbone, k, seed in product(models.backbones, models.scales, models.seeds):
                cell = CellFiles.of_cell(results, backbone, k, seed, dataset, **where, arm=arm)
                cells.append(cell)
    return cells

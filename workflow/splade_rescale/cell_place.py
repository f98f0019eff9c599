"""A cell told by the path of its folder, and where its logs lie."""

import difflib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from splade_rescale.cells import CellFiles
from splade_rescale.errors import UserError
from splade_rescale.files import read_json_object

FORM = "results/[arms/ARM/]BACKBONE/kK/seedSEED/DATASET"
_CELL = re.compile(
    r"(?:arms/(?P<arm>[^/]+)/)?(?P<backbone>[^/]+)/k(?P<k>[^/]+)/seed(?P<seed>\d+)/(?P<dataset>[^/]+)"
)


@dataclass(frozen=True)
class CellPlace:
    """A cell under `root`, the folder in which the workflow ran."""

    root: Path
    arm: str
    backbone: str
    k: str
    seed: int
    dataset: str

    @classmethod
    def of(cls, folder: str | Path) -> "CellPlace":
        """The cell whose results lie, or would lie, in `folder`.

        Raises:
            UserError: the path is not of the form of a cell's.
        """
        parts = Path(folder).parts
        if "results" in parts:
            at = len(parts) - 1 - parts[::-1].index("results")
            found = _CELL.fullmatch("/".join(parts[at + 1 :]))
            if found:
                return cls(
                    Path(*parts[:at]),
                    found["arm"] or "",
                    found["backbone"],
                    found["k"],
                    int(found["seed"]),
                    found["dataset"],
                )
        raise UserError(f"{folder}: expected the folder of a cell, {FORM}")

    @property
    def results(self) -> Path:
        """The folder of all results."""
        return self.root / "results"

    @property
    def files(self) -> CellFiles:
        """Where the cell's files lie, its corpus being that which the data set's entry names."""
        return CellFiles.of_cell(
            self.results,
            self.backbone,
            self.k,
            self.seed,
            self.dataset,
            (),
            corpus=self._corpus_of(),
            arm=self.arm,
        )

    @property
    def dataset_folder(self) -> Path:
        """The downloaded data set."""
        return self.root / "resources" / "datasets" / self.dataset

    def _corpus_of(self) -> str | None:
        path = self.dataset_folder / "dataset.json"
        settings = read_json_object(path).get("settings", {}) if path.is_file() else {}
        return settings.get("corpus_from")

    def logs(self) -> list[Path]:
        """The logs of the cell's jobs that there are, in data-flow order."""
        arm = f"arms/{self.arm}/" if self.arm else ""
        scaled = f"{arm}{self.backbone}-k{self.k}"
        model = f"{scaled}-seed{self.seed}"
        corpus = self._corpus_of() or self.dataset
        patterns = [
            f"rescale/{scaled}.log",
            f"train/{model}.log",
            f"encode/{model}-{corpus}.log",
            f"encode/{model}-{corpus}-*-of-*.log",
            f"encode/{model}-{self.dataset}-queries.log",
            f"index/{model}-{corpus}.log",
            f"search/{model}-{self.dataset}.log",
            f"evaluate/{model}-{self.dataset}.log",
        ]
        logs = self.root / "logs"
        return [path for pattern in patterns for path in sorted(logs.glob(pattern))]

    def like(self) -> str | None:
        """The cell with results whose name is the closest to this one's."""
        there = [
            path.parent.relative_to(self.root).as_posix()
            for depth in ("", "arms/*/")
            for path in self.results.glob(f"{depth}*/k*/seed*/*/metrics.json")
        ]
        own = self.files.folder.relative_to(self.root).as_posix()
        return next(iter(difflib.get_close_matches(own, there, n=1, cutoff=0.8)), None)

    def command(self, target: Path) -> str:
        """The Snakemake command that makes a file of the cell."""
        place = [] if self.root == Path() else ["--directory", str(self.root)]
        words = ["snakemake", "--cores", "all", *place, target.relative_to(self.root).as_posix()]
        return shlex.join(words)

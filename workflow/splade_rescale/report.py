"""The report: one self-contained HTML page of an experiment.

Style, script, figures and data are all in the page, which asks nothing of any other place.
"""

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from splade_rescale import description, provenance
from splade_rescale.best import best_scales
from splade_rescale.cells import CellFiles
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file, read_json_object, read_text_csv
from splade_rescale.paper import table1, table2
from splade_rescale.published import read_published
from splade_rescale.report_figures import NAMES, in_order, narrow
from splade_rescale.report_table import columns_of, comparisons, number, rows_of
from splade_rescale.settings import PaperSettings
from splade_rescale.table import read_table
from splade_rescale.threshold import THRESHOLD

#: Data sets whose summaries stand open; those of the others unfold.
_OPEN = 4


class Drawn(NamedTuple):
    """A figure of the page: its file names, and its parts as data URIs."""

    name: str
    wide: str
    narrow: str
    data: str


def write_report(
    cells: list[CellFiles],
    results: Path,
    resources: Path,
    published: Path,
    out: Path,
    settings: dict[str, Any],
    commands: list[str],
) -> None:
    """Write the page.

    Args:
        cells: the rows of the experiment.
        results: folder with table.csv, norms.csv and report/ (figures and expansions.json).
        resources: folder with datasets/{dataset}/dataset.json and backbones/.
        published: CSV of published values.
        out: HTML file to write.
        settings: of `provenance.settings_of`.
        commands: that make the results, to be shown.

    Raises:
        UserError: names a file that is missing or damaged.
    """
    headline = {cell.dataset: cell.measures[0] for cell in cells}
    measures = list(dict.fromkeys(name for cell in cells for name in cell.measures))
    table = in_order(read_table(results / "table.csv"), headline)
    best = best_scales(table, headline)
    columns = columns_of(table, measures)
    rows = rows_of(table, columns, best)
    known = read_published(published)
    paper = PaperSettings(**settings["config"]["paper"])
    norms = read_text_csv(results / "norms.csv")
    page = _template().render(
        title="Which MLM-head scale makes the best sparse retriever?",
        experiment=settings["source"],
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        asked=_asked(settings, resources),
        threshold=THRESHOLD,
        summaries=_summaries(best, table, headline),
        open=_OPEN,
        columns=columns,
        rows=rows,
        failed=sum(row.failed for row in rows),
        meanings=description.meanings([column.name for column in columns]),
        headings={column.name: column.heading for column in columns},
        figures={name: _drawn(results / "report" / "figures" / f"{name}.svg") for name in NAMES},
        expansions=read_json_object(results / "report" / "expansions.json"),
        comparisons=comparisons(table, table2(table.fillna({"arm": ""}), known, paper)),
        norms=_norms_beside(table1(norms, known, paper)),
        settings=yaml.safe_dump(settings["config"], sort_keys=False, allow_unicode=True),
        registry=yaml.safe_dump(
            {kind: settings[kind] for kind in ("backbones", "datasets")},
            sort_keys=False,
            allow_unicode=True,
        ),
        versions=provenance.versions(),
        commit=provenance.commit(Path(__file__).parent),
        machine=provenance.machine(),
        commands=commands,
        table_csv=_data_uri(results / "table.csv", "text/csv"),
        norms_csv=_data_uri(results / "norms.csv", "text/csv"),
    )
    with atomic_file(out) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("splade_rescale", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "listed": description.listed}
    return environment.get_template("report.html")


def _data_uri(path: Path, kind: str) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _drawn(path: Path) -> Drawn:
    return Drawn(
        path.stem,
        _data_uri(path, "image/svg+xml"),
        _data_uri(narrow(path), "image/svg+xml"),
        _data_uri(path.with_suffix(".csv"), "text/csv"),
    )


def _asked(settings: dict[str, Any], resources: Path) -> dict[str, Any]:
    """The experiment in numbers and words."""
    config = settings["config"]
    train = config["train"]
    datasets = []
    for name in config["datasets"]:
        rows = read_json_object(resources / "datasets" / name / "dataset.json").get("rows", {})
        nouns = {"corpus": ("document", "documents"), "queries": ("query", "queries")}
        sizes = [description.counted(rows[key], *nouns[key]) for key in nouns if key in rows]
        datasets.append({"name": name, "sizes": sizes})
    return {
        "backbones": config["backbones"],
        "scales": config["scales"],
        "seeds": config["seeds"],
        "arms": list(config["arms"]),
        "datasets": datasets,
        "trained_on": train["dataset"],
        "trained_for": description.steps(train),
        "batch": train["batch_size"] * train["accumulation"],
        "gpus": train["gpus"],
        "tying": config["rescale"]["tying"],
        "bias": config["rescale"]["bias"],
        "twins": [
            {"name": name, **entry}
            for name, entry in settings["backbones"].items()
            if entry["source"] == "twin"
        ],
    }


def _summaries(
    best: pd.DataFrame, table: pd.DataFrame, headline: dict[str, str]
) -> list[dict[str, Any]]:
    """Per data set: the best k of each backbone, and what stands out."""
    summaries = []
    for dataset, measure in headline.items():
        of = best[best["dataset"] == dataset]
        runs = table[table["dataset"] == dataset]
        baselines = runs[runs["seed"].isna()]
        trained = runs[runs["seed"].notna()]
        other = [
            row.backbone for row in of[of["arm"] == ""].itertuples() if row.best_k not in ("", "1")
        ]
        summaries.append(
            {
                "dataset": dataset,
                "measure": measure,
                "rows": of.to_dict("records"),
                "baselines": [
                    {"name": row["backbone"], "score": row[measure]}
                    for row in baselines.to_dict("records")
                ],
                "top": _top(of),
                "other": other,
                "failed": _failed(trained),
                "runs": len(trained),
            }
        )
    return summaries


def _top(best: pd.DataFrame) -> dict[str, Any] | None:
    scores = best["best_score"].dropna()
    return best.loc[scores.idxmax()].to_dict() if len(scores) else None


def _failed(runs: pd.DataFrame) -> list[dict[str, Any]]:
    wrong = runs[runs["status"] != "ok"]
    return wrong[["arm", "backbone", "k", "seed", "status"]].fillna({"arm": ""}).to_dict("records")


def _norms_beside(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Norms that are both measured here and published."""
    names = {
        "norm_mean": "mean row norm",
        "norm_max": "largest row norm",
        "anisotropy": "anisotropy",
    }
    return [
        {
            "backbone": row["backbone"],
            "what": what,
            "ours": row[key],
            "published": row[f"{key} published"],
            "difference": row[f"{key} difference"],
        }
        for row in table.to_dict("records")
        for key, what in names.items()
        if not (pd.isna(row[key]) or pd.isna(row[f"{key} published"]))
    ]

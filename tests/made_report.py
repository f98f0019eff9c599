"""Made-up results of an experiment, as the stages write them, for the report."""

import json
import math
from pathlib import Path

import pandas as pd
from splade_rescale.cells import CellFiles, cells_of
from splade_rescale.config import Experiment, load_experiment
from splade_rescale.files import write_json
from splade_rescale.provenance import settings_of
from splade_rescale.report import write_report
from splade_rescale.report_figures import write_figures
from splade_rescale.table import write_table

ROOT = Path(__file__).parents[1]
#: Mean row norm of each head.
NORMS = {"bert-base": 1.401, "roberta": 3.645, "modernbert": 2.6, "albert": 0.4}
SCALES = [1, 4, 16]
#: The effective norm at which these made-up models are best.
BEST_NORM = 0.9
CONFIG = {
    "backbones": list(NORMS),
    "scales": SCALES,
    "datasets": ["msmarco-dev", "trec-dl-2019"],
    "train": {"dataset": "msmarco-train"},
}


def experiment(**change) -> Experiment:
    return load_experiment({**CONFIG, **change}, ROOT / "config", "config/made-up.yaml")


def score(backbone: str, k: int, dataset: str) -> float:
    """Best at BEST_NORM; less for each doubling away from it."""
    distance = abs(math.log2(NORMS[backbone] / k / BEST_NORM))
    return max(0.0, (0.35 if dataset == "msmarco-dev" else 0.65) - 0.04 * distance**1.5)


def status(backbone: str, k: int) -> str:
    norm = NORMS[backbone] / k
    if norm > 3:
        return "diverged"
    return "collapsed-zero" if norm > 2 else "collapsed-dense" if norm < 0.05 else "ok"


def table(of: Experiment) -> pd.DataFrame:
    """The results table, with a second baseline-like row for BM25."""
    rows = []
    for cell in cells_of(of.grid(), Path("results")):
        row = {"arm": cell.arm, "dataset": cell.dataset, "backbone": cell.backbone}
        headline, *others = cell.measures
        if cell.k is None:
            rows.append(row | {headline: 0.18} | dict.fromkeys(others, 0.6))
            continue
        k = int(cell.k)
        how, norm = status(cell.backbone, k), NORMS[cell.backbone] / k
        value = score(cell.backbone, k, cell.dataset) if how == "ok" else 0.004
        terms = {"collapsed-zero": 0.0, "collapsed-dense": 20_000.0}.get(how, 40 / norm)
        row |= {"k": cell.k, "seed": cell.seed, "status": how, "k_used": k, headline: value}
        row |= dict.fromkeys(others, min(1.0, 2.5 * value))
        row |= {"norm_before": norm * k, "norm_after": norm, "first_loss": 3 * norm**2}
        row |= {"last_loss": math.nan if how == "diverged" else 0.4 * norm}
        row |= {"active_terms_q": terms / 4, "active_terms_d": terms, "FLOPS": terms**2 / 3000}
        row |= {"engine": "lucene", "exact_recall@10": 1.0, "empty_documents": 0}
        if k != 1:
            row |= {"delta_vs_k1": 0.1 / k, "p_holm_vs_k1": 10.0**-k}
        if (cell.backbone, k, headline) == ("bert-base", 1, "RR@10"):
            row |= {"RR@10_published": 0.254, "RR@10_difference": value - 0.254}
        rows.append(row)
    frame = pd.DataFrame(rows)
    measures = list(dict.fromkeys(m for c in cells_of(of.grid(), Path()) for m in c.measures))
    absent = [c for c in EMPTY if c not in frame]
    frame = frame.assign(**dict.fromkeys(absent, math.nan))
    published = [c for c in frame if c.endswith(("_published", "_difference"))]
    return frame[[*KEYS, *measures, *(c for c in VALUES), *published]].astype(
        {"seed": "Int64", "empty_documents": "Int64", "arm": "str", "k": "str", "status": "str"}
        | {"engine": "str"}
    )


KEYS = ["arm", "dataset", "backbone", "k", "seed", "status"]
VALUES = [
    "k_used",
    "delta_vs_k1",
    "p_vs_k1",
    "p_holm_vs_k1",
    "delta_vs_baseline",
    "p_vs_baseline",
    "p_holm_vs_baseline",
    "norm_before",
    "norm_after",
    "first_loss",
    "last_loss",
    "active_terms_q",
    "active_terms_d",
    "FLOPS",
    "empty_documents",
    "engine",
    "exact_recall@10",
    "index_mb",
    "ms_per_query",
    "train_seconds",
    "examples_per_second",
    "docs_per_second",
]
EMPTY = [*KEYS, *VALUES]


def write_log(cell: CellFiles) -> None:
    """A training log whose loss and active terms move as the status says."""
    norm = NORMS[cell.backbone] / int(cell.k)
    how = status(cell.backbone, int(cell.k))
    steps = range(1, 60 if how == "diverged" else 200, 10)
    start, end = 3 * norm**2 + 1, 0.4
    goal = {"collapsed-zero": 0, "collapsed-dense": 20_000}.get(how, 40 / norm)
    rows = []
    for step in steps:
        part = math.exp(-step / 40)
        active = goal + (8000 / norm**2 - goal) * part
        rows.append((step, end + (start - end) * part, active / 4, active))
    if how == "diverged":
        rows.append((61, math.inf, 0, 0))
    cell.model_folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows, columns=["step", "loss", "active_q", "active_d"])
    frame.to_csv(cell.model_folder / "train_log.csv", index=False)


def expansion(words: list[tuple[str, float, bool]]) -> dict:
    return {"active": 3 * len(words), "terms": [list(word) for word in words]}


def expansions(of: Experiment) -> dict:
    """What made-up models make of a query and its document."""
    texts = [
        {"kind": "query", "id": "q1", "text": "how do birds </script> find their way"},
        {"kind": "document", "id": "d1", "text": "Migrating birds <b>follow</b> the stars. " * 30},
    ]
    before = [("the", 2.1, True), ("[CLS]", 1.9, True), ("##ing", 0.7, False)]
    after = [("bird", 1.8, True), ("migration", 1.1, False), ("[t30525]", 0.2, False)]
    nothing = {"active": 0, "terms": []}
    return {
        "dataset": of.config.datasets[0],
        "texts": texts,
        "backbones": [
            {
                "backbone": backbone,
                "scales": [
                    {
                        "k": k,
                        "best": best,
                        "before": [expansion(before) for _ in texts],
                        "after": [
                            nothing if backbone == "roberta" and k == "1" else expansion(after)
                            for _ in texts
                        ],
                    }
                    for k, best in (("1", False), ("4", True))
                ],
            }
            for backbone in of.config.backbones
        ],
    }


def write_results(folder: Path, of: Experiment) -> list[CellFiles]:
    """Everything that the report is made of, below `folder`; returns the cells."""
    results = folder / "results"
    cells = cells_of(of.grid(), results)
    (results / "report").mkdir(parents=True)
    write_table(table(of), results / "table.csv")
    for cell in cells:
        if cell.k is not None:
            write_log(cell)
    columns = ["backbone", "mean", "max", "anisotropy", "V", "d", "tied"]
    norms = [(name, mean, 1.6 * mean, 0.1, 30522, 768, True) for name, mean in NORMS.items()]
    pd.DataFrame(norms, columns=columns).to_csv(results / "norms.csv", index=False)
    for name, rows in (("msmarco-dev", {"corpus": 8_841_823, "queries": 6980}),):
        write_json(folder / "resources/datasets" / name / "dataset.json", {"rows": rows})
    write_json(folder / "resources/datasets/trec-dl-2019/dataset.json", {"rows": {"queries": 43}})
    write_json(results / "report" / "expansions.json", expansions(of))
    return cells


def write_page(folder: Path, **change) -> Path:
    """The whole report of made-up results; returns the page."""
    of = experiment(**change)
    cells = write_results(folder, of)
    results = folder / "results"
    write_figures(cells, results, results / "report" / "figures")
    page = results / "report" / "index.html"
    settings = json.loads(json.dumps(settings_of(of)))
    published = ROOT / "config" / "published.csv"
    commands = ["snakemake --cores all --configfile config/made-up.yaml"]
    write_report(cells, results, folder / "resources", published, page, settings, commands)
    return page

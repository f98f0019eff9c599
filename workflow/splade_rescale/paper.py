"""The paper's tables from the results table, published values beside ours.

'Rescaling MLM-Head for Neural Sparse Retrieval', arXiv 2606.18811: Table 1 (row norms), Table 2
(backbone x k) and the BEIR data sets one by one. What is missing stays empty and is named in the
column `missing`; it is never 0.
"""

import math
from collections.abc import Sequence

import pandas as pd

from splade_rescale.errors import UserError
from splade_rescale.published import Published
from splade_rescale.settings import PaperSettings

BEIR_13 = (
    "arguana",
    "climate-fever",
    "dbpedia-entity",
    "fever",
    "fiqa",
    "hotpotqa",
    "nfcorpus",
    "nq",
    "quora",
    "scidocs",
    "scifact",
    "trec-covid",
    "webis-touche2020",
)
CQADUPSTACK = tuple(
    f"cqadupstack-{forum}"
    for forum in (
        "android",
        "english",
        "gaming",
        "gis",
        "mathematica",
        "physics",
        "programmers",
        "stats",
        "tex",
        "unix",
        "webmasters",
        "wordpress",
    )
)
BEIR_MEASURE = "nDCG@10"
#: Column of Table 2 -> data set and measure. BEIR-13 is a mean.
TABLE_2 = {
    "msmarco-dev RR@10": ("msmarco-dev", "RR@10"),
    "msmarco-dev R@1000": ("msmarco-dev", "R@1000"),
    "trec-dl-2019 nDCG@10": ("trec-dl-2019", "nDCG@10"),
    "beir-13 nDCG@10": ("beir-13", BEIR_MEASURE),
}
#: Column of Table 1 -> key of norms.json.
TABLE_1 = {"norm_mean": "mean", "norm_max": "max", "anisotropy": "anisotropy"}
NAMES = {"beir-13": BEIR_13, "cqadupstack": CQADUPSTACK}


def verdict(ours: float, published: float, tolerance: float) -> str:
    """`reproduced` or `differs`, by the absolute difference; empty where a value is missing."""
    if math.isnan(ours) or math.isnan(published):
        return ""
    return "reproduced" if abs(ours - published) <= tolerance + 1e-12 else "differs"


def table1(norms: pd.DataFrame, published: Published, settings: PaperSettings) -> pd.DataFrame:
    """Row norms of each backbone beside the published ones.

    Args:
        norms: results/norms.csv.
        published: see `read_published`; dataset and k are empty there.
        settings: norm_tolerance is relative to the published value.
    """
    ours = norms.set_index("backbone")
    known = [backbone for backbone, k, dataset, _ in published if not k and not dataset]
    rows = []
    for backbone in dict.fromkeys([*ours.index, *known]):
        row: dict[str, object] = {"backbone": backbone}
        for column, key in TABLE_1.items():
            value = float(ours.loc[backbone, key]) if backbone in ours.index else math.nan
            reported = published.get((backbone, "", "", column), math.nan)
            row |= _beside(column, value, reported, settings.norm_tolerance * abs(reported))
        row["missing"] = "" if backbone in ours.index else "not measured"
        rows.append(row)
    return pd.DataFrame(rows)


def _beside(column: str, ours: float, published: float, tolerance: float) -> dict[str, object]:
    return {
        column: ours,
        f"{column} published": published,
        f"{column} difference": ours - published,
        f"{column} verdict": verdict(ours, published, tolerance),
    }


def mean_of(
    values: pd.Series, datasets: Sequence[str], *, partial: bool
) -> tuple[float, list[str]]:
    """Mean over a group of data sets, and those that are missing.

    Args:
        values: one value per data set, by its slug.
        datasets: the group.
        partial: take the mean over those present, where some are missing; else it is refused.

    Returns:
        The mean, nan where it is refused or nothing is there, and the missing data sets.
    """
    present = [values[name] for name in datasets if name in values.index]
    missing = [name for name in datasets if name not in values.index]
    if not present or (missing and not partial):
        return math.nan, missing
    return sum(present) / len(present), missing


def scores(table: pd.DataFrame, settings: PaperSettings) -> pd.DataFrame:
    """One row per model: arm, backbone, k, seed, the columns of Table 2, `FLOPS`, and `missing`.

    FLOPS are those on MS MARCO dev.
    """
    rows = []
    trained = table[table["seed"].notna()]
    for key, cells in trained.groupby(["arm", "backbone", "k", "seed"], sort=False, dropna=False):
        cells = cells.set_index("dataset")
        row: dict[str, object] = dict(zip(["arm", "backbone", "k", "seed"], key, strict=True))
        notes = []
        for column, (dataset, measure) in TABLE_2.items():
            known = cells[measure].dropna() if measure in cells else pd.Series(dtype=float)
            group = NAMES.get(dataset, (dataset,))
            row[column], missing = mean_of(known, group, partial=settings.partial_means)
            notes += _notes(dataset if len(group) > 1 else column, group, missing)
        row["status"] = ", ".join(dict.fromkeys(cells["status"]))
        row["FLOPS"] = cells["FLOPS"].get("msmarco-dev", math.nan)
        row["missing"] = "; ".join(notes)
        rows.append(row)
    columns = ["arm", "backbone", "k", "seed", *TABLE_2, "status", "FLOPS", "missing"]
    return pd.DataFrame(rows, columns=columns).fillna({"arm": ""})


def _notes(name: str, group: Sequence[str], missing: list[str]) -> list[str]:
    if not missing:
        return []
    if len(group) == 1:
        return [name]
    return [f"{name}: {len(group) - len(missing)} of {len(group)}, no {', '.join(missing)}"]


def table2(table: pd.DataFrame, published: Published, settings: PaperSettings) -> pd.DataFrame:
    """Backbone x k as in the paper: mean over seeds, published value, difference, verdict.

    Where there are several seeds, `{column} std` is the sample standard deviation over them. Arms
    follow the main grid and have no published values. Rows that were published and not run come
    with empty values.
    """
    models = scores(table, settings)
    values = {(dataset, measure) for dataset, measure in TABLE_2.values()}
    known = [(b, k) for b, k, dataset, measure in published if k and (dataset, measure) in values]
    ran = list(models[["arm", "backbone", "k"]].itertuples(index=False, name=None))
    rows = []
    for arm, backbone, k in dict.fromkeys([*ran, *(("", b, k) for b, k in known)]):
        of = models[(models.arm == arm) & (models.backbone == backbone) & (models.k == k)]
        row: dict[str, object] = {"arm": arm, "backbone": backbone, "k": k, "seeds": len(of)}
        for column, (dataset, measure) in TABLE_2.items():
            reported = math.nan if arm else published.get((backbone, k, dataset, measure), math.nan)
            # A mean over fewer seeds than the others would pass for one over all.
            ours = of[column].mean(skipna=False) if len(of) else math.nan
            row |= _beside(column, ours, reported, settings.tolerance)
            row[f"{column} std"] = of[column].std(ddof=1) if len(of) > 1 else math.nan
        row["status"] = ", ".join(dict.fromkeys(of["status"]))
        notes = dict.fromkeys(of["missing"]) if len(of) else ["not run"]
        row["missing"] = "; ".join(note for note in notes if note)
        rows.append(row)
    frame = pd.DataFrame(rows)
    unused = [column for column in frame if column.endswith(" std") and frame[column].isna().all()]
    return frame.drop(columns=unused)


def beir(table: pd.DataFrame, settings: PaperSettings) -> pd.DataFrame:
    """nDCG@10 on each data set of BEIR: a row per model and baseline, a column per data set.

    `cqadupstack` is the mean of its 12 forums, `beir-13` that of the paper's 13 data sets.
    """
    keys = ["arm", "backbone", "k", "seed"]
    if BEIR_MEASURE not in table:
        raise UserError(f"the results table has no column {BEIR_MEASURE}")
    rows = []
    for key, cells in table.groupby(keys, sort=False, dropna=False):
        known = cells.set_index("dataset")[BEIR_MEASURE].dropna()
        row: dict[str, object] = dict(zip(keys, key, strict=True))
        row |= {name: known.get(name, math.nan) for name in BEIR_13}
        notes = []
        for name, group in NAMES.items():
            row[name], missing = mean_of(known, group, partial=settings.partial_means)
            absent = name == "cqadupstack" and len(missing) == len(group)
            notes += [] if absent else _notes(name, group, missing)
        row["missing"] = "; ".join(notes)
        rows.append(row)
    frame = pd.DataFrame(rows).fillna({"arm": ""})
    return frame.drop(columns="cqadupstack") if frame["cqadupstack"].isna().all() else frame

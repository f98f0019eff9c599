"""Figures of an experiment; the data of each are a frame, which is written as CSV beside it.

Colours are Okabe and Ito's, which people with colour blindness tell apart; markers and line styles
repeat what colours say, for print in black and white. Panels stand in up to `columns` columns (3);
in a single one they can be read on a phone. That is a second drawing of the same data, which are
not written again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from splade_rescale.cells import CellFiles
from splade_rescale.errors import UserError
from splade_rescale.files import atomic_file
from splade_rescale.paper import BEIR_13, BEIR_MEASURE, mean_of
from splade_rescale.threshold import THRESHOLD

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MOST_PANELS = 6


def points(table: pd.DataFrame, headline: dict[str, str]) -> pd.DataFrame:
    """FLOPS and headline measure of every cell of the main arm, means over seeds.

    Args:
        table: the results table.
        headline: data set -> measure.

    Returns:
        dataset, measure, backbone, k (number), FLOPS, score, status; besides a data set `beir-13`
        where all of the paper's 13 are there, with the mean of both.
    """
    cells = table[table["seed"].notna() & (table["arm"].fillna("") == "")].copy()
    cells["measure"] = cells["dataset"].map(headline)
    scores = [row[row["measure"]] for _, row in cells.iterrows()]
    cells["score"] = pd.Series(scores, index=cells.index, dtype=float)
    cells["k"] = cells["k_used"]
    keys = ["dataset", "measure", "backbone", "k"]
    frame = cells.groupby(keys, sort=False).agg(
        FLOPS=("FLOPS", "mean"),
        score=("score", "mean"),
        status=("status", lambda values: ", ".join(dict.fromkeys(values))),
    )
    frame = frame.reset_index()
    means = []
    for (backbone, k), group in frame.groupby(["backbone", "k"], sort=False):
        known = group[group["measure"] == BEIR_MEASURE].set_index("dataset")
        score, missing = mean_of(known["score"], BEIR_13, partial=False)
        if not missing:
            flops, _ = mean_of(known["FLOPS"], BEIR_13, partial=False)
            status = ", ".join(dict.fromkeys(known["status"]))
            means.append(("beir-13", BEIR_MEASURE, backbone, k, flops, score, status))
    extra = pd.DataFrame(means, columns=frame.columns)
    return pd.concat([frame, extra], ignore_index=True) if means else frame


def loss_curves(cells: list[CellFiles]) -> pd.DataFrame:
    """arm, backbone, k, seed, step, loss, active_q, active_d of the training logs of all models."""
    models = {cell.model_folder: cell for cell in cells if cell.model_folder is not None}
    frames = []
    for folder, cell in models.items():
        path = folder / "train_log.csv"
        try:
            log = pd.read_csv(path, usecols=["step", "loss", "active_q", "active_d"])
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except ValueError as error:
            raise UserError(f"{path}: not a training log ({error})") from None
        names = {"arm": cell.arm, "backbone": cell.backbone, "k": cell.k, "seed": cell.seed}
        frames.append(log.assign(**names)[[*names, "step", "loss", "active_q", "active_d"]])
    if not frames:
        raise UserError("there are no trained models to draw")
    return pd.concat(frames, ignore_index=True)


def _shown(data: pd.DataFrame) -> list[str]:
    names = list(dict.fromkeys(data["dataset"]))
    return ["beir-13"] if "beir-13" in names else names[:_MOST_PANELS]


@contextmanager
def _panels(number: int, columns: int, height: float = 2.9) -> Iterator[tuple[Figure, list[Axes]]]:
    style = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "svg.hashsalt": "splade-rescale",  # equal data give equal files
        "svg.fonttype": "path",  # whatever fonts the reader has, labels stay in their places
    }
    with mpl.rc_context(style):
        columns = min(columns, 2 if number == 4 else number)
        lines = -(-number // columns)
        # At most 8 inches, so that print on paper leaves the letters their size.
        width = {1: 3.8, 2: 3.7}.get(columns, 2.65)
        figure = Figure(figsize=(width * columns, height * lines + 0.4), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1)
        axes = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
        for unused in axes[number:]:
            unused.remove()
        yield figure, axes[:number]


def _look(position: int) -> dict[str, str]:
    return {
        "color": COLOURS[position % len(COLOURS)],
        "marker": MARKERS[position % len(MARKERS)],
    }


def flops_against_score(data: pd.DataFrame, path: Path, columns: int = 3) -> None:
    """The paper's Figure 2: one panel per data set, an arrow from k = 1 on along rising k.

    Runs that did not end ok are hollow.
    """
    shown = _shown(data)
    with _panels(len(shown), columns) as (figure, axes):
        for axis, name in zip(axes, shown, strict=True):
            panel = data[data["dataset"] == name]
            for position, backbone in enumerate(dict.fromkeys(data["backbone"])):
                line = panel[panel["backbone"] == backbone].sort_values("k")
                x, y = line["FLOPS"].to_numpy(), line["score"].to_numpy()
                look = _look(position)
                axis.plot(x, y, linestyle="none", label=backbone, **look)
                bad = line[line["status"] != "ok"]
                axis.plot(bad["FLOPS"], bad["score"], linestyle="none", mfc="white", ms=9, **look)
                for start, end in zip(range(len(x) - 1), range(1, len(x)), strict=True):
                    axis.annotate(
                        "",
                        (x[end], y[end]),
                        (x[start], y[start]),
                        arrowprops={
                            "arrowstyle": "-|>",
                            "color": look["color"],
                            "alpha": 0.7,
                            "shrinkA": 4,
                            "shrinkB": 4,
                        },
                    )
                for k, a, b in zip(line["k"], x, y, strict=True):
                    axis.annotate(
                        f"{k:g}", (a, b), xytext=(4, 3), textcoords="offset points", size=7
                    )
            axis.set_xscale("symlog", linthresh=0.1)
            axis.margins(x=0.08, y=0.12)  # room for the numbers above and beside the marks
            axis.set_xlim(left=0)
            axis.set_ylim(bottom=0)
            axis.set_title(name)
            axis.set_xlabel("FLOPS")
            axis.set_ylabel(panel["measure"].iloc[0])
        _legend(figure, axes)
        _save(figure, data if columns > 1 else None, path)


def score_against_k(data: pd.DataFrame, path: Path, columns: int = 3) -> None:
    """The paper's Figure 3: one panel per data set, a line per backbone; collapsed runs hollow."""
    shown = _shown(data)
    with _panels(len(shown), columns) as (figure, axes):
        for axis, name in zip(axes, shown, strict=True):
            panel = data[data["dataset"] == name]
            for position, backbone in enumerate(dict.fromkeys(data["backbone"])):
                line = panel[panel["backbone"] == backbone].sort_values("k")
                look = _look(position)
                axis.plot(line["k"], line["score"], label=backbone, **look)
                bad = line[line["status"] != "ok"]
                axis.plot(bad["k"], bad["score"], linestyle="none", mfc="white", ms=9, **look)
            axis.set_xscale("log", base=2)
            ticks = sorted(set(panel["k"]))
            axis.set_xticks(ticks, [f"{k:g}" for k in ticks])
            axis.set_ylim(bottom=0)
            axis.set_title(name)
            axis.set_xlabel("scale k")
            axis.set_ylabel(panel["measure"].iloc[0])
        _legend(figure, axes)
        _save(figure, data if columns > 1 else None, path)


def curves(data: pd.DataFrame, column: str, label: str, path: Path, columns: int = 3) -> None:
    """The paper's Figure 4: a training measure by step, a panel per backbone, a line per k.

    Args:
        data: of `loss_curves`; the main arm and its first seed are drawn.
        column: what is drawn.
        label: of the vertical axis.
        path: file to write.
        columns: most panels beside each other.
    """
    data = data[(data["arm"] == "") & (data["seed"] == data["seed"].min())]
    backbones = list(dict.fromkeys(data["backbone"]))
    scales = sorted(
        set(data["k"]), key=lambda k: (not k[0].isdigit(), float(k) if k[0].isdigit() else 0)
    )
    styles = ["-", "--", "-.", ":"]
    with _panels(len(backbones), columns) as (figure, axes):
        for axis, backbone in zip(axes, backbones, strict=True):
            panel = data[data["backbone"] == backbone]
            for position, k in enumerate(scales):
                line = panel[panel["k"] == k]
                if len(line):
                    colour = COLOURS[position % len(COLOURS)]
                    style = styles[position % len(styles)]
                    axis.plot(line["step"], line[column], color=colour, ls=style, label=f"k = {k}")
            positive = panel[column].replace([np.inf, -np.inf], np.nan).dropna()
            if len(positive) and positive.max() > 20 * max(positive.min(), 0.05):
                axis.set_yscale("symlog", linthresh=1)
            axis.set_ylim(bottom=0)
            axis.set_title(backbone)
            axis.set_xlabel("step")
            axis.set_ylabel(label)
        _legend(figure, axes)
        _save(figure, data if columns > 1 else None, path)


def norm_bars(data: pd.DataFrame, path: Path, columns: int = 3) -> None:
    """Mean row norm of each head before rescaling, against the paper's threshold.

    Args:
        data: backbone, mean, max, and best_norm: the mean after division by the best k, or
            nothing.
        path: file to write.
        columns: 1 draws a narrow figure.
    """
    names = data["backbone"].tolist()
    height = 0.42 * len(names) + 0.9
    with _panels(1, 1, height) as (figure, (axis,)):
        if columns > 1:
            figure.set_figwidth(7.4)
        places = np.arange(len(names))
        above = data["mean"] > THRESHOLD
        axis.barh(
            places,
            data["mean"],
            height=0.6,
            color=np.where(above, COLOURS[1], COLOURS[0]),
            hatch=["///" if high else "" for high in above],
            edgecolor="white",
        )
        rescaled = data["best_norm"].to_numpy(dtype=float)
        axis.plot(
            rescaled,
            places,
            "D",
            color="black",
            mfc="white",
            ms=6,
            label="after division by best k",
        )
        axis.axvline(
            THRESHOLD, color="black", ls="--", lw=1.2, label=f"threshold, about {THRESHOLD:g}"
        )
        right = data["mean"].max()
        for place, mean in zip(places, data["mean"], strict=True):
            axis.annotate(
                f"{mean:.2f}",
                (mean, place),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        axis.set_yticks(places, names)
        axis.set_xlim(0, max(right, THRESHOLD) * 1.15)
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        axis.set_xlabel("mean L2 norm of the head's rows")
        _legend(figure, [axis])
        _save(figure, data if columns > 1 else None, path)


def _legend(figure: Figure, axes: list[Axes]) -> None:
    entries: dict[str, object] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=4 if figure.get_figwidth() > 5 else 2,
        frameon=False,
    )


def _save(figure: Figure, data: pd.DataFrame | None, path: Path) -> None:
    """Write the figure, in the format of its suffix, and its data, if any, beside it."""
    with atomic_file(path) as temporary:
        options = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=150, **options)
    if data is None:
        return
    with atomic_file(path.with_suffix(".csv")) as temporary:
        data.to_csv(temporary, index=False, float_format="%.6g", lineterminator="\n")

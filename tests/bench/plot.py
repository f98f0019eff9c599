"""Plot of a benchmark's ratios."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from splade_rescale.figures import COLOURS
from splade_rescale.files import atomic_file

_HATCHES = ("", "//", "..", "xx", "\\\\")


def draw(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Bars of speed (median, with the range) and of memory, by case and side.

    Args:
        rows: columns case, side, speed_min, speed_median, speed_max and memory, ratios to the
            side whose own are 1.
        path: SVG file.
        title: what was compared.
    """
    cases = list(dict.fromkeys(row["case"] for row in rows))
    sides = list(dict.fromkeys(row["side"] for row in rows))
    height = 0.8 / len(sides)
    with mpl.rc_context({"svg.hashsalt": title, "font.size": 9, "hatch.linewidth": 0.6}):
        figure = Figure(figsize=(8, 1.4 + 0.9 * len(cases)), layout="constrained")
        speed, memory = figure.subplots(1, 2, sharey=True)
        for number, side in enumerate(sides):
            own = [row for row in rows if row["side"] == side]
            places = [cases.index(row["case"]) + (number + 0.5) * height - 0.4 for row in own]
            look = {
                "height": height,
                "color": COLOURS[number],
                "hatch": _HATCHES[number % len(_HATCHES)],
                "edgecolor": "white",
                "label": side,
            }
            medians = [row["speed_median"] for row in own]
            spread = [
                [row["speed_median"] - row["speed_min"] for row in own],
                [row["speed_max"] - row["speed_median"] for row in own],
            ]
            bars = speed.barh(places, medians, xerr=spread, capsize=2, **look)
            speed.bar_label(bars, fmt="%.2f", padding=6, fontsize=8)
            bars = memory.barh(places, [row["memory"] for row in own], **look)
            memory.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        speed.set_yticks(range(len(cases)), cases)
        speed.invert_yaxis()
        for axis, label in (
            (speed, "speed, higher is better"),
            (memory, "memory, lower is better"),
        ):
            axis.set_xlabel(f"{label}\n(ratio to sentence-transformers)")
            axis.axvline(1, color="black", lw=0.8)
            axis.margins(x=0.18)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title)
        figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})

"""A series of numbers as one line of text."""

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.:-=+*#"
NOT_FINITE = "x"


def levels_for(encoding: str | None) -> str:
    """Block characters if the encoding has them, else ASCII."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def sparkline(values: Sequence[float], levels: str = BLOCKS, width: int = 60) -> str:
    """A character per value, from the smallest (first level) to the largest (last level).

    Of more values than `width`, each character is the mean of a stretch of them. Values that are
    not finite, and means over such, are `x`; equal values are all on the lowest level.
    """
    count = min(len(values), width)
    edges = [n * len(values) // count for n in range(count + 1)] if count else [0]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    finite = [value for value in means if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)

    def level(value: float) -> str:
        if not math.isfinite(value):
            return NOT_FINITE
        part = (value - low) / (high - low) if high > low else 0.0
        return levels[min(int(part * len(levels)), len(levels) - 1)]

    return "".join(map(level, means))

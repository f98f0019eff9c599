"""Paired tests over queries."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import ttest_rel
from statsmodels.stats.multitest import multipletests


def paired_p(ours: np.ndarray, theirs: np.ndarray) -> float:
    """p of the two-sided paired t-test; 1 for equal values, nan for fewer than two queries."""
    if len(ours) < 2:
        return math.nan
    if np.array_equal(ours, theirs):  # t is 0 / 0
        return 1.0
    return float(ttest_rel(ours, theirs).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p values of one family of tests, corrected by Holm (1979); nan stands for no test."""
    tested = [p for p in p_values if not math.isnan(p)]
    corrected = iter(multipletests(tested, method="holm")[1].tolist() if tested else [])
    return [p if math.isnan(p) else next(corrected) for p in p_values]

import math

import pytest
from splade_rescale.sparkline import ASCII, BLOCKS, levels_for, sparkline


def test_from_the_smallest_to_the_largest():
    assert sparkline(range(8)) == BLOCKS
    assert sparkline([3, 1, 2], "_-#") == "#_-"
    assert sparkline([2, 2]) == BLOCKS[0] * 2
    assert sparkline([]) == ""


def test_what_is_not_finite_stands_out():
    assert sparkline([0, math.nan, 1, math.inf], "_#") == "_x#x"
    assert sparkline([math.nan]) == "x"


def test_long_series_become_means_of_stretches():
    assert sparkline([0, 2, 4, 6, 8, 10], "_.-=+#", width=3) == "_=#"
    assert len(sparkline(range(1000))) == 60


@pytest.mark.parametrize(
    ("encoding", "levels"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no such", ASCII)],
)
def test_ascii_where_blocks_cannot_be_printed(encoding, levels):
    assert levels_for(encoding) == levels

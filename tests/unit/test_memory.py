import platform

import numpy as np
import pytest
from bench.measure import status
from splade_rescale.memory import give_back


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="nothing is done without glibc")
def test_what_is_free_between_arrays_that_live_is_given_back():
    size, number = 96 << 10, 2000
    arrays = [np.ones(size, np.uint8) for _ in range(number)]
    last = arrays[-1]  # keeps the top of the heap from being given back by itself
    living = arrays[:: number // 20]
    del arrays
    before = status("VmRSS")
    give_back()
    assert before - status("VmRSS") > size * number // 2
    assert last.all() and all(array.all() for array in living)

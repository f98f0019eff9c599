import os
import platform
import subprocess
import sys

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


# The small arrays keep the top of the heap from being given back by itself.
ONE_FREED = """
import os
import numpy as np
from bench.measure import status
from splade_rescale.memory import keep_large_apart

keep_large_apart()
large = np.ones(24 << 20, np.uint8)
above = [np.ones(100 << 10, np.uint8) for _ in range(100)]
before = status("VmRSS")
del large
print((before - status("VmRSS")) >> 20, os.environ["THP_MEM_ALLOC_ENABLE"])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="nothing is done without glibc")
def test_large_arrays_are_given_back_at_once_unless_the_environment_says_otherwise():
    def run(**environment):
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
        output = subprocess.run(
            [sys.executable, "-c", ONE_FREED],
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return [int(number) for number in output.split()]

    freed, huge_pages = run()
    assert freed >= 23
    assert huge_pages == 1
    freed, huge_pages = run(MALLOC_MMAP_THRESHOLD_=str(32 << 20), THP_MEM_ALLOC_ENABLE="0")
    assert freed < 1
    assert huge_pages == 0

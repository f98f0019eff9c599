"""Memory of this process."""

import ctypes
from collections.abc import Callable
from typing import Any


def _find_trim() -> Callable[[int], Any]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return lambda _: None


_trim = _find_trim()


def give_back() -> None:
    """Give memory that is free back to the system (glibc; elsewhere nothing is done).

    Where arrays that live long lie between large ones that do not, glibc keeps what is free, and
    a process grows with all that it ever did.
    """
    _trim(0)

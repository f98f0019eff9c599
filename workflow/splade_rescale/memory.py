"""Memory of this process."""

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it


def give_back() -> None:
    """Give memory that is free back to the system (glibc; elsewhere nothing is done).

    Where arrays that live long lie between large ones that do not, glibc keeps what is free, and
    a process grows with all that it ever did.
    """
    if _trim:
        _trim(0)

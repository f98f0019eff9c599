"""Memory of this process."""

import ctypes
import os

_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)  # glibc has it
_set_option = getattr(_libc, "mallopt", None)
_MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD
#: Environment of a process that does from its start what `keep_large_apart` does. At a quarter of
#: this threshold training spends a tenth of its time on fresh pages.
LARGE_APART = {"MALLOC_MMAP_THRESHOLD_": str(16 << 20), "THP_MEM_ALLOC_ENABLE": "1"}


def give_back() -> None:
    """Give memory that is free back to the system (glibc; elsewhere nothing is done).

    Where arrays that live long lie between large ones that do not, glibc keeps what is free, and
    a process grows with all that it ever did.
    """
    if _trim:
        _trim(0)


def keep_large_apart() -> None:
    """Take large arrays from the system, in huge pages, and give them back at once (Linux, glibc).

    Else glibc keeps arrays of up to 32 MiB among the small ones, and holes stay between them.
    torch heeds this only if it was not imported before. What the environment says already stays.
    """
    threshold, huge_pages = LARGE_APART
    os.environ.setdefault(huge_pages, LARGE_APART[huge_pages])
    if _set_option and threshold not in os.environ:
        _set_option(_MMAP_THRESHOLD, int(LARGE_APART[threshold]))

"""Large values pass through a backend faster if the C library keeps freed memory for the next one.

By default glibc returns the end of the heap to the kernel as soon as a value of some megabytes is freed, and gets it
back for the next value. Each value then causes page faults for all its pages, in several copies. The thresholds
set here are those that glibc reaches by itself once a value of 32 MiB was freed (`mallopt(3)`: M_MMAP_THRESHOLD is
adjusted dynamically). Called by ``call.py`` while a driver works, and by writers of large states. Light calls leave the
thresholds alone, because the module ctypes takes a tenth of the time of a session's first call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

    from mop_backend.frames import Blob

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 << 20
_TRIM_BYTES = 2 * _MMAP_BYTES
#: Values of so many bytes together are large.
_LARGE_BYTES = 1 << 20


@functools.cache
def keep_freed_memory() -> ctypes.CDLL | None:
    """Set the thresholds, once in a session; return the C library, or None where it is not glibc."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        return library if library.malloc_trim else None
    except (AttributeError, ImportError, OSError):
        return None


def expect_more_like(blobs: Iterable[Blob]) -> None:
    """Keep freed memory from now on if these values are large."""
    if sum(memoryview(blob).nbytes for blob in blobs) >= _LARGE_BYTES:
        keep_freed_memory()


def return_freed_memory() -> None:
    """Return the free memory of the session to the kernel, if it is kept."""
    library = keep_freed_memory() if keep_freed_memory.cache_info().currsize else None
    if library is not None:
        library.malloc_trim(0)

"""Arrays in the trainer's file, for rows that do not stay in memory: space, mapping, and reading ahead. NumPy only.

The process that started the trainer has opened the file (`mop_backend.shard_file`). It is mapped once, shared, so the
memory limit does not count its pages: the kernel keeps as many of them in memory as there is room for. Arrays over the
mapping are used like arrays in memory, and give the same bits. Space for an array is reserved before it is written to,
because a full disk would otherwise end the process in the middle of a row.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import math
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from mop_backend.frames import Header
from mop_backend.shard_file import free_bytes

from madlib_mop.trainer.data.arrival import Arrival

#: Rows that are read while those before them are trained on.
_AHEAD_BYTES = 32 << 20
#: Rows among these that are looked up, to see whether reading ahead is needed.
_SAMPLES = 32
_PUNCH_HOLE, _KEEP_SIZE = 2, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class FileFull(Exception):
    """The file has no room for an array; the message says why."""


class ShardFile:
    """The file, as space for arrays.

    Parameters
    ----------
    fd : int
        Its descriptor.
    limit_bytes : int
        Its size, a multiple of a page.
    directory : str
        Where it is, for messages.

    Attributes
    ----------
    limit_bytes : int
    n_bytes : int
        Bytes of all arrays.
    """

    def __init__(self, fd: int, limit_bytes: int, directory: str):
        self._fd = fd
        self.limit_bytes = limit_bytes
        self.directory = directory
        self._map = mmap.mmap(fd, limit_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._address = np.frombuffer(self._map, np.uint8).ctypes.data
        self._free = [(0, limit_bytes)]  # sorted, (begin, end)
        self._released: collections.deque[tuple[int, int]] = collections.deque()

    @classmethod
    def of(cls, about: Header | None) -> ShardFile | None:
        """Return the file that ``shard_file`` of a request "start" describes. Raises FileFull if it is not there."""
        if about is None:
            return None
        if about["fd"] is None:
            raise FileFull(f"the file cannot be made in {about['directory']}: {about['problem']}")
        return cls(about["fd"], about["limit_bytes"], about["directory"])

    @property
    def n_bytes(self) -> int:
        self._collect()
        return self.limit_bytes - sum(end - begin for begin, end in self._free)

    def arrays(self, forms: Sequence[tuple[Sequence[int], np.dtype]]) -> list[np.ndarray]:
        """Reserve space for arrays of these shapes and types; return them, to be written to and then sealed.

        Raises FileFull if there is no room for all.
        """
        made: list[np.ndarray] = []
        for shape, dtype in forms:
            made.append(self._array(shape, np.dtype(dtype)))
        return made

    def seal(self, array: np.ndarray) -> None:
        """Let nothing write to an array any more: a write ends the process, instead of changing rows."""
        begin = array.ctypes.data - self._address
        self._protect(begin, _up(array.nbytes), mmap.PROT_READ)

    def offset_of(self, array: np.ndarray) -> int | None:
        """Return where an array begins in the file; None if it is in memory."""
        offset: int = array.ctypes.data - self._address
        return offset if 0 <= offset < self.limit_bytes else None

    def expect(self, offset: int, n_bytes: int, in_random_order: bool) -> None:
        """Advise the kernel how bytes will be used: by default, it also reads megabytes around an absent page."""
        self._map.madvise(mmap.MADV_RANDOM if in_random_order else mmap.MADV_NORMAL, offset, n_bytes)

    def read_ahead(self, begins: np.ndarray, ends: np.ndarray) -> None:
        """Let the kernel read the pages of some ranges of bytes, which are sorted."""
        first, last = begins // mmap.PAGESIZE, (ends - 1) // mmap.PAGESIZE
        apart = np.flatnonzero(first[1:] > last[:-1] + 1) + 1
        starts = first[np.concatenate([[0], apart])] * mmap.PAGESIZE
        stops = (last[np.concatenate([apart - 1, [len(last) - 1]])] + 1) * mmap.PAGESIZE
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            self._map.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def _array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        n_bytes = math.prod(shape) * dtype.itemsize
        size = _up(max(n_bytes, 1))
        self._collect()
        number = next((i for i, (begin, end) in enumerate(self._free) if end - begin >= size), None)
        if number is None:
            raise FileFull(f"the file may take {self.limit_bytes >> 20} MB (madlib_mop.shard_disk_mb)")
        begin, end = self._free[number]
        self._reserve(begin, size)
        self._free[number : number + 1] = [(begin + size, end)] if end - begin > size else []
        root = np.frombuffer(self._map, np.uint8, size, begin)
        # a view keeps its root, so the space is released after the last view, or tensor, of it
        weakref.finalize(root, self._release, begin, size).atexit = False
        return root[:n_bytes].view(dtype).reshape(shape)

    def _reserve(self, begin: int, size: int) -> None:
        left = free_bytes(self._fd)
        if left is not None and left < size:
            raise FileFull(f"{self.directory} has room for {max(0, left) >> 20} MB")
        if _libc.fallocate(self._fd, 0, begin, size):
            number = ctypes.get_errno()
            self._punch(begin, size)  # what it may have got
            what = "its file system cannot reserve space" if number == errno.EOPNOTSUPP else os.strerror(number)
            raise FileFull(f"{self.directory}: {what}")

    def _release(self, begin: int, size: int) -> None:
        """Free the space of an array; any code may be in progress here, so `_collect` enters it into the list."""
        self._protect(begin, size, mmap.PROT_READ | mmap.PROT_WRITE)
        self._punch(begin, size)
        self._released.append((begin, begin + size))

    def _collect(self) -> None:
        if not self._released:
            return
        while self._released:
            self._free.append(self._released.popleft())
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(self._free):
            if joined and joined[-1][1] == begin:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((begin, end))
        self._free = joined

    def _punch(self, begin: int, size: int) -> None:
        _libc.fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, begin, size)

    def _protect(self, begin: int, size: int, rights: int) -> None:
        _libc.mprotect(self._address + begin, size, rights)

    def is_in_memory(self, offset: int) -> bool:
        """Return whether the page of this byte is in memory."""
        found = ctypes.create_string_buffer(1)
        page = offset // mmap.PAGESIZE * mmap.PAGESIZE
        failed = _libc.mincore(self._address + page, mmap.PAGESIZE, found)
        return bool(failed or found.raw[0] & 1)


class ReadAhead:
    """Reads rows from the file before a pass needs them: while one stretch of batches is trained on, the next one.

    If rows are still on their way, a stretch waits for the last one that it needs.

    The pass is the body of a ``with`` statement.

    Parameters
    ----------
    file : ShardFile or None
    arrays : sequence of numpy.ndarray
        Those that the pass takes rows of; arrays in memory are left alone.
    order : numpy.ndarray
        The rows in the order of the pass, int64 ``(n_rows,)`` or, of several models together, ``(places, n_rows)``.
    batch_size : int
    arrival : Arrival or None
        Of rows that may still be on their way.

    Attributes
    ----------
    n_batches : int
        The batches of a stretch.
    """

    def __init__(
        self,
        file: ShardFile | None,
        arrays: Sequence[np.ndarray],
        order: np.ndarray,
        batch_size: int,
        arrival: Arrival[Any] | None = None,
    ):
        self._file = file
        found = [(None if file is None else file.offset_of(array), array) for array in arrays if array.nbytes]
        in_file = [(offset, array) for offset, array in found if offset is not None]
        self._arrays = [(offset, array.nbytes) for offset, array in in_file]
        self._columns = [(offset, array.nbytes // len(array)) for offset, array in in_file]
        self._order = order
        self._arrival = arrival
        of_row = sum(array.nbytes // len(array) for offset, array in found if offset is not None or arrival)
        of_batch = batch_size * math.prod(order.shape[:-1]) * of_row
        self.n_batches = max(1, _AHEAD_BYTES // max(1, of_batch))
        self._n_rows = self.n_batches * batch_size

    @classmethod
    def of_pass(
        cls,
        file: ShardFile | None,
        arrays: Sequence[np.ndarray],
        order: np.ndarray,
        batch_size: int,
        arrival: Arrival[Any] | None = None,
    ) -> ReadAhead | None:
        """Return what reads ahead for a pass; None if its rows are all in memory. Raises RowsMissing."""
        if arrival is not None and arrival.has_ended:
            arrival.whole()
            arrival = None
        if arrival is None and (file is None or all(file.offset_of(array) is None for array in arrays)):
            return None
        return cls(file, arrays, order, batch_size, arrival)

    def __enter__(self) -> None:
        self._expect(in_random_order=True)

    def __exit__(self, *_: object) -> None:
        self._expect(in_random_order=False)

    def _expect(self, in_random_order: bool) -> None:
        for offset, n_bytes in self._arrays:
            assert self._file is not None, "they are in it"
            self._file.expect(offset, n_bytes, in_random_order)

    def reach(self, batch: int) -> None:
        """Report that the pass comes to a batch, counted from 0; each one, or the first one of each stretch.

        Raises RowsMissing.
        """
        number, rest = divmod(batch, self.n_batches)
        if rest:
            return
        is_arriving = self._arrival is not None and not self._arrival.has_ended
        if self._arrival is not None:
            self._arrival.wait_for(int(self._rows(number).max()) + 1)
        if number == 0 or is_arriving:  # else it was read with the stretch before it
            self._read(number)
        if not is_arriving:
            self._read(number + 1)

    def _rows(self, stretch: int) -> np.ndarray:
        return self._order[..., stretch * self._n_rows : (stretch + 1) * self._n_rows].reshape(-1)

    def _read(self, stretch: int) -> None:
        """Read the rows of a stretch, unless a sample of them shows that they are in memory."""
        if self._file is None:
            return
        rows = self._rows(stretch)
        sample = rows[:: max(1, len(rows) // _SAMPLES)].tolist()
        absent = [
            (offset, n_bytes)
            for offset, n_bytes in self._columns
            if not all(self._file.is_in_memory(offset + row * n_bytes) for row in sample)
        ]
        if absent:
            rows = np.sort(rows)
        for offset, n_bytes in absent:
            begins = offset + rows * n_bytes
            self._file.read_ahead(begins, begins + n_bytes)


def _up(n_bytes: int) -> int:
    """Return a number of bytes in whole pages."""
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

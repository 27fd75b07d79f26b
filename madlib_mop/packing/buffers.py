"""Divides rows into buffers (number, size, segment), and converts packed values back to tensors.

Pure; called by the preprocessor commands, and by readers of packed tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

TARGET_BUFFER_BYTES = 8 << 20
MAX_VALUE_BYTES = 512 << 20  # a bytea above 600 MB can be stored, but not selected as text
_PACKED_TYPES: dict[int, np.dtype] = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.float32)}


@dataclass(frozen=True)
class BufferPlan:
    """Which rows go into which buffer, and which buffer to which segment.

    Segments get consecutive rows, as evenly as possible, and divide them into buffers. So a segment's rows do not
    depend on the buffers' size, and ordering by buffer_id restores the order of all rows.

    Attributes
    ----------
    n_rows : int
        Rows of the source table.
    rows_per_buffer : int
        Rows of each buffer; the last one of a segment may be short.
    segments : tuple of int
        The segments that get data, ascending.
    """

    n_rows: int
    rows_per_buffer: int
    segments: tuple[int, ...]

    def shard_rows(self, place: int) -> int:
        """Return the rows of the segment at that place in ``segments``; they differ by one row at most."""
        rows, rest = divmod(self.n_rows, len(self.segments))
        return rows + (place < rest)

    @cached_property
    def _buffers(self) -> list[tuple[int, int]]:
        """The segment and the rows of every buffer."""
        buffers = []
        for place, segment in enumerate(self.segments):
            left = self.shard_rows(place)
            while left > 0:
                buffers.append((segment, min(left, self.rows_per_buffer)))
                left -= self.rows_per_buffer
        return buffers

    @property
    def n_buffers(self) -> int:
        """Number of buffers that hold rows."""
        return len(self._buffers)

    def rows_of(self, buffer_id: int) -> int:
        """Return the number of rows of one buffer."""
        return self._buffers[buffer_id][1]

    def segment_of(self, buffer_id: int) -> int:
        """Return the segment (``__dist_key__``) of one buffer."""
        return self._buffers[buffer_id][0]


def plan_buffers(n_rows: int, buffer_size: int, segments: Sequence[int]) -> BufferPlan:
    """Divide rows among segments evenly, and into as many buffers of each as MADlib makes.

    Parameters
    ----------
    n_rows : int
        At least 1.
    buffer_size : int
        Requested rows for each buffer, at least 1; a buffer gets at most this number.
    segments : sequence of int
        The segments that get data, at least one.

    Returns
    -------
    BufferPlan
        With ``n = p * ceil(n_rows / buffer_size / p)`` and ``ceil(n_rows / n)`` rows a buffer, p segments.
    """
    n_segments = len(segments)
    n_buffers = n_segments * -(-n_rows // (buffer_size * n_segments))
    return BufferPlan(n_rows, -(-n_rows // n_buffers), tuple(sorted(segments)))


def default_buffer_size(n_rows: int, row_bytes: int, n_segments: int) -> int:
    """Return the rows of a buffer of about 8 MB, or of all rows of a segment if that is less.

    Parameters
    ----------
    n_rows, row_bytes, n_segments : int
        Rows of the source table, packed bytes of one row over all columns, segments that get data.
    """
    return max(1, min(TARGET_BUFFER_BYTES // max(1, row_bytes), -(-n_rows // n_segments)))


def unpack(value: bytes, shape: Sequence[int]) -> np.ndarray:
    """Return the tensor of a packed value; its type is determined by the size of an element.

    Parameters
    ----------
    value : bytes-like
        Native byte order, C order.
    shape : sequence of int
        First the rows.

    Returns
    -------
    numpy.ndarray
        uint8, int16 or float32, read-only where ``value`` is.

    Raises
    ------
    ValueError
        If the value is not of that shape.
    """
    n_elements = int(np.prod(shape, dtype=np.int64))
    n_bytes = memoryview(value).nbytes
    itemsize, rest = divmod(n_bytes, n_elements) if n_elements else (0, n_bytes)
    if rest or itemsize not in _PACKED_TYPES:
        raise ValueError(f"a packed value of {n_bytes} bytes cannot have the shape {list(shape)}")
    return np.frombuffer(value, _PACKED_TYPES[itemsize]).reshape(shape)

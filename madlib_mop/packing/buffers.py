"""How rows become buffers: how many, how large, on which segment; and the way back from a packed value to its tensor.

Pure; called by the preprocessor commands, and by whoever reads a packed table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TARGET_BUFFER_BYTES = 8 << 20
MAX_VALUE_BYTES = 512 << 20  # a bytea above 600 MB can be stored, but not selected as text
_PACKED_TYPES = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.float32)}


@dataclass(frozen=True)
class BufferPlan:
    """Which rows go into which buffer, and which buffer to which segment.

    Attributes
    ----------
    n_rows : int
        Rows of the source table.
    rows_per_buffer : int
        Rows of each buffer; the last one may be short.
    segments : tuple of int
        The segments that get data, ascending; buffer b goes to ``segments[b % len(segments)]``.
    """

    n_rows: int
    rows_per_buffer: int
    segments: tuple[int, ...]

    @property
    def n_buffers(self) -> int:
        """Number of buffers that hold rows."""
        return -(-self.n_rows // self.rows_per_buffer)

    def rows_of(self, buffer_id: int) -> int:
        """Give the number of rows of one buffer."""
        return min(self.rows_per_buffer, self.n_rows - buffer_id * self.rows_per_buffer)

    def segment_of(self, buffer_id: int) -> int:
        """Give the segment (``__dist_key__``) of one buffer."""
        return self.segments[buffer_id % len(self.segments)]


def plan_buffers(n_rows: int, buffer_size: int, segments: Sequence[int]) -> BufferPlan:
    """Divide rows among buffers as MADlib does: the same number of buffers for each segment, as even as can be.

    Parameters
    ----------
    n_rows : int
        At least 1.
    buffer_size : int
        Rows a buffer that were asked for, at least 1; a buffer gets this many or fewer.
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
    """Give the rows of a buffer of about 8 MB, or of all of a segment's rows where that is less.

    Parameters
    ----------
    n_rows, row_bytes, n_segments : int
        Rows of the source table, packed bytes of one row over all columns, segments that get data.
    """
    return max(1, min(TARGET_BUFFER_BYTES // max(1, row_bytes), -(-n_rows // n_segments)))


def unpack(value: bytes, shape: Sequence[int]) -> np.ndarray:
    """Give the tensor of a packed value; its type is told by the bytes that an element takes.

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

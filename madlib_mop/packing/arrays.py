"""Converts PostgreSQL arrays in their memory layout to NumPy arrays, many rows at once.

The layout (``src/include/utils/array.h``), after the varlena header, native byte order: ``int32`` number of
dimensions, ``int32`` offset of the data (0 when there is no null bitmap), ``oid`` of the elements, one ``int32`` a
dimension, one ``int32`` lower bound a dimension, the null bitmap if any, the elements from a multiple of 8 on
(counted with the varlena header's 4 bytes). ``madlib_mop.array_bytes`` returns it. It has half the bytes of
``array_send`` and no function call for each element (`benchmarks/packing.py` measures both).
"""

from dataclasses import dataclass

import numpy as np
from mop_backend.frames import Blob

ELEMENT_TYPES: dict[int, np.dtype] = {
    21: np.dtype(np.int16),
    23: np.dtype(np.int32),
    20: np.dtype(np.int64),
    700: np.dtype(np.float32),
    701: np.dtype(np.float64),
}
_VARLENA_HEADER = 4
_FIXED_BYTES = 12


class BadRow(Exception):
    """One row of a batch cannot be packed.

    Attributes
    ----------
    row : int
        0-based, within the batch.
    problem : str
        The problem, as the text after the column's name.
    hint : str or None
        What to do.
    column : str or None
        Which column; filled in by the packer.
    element : int or None
        Which element of the row's array is the problem, 0-based in the order in which they lie.
    is_null : bool
        Whether this element is NULL.
    """

    column: str | None = None

    def __init__(
        self, row: int, problem: str, hint: str | None = None, element: int | None = None, is_null: bool = False
    ):
        super().__init__(row, problem)
        self.row = row
        self.problem = problem
        self.hint = hint
        self.element = element
        self.is_null = is_null

    def __str__(self) -> str:
        """Row and problem, for whoever meets it outside the commands."""
        return f"row {self.row} {self.problem}"


@dataclass(frozen=True)
class ArrayHeader:
    """What comes before an array's elements."""

    shape: tuple[int, ...]
    element_type: int
    data_offset: int
    has_bitmap: bool

    @property
    def n_elements(self) -> int:
        """Number of elements, NULLs counted."""
        return int(np.prod(self.shape, dtype=np.int64)) if self.shape else 0


def read_header(value: Blob) -> ArrayHeader:
    """Read the header of one array.

    Parameters
    ----------
    value : bytes-like
        The output of ``madlib_mop.array_bytes``.
    """
    n_dims, offset, element_type = (int(part) for part in np.frombuffer(value, np.int32, 3))
    shape = tuple(int(part) for part in np.frombuffer(value, np.int32, n_dims, _FIXED_BYTES))
    plain = _FIXED_BYTES + 8 * n_dims
    return ArrayHeader(shape, element_type, offset - _VARLENA_HEADER if offset else plain, offset != 0)


def read_arrays(data: Blob, lengths: np.ndarray, shape: tuple[int, ...], element_type: int) -> np.ndarray:
    """Read a batch of arrays that must all have one shape.

    Parameters
    ----------
    data : bytes-like
        The rows' arrays (``madlib_mop.array_bytes``), one after the other.
    lengths : numpy.ndarray
        int64, bytes of each row; -1 for NULL.
    shape : tuple of int
        The shape that every row must have.
    element_type : int
        Oid of the elements' type, a key of `ELEMENT_TYPES`.

    Returns
    -------
    numpy.ndarray
        (n_rows, \\*shape) of the elements' type; a view of ``data`` if no row has a null bitmap.

    Raises
    ------
    BadRow
        For the first row that is NULL, contains a NULL, or has another shape.
    """
    n_rows = len(lengths)
    dtype = ELEMENT_TYPES[element_type]
    if not n_rows:
        return np.empty((0, *shape), dtype)
    n_header = _FIXED_BYTES + 8 * len(shape)
    n_bytes = n_header + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if (lengths == n_bytes).all():
        rows = np.frombuffer(data, np.uint8, n_rows * n_bytes).reshape(n_rows, n_bytes)
        expected = np.array([len(shape), 0, element_type, *shape], np.int32).view(np.uint8)
        if (rows[:, : len(expected)] == expected).all():
            strides = (n_bytes, *np.empty(shape, dtype).strides)
            return np.ndarray((n_rows, *shape), dtype, data, n_header, strides)
    return _read_one_by_one(data, lengths, shape, dtype)


def _read_one_by_one(data: Blob, lengths: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Find the first invalid row; rows with a null bitmap but no NULL are read."""
    arrays = np.empty((len(lengths), *shape), dtype)
    view = memoryview(data)
    start = 0
    for row, length in enumerate(map(int, lengths)):
        if length < 0:
            raise BadRow(row, "is NULL", "Exclude such rows with a view or a WHERE clause.")
        value = view[start : start + length]
        start += length
        header = read_header(value)
        if header.shape != shape:
            raise BadRow(
                row,
                f"has the shape {list(header.shape)}, but {list(shape)} is expected",
                "All rows of a column must have one shape.",
            )
        if header.has_bitmap and (element := _first_null(value, header)) is not None:
            place = "".join(f"[{index + 1}]" for index in np.unravel_index(element, shape))
            raise BadRow(row, f"contains a NULL element at {place}", "Replace it, or exclude the row.", element, True)
        arrays[row] = np.frombuffer(value, dtype, header.n_elements, header.data_offset).reshape(shape)
    return arrays


def _first_null(value: Blob, header: ArrayHeader) -> int | None:
    bitmap = np.frombuffer(value, np.uint8, -(-header.n_elements // 8), _FIXED_BYTES + 8 * len(header.shape))
    present = np.unpackbits(bitmap, count=header.n_elements, bitorder="little")
    return None if present.all() else int(np.argmin(present))

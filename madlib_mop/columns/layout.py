"""Reads PostgreSQL arrays in their memory layout, many rows at once: what tables of arrays are read as.

The layout (``src/include/utils/array.h``), after the varlena header, native byte order: ``int32`` number of
dimensions, ``int32`` offset of the data (0 when there is no null bitmap), ``oid`` of the elements, one ``int32`` a
dimension, one ``int32`` lower bound a dimension, the null bitmap if any, the elements from a multiple of 8 on
(counted with the varlena header's 4 bytes). ``madlib_mop.array_bytes`` returns it. It has half the bytes of
``array_send`` and no function call for each element (`benchmarks/packing.py` measures both).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mop_backend.frames import Blob

from madlib_mop.columns.cells import Cells, UnreadableValue
from madlib_mop.columns.vectors import Elements, VectorReader

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
    element : int or None
        Which element of the row's array is the problem, 0-based in the order in which they lie.
    is_null : bool
        Whether this element is NULL.
    """

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


@dataclass(frozen=True)
class ArrayLayout:
    """What is known of the arrays of a column that are read in their memory layout; all have the shape of the first.

    Attributes
    ----------
    parts : tuple of str
        The columns of numbers that were put into the array, one an element; () for a column of arrays.
    divisor : float
        Of the encoder: a number that would be too large for float32 after the division is an error.
    is_narrowed : bool
        Whether numbers that are too large for float32 have become infinite on the way here.
    """

    parts: tuple[str, ...] = ()
    divisor: float = 1.0
    is_narrowed: bool = False


class LayoutReader(VectorReader):
    """Reads arrays as ``madlib_mop.array_bytes`` returns them: of any number of dimensions and elements, without NULL.

    Parameters
    ----------
    layout : ArrayLayout
    """

    def __init__(self, layout: ArrayLayout):
        self._layout = layout
        self._shape: tuple[int, ...] = ()  # a value that is read has one

    def vectors(self, cells: Cells) -> Elements:
        """Return the arrays of rows none of which is NULL: float32 (n_rows, n_elements).

        Raises
        ------
        UnreadableValue
            If an array has another shape than the first one that was read, a NULL element, or a number that is not
            finite as float32.
        """
        try:
            return self._elements(cells).reshape(cells.n_rows, -1)
        except BadRow as bad:
            raise self._unreadable(bad, cells.column) from None

    def dimensions(self, cells: Cells) -> tuple[int, ...]:
        """Return the dimensions that all arrays have, if they are several."""
        return self._shape if len(self._shape) > 1 else ()

    def _elements(self, cells: Cells) -> npt.NDArray[np.float32]:
        """Return the elements, float32 (n_rows, *shape); no row is NULL."""
        header = read_header(cells.at(0))
        if not self._shape:
            if not header.n_elements:
                raise BadRow(0, "is an empty array", "Exclude such rows with a view.")
            self._shape = header.shape
        n_bytes = int(cells.lengths[0])
        if (cells.lengths == n_bytes).all():
            data = np.ascontiguousarray(cells.gather(f"V{n_bytes}")).view(np.uint8).data
        else:
            data = memoryview(b"".join(cells.values(np.arange(cells.n_rows))))
        raw = read_arrays(data, cells.lengths, self._shape, header.element_type)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            elements = raw.astype(np.float32, order="C")
            divided = elements if self._layout.divisor >= 1 else elements / np.float32(self._layout.divisor)
        if not np.isfinite(divided).all():
            raise self._not_finite(raw, divided)
        return elements

    def _not_finite(self, raw: npt.NDArray[np.generic], elements: npt.NDArray[np.float32]) -> BadRow:
        """Return the error for the first row with a number that is not finite as float32."""
        row = int(np.argmin(np.isfinite(elements).reshape(len(elements), -1).all(axis=1)))
        found = raw[row].astype(np.float64) if raw.dtype.kind == "f" else np.zeros(raw.shape[1:])
        if np.isfinite(found).all():
            problem = "contains a number that is too large for float32 after division by the normalizing constant"
            hint = "Scale the column, or choose another normalizing_const."
            return BadRow(row, problem, hint, int(np.argmin(np.isfinite(elements[row]))))
        is_nan = np.isnan(found)
        problem = "holds NaN" if is_nan.any() else "holds an infinite value"
        if self._layout.is_narrowed and not is_nan.any():
            problem += ", or a number that is too large for float32"
        bad = is_nan if is_nan.any() else np.isinf(found)
        return BadRow(row, problem, "Replace it, or exclude the row.", int(np.argmax(bad)))

    def _unreadable(self, bad: BadRow, column: str) -> UnreadableValue:
        """Return the error for a row: of several columns, it names the one with the problem."""
        if not self._layout.parts or bad.element is None:
            return UnreadableValue(column, bad.row, bad.problem, bad.hint)
        problem = "is NULL" if bad.is_null else bad.problem
        return UnreadableValue(self._layout.parts[bad.element], bad.row, problem, bad.hint)

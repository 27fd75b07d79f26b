"""Readers of numeric arrays and of pgvector's types in PostgreSQL's binary form; `records` uses them.

``array_send`` has int32 dimensions, int32 flags (1: some element is NULL), the elements' oid, int32 length and int32
lower bound of each dimension, then int32 length and bytes of each element. pgvector's ``vector`` and ``halfvec`` have
int16 width, int16 0 and the elements; ``sparsevec`` has int32 width, int32 number of elements that are not 0, int32 0,
the int32 indices of these, and the elements as float32.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.cells import PADDING, Cells, UnreadableValue, null_element, wrong_width
from madlib_mop.columns.numbers import CellReader, NumberReader, NumericReader
from madlib_mop.columns.raw import VECTOR, Vectors

#: Maximum number of elements of a row; pgvector's limit for ``vector`` is 16,000.
MAX_WIDTH = 65_536
_FIXED_BYTES = 12
_DIMENSION_BYTES = 8
_MAX_DIMENSIONS = 6
_LONG_HINT = "Cut it in a view, such as a[1:10] for ten elements, or pack the table again with a greater width."
Elements = npt.NDArray[np.float32]


class VectorReader(CellReader):
    """Reads rows of numbers into a matrix of float32; a few rows are read as many are."""

    family = VECTOR

    def read(self, cells: Cells) -> Vectors:
        """Return the vectors of a batch: float32 (n_rows, width), zeros where NULL.

        Raises
        ------
        UnreadableValue
            If an element is NULL, a row has more than `MAX_WIDTH` elements, or two rows have different numbers of
            elements.
        """
        present = np.flatnonzero(~cells.missing)
        if not len(present):
            return Vectors(np.zeros((cells.n_rows, 0), np.float32), cells.missing, cells.column)
        few = cells if len(present) == cells.n_rows else cells.take(present)
        try:
            values = self.vectors(few)
        except UnreadableValue as error:
            raise error.at(int(present[error.row])) from None
        if few is not cells:
            found, values = values, np.zeros((cells.n_rows, values.shape[1]), np.float32)
            values[present] = found
        return Vectors(values, cells.missing, cells.column, dimensions=self.dimensions(few))

    def dimensions(self, cells: Cells) -> tuple[int, ...]:
        """Return the dimensions that all arrays have, if they are several; no row is NULL, all have one width."""
        return ()

    def vectors(self, cells: Cells) -> Elements:
        """Return the vectors of rows none of which is NULL, at least one: float32 (n_rows, width)."""
        widths = self.widths(cells)
        wrong = widths != widths[0]
        if wrong.any():
            other = int(np.argmax(wrong))
            raise wrong_width(cells.column, other, int(widths[0]), int(widths[other]))
        width = int(widths[0])
        if not 0 <= width <= MAX_WIDTH:
            raise UnreadableValue(cells.column, 0, f"has {width:,} elements, where {MAX_WIDTH:,} are possible,")
        return self.elements(cells, width)

    def widths(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Return the number of elements of each row; no row is NULL."""
        raise NotImplementedError

    def elements(self, cells: Cells, width: int) -> Elements:
        """Return the elements, float32 (n_rows, width); no row is NULL, and all have this width."""
        raise NotImplementedError

    def one(self, value: bytes) -> bytes:
        """Return the bytes: `column` reads them."""
        return value

    def column(self, values: list[object], name: str) -> Vectors:
        """Return a column of a few values."""
        return self.read(cells_of([value if isinstance(value, bytes) else None for value in values], name))


class ArrayReader(VectorReader):
    """Reads arrays of numbers; of those of several dimensions the elements in order, the last dimension fastest."""

    def __init__(self, element: NumberReader):
        self._element = element

    def widths(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Return the number of elements of each row; no row is NULL."""
        n_dims = cells.gather(">i4").astype(np.int64)
        needed = _FIXED_BYTES + _DIMENSION_BYTES * n_dims
        wrong = (n_dims < 0) | (n_dims > _MAX_DIMENSIONS) | (cells.lengths < needed)
        _raise_first(cells, wrong, "is no array")
        widths = (n_dims > 0).astype(np.int64)
        for dimension in range(int(n_dims.max())):
            rows = np.flatnonzero(n_dims > dimension)
            lengths = cells.take(rows).gather(">i4", _FIXED_BYTES + _DIMENSION_BYTES * dimension).astype(np.int64)
            widths[rows] = np.clip(widths[rows] * lengths, -1, MAX_WIDTH + 1)
        return widths

    def dimensions(self, cells: Cells) -> tuple[int, ...]:
        """Return the dimensions that all arrays have, if they are several; no row is NULL, all have one width."""
        n_dims = int(cells.gather(">i4")[0])
        if n_dims < 2 or (cells.gather(">i4") != n_dims).any():
            return ()
        places = [_FIXED_BYTES + _DIMENSION_BYTES * dimension for dimension in range(n_dims)]
        lengths = [cells.gather(">i4", place) for place in places]
        return tuple(int(found[0]) for found in lengths) if all((f == f[0]).all() for f in lengths) else ()

    def elements(self, cells: Cells, width: int) -> Elements:
        """Return the elements, float32 (n_rows, width); no row is NULL, and all have this width."""
        starts = cells.starts + _FIXED_BYTES + _DIMENSION_BYTES * cells.gather(">i4").astype(np.int64)
        n_bytes = 0 if isinstance(self._element, NumericReader) else self._element.n_bytes
        if n_bytes and (cells.starts + cells.lengths == starts + width * (4 + n_bytes)).all():
            pairs = np.dtype([("length", ">i4"), ("value", self._element.dtype)])
            found = _rows(Cells(cells.column, cells.data, starts, cells.lengths), pairs, width)
            if (found["length"] == n_bytes).all():
                return _as_float32(found["value"])
        values = np.empty((cells.n_rows, width), np.float32)
        ends = cells.starts + cells.lengths
        for position in range(width):
            _raise_first(cells, starts + 4 > ends, "is no array")
            lengths = Cells(cells.column, cells.data, starts, cells.lengths).gather(">i4").astype(np.int64)
            if (lengths < 0).any():
                raise null_element(cells.column, int(np.argmax(lengths < 0)), position)
            _raise_first(cells, starts + 4 + lengths > ends, "is no array")
            numbers = self._element.values(Cells(cells.column, cells.data, starts + 4, lengths))
            values[:, position] = _as_float32(numbers)
            starts = starts + 4 + lengths
        return values


class PaddedReader(VectorReader):
    """Reads arrays of one dimension that have at most ``width`` elements; others than these, and NULL, are absent.

    Parameters
    ----------
    array : ArrayReader
    width : int
    """

    def __init__(self, array: ArrayReader, width: int):
        self._element = array._element
        self._width = width

    def read(self, cells: Cells) -> Vectors:
        """Return the arrays of a batch: float32 (n_rows, width).

        Raises
        ------
        UnreadableValue
            If an array has more elements, or several dimensions.
        """
        n_dims = np.where(cells.missing, 0, cells.gather(">i4").astype(np.int64))
        needed = _FIXED_BYTES + _DIMENSION_BYTES * n_dims
        _raise_first(cells, ((n_dims < 0) | (cells.lengths < needed)) & ~cells.missing, "is no array")
        _raise_first(cells, n_dims > 1, "has several dimensions, and such arrays are not padded,")
        widths = np.where(n_dims == 1, cells.gather(">i4", _FIXED_BYTES).astype(np.int64), 0)
        _raise_first(cells, widths < 0, "is no array")
        if (widths > self._width).any():
            row = int(np.argmax(widths > self._width))
            problem = f"has {int(widths[row])} elements, where {self._width} at most are expected,"
            raise UnreadableValue(cells.column, row, problem, _LONG_HINT)
        values = np.zeros((cells.n_rows, self._width), np.float32)
        absent = np.arange(self._width) >= widths[:, np.newaxis]
        starts, ends = cells.starts + _FIXED_BYTES + _DIMENSION_BYTES, cells.starts + cells.lengths
        for position in range(int(widths.max(initial=0))):
            has_more = widths > position
            _raise_first(cells, has_more & (starts + 4 > ends), "is no array")
            lengths = Cells(cells.column, cells.data, starts, cells.lengths).gather(">i4").astype(np.int64)
            _raise_first(cells, has_more & (starts + 4 + lengths > ends), "is no array")
            absent[has_more & (lengths < 0), position] = True
            present = np.flatnonzero(has_more & (lengths >= 0))
            try:
                found = self._element.values(Cells(cells.column, cells.data, starts[present] + 4, lengths[present]))
            except UnreadableValue as error:
                raise error.at(int(present[error.row])) from None
            values[present, position] = _as_float32(found)
            starts = starts + np.where(has_more, 4 + np.maximum(lengths, 0), 0)
        absent[cells.missing] = False
        return Vectors(values, cells.missing, cells.column, absent=absent)


class PlainReader(VectorReader):
    """Reads pgvector's ``vector`` (``>f4``) and ``halfvec`` (``>f2``)."""

    def __init__(self, dtype: str):
        self._dtype = np.dtype(dtype)

    def widths(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Return the number of elements of each row; no row is NULL."""
        return cells.gather(">i2").astype(np.int64)

    def elements(self, cells: Cells, width: int) -> Elements:
        """Return the elements, float32 (n_rows, width); no row is NULL, and all have this width."""
        cells.require_bytes(4 + width * self._dtype.itemsize)
        return _as_float32(_rows(Cells(cells.column, cells.data, cells.starts + 4, cells.lengths), self._dtype, width))


class SparseReader(VectorReader):
    """Reads pgvector's ``sparsevec`` into all of its elements."""

    def widths(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Return the number of elements of each row; no row is NULL."""
        return cells.gather(">i4").astype(np.int64)

    def elements(self, cells: Cells, width: int) -> Elements:
        """Return the elements, float32 (n_rows, width); no row is NULL, and all have this width."""
        values = np.zeros((cells.n_rows, width), np.float32)
        counts = cells.gather(">i4", 4).astype(np.int64)
        _raise_first(cells, cells.lengths != 12 + 8 * counts, "is no sparsevec")
        for row, (start, count) in enumerate(zip(cells.starts.tolist(), counts.tolist(), strict=True)):
            indices = np.frombuffer(cells.data, ">i4", count, start + 12)
            if count and not 0 <= indices.min() <= indices.max() < width:
                raise UnreadableValue(cells.column, row, "is no sparsevec")
            values[row, indices] = np.frombuffer(cells.data, ">f4", count, start + 12 + 4 * count)
        return values


def cells_of(values: list[bytes | None], name: str) -> Cells:
    """Return the cells of a few values, one after the other."""
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    sizes = np.maximum(lengths, 0)
    data = b"".join([value for value in values if value is not None]) + bytes(PADDING)
    return Cells(name, data, np.cumsum(sizes) - sizes, lengths)


def _raise_first(cells: Cells, wrong: npt.NDArray[np.bool_], problem: str, hint: str | None = None) -> None:
    """Raise UnreadableValue for the first row that is wrong, if there is one."""
    if wrong.any():
        raise UnreadableValue(cells.column, int(np.argmax(wrong)), problem, hint)


def _rows(cells: Cells, item: np.dtype[Any], width: int) -> npt.NDArray[Any]:
    """Return ``width`` items from each cell's start on, (n_rows, width)."""
    n_bytes = width * item.itemsize
    if not n_bytes:
        return np.empty((cells.n_rows, 0), item)
    return np.ascontiguousarray(cells.gather(f"V{n_bytes}")).view(item).reshape(cells.n_rows, width)


def _as_float32(values: npt.NDArray[Any]) -> Elements:
    """Return numbers as float32; those beyond its range become infinities, which packing reports."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)

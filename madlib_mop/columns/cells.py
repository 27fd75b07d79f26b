"""One field of many rows as positions in the rows' bytes; readers gather from it without a loop over rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.raw import WIDTH_HINT, Flags, Integers
from madlib_mop.errors import InvalidParameter

#: Zero bytes after the rows' bytes, so that a gather of up to this size does not read beyond the buffer.
PADDING = 64
_NULL_HINT = (
    "Replace it in a view, leave such rows out, ignore the column, or use the proposal of madlib_mop.propose_columns,"
    " in which such elements are absent."
)


class UnreadableValue(InvalidParameter):
    """A value of a row cannot be used.

    Attributes
    ----------
    column : str
    row : int
        0-based, within the batch.
    is_ragged : bool
        Whether the column can be read with padded arrays: one has another number of elements, or NULL as an element.
    """

    def __init__(self, column: str, row: int, problem: str, hint: str | None = None, *, is_ragged: bool = False):
        super().__init__(f"column '{column}' {problem} in row {row + 1} of its batch", hint=hint)
        self.column = column
        self.row = row
        self.problem = problem
        self.is_ragged = is_ragged

    def at(self, row: int) -> "UnreadableValue":
        """Return the same error of another row."""
        return UnreadableValue(self.column, row, self.problem, self.hint, is_ragged=self.is_ragged)


def wrong_width(column: str, row: int, expected: int, received: int) -> UnreadableValue:
    """Return the error for a vector of another width than those before it; ``row`` is 0-based, within the batch."""
    problem = f"has {received} elements, where {expected} are expected,"
    return UnreadableValue(column, row, problem, WIDTH_HINT, is_ragged=True)


def null_element(column: str, row: int, place: int) -> UnreadableValue:
    """Return the error for NULL as an element of an array that is not padded; both numbers are 0-based."""
    return UnreadableValue(column, row, f"has a NULL element (number {place + 1})", _NULL_HINT, is_ragged=True)


def wrong_length(n_bytes: int, expected: int) -> str:
    """Return the problem of a value with another number of bytes than its type has."""
    return f"has {n_bytes} bytes, where {expected} are expected,"


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one column in a batch.

    Attributes
    ----------
    column : str
        Name for errors.
    data : bytes
        Bytes of the batch, with `PADDING` zero bytes after them.
    starts : numpy.ndarray
        int64 (n_rows,), position of each cell's first byte in ``data``.
    lengths : numpy.ndarray
        int64 (n_rows,), bytes of each cell; -1 is NULL.
    """

    column: str
    data: bytes
    starts: Integers
    lengths: Integers

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.starts)

    @cached_property
    def missing(self) -> Flags:
        """Return which cells are NULL: bool (n_rows,)."""
        return self.lengths < 0

    def gather(self, dtype: str, offset: int = 0) -> npt.NDArray[Any]:
        """Return the item of this dtype at ``offset`` bytes into each cell; of NULL cells, any bits.

        Cells that are too short give bytes of what follows them; check their lengths.
        """
        item = np.dtype(dtype)
        n_items = len(self.data) - offset - item.itemsize + 1
        return np.ndarray((n_items,), item, self.data, offset, (1,))[self.starts]

    def require_bytes(self, n_bytes: int) -> None:
        """Raise UnreadableValue for the first value that has another number of bytes."""
        wrong = (self.lengths != n_bytes) & ~self.missing
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UnreadableValue(self.column, row, wrong_length(int(self.lengths[row]), n_bytes))

    def at(self, row: int) -> bytes:
        """Return the bytes of one cell that is not NULL."""
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])]

    def values(self, rows: npt.NDArray[Any]) -> list[bytes]:
        """Return the bytes of the cells of these rows, none of which is NULL."""
        starts = self.starts[rows]
        ends = starts + self.lengths[rows]
        data = self.data
        return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def take(self, rows: npt.NDArray[Any]) -> "Cells":
        """Return the cells of these rows."""
        return Cells(self.column, self.data, self.starts[rows], self.lengths[rows])


@dataclass(frozen=True, eq=False)
class FixedCells(Cells):
    """Cells of one column that have one width, none of them NULL, copied into a matrix.

    Attributes
    ----------
    block : numpy.ndarray
        Void of some bytes, (n_rows,): a part of each row with this cell.
    place : int
        Position of the cell in the part.
    """

    block: npt.NDArray[np.void]
    place: int

    @cached_property
    def missing(self) -> Flags:
        """Return which cells are NULL: bool (n_rows,)."""
        return np.zeros(self.n_rows, np.bool_)

    def gather(self, dtype: str, offset: int = 0) -> npt.NDArray[Any]:
        """Return a view of the item of this dtype at ``offset`` bytes into each cell; it must end in the cell."""
        return np.ndarray((self.n_rows,), dtype, self.block, self.place + offset, self.block.strides)

    def require_bytes(self, n_bytes: int) -> None:
        """Do nothing where the cells have this width, else raise UnreadableValue."""
        if self.n_rows and self.lengths[0] != n_bytes:
            super().require_bytes(n_bytes)

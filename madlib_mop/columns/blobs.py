"""Bytes of each row, such as images: in memory, or in a mapped file from which they are read when they are needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp] | npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice

BLOB = "blob"


class StoredValues(Sequence[bytes | None]):
    """Values that lie one after the other in an array; each is copied out of it when it is asked for.

    Parameters
    ----------
    data : numpy.ndarray
        uint8; it may be mapped from a file.
    starts, lengths : numpy.ndarray
        int64 (n_rows,): position of the first byte of each value, and its bytes; -1 is NULL.
    """

    def __init__(self, data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers):
        self._data = data
        self._starts = starts
        self._lengths = lengths

    @staticmethod
    def of(data: npt.NDArray[np.uint8], lengths: Integers) -> "StoredValues":
        """Return the values of these lengths, the first of which begins where the data begin."""
        sizes = np.maximum(lengths, 0)
        return StoredValues(data, np.cumsum(sizes) - sizes, np.asarray(lengths))

    def __len__(self) -> int:
        return len(self._lengths)

    @overload
    def __getitem__(self, row: int) -> bytes | None: ...
    @overload
    def __getitem__(self, row: slice) -> "StoredValues": ...
    def __getitem__(self, row: int | slice) -> "bytes | None | StoredValues":
        if isinstance(row, slice):
            return StoredValues(self._data, self._starts[row], self._lengths[row])
        length, start = int(self._lengths[row]), int(self._starts[row])
        return None if length < 0 else self._data[start : start + length].tobytes()

    def take(self, rows: Integers) -> "StoredValues":
        """Return the values of these rows, in their order; none is copied."""
        return StoredValues(self._data, self._starts[rows], self._lengths[rows])

    def begins(self, n_bytes: int) -> Iterator[bytes]:
        """Yield the first bytes of each value that is not NULL."""
        present = ~self.missing
        ends = self._starts[present] + np.minimum(self._lengths[present], n_bytes)
        for start, end in zip(self._starts[present].tolist(), ends.tolist(), strict=True):
            yield self._data[start:end].tobytes()

    @property
    def missing(self) -> Flags:
        """Which rows are NULL: bool (n_rows,)."""
        return self._lengths < 0

    @property
    def sizes(self) -> Integers:
        """The bytes of each value: int64 (n_rows,); 0 for NULL."""
        return np.maximum(self._lengths, 0)


@dataclass(frozen=True, eq=False)
class Blobs:
    """Bytes of each row, such as images; None is NULL."""

    values: Sequence[bytes | None]
    family: str = BLOB

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.values)

    @cached_property
    def missing(self) -> Flags:
        """Return which rows are NULL: bool (n_rows,)."""
        if isinstance(self.values, StoredValues):
            return self.values.missing
        return np.array([value is None for value in self.values], np.bool_)

    def take(self, indices: Indices) -> "Blobs":
        """Return the rows of these indices, in their order."""
        rows = np.arange(self.n_rows)[indices]
        if isinstance(self.values, StoredValues):
            return replace(self, values=self.values.take(rows))
        return replace(self, values=[self.values[row] for row in rows.tolist()])

    def begins(self, n_bytes: int) -> Iterator[bytes]:
        """Yield the first bytes of each value that is not NULL."""
        if isinstance(self.values, StoredValues):
            return self.values.begins(n_bytes)
        return (value[:n_bytes] for value in self.values if value is not None)

    @property
    def sizes(self) -> Integers:
        """The bytes of each value: int64 (n_rows,); 0 for NULL."""
        if isinstance(self.values, StoredValues):
            return self.values.sizes
        return np.array([0 if value is None else len(value) for value in self.values], np.int64)

    def first_special(self) -> None:
        """Return None: bytes are not looked at here."""

    def pieces(self, most_bytes: int, most_rows: int) -> Iterator[tuple[list[int], list[bytes]]]:
        """Yield the values that are not NULL, with the numbers of their rows, in parts of a limited size.

        Parameters
        ----------
        most_bytes, most_rows : int
            A part ends before it would have more; it has at least one value.
        """
        numbers: list[int] = []
        values: list[bytes] = []
        n_bytes = 0
        for number, value in enumerate(self.values):
            if value is None:
                continue
            if values and (n_bytes + len(value) > most_bytes or len(values) == most_rows):
                yield numbers, values
                numbers, values, n_bytes = [], [], 0
            numbers.append(number)
            values.append(value)
            n_bytes += len(value)
        if values:
            yield numbers, values

    @staticmethod
    def concatenate(parts: Sequence["Blobs"]) -> "Blobs":
        """Return the rows of all parts."""
        return replace(parts[0], values=[value for part in parts for value in part.values])

"""All rows of a table as typed columns: in memory while they are few, then in a temporary file without a name."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import IO, Any

import numpy as np
from mop_backend.machine import processors

from madlib_mop.columns.blobs import Blobs, StoredValues
from madlib_mop.columns.cells import wrong_width
from madlib_mop.columns.raw import Dictionary, Levels, Numbers, RawColumn, TooManyLevels, Vectors
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.errors import OutOfResources

_IN_MEMORY_BYTES = 256 << 20
_COPY_BYTES = 16 << 20
_MOST_THREADS = 4  # NumPy joins a column's batches without holding the interpreter's lock
#: How often what is spilled lies in files: as it came, and column by column.
_COPIES = 2


class Spool:
    """Takes batches of columns; `columns` has all rows of each.

    What is spilled is read again by mapping the file, so that memory stays bounded whatever the table's size. The file
    has no name: the operating system frees it when the process ends.

    Parameters
    ----------
    limit_bytes : int or None
        Most that the files may take: the caller's ``temp_file_limit``.
    in_memory_bytes : int
        What is kept in memory before anything is written to the file.

    Attributes
    ----------
    n_rows : int
    overflowed : dict of int to ColumnStatistics
        The columns, by number, with more distinct texts than a dictionary holds: the statistics of the rows up to
        there. Their values are not kept.
    """

    def __init__(self, limit_bytes: int | None = None, in_memory_bytes: int = _IN_MEMORY_BYTES):
        self._limit_bytes = limit_bytes
        self._in_memory_bytes = in_memory_bytes
        self._file: IO[bytes] | None = None
        self._written = 0
        self._n_bytes = 0
        self._series: list[list[_Series]] = []
        self._first: list[RawColumn] = []
        self._levels: list[Dictionary | None] = []
        self.n_rows = 0
        self.overflowed: dict[int, ColumnStatistics] = {}

    def add(self, batch: Sequence[RawColumn]) -> None:
        """Append the rows of a batch.

        Raises
        ------
        UnreadableValue
            If vectors are not as wide as those before.
        OutOfResources
            If the file would take more than it may.
        """
        if not self._first:
            self._first = list(batch)
            self._levels = [Dictionary(c.levels.column) if isinstance(c, Levels) else None for c in batch]
            self._series = [[_Series() for _ in _parts(column)] for column in batch]
        for i, column in enumerate(batch):
            kept = self._in_same_form(i, column)
            for series, part in zip(self._series[i], _parts(kept) if kept is not None else (), strict=True):
                series.add(part)
                self._n_bytes += part.nbytes
        self.n_rows += batch[0].n_rows
        if self._n_bytes > self._in_memory_bytes:
            self._spill()

    def columns(self) -> list[RawColumn | None]:
        """Return all rows of each column, in their order; None of those that overflowed. Nothing may be added then."""
        if self._file is not None:
            self._spill()
            return [self._kept(i) for i in range(len(self._first))]
        with ThreadPoolExecutor(min(processors(), _MOST_THREADS)) as threads:
            return list(threads.map(self._kept, range(len(self._first))))

    def _kept(self, i: int) -> RawColumn | None:
        return self._column(i) if i not in self.overflowed else None

    def _column(self, i: int) -> RawColumn:
        first = self._first[i]
        parts = [series.whole(self._file) for series in self._series[i]]
        if isinstance(first, Levels):
            levels = self._levels[i]
            assert levels is not None, "it was made with the first batch"
            return replace(first, codes=parts[0], levels=levels)
        if isinstance(first, Blobs):
            return replace(first, values=StoredValues.of(parts[0], parts[1]))
        if isinstance(first, Numbers) and first.rest is not None:
            return replace(first, values=parts[0], missing=parts[1], rest=parts[2])
        if isinstance(first, Vectors) and first.absent is not None:
            return replace(first, values=parts[0], missing=parts[1], absent=parts[2])
        return replace(first, values=parts[0], missing=parts[1])

    def _in_same_form(self, i: int, column: RawColumn) -> RawColumn | None:
        """Return a batch's column in the form that its rows before have; None if it is not kept."""
        if isinstance(column, Vectors):
            return self._as_wide(i, column)
        return self._renumbered(i, column) if isinstance(column, Levels) else column

    def _as_wide(self, i: int, column: Vectors) -> Vectors:
        """Return vectors with the width of those before; where there was none yet, those before get this width."""
        before = self._first[i]
        assert isinstance(before, Vectors), "columns keep their class"
        if column.absent is not None:  # padded: all are as wide
            return column
        if column.width is None:
            return replace(column, values=np.zeros((column.n_rows, before.values.shape[1]), np.float32))
        if before.width is None:
            self._first[i] = replace(column, column=before.column)
            if self.n_rows:
                self._series[i][0].reset(np.zeros((self.n_rows, column.width), np.float32))
        elif column.width != before.width:
            raise wrong_width(before.column, int(np.argmin(column.missing)), before.width, column.width)
        elif column.dimensions != before.dimensions:
            self._first[i] = replace(before, dimensions=())
        return column

    def _renumbered(self, i: int, column: Levels) -> Levels | None:
        """Return a column with the codes of all rows' dictionary; None where that is full, now or before."""
        if i in self.overflowed:
            return None
        levels = self._levels[i]
        assert levels is not None, "columns keep their class"
        keys = column.levels.keys()
        codes = np.full(len(keys) + 1, -1, np.int32)
        is_used = np.zeros(len(keys) + 1, np.bool_)
        is_used[column.codes] = True
        used = np.flatnonzero(is_used[:-1])
        try:
            codes[used] = levels.codes_of([keys[code] for code in used.tolist()] if len(used) < len(keys) else keys)
        except TooManyLevels:
            kept = [self._column(i)] if self.n_rows else []
            self.overflowed[i] = reduce(ColumnStatistics.merge, map(ColumnStatistics.of, [*kept, column]))
            self._series[i], self._levels[i] = [], None
            return None
        return replace(column, codes=codes[column.codes], levels=levels)

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=_COPY_BYTES)
        for column in self._series:
            for series in column:
                self._written += series.spill(self._file, self._written)
                # defence: temporary-files
                if self._limit_bytes is not None and _COPIES * self._written > self._limit_bytes:
                    raise beyond_limit(self._limit_bytes)
        self._file.flush()
        self._n_bytes = 0


def beyond_limit(limit_bytes: int) -> OutOfResources:
    """Return the error for rows that need more temporary files than the caller may have."""
    return OutOfResources(
        f"the rows need temporary files of more than {limit_bytes >> 10} kB, the caller's temp_file_limit",
        hint="A superuser may raise it for the role: ALTER ROLE ... SET temp_file_limit.",
    )


class _Series:
    """One array that grows: pieces in memory, or their places in the file."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []
        self._places: list[tuple[int, int]] = []  # (offset, number of rows)
        self._form: np.ndarray | None = None

    def add(self, piece: np.ndarray) -> None:
        self._form = piece[:0]
        self._pieces.append(piece)

    def reset(self, piece: np.ndarray) -> None:
        """Forget all, and begin with this piece."""
        self._pieces, self._places, self._form = [piece], [], piece[:0]

    def spill(self, file: IO[bytes], offset: int) -> int:
        """Write what is in memory to the end of the file; return the bytes written."""
        n_bytes = 0
        for piece in self._pieces:
            if len(piece):
                self._places.append((offset + n_bytes, len(piece)))
                file.write(np.ascontiguousarray(piece).data)
                n_bytes += piece.nbytes
        self._pieces = []
        return n_bytes

    def whole(self, file: IO[bytes] | None) -> Any:
        """Return the whole array; of pieces in the file, mapped from a file where they lie one after the other."""
        assert self._form is not None, "a spool that is read had a batch"
        if file is None:
            return np.concatenate(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
        shape, dtype = (sum(n for _, n in self._places), *self._form.shape[1:]), self._form.dtype
        row_bytes = dtype.itemsize * int(np.prod(self._form.shape[1:], dtype=np.int64))
        if not shape[0] or not row_bytes:
            return np.zeros(shape, dtype)
        joined = tempfile.TemporaryFile()
        for offset, n_rows in self._places:
            file.seek(offset)
            left = n_rows * row_bytes
            while left:
                data = file.read(min(left, _COPY_BYTES))
                joined.write(data)
                left -= len(data)
        joined.flush()
        return np.memmap(joined, dtype, "r", shape=shape)


def _parts(column: RawColumn) -> list[np.ndarray]:
    """Return the arrays that a column consists of."""
    if isinstance(column, Levels):
        return [column.codes]
    if isinstance(column, Blobs):
        lengths = np.array([-1 if value is None else len(value) for value in column.values], np.int64)
        return [np.frombuffer(b"".join(value or b"" for value in column.values), np.uint8), lengths]
    if isinstance(column, Numbers) and column.rest is not None:
        return [column.values, column.missing, column.rest]
    if isinstance(column, Vectors) and column.absent is not None:
        return [column.values, column.missing, column.absent]
    return [column.values, column.missing]

"""Columns of a data frame of pandas, Polars or Arrow, as columns of a table; read with narwhals.

Nothing of a library is imported unless a frame of that library is given.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import narwhals as nw

from madlib_mop.catalog.names import MAX_NAME_BYTES, SYSTEM_COLUMNS
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.frames import values as v
from madlib_mop.columns.records import BLANK_PADDED, reader_of
from madlib_mop.errors import cannot_be_read

#: Rows of one piece of a COPY.
_PIECE_ROWS = 5_000
_PLAIN: tuple[tuple[type, str, v.Writer], ...] = (
    (nw.Boolean, "boolean", v.write_boolean),
    (nw.Int8, "smallint", v.write_integer),
    (nw.Int16, "smallint", v.write_integer),
    (nw.Int32, "integer", v.write_integer),
    (nw.Int64, "bigint", v.write_integer),
    (nw.UInt8, "smallint", v.write_integer),
    (nw.UInt16, "integer", v.write_integer),
    (nw.UInt32, "bigint", v.write_integer),
    (nw.UInt64, "numeric", v.write_integer),
    (nw.Int128, "numeric", v.write_integer),
    (nw.UInt128, "numeric", v.write_integer),
    (nw.Float32, "real", v.write_float),
    (nw.Float64, "double precision", v.write_float),
    (nw.Decimal, "numeric", v.write_decimal),
    (nw.String, "text", v.write_text),
    (nw.Date, "date", v.write_moment),
    (nw.Time, "time", v.write_moment),
    (nw.Duration, "interval", v.write_interval),
    (nw.Binary, "bytea", v.write_bytes),
)
_ELEMENTS: tuple[tuple[type, str], ...] = (
    (nw.Int8, "smallint"), (nw.Int16, "smallint"), (nw.UInt8, "smallint"), (nw.Int32, "integer"),
    (nw.UInt16, "integer"), (nw.Int64, "bigint"), (nw.UInt32, "bigint"), (nw.Float32, "real"),
    (nw.Float64, "double precision"), (nw.Decimal, "numeric"),
)  # fmt: skip
RANGE_HINT = (
    "Dates and timestamps have the years 1 to 9999, and intervals at most 999,999,999 days. Replace the value, or pass"
    " the column as texts and cast it in a view."
)
_TABLE_TYPES = "a data frame of pandas or Polars, a table of Arrow, or the name of a table"


@dataclass(frozen=True)
class FrameColumn:
    """One column of a frame.

    Attributes
    ----------
    name : str
    sql_type : str
        Of the column of the table.
    series : narwhals.Series
    write : callable
        Returns the text of a value that is not missing.
    is_empty : bool
        Whether all values are missing.
    """

    name: str
    sql_type: str
    series: "nw.Series[Any]"
    write: v.Writer
    is_empty: bool

    def texts(self, start: int, stop: int) -> list[str]:
        """Return rows as texts of COPY. Raises InvalidParameter for a value that a table cannot have."""
        missing = self.series[start:stop].is_null().to_list()
        written = []
        for row, (value, is_missing) in enumerate(zip(self._values(start, stop), missing, strict=True), start):
            try:
                written.append(v.NULL if is_missing or value is None else self.write(value))
            except (ValueError, OverflowError) as problem:
                raise self.refused(row, str(problem)) from None
        return written

    def _values(self, start: int, stop: int) -> list[Any]:
        """Return rows as Python's values. Raises InvalidParameter for a date, time or interval that Python lacks."""
        try:
            values: list[Any] = self.series[start:stop].to_list()
        except (ValueError, OverflowError):
            for row in range(start, stop):
                try:
                    self.series[row : row + 1].to_list()
                except (ValueError, OverflowError) as problem:
                    raise self.refused(row, f"is out of Python's range: {problem}", RANGE_HINT) from None
            raise
        return values

    def refused(self, row: int, problem: str, hint: str | None = None) -> Exception:
        """Return the error for a value; ``problem`` is the text after it."""
        if problem in ("is nan", "is inf", "is -inf", "is NaN", "is Infinity", "is -Infinity"):
            hint = "Replace it: missing values are None or null (NaN in pandas' NumPy columns), and others are finite."
        return bad_input(f"column {self.name!r} of the frame, row {row} (from 0): the value {problem}", hint)

    def as_trained(self, sql_type: str) -> "FrameColumn":
        """Return the column as one of the SQL type of training, as far as its values do not show which that is.

        Without values, it gets this type. What a driver returns for a ``real`` is a float64, nearly the same number.
        What it returns for a ``char(n)`` ends in blanks, which do not count.
        """
        if self.is_empty:
            return replace(self, sql_type=sql_type)
        if sql_type == "real" and isinstance(self.series.dtype, nw.Float64):
            return replace(self, sql_type=sql_type, series=self.series.cast(nw.Float32))
        if self.sql_type == "text" and reader_of(sql_type) == BLANK_PADDED:
            return replace(self, sql_type=BLANK_PADDED)
        return self


@dataclass(frozen=True)
class Frame:
    """A data frame, as a table will have it.

    Attributes
    ----------
    columns : tuple of FrameColumn
    n_rows : int
    native : object
        The frame that was given.
    """

    columns: tuple[FrameColumn, ...]
    n_rows: int
    native: Any

    def pieces(self) -> Iterator[str]:
        """Yield the rows in COPY's text format, some thousand at once."""
        for start in range(0, self.n_rows, _PIECE_ROWS):
            columns = [column.texts(start, min(start + _PIECE_ROWS, self.n_rows)) for column in self.columns]
            yield "".join(f"{line}\n" for line in map("\t".join, zip(*columns, strict=True)))


def read_frame(data: Any, what: str = "data", only: Sequence[str] | None = None) -> Frame:
    """Return a frame's columns with their SQL types.

    Parameters
    ----------
    data : pandas.DataFrame, polars.DataFrame, pyarrow.Table, or another frame that narwhals reads
        Missing values (pandas: those of ``isna()``, NaN in NumPy columns included; others: null) are NULL. The index
        of pandas is not read.
    what : str
        The argument, for messages.
    only : sequence of str, optional
        The columns to read. Default: all.

    Raises
    ------
    InvalidParameter
        If it is no such frame, has no rows or no columns, has a name that is no text, is twice there or is longer than
        63 bytes, or has a column whose values no type of PostgreSQL has.
    """
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        lazy = "Call collect() first." if hasattr(data, "collect") else None
        raise bad_input(f"{what} must be {_TABLE_TYPES}. Received: {type(data).__name__}", lazy) from None
    except Exception as error:  # noqa: BLE001 -- names that are twice there: each library has its own class
        raise noted(cannot_be_read(what, " ".join(str(error).split()))) from None
    names = list(frame.columns)
    if only is not None:
        for name in only:
            if name not in names:
                raise bad_input(f"{what} has no column {name!r}", f"It must have {', '.join(only)}.")
        names = list(only)
    check_names(names, what)
    if len(frame) == 0:
        raise bad_input(f"{what} has no rows")
    return Frame(tuple(_column(name, frame[name]) for name in names), len(frame), data)


def check_names(names: Sequence[object], what: str) -> None:
    """Raise InvalidParameter unless the names can be those of a table's columns."""
    if not names:
        raise bad_input(f"{what} has no columns")
    for name in names:
        if not isinstance(name, str) or not name or "\0" in name:
            raise bad_input(
                f"the names of columns must be texts. Received: {name!r}",
                "In pandas: frame.columns = [f'x{i}' for i in range(frame.shape[1])].",
            )
        if len(name.encode()) > MAX_NAME_BYTES:
            raise bad_input(f"the name of a column has more than {MAX_NAME_BYTES} bytes. Received: {name!r}")
        if name in SYSTEM_COLUMNS:
            raise bad_input(f"a table cannot have a column {name!r}: it is a system column", "Rename the column.")
        if names.count(name) > 1:
            raise bad_input(f"column {name!r} is twice in {what}", "Rename one of the two.")


def _column(name: str, series: "nw.Series[Any]") -> FrameColumn:
    is_empty = bool(series.is_null().all())
    sql_type, write = _type_of(name, series)
    return FrameColumn(name, sql_type, series, write, is_empty)


def _type_of(name: str, series: "nw.Series[Any]") -> tuple[str, v.Writer]:
    dtype = series.dtype
    if isinstance(dtype, nw.Datetime):
        return ("timestamp" if dtype.time_zone is None else "timestamptz"), v.write_moment
    for kind, sql_type, write in _PLAIN:
        if isinstance(dtype, kind):
            return sql_type, write
    if isinstance(dtype, nw.List | nw.Array):
        return _array_type(name, dtype), v.write_array
    if isinstance(dtype, nw.Struct):
        raise bad_input(f"column {name!r} of the frame is a struct", "Pass its fields as columns of their own.")
    try:
        sql_type, write = v.infer(_present(series))
    except ValueError as problem:
        raise bad_input(
            f"column {name!r} of the frame {problem}", "Convert the column to one type, for example with astype(str)."
        ) from None
    if write is v.write_array:
        sql_type = _object_array_type(series)
    return sql_type, write


def _present(series: "nw.Series[Any]") -> Iterator[Any]:
    values = zip(series.to_list(), series.is_null().to_list(), strict=True)
    return (value for value, is_missing in values if not is_missing and value is not None)


def _array_type(name: str, dtype: Any) -> str:
    while isinstance(dtype, nw.List | nw.Array):
        dtype = dtype.inner() if isinstance(dtype.inner, type) else dtype.inner
    for kind, sql_type in _ELEMENTS:
        if isinstance(dtype, kind):
            return f"{sql_type}[]"
    raise bad_input(f"column {name!r} of the frame is a list of {dtype}", "Lists must be of numbers.")


def _object_array_type(series: "nw.Series[Any]") -> str:
    """Return ``real[]`` if all values are arrays of float32, else ``double precision[]``."""
    names = {str(getattr(value, "dtype", "")) for value in _present(series)}
    return "real[]" if names == {"float32"} else "double precision[]"


def sample_name(name: str) -> str:
    """Return a name as a part of the names of tables: lower case letters, digits and ``_``."""
    return "".join(islice(re.sub(r"\W+", "_", name.lower()), 30)).strip("_") or "data"

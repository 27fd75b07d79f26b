"""Rows of a benchmark, copied into a database: arrays in PostgreSQL's binary format, which NumPy writes at once; data
frames as CSV."""

import io
import struct

import numpy as np

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_FLOAT4_OID = 700
_CHUNK_ROWS = 2000


def make_table(cursor, table: str, x: np.ndarray, y: np.ndarray) -> None:
    """Create a table (id integer, x real[], y integer) and copy rows into it.

    Parameters
    ----------
    cursor : psycopg2 cursor
    table : str
        Its name, which needs no quotes.
    x : numpy.ndarray
        float32, ``(n, ...)``.
    y : numpy.ndarray
        Integers, ``(n,)``.
    """
    cursor.execute(f"CREATE TABLE {table} (id integer, x real[], y integer)")
    rows = _Rows(x, y)
    cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT binary)", rows)


def make_frame_table(cursor, table: str, frame) -> None:
    """Create a table with the columns of a pandas.DataFrame, and copy its rows into it."""
    columns = ", ".join(f'"{column}" {_sql_type(frame[column])}' for column in frame)
    cursor.execute(f"CREATE TABLE {table} ({columns})")
    cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT csv, HEADER)", io.StringIO(frame.to_csv(index=False)))
    cursor.execute(f"ANALYZE {table}")


def _sql_type(column) -> str:
    """Return the type that a user declares for a column of a DataFrame."""
    import pandas

    types = pandas.api.types
    if types.is_bool_dtype(column):
        return "boolean"
    if types.is_integer_dtype(column):
        return "integer"
    if types.is_numeric_dtype(column):
        return "double precision"
    if types.is_datetime64_any_dtype(column):
        if column.dt.tz is not None:
            return "timestamptz"
        return "date" if (column.dropna() == column.dropna().dt.normalize()).all() else "timestamp"
    return "text"


class _Rows(io.RawIOBase):
    """A file in the binary COPY format (PostgreSQL: COPY, File Formats), created in chunks of rows."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        self._x, self._y = x, y
        self._next = 0
        self._left = memoryview(_SIGNATURE)
        element = np.dtype([("bytes", ">i4"), ("value", ">f4")])
        shape = x.shape[1:]
        array_bytes = 12 + 8 * len(shape) + element.itemsize * x[0].size
        self._row = np.dtype(
            [
                ("n_fields", ">i2"), ("id_bytes", ">i4"), ("id", ">i4"),
                ("x_bytes", ">i4"), ("n_dimensions", ">i4"), ("has_nulls", ">i4"), ("oid", ">i4"),
                ("dimensions", [("size", ">i4"), ("lower", ">i4")], len(shape)), ("elements", element, x[0].size),
                ("y_bytes", ">i4"), ("y", ">i4"),
            ]
        )  # fmt: skip
        same = np.zeros((), self._row)
        for name, value in (("n_fields", 3), ("id_bytes", 4), ("x_bytes", array_bytes), ("n_dimensions", len(shape)),
                            ("oid", _FLOAT4_OID), ("y_bytes", 4)):  # fmt: skip
            same[name] = value
        same["dimensions"]["size"], same["dimensions"]["lower"] = shape, 1
        same["elements"]["bytes"] = 4
        self._same = same

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if not self._left and self._next is not None:
            self._left = memoryview(self._more())
        given = self._left[: len(buffer)]
        buffer[: len(given)] = given
        self._left = self._left[len(given) :]  # a slice of a view, which copies nothing
        return len(given)

    def _more(self) -> bytes:
        x, y = (rows[self._next : self._next + _CHUNK_ROWS] for rows in (self._x, self._y))
        if not len(x):
            self._next = None
            return struct.pack(">h", -1)
        rows = np.full(len(x), self._same)
        rows["id"] = np.arange(self._next, self._next + len(x))
        rows["elements"]["value"] = x.reshape(len(x), -1)
        rows["y"] = y
        self._next += len(x)
        return rows.tobytes()

"""Results of queries as data frames of pandas, and predictions as series of the library of the frame that was given."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import CursorResult

if TYPE_CHECKING:
    import pandas

_INTEGERS = {20: "int64", 21: "int16", 23: "int32"}
_FLOATS = {700: "float32", 701: "float64", 1700: "float64"}
_BOOLEAN, _TIMESTAMP, _TIMESTAMPTZ = 16, 1114, 1184


def frame_of(result: CursorResult[Any]) -> "pandas.DataFrame":
    """Return the rows of a query.

    Integers, booleans and floats have NumPy's types; where integers or booleans are NULL, pandas' nullable types.
    NULL among floats is NaN. Timestamps with time zone are in UTC. Other types, and timestamps that pandas cannot have,
    are Python's objects. A statement without rows returns an empty frame.
    """
    import pandas as pd

    if not result.returns_rows:
        return pd.DataFrame()
    cursor: Any = result.cursor
    types = [(column[0], column[1]) for column in cursor.description]
    rows = [tuple(row) for row in result]
    columns = {i: _series([row[i] for row in rows], oid) for i, (_, oid) in enumerate(types)}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(rows)))
    frame.columns = pd.Index([name for name, _ in types])  # a name may be there twice
    return frame


def _series(values: Sequence[Any], oid: int) -> "pandas.Series":
    import pandas as pd

    has_null = any(value is None for value in values)
    if oid in _INTEGERS:
        return pd.Series(values, dtype=_INTEGERS[oid].capitalize() if has_null else _INTEGERS[oid])
    if oid in _FLOATS:
        return pd.Series([None if value is None else float(value) for value in values], dtype=_FLOATS[oid])
    if oid == _BOOLEAN:
        return pd.Series(values, dtype="boolean" if has_null else "bool")
    if oid in (_TIMESTAMP, _TIMESTAMPTZ):
        with suppress(ValueError, OverflowError):  # a year that pandas does not have
            return pd.Series(pd.to_datetime(values, utc=oid == _TIMESTAMPTZ))
    return pd.Series(values, dtype="object")


def pandas_of(columns: Mapping[Any, Sequence[Any]], index: "pandas.Index | None" = None) -> "pandas.DataFrame":
    """Return columns as a frame of pandas. A name that is None stays None: the class NULL."""
    import pandas as pd

    frame = pd.DataFrame(dict(columns), index=index)
    if None in columns:
        frame.columns = pd.Index(list(columns), dtype="object")
    return frame


def like(native: Any, columns: Mapping[Any, Sequence[Any]]) -> Any:
    """Return columns as a frame of the library of another frame; in pandas, with its index."""
    import narwhals as nw

    frame = nw.from_native(native, eager_only=True)
    if frame.implementation.is_pandas():
        return pandas_of(columns, native.index)
    return nw.from_dict(dict(columns), backend=frame.implementation).to_native()


def series_like(native: Any, name: str, values: Sequence[Any]) -> Any:
    """Return values as a series of the library of a frame; in pandas, with the frame's index."""
    import narwhals as nw

    frame = nw.from_native(native, eager_only=True)
    if frame.implementation.is_pandas():
        import pandas as pd

        return pd.Series(list(values), index=native.index, name=name)
    return nw.from_dict({name: list(values)}, backend=frame.implementation)[name].to_native()

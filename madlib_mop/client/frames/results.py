"""Results of queries as data frames of pandas, and predictions as series of the library of the frame that was given."""

from collections.abc import Mapping, Sequence
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
    NULL among floats is NaN. Timestamps with time zone are in UTC. Other types are Python's objects.
    """
    import pandas as pd

    cursor: Any = result.cursor
    types = [(column[0], column[1]) for column in cursor.description]
    rows = [tuple(row) for row in result]
    columns = {name: _series([row[i] for row in rows], oid) for i, (name, oid) in enumerate(types)}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(rows)))


def _series(values: Sequence[Any], oid: int) -> "pandas.Series":
    import pandas as pd

    has_null = any(value is None for value in values)
    if oid in _INTEGERS:
        return pd.Series(values, dtype=_INTEGERS[oid].capitalize() if has_null else _INTEGERS[oid])
    if oid in _FLOATS:
        return pd.Series([None if value is None else float(value) for value in values], dtype=_FLOATS[oid])
    if oid == _BOOLEAN:
        return pd.Series(values, dtype="boolean" if has_null else "bool")
    if oid == _TIMESTAMPTZ:
        return pd.Series(pd.to_datetime(values, utc=True))
    if oid == _TIMESTAMP:
        return pd.Series(pd.to_datetime(values))
    return pd.Series(values, dtype="object")


def like(native: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return columns as a frame of the library of another frame; in pandas, with its index."""
    import narwhals as nw

    frame = nw.from_native(native, eager_only=True)
    if frame.implementation.is_pandas():
        import pandas as pd

        return pd.DataFrame(dict(columns), index=native.index)
    return nw.from_dict(dict(columns), backend=frame.implementation).to_native()


def series_like(native: Any, name: str, values: Sequence[Any]) -> Any:
    """Return values as a series of the library of a frame; in pandas, with the frame's index."""
    import narwhals as nw

    frame = nw.from_native(native, eager_only=True)
    if frame.implementation.is_pandas():
        import pandas as pd

        return pd.Series(list(values), index=native.index, name=name)
    return nw.from_dict({name: list(values)}, backend=frame.implementation)[name].to_native()

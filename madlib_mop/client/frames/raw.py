"""Columns of a data frame as the encoder takes them, without a database: the same values as after a copy into a table.

Used for exported models. The server's way is `columns.FrameColumn.texts`, then `madlib_mop.columns.records`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.client.calling.errors import noted
from madlib_mop.client.frames.columns import RANGE_HINT, Frame, FrameColumn
from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.cells import UnreadableValue, wrong_width
from madlib_mop.columns.families import FAMILIES
from madlib_mop.columns.raw import (
    FLOAT4,
    Levels,
    Moments,
    Numbers,
    RawColumn,
    Vectors,
    common_dimensions,
    dictionary_of,
)
from madlib_mop.columns.records import BLANK_PADDED, family_of, not_an_input, reader_of
from madlib_mop.errors import Unsupported

Flags = npt.NDArray[np.bool_]


def raw_columns(
    frame: Frame, types: Mapping[str, str], padded: Mapping[str, int | None] | None = None
) -> dict[str, RawColumn]:
    """Return the columns of a frame by name.

    Parameters
    ----------
    frame : Frame
    types : mapping of str to str
        The SQL types of training, by column.
    padded : mapping of str to int or None, optional
        The number of elements of each column whose arrays are padded; None of others.

    Raises
    ------
    InvalidParameter
        If a value cannot be used, such as an infinite number.
    Unsupported
        For images.
    """
    columns = [c.as_trained(types[c.name]) if c.name in types else c for c in frame.columns]
    return {c.name: _raw(c, frame.n_rows, (padded or {}).get(c.name)) for c in columns}


def _raw(column: FrameColumn, n_rows: int, padded_to: int | None) -> RawColumn:
    column.texts(0, n_rows)  # raises the error of a copy into a table
    values = column.series.to_list()
    missing = np.asarray([v is None or n for v, n in zip(values, column.series.is_null().to_list(), strict=True)])
    reader = reader_of(column.sql_type)
    if reader is None:
        raise noted(not_an_input(column.name, column.sql_type))
    family = FAMILIES[family_of(reader)]
    if family.holds is Blobs:
        raise noted(Unsupported(
            f"column {column.name!r} has images, which are not decoded here",
            hint="Decode them, and call run() with the network's inputs; or predict in the database.",
        ))  # fmt: skip
    if family.holds is Vectors:
        return _vectors(column.name, values, missing) if padded_to is None else _padded(column, values, padded_to)
    assert family.of_python is not None, "only vectors and images have none"
    if family.holds is Numbers:
        numbers = _filled(values, missing, family.of_python, np.float64)
        if reader == FLOAT4:
            with np.errstate(over="ignore"):
                numbers = numbers.astype(np.float32).astype(np.float64)
        return Numbers(numbers, missing, family.name, reader if reader == FLOAT4 else None)
    if family.holds is Moments:
        return Moments(_microseconds(column, values, missing, family.of_python), missing, family.name)
    text_of = family.of_python
    texts = [None if absent else text_of(value) for value, absent in zip(values, missing.tolist(), strict=True)]
    if reader == BLANK_PADDED:
        texts = [None if text is None else text.rstrip(" ") for text in texts]
    levels = dictionary_of(dict.fromkeys(text for text in texts if text is not None), column.name)
    codes = np.array([-1 if text is None else levels.find(text.encode()) for text in texts], np.int32)
    return Levels(codes, levels, family.name)


def _filled(values: Sequence[Any], missing: Flags, convert: Callable[[Any], Any], dtype: Any) -> Any:
    """Return values as an array, 0 where missing."""
    found = (0 if absent else convert(value) for value, absent in zip(values, missing.tolist(), strict=True))
    return np.fromiter(found, dtype, len(values))


def _microseconds(
    column: FrameColumn, values: Sequence[Any], missing: Flags, convert: Callable[[Any], int]
) -> npt.NDArray[np.int64]:
    """Return dates, times or intervals as microseconds, 0 where missing."""
    found = np.zeros(len(values), np.int64)
    for row in np.flatnonzero(~missing).tolist():
        try:
            found[row] = convert(values[row])
        except (ValueError, OverflowError):
            raise column.refused(row, f"is {values[row]}, which is out of range", RANGE_HINT) from None
    return found


def _vectors(name: str, values: Sequence[Any], missing: Flags) -> Vectors:
    arrays = {i: np.asarray(values[i]) for i in np.flatnonzero(~missing).tolist()}
    dimensions = common_dimensions([found.shape if found.ndim > 1 else () for found in arrays.values()])
    rows = {i: found.ravel() for i, found in arrays.items()}
    for i, found in rows.items():
        if found.dtype == object and any(item is None for item in found):
            raise noted(UnreadableValue(name, i, "has a NULL element"))
    widths = {len(row) for row in rows.values()}
    if len(widths) > 1:
        first = next(iter(rows.values()))
        number, other = next((i, len(found)) for i, found in rows.items() if len(found) != len(first))
        raise noted(wrong_width(name, number, len(first), other))
    made = np.zeros((len(values), widths.pop() if widths else 0), np.float32)
    for i, found in rows.items():
        made[i] = found.astype(np.float32) if found.dtype != object else [float(item) for item in found]
    return Vectors(made, missing, name, dimensions=dimensions)


def _padded(column: FrameColumn, values: Sequence[Any], width: int) -> Vectors:
    """Return arrays with absent elements; see `madlib_mop.columns.vectors.PaddedReader`."""
    made, absent = np.zeros((len(values), width), np.float32), np.zeros((len(values), width), np.bool_)
    missing = np.array(column.series.is_null().to_list(), np.bool_)
    for row in np.flatnonzero(~missing).tolist():
        items = values[row].tolist() if hasattr(values[row], "tolist") else list(values[row])
        if len(items) > width:
            raise column.refused(row, f"has {len(items)} elements, where {width} at most are expected")
        absent[row, len(items) :] = True
        for place, item in enumerate(items):
            absent[row, place] = item is None
            made[row, place] = 0.0 if item is None else item
    return Vectors(made, missing, column.name, absent=absent)

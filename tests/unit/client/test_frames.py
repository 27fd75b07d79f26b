"""Data frames of pandas, Polars and Arrow as columns of a table."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sqlalchemy import create_engine

from madlib_mop.client.frames.columns import read_frame, sample_name
from madlib_mop.client.frames.results import _series, frame_of, like, series_like
from madlib_mop.errors import InvalidParameter


def types_of(data) -> dict[str, str]:
    return {column.name: column.sql_type for column in read_frame(data).columns}


def rows_of(data) -> list[list[str]]:
    return [line.split("\t") for piece in read_frame(data).pieces() for line in piece.splitlines()]


def test_types_of_pandas():
    frame = pd.DataFrame({
        "small": np.array([1, 2], np.int8),
        "whole": [1, 2],
        "nullable": pd.array([1, None], "Int32"),
        "unsigned": np.array([1, 2], np.uint32),
        "single": np.array([1, np.nan], np.float32),
        "number": [1.5, np.nan],
        "truth": [True, False],
        "maybe": pd.array([True, None], "boolean"),
        "objects": [True, None],
        "text": ["a", None],
        "kind": pd.Categorical(["b", None]),
        "code": pd.Categorical([1, 2]),
        "moment": pd.to_datetime(["2020-01-02", None]),
        "zoned": pd.to_datetime(["2020-01-02", None]).tz_localize("Europe/Berlin"),
        "span": pd.to_timedelta([1, None], "h"),
        "exact": [Decimal("1.50"), None],
        "day": [dt.date(2020, 1, 2), None],
        "list": [[1.0, 2.0], None],
        "floats": [np.zeros(2, np.float32), None],
        "bytes": [b"x", None],
    })  # fmt: skip
    assert types_of(frame) == {
        "small": "smallint", "whole": "bigint", "nullable": "integer", "unsigned": "bigint", "single": "real",
        "number": "double precision", "truth": "boolean", "maybe": "boolean", "objects": "boolean", "text": "text",
        "kind": "text", "code": "bigint", "moment": "timestamp", "zoned": "timestamptz", "span": "interval",
        "exact": "numeric", "day": "date", "list": "double precision[]", "floats": "real[]", "bytes": "bytea",
    }  # fmt: skip
    first, second = rows_of(frame)
    assert first == [
        "1", "1", "1", "1", "1.0", "1.5", "t", "t", "t", "a", "b", "1", "2020-01-02T00:00:00",
        "2020-01-02T00:00:00+01:00", "+0 days +3600.000000 seconds", "1.50", "2020-01-02", "{1.0,2.0}", "{0.0,0.0}",
        "\\\\x78",
    ]  # fmt: skip
    has_value = {0, 1, 3, 6, 11}
    assert [i for i, text in enumerate(second) if text != "\\N"] == sorted(has_value)


def test_types_of_polars_and_arrow_are_alike():
    frame = pl.DataFrame({
        "n": pl.Series([1, None], dtype=pl.Int16), "x": [1.5, None], "t": ["a", None], "b": [True, None],
        "d": [dt.date(2020, 1, 2), None], "m": [dt.datetime(2020, 1, 2), None], "l": [[1, 2], None],
        "e": pl.Series(["p", None], dtype=pl.Categorical),
    })  # fmt: skip
    expected = {
        "n": "smallint", "x": "double precision", "t": "text", "b": "boolean", "d": "date", "m": "timestamp",
        "l": "bigint[]", "e": "text",
    }  # fmt: skip
    assert types_of(frame) == expected
    assert types_of(frame.to_arrow()) == expected
    assert rows_of(frame) == rows_of(frame.to_arrow())
    assert rows_of(frame)[1] == ["\\N"] * 8


def test_nan_is_missing_in_pandas_columns_of_numpy_only():
    assert rows_of(pd.DataFrame({"x": [1.0, np.nan]})) == [["1.0"], ["\\N"]]
    for data in (pl.DataFrame({"x": [1.0, float("nan")]}), pa.table({"x": [1.0, float("nan")]})):
        with pytest.raises(InvalidParameter, match="column 'x' of the frame, row 1 .*is nan") as raised:
            rows_of(data)
        assert "NULL" in raised.value.hint or "null" in raised.value.hint


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_values_are_refused_with_their_place(value):
    with pytest.raises(InvalidParameter, match="column 'x' of the frame, row 1 "):
        rows_of(pd.DataFrame({"x": [1.0, value]}))


@pytest.mark.parametrize(
    "data, message",
    [
        ([1, 2], "must be a data frame of pandas"),
        (pl.DataFrame({"x": [1]}).lazy(), "must be a data frame of pandas"),
        (pd.DataFrame({"x": []}), "has no rows"),
        (pd.DataFrame(index=[1, 2]), "has no columns"),
        (pd.DataFrame([[1, 2]]), "names of columns must be texts. Received: 0"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "'a'"),
        (pd.DataFrame({"x" * 64: [1]}), "more than 63 bytes"),
        (pd.DataFrame({"": [1]}), "must be texts"),
        (pd.DataFrame({"x": ["a", 1]}), "column 'x' of the frame has values of several kinds"),
        (pd.DataFrame({"x": [object()]}), "column 'x' of the frame has a value of type object"),
        (pl.DataFrame({"x": [{"a": 1}]}), "column 'x' of the frame is a struct"),
        (pl.DataFrame({"x": [["a"]]}), "column 'x' of the frame is a list of String"),
    ],
)
def test_frames_that_no_table_can_have_are_refused_at_once(data, message):
    with pytest.raises(InvalidParameter, match=message):
        read_frame(data)


def test_a_column_that_is_needed_and_missing_is_named():
    with pytest.raises(InvalidParameter, match="no column 'b'"):
        read_frame(pd.DataFrame({"a": [1]}), only=["a", "b"])
    frame = read_frame(pd.DataFrame({"a": [1], "c": [object()]}), only=["a"])
    assert [column.name for column in frame.columns] == ["a"]


def test_many_rows_come_in_pieces_in_their_order():
    pieces = list(read_frame(pd.DataFrame({"x": range(12_000)})).pieces())
    assert len(pieces) == 3
    assert "".join(pieces).split() == [str(i) for i in range(12_000)]


def test_predictions_have_the_index_and_the_library_of_the_frame():
    frame = pd.DataFrame({"x": [1, 2]}, index=["b", "a"])
    series = series_like(frame, "y", [10, 20])
    assert series.name == "y" and series.to_dict() == {"b": 10, "a": 20}
    assert like(frame, {"p": [0.5, 1.0]}).index.tolist() == ["b", "a"]
    polars = series_like(pl.DataFrame({"x": [1]}), "y", ["k"])
    assert isinstance(polars, pl.Series) and polars.to_list() == ["k"]
    assert isinstance(like(pa.table({"x": [1]}), {"p": [1.0]}), pa.Table)


@pytest.mark.parametrize("name, part", [('"My Table"', "my_table"), ("x" * 80, "x" * 30), ("---", "data")])
def test_parts_of_names(name, part):
    assert sample_name(name) == part


def test_results_keep_columns_of_one_name_and_timestamps_that_pandas_lacks():
    with create_engine("sqlite://").connect() as connection:
        found = frame_of(connection.exec_driver_sql("SELECT 1 AS a, 2 AS a"))
        assert found.columns.tolist() == ["a", "a"] and found.to_numpy().tolist() == [[1, 2]]
        assert frame_of(connection.exec_driver_sql("CREATE TABLE t (i int)")).empty
    ends = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]
    assert [None if pd.isna(one) else one for one in _series(ends, 1114)] == ends


_FAR = pa.array([0, 7_000_000, None], pa.int32()).cast(pa.date32())
_FAR_MOMENT = pa.array([0, 2**62, None], pa.int64())


@pytest.mark.parametrize(
    "frame",
    [
        pa.table({"d": _FAR}),
        pa.table({"d": _FAR_MOMENT.cast(pa.timestamp("us"))}),
        pa.table({"d": _FAR_MOMENT.cast(pa.timestamp("us", "UTC"))}),
        pa.table({"d": _FAR_MOMENT.cast(pa.duration("s"))}),
        pd.DataFrame({"d": pd.array(_FAR, dtype=pd.ArrowDtype(pa.date32()))}),
        pl.DataFrame({"d": pl.Series([0, 7_000_000], dtype=pl.Int32).cast(pl.Date)}),
        pl.DataFrame({"d": pl.Series([0, 2**62]).cast(pl.Datetime("us"))}),
        pl.DataFrame({"d": pl.Series([0, 2**62]).cast(pl.Duration("ms"))}),
    ],
)
def test_a_date_that_python_lacks_is_one_error_with_column_and_row(frame):
    with pytest.raises(InvalidParameter, match="column 'd' of the frame, row 1 .*out of Python's range") as raised:
        rows_of(frame)
    assert "1 to 9999" in raised.value.hint


def test_timestamps_of_pandas_beyond_python_have_the_texts_of_postgresql():
    far = np.array(["20000-01-02", "0099-03-04", "0000-01-02T03:04:05", "-0043-03-15"], "datetime64[s]")
    assert [row for (row,) in rows_of(pd.DataFrame({"d": far}))] == [
        "20000-01-02T00:00:00", "0099-03-04T00:00:00", "0001-01-02T03:04:05 BC", "0044-03-15T00:00:00 BC",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["xmin", "ctid", "tableoid"])
def test_a_column_of_a_system_columns_name_is_refused(name):
    with pytest.raises(InvalidParameter, match=f"cannot have a column '{name}'"):
        read_frame(pd.DataFrame({name: [1]}))

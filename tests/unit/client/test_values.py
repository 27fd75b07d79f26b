"""Values of frames as SQL types and COPY's text format."""

import datetime as dt
import uuid
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.client.frames import values as v


@pytest.mark.parametrize(
    "values, sql_type",
    [
        ([], "text"),
        (["a", "b"], "text"),
        ([True, False], "boolean"),
        ([np.True_, False], "boolean"),
        ([1, np.int64(2)], "bigint"),
        ([1, 2**63], "numeric"),
        ([1, 2.5], "double precision"),
        ([np.float32(1)], "double precision"),
        ([Decimal("1.5"), 2], "numeric"),
        ([dt.date(2020, 1, 2)], "date"),
        ([dt.datetime(2020, 1, 2)], "timestamp"),
        ([dt.datetime(2020, 1, 2, tzinfo=dt.UTC)], "timestamptz"),
        ([dt.time(3)], "time"),
        ([dt.timedelta(days=1)], "interval"),
        ([b"x"], "bytea"),
        ([uuid.UUID(int=1)], "uuid"),
        ([[1, 2], (3, 4), np.array([5, 6])], "double precision[]"),
    ],
)
def test_the_type_of_a_column_follows_from_its_values(values, sql_type):
    assert v.infer(values)[0] == sql_type


@pytest.mark.parametrize("values", [["a", 1], [True, 1], [1.5, Decimal(1)], [dt.date(2020, 1, 1), "2020-01-01"]])
def test_values_of_several_kinds_are_refused_with_an_example_of_each(values):
    with pytest.raises(ValueError, match="several kinds") as raised:
        v.infer(values)
    assert all(repr(value) in str(raised.value) for value in values)


def test_a_value_of_an_unknown_class_is_refused():
    with pytest.raises(ValueError, match="type object"):
        v.infer([object()])


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_its_bits(number):
    assert float(v.write_float(number)) == number


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_keeps_its_bits(number):
    assert np.float32(v.write_float(np.float32(number))).tobytes() == np.float32(number).tobytes()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), Decimal("NaN")])
def test_numbers_that_are_not_finite_are_refused(number):
    with pytest.raises(ValueError, match="is (nan|inf|NaN)"):
        v.write_decimal(number)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_text_has_no_separator_and_no_line_of_its_own(text):
    written = v.write_text(text)
    assert not set(written) & set("\t\n\r")
    assert written != v.NULL
    restored = written.replace("\\\\", "\0").replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r")
    assert restored.replace("\0", "\\") == text


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_texts_that_postgresql_cannot_store_are_refused(text):
    with pytest.raises(ValueError, match="PostgreSQL's texts cannot have"):
        v.write_text(text)


@pytest.mark.parametrize(
    "value, text",
    [
        ([1, 2.5, None], "{1,2.5,NULL}"),
        (np.array([[1, 2], [3, 4]], np.float32), "{{1.0,2.0},{3.0,4.0}}"),
        ([[1], [np.int16(2)]], "{{1},{2}}"),
    ],
)
def test_arrays_of_any_dimensions(value, text):
    assert v.write_array(value) == text


@pytest.mark.parametrize("value", [["a"], [True], [float("nan")], [[1], ["b"]]])
def test_arrays_with_other_values_than_finite_numbers_are_refused(value):
    with pytest.raises(ValueError):
        v.write_array(value)


def test_moments_intervals_and_bytes():
    zone = dt.timezone(dt.timedelta(hours=2))
    assert v.write_moment(dt.datetime(2020, 1, 2, 3, 4, 5, 6, zone)) == "2020-01-02T03:04:05.000006+02:00"
    assert v.write_interval(dt.timedelta(days=-1, seconds=5, microseconds=7)) == "-1 days +5.000007 seconds"
    assert v.write_interval(dt.timedelta(seconds=-1)) == "-1 days +86399.000000 seconds"
    assert v.write_bytes(b"\x00\xff") == "\\\\x00ff"

"""Columns that the server joins: arrays in their memory layout, and texts with their lengths."""

import struct

import numpy as np
import pytest

from madlib_mop.columns.joined import JoinedForm, form_of, n_rows_of, read_array, read_lengths, read_values, value_at
from madlib_mop.columns.layout import ArrayLayout
from madlib_mop.columns.raw import Levels, Moments, Numbers
from madlib_mop.columns.records import ChangedType, Field, UnreadableRecord, UnreadableValue

NUMBERS = {"int2": (21, "i2"), "int4": (23, "i4"), "int8": (20, "i8"), "float4": (700, "f4"), "float8": (701, "f8"),
           "oid": (26, "u4"), "bool": (16, "u1")}  # fmt: skip


def array(values: list, oid: int, dtype: str) -> bytes:
    """Return an array's memory after the varlena header, as PostgreSQL has it."""
    present = np.array([value for value in values if value is not None], dtype).tobytes()
    bitmap, offset = b"", 0
    if None in values:
        bits = np.packbits([value is not None for value in values], bitorder="little").tobytes()
        offset = -(-(24 + len(bits)) // 8) * 8  # counted with the varlena header
        bitmap = bits.ljust(offset - 24, b"\0")
    return struct.pack("=iiIii", 1, offset, oid, len(values), 1) + bitmap + present


@pytest.mark.parametrize(("reader", "oid", "dtype"), [(name, *known) for name, known in NUMBERS.items()])
@pytest.mark.parametrize("values", [[1, 0, 1], [1, None, 0] * 7, [None]], ids=["whole", "some NULL", "all NULL"])
def test_numbers(reader, oid, dtype, values):
    field = Field("x", reader, oid, reader)
    data = array(values, oid, dtype)
    column = read_array(field, data)
    assert form_of(field) is JoinedForm.ARRAY
    assert isinstance(column, Numbers)
    assert n_rows_of(data) == column.n_rows == len(values)
    assert column.values.tolist() == [0.0 if value is None else float(value) for value in values]
    assert column.missing.tolist() == [value is None for value in values]
    assert column.form == (reader if reader in ("int8", "float4", "float8") else None)


def test_integers_beyond_float64_are_kept():
    column = read_array(Field("x", "bigint", 20, "int8"), array([2**63 - 1, -(2**53) - 1, None], 20, "i8"))
    assert isinstance(column, Numbers)
    assert column.integers().tolist() == [2**63 - 1, -(2**53) - 1, 0]


def test_moments():
    column = read_array(Field("d", "date", 1082, "date"), array([1, None, -(2**31), 2**31 - 1], 1082, "i4"))
    assert isinstance(column, Moments)
    assert column.values.tolist() == [86_400_000_000, 0, -(2**63), 2**63 - 1]
    with pytest.raises(UnreadableValue) as caught:
        read_array(Field("d", "date", 1082, "date"), array([1, 2**31 - 2], 1082, "i4"))
    assert caught.value.row == 1
    for reader, oid, family in (("timestamp", 1114, "moment"), ("time", 1083, "time")):
        column = read_array(Field("t", reader, oid, reader), array([5, None], oid, "i8"))
        assert (column.values.tolist(), column.missing.tolist(), column.family) == ([5, 0], [False, True], family)


def test_texts():
    field = Field("c", "text", 25, "text")
    column = read_values(field, "äbb".encode(), array([2, None, 0, 2], 23, "i4"))
    assert form_of(field) is JoinedForm.TEXT
    assert isinstance(column, Levels)
    assert column.texts() == ["ä", None, "", "bb"]
    assert read_values(field, b"", array([None, None], 23, "i4")).texts() == [None, None]
    assert read_lengths(array([3, None], 23, "i4")).tolist() == [3, -1]


def test_numerics():
    field = Field("n", "numeric(9,2)", 1700, "numeric")
    small, large = struct.pack(">hhHHhh", 2, 0, 0, 2, 1, 2500), struct.pack(">hhHHh", 1, 1, 0x4000, 0, 3)
    data, lengths = small + large, array([len(small), None, len(large)], 23, "i4")
    column = read_values(field, data, lengths)
    assert form_of(field) is JoinedForm.NUMERIC
    assert (column.values.tolist(), column.missing.tolist()) == ([1.25, 0.0, -30_000.0], [False, True, False])
    assert value_at(data, lengths, 2) == large


@pytest.mark.parametrize(
    "field",
    [
        *(Field("x", "t", 1, one) for one in ("timetz", "interval", "uuid", "bpchar", "enum", "_int4", "bytea")),
        Field("x", "bytea", 17, "_float4", layout=ArrayLayout()),
    ],
    ids=lambda field: "layout" if field.layout else field.reader,
)
def test_other_types_are_sent_in_records(field):
    assert form_of(field) is None


def test_what_is_no_such_array_is_refused():
    field = Field("x", "integer", 23, "int4")
    whole = array([1, 2], 23, "i4")
    with pytest.raises(ChangedType, match="column 'x' is bigint"):
        read_array(field, array([1, 2], 20, "i8"))
    for damaged in (whole[:-1], whole + b"\0", array([1, None], 23, "i4") + b"1234"):
        with pytest.raises(UnreadableRecord):
            read_array(field, damaged)
    with pytest.raises(UnreadableRecord):
        read_values(Field("c", "text", 25, "text"), b"abc", array([1, 1], 23, "i4"))

"""Bytes of rows are read as the correct values, with the same bits for one row and for many."""

import struct
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from ipaddress import ip_interface
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.columns import raw, records
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.numbers import is_finite_numeric
from madlib_mop.columns.proposals.proposal import _EXPRESSIONS
from madlib_mop.columns.records import _READERS, Field, RecordReader, family_of, reader_of, value_of
from madlib_mop.columns.texts import first_rows
from madlib_mop.errors import InvalidParameter
from tests.helpers.unit.records import batch, field, numeric, record

DAY_US = 86_400_000_000


def read(fields, rows):
    """Read rows as one batch and one by one, and assert that both have the same bits."""
    reader = RecordReader(fields)
    data, lengths = batch(fields, rows)
    many = reader._read_many(data, lengths)
    single = [reader.read(*batch(fields, [row])) for row in rows]
    for column, parts in zip(many, zip(*single, strict=True), strict=True):
        assert contents(column) == contents(raw.concatenate(parts))
    return many


def contents(column):
    """Return the content of a raw column in a form that is equal if the bits are equal."""
    if isinstance(column, raw.Levels):
        return column.family, column.texts()
    if isinstance(column, raw.Blobs):
        return column.values
    values = column.values
    texts = column.sql_texts() if isinstance(column, raw.Numbers) else None
    return type(column), column.family, values.dtype, values.shape, values.tobytes(), column.missing.tolist(), texts


def column_of(reader, *values):
    (column,) = read([field(reader)], [[value] for value in values])
    return column


SPECIALS = ["NaN", "Infinity", "-Infinity"]
DECIMALS = st.builds(
    lambda digits, exponent, sign: f"{'-' if sign else ''}{digits}e{exponent}",
    st.integers(0, 10**16) | st.integers(2**53, 2**54) | st.integers(0, 10**40),
    st.integers(-60, 40) | st.integers(-8, 4),
    st.booleans(),
)
FLOATS = st.floats(width=64)
ADDRESSES = st.ip_addresses().map(
    lambda a: bytes([2 if a.version == 4 else 3, a.max_prefixlen, 0, len(a.packed)]) + a.packed
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9) | st.text("ab", max_size=60)
OF_ANY_BYTES = {name: st.binary(min_size=n, max_size=n) for name, one in _READERS.items() if (n := one.n_bytes)}
VALUES = OF_ANY_BYTES | {
    "int2": st.integers(-(2**15), 2**15 - 1),
    "int4": st.integers(-(2**31), 2**31 - 1),
    "int8": st.integers(-(2**63), 2**63 - 1) | st.integers(2**53 - 1, 2**53 + 3),
    "float4": st.floats(width=32),
    "float8": FLOATS,
    "numeric": DECIMALS | st.sampled_from(SPECIALS),
    "bool": st.booleans(),
    "oid": st.integers(0, 2**32 - 1),
    "date": st.integers(-106_751_991, 106_751_991) | st.sampled_from([-(2**31), 2**31 - 1]),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "time": st.integers(0, DAY_US),
    "timetz": st.integers(0, DAY_US),
    "interval": st.tuples(st.integers(-(2**61), 2**61), st.integers(-(2**20), 2**20), st.integers(-(2**15), 2**15)),
    "text": TEXTS,
    "bpchar": TEXTS.map(lambda text: text + "  "),
    "char": st.integers(0, 255).map(lambda byte: bytes([byte])),
    "enum": st.sampled_from(["low", "middling", "high"]),
    "uuid": st.uuids().map(lambda value: value.bytes),
    "inet": ADDRESSES,
    "macaddr": st.binary(min_size=6, max_size=6),
    "bytea": st.binary(max_size=20),
    "vector": st.lists(st.floats(width=32), min_size=3, max_size=3),
    "halfvec": st.lists(st.floats(width=16), min_size=3, max_size=3),
    "sparsevec": st.lists(st.just(0.0) | st.floats(1, 2, width=32), min_size=4, max_size=4),
    "_int4": st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2),
    "_float8": st.lists(FLOATS, min_size=2, max_size=2),
    "_numeric": st.lists(DECIMALS | st.sampled_from(SPECIALS), min_size=2, max_size=2),
}


@given(st.data())
def test_one_row_is_read_as_many_are(data):
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    fields = [field(kind, f"c{place}") for place, kind in enumerate(kinds)]
    rows = data.draw(st.lists(st.tuples(*(st.none() | VALUES[kind] for kind in kinds)), min_size=1, max_size=6))
    columns = read(fields, rows)
    for place, column in enumerate(columns):
        assert column.n_rows == len(rows)
        assert column.missing.tolist() == [row[place] is None for row in rows]
        assert column.family == family_of(kinds[place])


@pytest.mark.one_case
@pytest.mark.parametrize("kind", ["int2", "int4", "int8", "oid", "float4", "float8", "bool"])
@given(data=st.data())
def test_numbers_are_the_nearest_float64(kind, data):
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1))
    column = column_of(kind, *values)
    expected = [0.0 if value is None else float(value) for value in values]
    assert column.values.tobytes() == np.array(expected).tobytes()


@pytest.mark.parametrize("value", [2**53, 2**53 + 1, 2**53 + 3, 2**63 - 1, -(2**53) - 1, -(2**63)])
def test_a_bigint_is_itself_whatever_comes_with_it(value):
    """2^53 + 1 is the first integer whose float64, 2^53, is that of another one."""
    for others in ((), (0,), (2**60,)):
        column = column_of("int8", value, *others)
        assert column.integers().tolist() == [value, *others]
        assert column.sql_texts()[0] == str(value)


@given(st.lists(DECIMALS, min_size=1))
def test_a_numeric_is_the_float64_of_its_text(texts):
    assert column_of("numeric", *texts).values.tobytes() == np.array([float(Decimal(t)) + 0.0 for t in texts]).tobytes()


def test_numerics_at_the_bounds_of_the_fast_way():
    texts = [
        "9007199254740992", "9007199254740993", "9007199254740993e8", "9999999999999999", "0", "0.000", "-0.01",
        "1e20", "1e24", "1e-20", "1e-24", "123456.78", "0.1", "2.5e-30", "1e-400", "1e308", "1e309", "-1e400",
        "179769313486231580793728971405303415079934132710037826936173778980444968292764750946649017977587207096330286"
        "4166928879109465555478519404026306574886715058206819089020007083836762738548458177115317644757302700698555713",
        "1e5000", "1e-5000", "12345678901234567890123456789.012345678901234567890123456789",
    ]  # fmt: skip
    column = column_of("numeric", *texts, *SPECIALS)
    assert column.values.tolist()[: len(texts)] == [float(text) for text in texts]
    assert repr(column.values.tolist()[len(texts) :]) == "[nan, inf, -inf]"


def test_long_numerics_beside_the_middle_of_two_floats():
    odd = [2**53 + 1 + 2 * step for step in range(200)]
    texts = [f"{number}{tail}" for number in odd for tail in ("", ".000000000000001", f".{'0' * 60}1", "e-16", "e24")]
    texts += [f"{number - 1}.{'9' * n_nines}" for number in odd for n_nines in (3, 12, 60)]
    expected = [float(text) for text in texts]
    assert column_of("numeric", *texts).values.tolist() == expected
    assert len(set(expected)) > 500


def test_moments_are_microseconds():
    epoch = datetime(2000, 1, 1)
    days = [date(2024, 2, 29), date(1999, 12, 31), date(1, 1, 1)]
    column = column_of("date", *[(day - epoch.date()).days for day in days], 2**31 - 1, -(2**31), None)
    expected = [(day - epoch.date()) // timedelta(microseconds=1) for day in days]
    assert column.values.tolist() == [*expected, raw.END, raw.BEGIN, 0]
    assert column_of("timestamptz", 5, raw.BEGIN).values.tolist() == [5, raw.BEGIN]
    assert column_of("timetz", 7, DAY_US, None).values.tolist() == [7, DAY_US, 0]
    spans = column_of("interval", (1, 2, 0), (0, 0, 12), (0, -1, 0), (raw.END, 2**31 - 1, 2**31 - 1))
    assert spans.values.tolist() == [2 * DAY_US + 1, int(365.25 * DAY_US), -DAY_US, raw.END]
    assert spans.family == raw.SPAN


def test_parts_of_an_interval_that_overflow_but_do_not_together():
    assert column_of("interval", (-(2**62), 160_000_000, 0)).values.tolist() == [160_000_000 * DAY_US - 2**62]


@pytest.mark.parametrize(
    "kind, value, problem",
    [
        ("date", 106_751_992, "has a date that no timestamp can hold"),
        ("interval", (0, 0, 2**31 - 1), "has an interval of more than 292,000 years"),
        ("interval", (2**62, 0, 1_800_000), "has an interval of more than 292,000 years"),
        ("int4", b"\0", "has 1 bytes, where 4 are expected,"),
        ("timestamp", b"\0", "has 1 bytes, where 8 are expected,"),
        ("numeric", b"\0\1\0\0\0\0\0\0", "is no numeric"),
        ("numeric", struct.pack(">hhHHHHHHH", 5, 0, 0, 0, 1, 2, 3, 4, 10_000), "is no numeric"),
        ("uuid", b"short", "is no uuid"),
        ("inet", b"\2\x20\0\4", "is no network address"),
        ("_int4", [1, None, 3], "has a NULL element (number 2)"),
        ("vector", struct.pack(">hh", 3, 0), "has 4 bytes, where 16 are expected,"),
        ("sparsevec", struct.pack(">iii", 3, 2, 0), "is no sparsevec"),
        ("sparsevec", struct.pack(">iii", 10**9, 0, 0), "has 1,000,000,000 elements, where 65,536 are possible,"),
        ("_int4", b"\0\0\0\1", "is no array"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_named(kind, value, problem):
    fields = [field("int4", "id"), field(kind, "c")]
    for n_before in (0, 2, 40):
        rows = [[1, None]] * n_before + [[2, value], [3, None]]
        with pytest.raises(UnreadableValue) as caught:
            RecordReader(fields).read(*batch(fields, rows))
        error = caught.value
        assert (error.column, error.row, error.problem) == ("c", n_before, problem)
        assert str(error) == f"column 'c' {problem} in row {n_before + 1} of its batch"


def test_a_numeric_beyond_float64_is_finite_and_an_infinity_is_not():
    fields = [field("text", "t"), field("int4", "id"), field("numeric", "n")]
    for number in ("1e400", "-1e400", "3", *SPECIALS):
        sent, _ = batch(fields, [["x", None, number]])
        assert is_finite_numeric(value_of(bytes(sent), 2)) is (number not in SPECIALS)


def test_texts_are_those_of_sql():
    assert column_of("text", "b", None, "", "ä" * 20, "b").texts() == ["b", None, "", "ä" * 20, "b"]
    assert column_of("bpchar", "a  ", "a", " ", None).texts() == ["a", "a", "", None]
    assert column_of("char", b"x", b"\0", b"\xc8").texts() == ["x", "", "\\310"]
    identity = UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert column_of("uuid", identity.bytes, None).texts() == [str(identity), None]
    assert column_of("macaddr", bytes(range(6))).texts() == ["00:01:02:03:04:05"]
    inets = [("10.0.0.1", 32, 0), ("10.0.0.0", 8, 0), ("10.0.0.1", 32, 1), ("::1", 128, 0), ("::ffff:1.2.3.4", 128, 0)]
    packed = [ip_interface(text).packed for text, _, _ in inets]
    sent = [bytes([2 if len(p) == 4 else 3, b, c, len(p)]) + p for p, (_, b, c) in zip(packed, inets, strict=True)]
    assert column_of("inet", *sent).texts() == ["10.0.0.1", "10.0.0.0/8", "10.0.0.1/32", "::1", "::ffff:1.2.3.4"]


@given(st.lists(st.none() | TEXTS, min_size=1, max_size=40))
def test_texts_of_all_lengths_are_told_apart(texts):
    column = column_of("text", *texts)
    assert column.texts() == texts
    assert len(column.levels) == len(set(texts) - {None})


def test_texts_with_equal_hashes_are_told_apart(monkeypatch):
    from madlib_mop.columns import texts

    monkeypatch.setattr(texts, "_MIX", np.uint64(0))
    assert column_of("text", "a", "b", "a", "abcdefghij", None, "abcdefghik").texts() == [
        "a", "b", "a", "abcdefghij", None, "abcdefghik",
    ]  # fmt: skip


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=60))
def test_rows_with_equal_keys_have_one_first_row(parts):
    keys = np.array([sum(part << 16 * place for place, part in enumerate(four)) for four in parts], np.uint64)
    first = first_rows(keys)
    assert (keys[first] == keys).all()
    assert len(set(first.tolist())) == len(set(parts))


def test_arrays_become_rows_of_float32():
    assert column_of("_int4", [1, 2], None, [3, 4]).values.tolist() == [[1, 2], [0, 0], [3, 4]]
    nested = column_of("_float8", [[1.0, 2.0], [3.0, 1e300]], [1.0, 2.0, 3.0, 4.0])
    assert nested.values.tolist() == [[1, 2, 3, np.inf], [1, 2, 3, 4]]
    assert nested.first_special() == raw.Special(0, "Infinity")
    assert column_of("_numeric", ["1.5", "-2e3"], ["0", "NaN"]).values.tolist()[0] == [1.5, -2000.0]
    assert column_of("halfvec", [1.5, 2.0]).values.tolist() == [[1.5, 2.0]]
    assert column_of("sparsevec", [0.0, 2.5, 0.0, 1.0], None, [0.0] * 4).values.tolist() == [
        [0, 2.5, 0, 1], [0] * 4, [0] * 4,
    ]  # fmt: skip
    assert column_of("vector", [1.0, 2.0], None).values.dtype == np.float32
    assert column_of("_int4", None, None).values.shape == (2, 0)
    assert column_of("_int4", [], []).values.shape == (2, 0)


def test_arrays_of_other_widths_are_named():
    fields = [field("_float8", "v")]
    with pytest.raises(UnreadableValue, match="'v' has 3 elements, where 2 are expected, in row 3 of its batch"):
        RecordReader(fields).read(*batch(fields, [[[1.0, 2.0]], [None], [[1.0, 2.0, 3.0]]] * 20))


def test_damage_in_a_padded_array_is_named_by_its_row():
    padded = replace(field("_numeric", "v"), padded_to=2)
    whole, lengths = batch([padded], [[[]], [None], [["1"]], [["1", "2"]]])
    damaged = whole[:-2] + b"\xff\xff"  # the last digit, in base 10,000
    with pytest.raises(UnreadableValue, match="is no numeric") as caught:
        RecordReader([padded]).read(damaged, lengths)
    assert caught.value.row == 3


@pytest.mark.parametrize("n_rows", [1, 40])
def test_a_changed_table_is_named(n_rows):
    fields = [field("int4", "a"), field("text", "b")]
    other = [field("int4", "a"), field("float8", "b")]
    with pytest.raises(records.ChangedType, match="column 'b' is double precision, where text is expected"):
        RecordReader(fields).read(*batch(other, [[1, 2.5]] * n_rows))
    mine = [Field("a", "integer", 23, "int4"), Field("b", "text", 70_000, "text")]
    with pytest.raises(records.ChangedType, match="'b' is the type with oid 70000, where text is expected"):
        RecordReader(fields).read(*batch(mine, [[1, "x"]] * n_rows))
    with pytest.raises(records.ChangedColumns, match="a row has 1 columns, where 2 are expected"):
        RecordReader(fields).read(*batch(fields[:1], [[1]] * n_rows))


@given(st.data())
def test_cut_or_changed_bytes_are_an_error_and_never_a_crash(data):
    kinds = ["int4", "text", "numeric", "_float8", "vector", "sparsevec", "_numeric", "inet", "interval"]
    fields = [field(kind) for kind in kinds]
    n_rows = data.draw(st.sampled_from([1, 30]))
    inet = b"\2\x20\0\4abcd"
    row = [1, "abc", "12.5", [1.0, 2.0], [3.0], [0.0, 1.0], ["1.5", "1e30"], inet, (1, 2, 3)]
    whole, lengths = batch(fields, [row] * n_rows)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    try:
        RecordReader(fields).read(changed, lengths)
    except InvalidParameter:
        pass
    with pytest.raises(InvalidParameter):
        RecordReader(fields).read(whole[:place], lengths)
    short = lengths.copy()
    short[-1] -= data.draw(st.integers(1, int(short[-1])))
    with pytest.raises(InvalidParameter):
        RecordReader(fields).read(whole[: int(short.sum())], short)


def test_fields_of_fixed_width_with_and_without_nulls_have_the_same_bits_in_every_batch():
    kinds = ["int4", "bool", "text", "timestamp", "float8", "date", "interval", "int2"]
    fields = [field(kind, f"c{i}") for i, kind in enumerate(kinds)]
    whole = [[7, True, "ab", 5, 0.5, 3, (1, 2, 3), -1], [8, False, "c", 6, 1.5, 4, (4, 5, 6), -2]] * 20
    reader = RecordReader(fields)
    for column in (None, 0, 4, 7, 1, 3):
        rows = [list(row) for row in whole]
        if column is not None:
            rows[11][column] = None
        many = reader.read(*batch(fields, rows))
        single = zip(*(RecordReader(fields).read(*batch(fields, [row])) for row in rows), strict=True)
        for found, parts in zip(many, single, strict=True):
            assert contents(found) == contents(raw.concatenate(parts))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_another_type_among_fields_of_fixed_width_is_named(place):
    fields = [field("int4", f"c{i}") for i in range(3)]
    others = [field("float4" if i == place else "int4", f"c{i}") for i in range(3)]
    data, lengths = batch(others, [[1, 2, 3]] * 40)
    with pytest.raises(InvalidParameter, match=f"column 'c{place}' is real"):
        RecordReader(fields).read(data, lengths)


def test_no_rows_are_columns_of_no_rows():
    fields = [field(kind) for kind in VALUES]
    columns = RecordReader(fields).read(b"", np.array([], np.int64))
    assert [column.n_rows for column in columns] == [0] * len(fields)


def test_names_of_types_have_readers():
    assert reader_of("integer") == reader_of("int4") == "int4"
    assert reader_of("numeric(12,2)") == "numeric" and reader_of("character varying(20)") == "varchar"
    assert reader_of("character(3)") == "bpchar" and reader_of('"char"') == "char"
    assert reader_of("timestamp(3) with time zone") == "timestamptz" and reader_of("interval") == "interval"
    assert reader_of("interval day to second(3)") == reader_of("interval year") == "interval"
    assert reader_of("integer[]") == reader_of("_int4") == reader_of("integer[3][2]") == "_int4"
    assert reader_of("vector(3)") == "vector" and family_of("vector") == raw.VECTOR == family_of("_numeric")
    assert reader_of("decimal(9,2)") == "numeric"
    assert [name for name in (*_EXPRESSIONS, "text[]", "date[]") if reader_of(name)] == []


def test_the_helper_writes_numerics_as_the_server_does():
    assert numeric("12345.678") == struct.pack(">hhHHhhh", 3, 1, 0, 4, 1, 2345, 6780)
    assert record([field("int4")], [7]) == struct.pack(">iIii", 1, 23, 4, 7)

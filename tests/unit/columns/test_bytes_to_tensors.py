"""From the bytes of rows to tensors with an unedited proposal: no skew, for any types."""

import time
import timeit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.fitting import fit_preprocessor
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.proposal import CountedColumn, propose
from madlib_mop.columns.proposals.specification import TableColumn, check_specification, check_table
from madlib_mop.columns.records import RecordReader, family_of
from madlib_mop.columns.statistics import ColumnStatistics
from tests.helpers.unit.columns import addition_s
from tests.helpers.unit.records import batch, field

DAY_US = 86_400_000_000
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
WORDS = st.text(CHARACTERS, max_size=9) | st.sampled_from(["a", "b", "a b c"])
VALUES = {
    "int2": st.integers(-(2**15), 2**15 - 1),
    "int4": st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1),
    "int8": st.integers(-(2**63), 2**63 - 1),
    "float4": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "float8": st.floats(-1e300, 1e300),
    "numeric": st.decimals(-(10**20), 10**20, places=3).map(str),
    "bool": st.booleans(),
    "date": st.integers(-2_000_000, 2_000_000) | st.integers(8_000, 9_000),
    "timestamp": st.integers(-(2**60), 2**60) | st.integers(0, 9 * 10**14),
    "time": st.integers(0, DAY_US),
    "interval": st.tuples(st.integers(0, 2**50), st.integers(-99, 99), st.integers(-99, 99)),
    "text": WORDS,
    "bpchar": WORDS.map(lambda text: text + "  "),
    "enum": st.sampled_from(["low", "middling", "high"]),
    "uuid": st.uuids().map(lambda value: value.bytes),
    "vector": st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=3, max_size=3),
    "_float8": st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=2),
}


@st.composite
def tables(draw):
    """Return fields and rows of any types, the last column being the target; and the number of training rows."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))
    names = [f"c{place}" for place in range(len(kinds))] + ["base", "y"]
    n_rows = draw(st.integers(4, 30))
    rows = draw(st.lists(st.tuples(*(st.none() | VALUES[kind] for kind in kinds)), min_size=n_rows, max_size=n_rows))
    fields = [field(kind, name) for kind, name in zip([*kinds, "float8", "text"], names, strict=True)]
    rows = [(*row, place % 3 / 2, "xy"[place % 2]) for place, row in enumerate(rows)]
    return fields, rows, draw(st.integers(4, n_rows))


def proposed(fields, raws):
    """Return the preprocessor of the proposal for some rows."""
    columns = [
        CountedColumn(one.name, one.type_name, family_of(one.reader), ColumnStatistics.of(raw))
        for one, raw in zip(fields, raws, strict=True)
    ]
    specs = propose(columns, ["y"])
    check_specification(specs)
    check_table(specs, [TableColumn(column.name, column.sql_type, column.family) for column in columns])
    by_name = {one.name: raw for one, raw in zip(fields, raws, strict=True)}
    return fit_preprocessor(specs, {column.name: column.statistics for column in columns}, texts=by_name.__getitem__)


def bits(arrays):
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


@settings(deadline=None)
@given(tables())
def test_a_row_has_the_tensors_that_it_had_when_it_was_packed(table):
    fields, rows, n_training = table
    reader = RecordReader(fields)

    def named(some):
        return dict(zip([one.name for one in fields], reader.read(*batch(fields, some)), strict=True))

    preprocessor = proposed(fields, reader.read(*batch(fields, rows[:n_training])))
    packed = named(rows)
    together = Encoder(preprocessor).encode(packed).arrays | Targets(preprocessor).encode(packed)
    assert all(np.isfinite(array).all() for array in together.values())
    exported = Preprocessor.from_json(preprocessor.to_json())
    encoder, targets = Encoder(exported), Targets(exported)
    for place, row in enumerate(rows):
        single = named([row])
        arrays = encoder.encode(single).arrays | targets.encode(single)
        assert bits(arrays) == bits({name: array[place : place + 1] for name, array in together.items()})


@pytest.mark.slow
@pytest.mark.alone
def test_one_row_of_20_columns_from_bytes_to_tensors_takes_at_most_1100_additions():
    kinds = ["float8"] * 7 + ["int4"] * 3 + ["bool"] * 2 + ["text"] * 6 + ["timestamp", "vector"]
    generator = np.random.default_rng(6)
    makers = {
        "float8": lambda: generator.lognormal(),
        "int4": lambda: int(generator.integers(0, 90)),
        "bool": lambda: bool(generator.integers(2)),
        "text": lambda: f"level {generator.integers(40)}",
        "timestamp": lambda: int(generator.integers(10**15)),
        "vector": lambda: generator.normal(size=16).tolist(),
    }
    fields = [*(field(kind, f"c{place}") for place, kind in enumerate(kinds)), field("bool", "y")]
    rows = [[*(makers[kind]() for kind in kinds), place % 2 == 0] for place in range(500)]
    reader = RecordReader(fields)
    preprocessor = proposed(fields, reader.read(*batch(fields, rows)))
    assert len(preprocessor.inputs) == 20
    encoder, names = Encoder(preprocessor), [one.name for one in fields]
    data, lengths = batch(fields, rows[:1])

    def one_row():
        encoder.encode(dict(zip(names, reader.read(data, lengths), strict=True)))

    took = min(timeit.repeat(one_row, number=100, repeat=20, timer=time.process_time)) / 100
    one = addition_s()
    print(f"one row from bytes to tensors {took * 1e6:.0f} us, an addition of 20 numbers {one * 1e6:.2f} us")
    assert took < 1100 * one

"""Conversion of one column's values to tensors: division, types, and values that cannot be converted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from madlib_mop.columns.layout import BadRow
from madlib_mop.packing.encoders import ArrayEncoder, ClassEncoder, IndexEncoder, row_bytes

OID = {"i2": 21, "i4": 23, "i8": 20, "f4": 700, "f8": 701}
FLOAT32, INT16 = np.dtype(np.float32), np.dtype(np.int16)


def encode(encoder, column):
    return encoder.encode(column.data, np.array(column.lengths, np.int64))


@pytest.mark.parametrize("kind", OID)
@pytest.mark.parametrize("constant", [1.0, 255.0, 0.1])
def test_x_is_divided_in_float32(array_bytes, batch, kind, constant):
    tensor = np.arange(24).reshape(4, 3, 2).astype(kind)
    encoder = ArrayEncoder("x", (3, 2), OID[kind], FLOAT32, constant)
    packed = encode(encoder, batch([array_bytes(row) for row in tensor]))
    assert packed.dtype == np.float32
    assert packed.flags.c_contiguous
    assert np.array_equal(packed, tensor.astype(np.float32) / np.float32(constant))


@settings(deadline=None)
@given(hnp.arrays("i2", st.tuples(st.integers(1, 5), st.integers(1, 9))), st.sampled_from(["i2", "i4", "i8"]))
def test_integers_that_fit_stay_integers(array_bytes, batch, tensor, kind):
    encoder = ArrayEncoder("y", tensor.shape[1:], OID[kind], INT16)
    packed = encode(encoder, batch([array_bytes(row.astype(kind)) for row in tensor]))
    assert packed.dtype == np.int16
    assert np.array_equal(packed, tensor)


def test_indices_are_the_places_of_the_one_hot_rows(batch):
    column = batch([position.to_bytes(4, "big") for position in (3, 1, 2, 3)])
    packed = encode(IndexEncoder("y"), column)
    assert packed.dtype == np.int16 and packed.tolist() == [[2], [0], [1], [2]]
    assert np.array_equal(packed[:, 0], encode(ClassEncoder("y", (4,)), column).argmax(axis=1))
    with pytest.raises(BadRow, match="row 1 has a value that is not among the class values"):
        encode(IndexEncoder("y"), batch([(1).to_bytes(4, "big"), None]))


def test_an_integer_that_does_not_fit_is_never_cut(array_bytes, batch):
    encoder = ArrayEncoder("y", (2,), OID["i4"], INT16)
    with pytest.raises(BadRow, match="row 1 contains an integer that does not fit into smallint"):
        encode(encoder, batch([array_bytes(np.array(row, "i4")) for row in ([1, 2], [40_000, 0])]))


@pytest.mark.parametrize(
    ("value", "kind", "constant", "problem"),
    [
        (np.nan, "f4", 1.0, "holds NaN"),
        (np.nan, "f8", 1.0, "holds NaN"),
        (np.inf, "f4", 1.0, "holds an infinite value"),
        (-np.inf, "f8", 255.0, "holds an infinite value"),
        (1e300, "f8", 1.0, "contains a number that is too large for float32"),
        (1e38, "f4", 1e-5, "contains a number that is too large for float32"),
    ],
)
def test_a_number_that_is_not_finite_is_named(array_bytes, batch, value, kind, constant, problem):
    rows = np.ones((3, 4), kind)
    rows[2, 1] = value
    encoder = ArrayEncoder("x", (4,), OID[kind], FLOAT32, constant)
    with pytest.raises(BadRow) as caught:
        encode(encoder, batch([array_bytes(row) for row in rows]))
    assert caught.value.row == 2
    assert caught.value.problem.startswith(problem) and caught.value.element == 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1), st.integers(7, 12))
def test_positions_become_one_hot_rows(batch, positions, width):
    encoder = ClassEncoder("y", (width,))
    packed = encode(encoder, batch([position.to_bytes(4, "big") for position in positions]))
    assert packed.dtype == np.int16
    assert packed.shape == (len(positions), width)
    assert (packed.sum(axis=1) == 1).all()
    assert (packed.argmax(axis=1) + 1).tolist() == positions


def test_a_value_that_is_no_class_is_named(batch):
    with pytest.raises(BadRow, match="row 1 has a value that is not among the class values"):
        encode(ClassEncoder("y", (3,)), batch([b"\0\0\0\1", None]))


def test_a_rows_bytes_are_those_of_its_columns():
    assert row_bytes([ArrayEncoder("x", (2, 3), 700, FLOAT32), ClassEncoder("y", (10,))]) == 24 + 20

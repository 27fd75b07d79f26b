"""Arrays in the server's memory layout: all numeric types and shapes, and errors of rows that cannot be read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from madlib_mop.columns.layout import ELEMENT_TYPES, BadRow, read_arrays, read_header

DTYPES = sorted(ELEMENT_TYPES.values(), key=str)
OID = {dtype: oid for oid, dtype in ELEMENT_TYPES.items()}
tensors = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=5, max_side=4))
)


def read(column, shape, dtype):
    return read_arrays(column.data, np.array(column.lengths, np.int64), shape, OID[np.dtype(dtype)])


@settings(deadline=None)
@given(tensors)
def test_rows_of_one_shape_come_back(array_bytes, batch, tensor):
    column = batch([array_bytes(row) for row in tensor])
    back = read(column, tensor.shape[1:], tensor.dtype)
    assert back.dtype == tensor.dtype
    assert np.array_equal(back, tensor, equal_nan=tensor.dtype.kind == "f")


def test_rows_of_one_shape_are_not_copied(array_bytes, batch):
    column = batch([array_bytes(np.arange(6, dtype="f4").reshape(2, 3))] * 4)
    back = read(column, (2, 3), "f4")
    assert np.shares_memory(back, np.frombuffer(column.data, np.uint8))


@settings(deadline=None)
@given(tensors, st.data())
def test_an_idle_null_bitmap_and_odd_lower_bounds_change_nothing(array_bytes, batch, tensor, data):
    values = [
        array_bytes(row, idle_bitmap=data.draw(st.booleans()), lower=data.draw(st.integers(-3, 3))) for row in tensor
    ]
    back = read(batch(values), tensor.shape[1:], tensor.dtype)
    assert np.array_equal(back, tensor, equal_nan=tensor.dtype.kind == "f")


def test_the_header_tells_shape_and_type(array_bytes):
    header = read_header(array_bytes(np.zeros((2, 3, 4), "i2")))
    assert (header.shape, header.element_type, header.has_bitmap, header.n_elements) == ((2, 3, 4), 21, False, 24)
    assert read_header(array_bytes(np.zeros(0, "f4"))).n_elements == 0


def test_no_rows_are_an_empty_tensor():
    assert read_arrays(b"", np.array([], np.int64), (3,), 700).shape == (0, 3)


GOOD = np.array([1, 2, 3, 4], "f4")


@pytest.mark.parametrize(
    ("bad", "nulls", "problem"),
    [
        (None, None, "is NULL"),
        (GOOD[:3], None, "has the shape [3], but [4] is expected"),
        (GOOD.reshape(2, 2), None, "has the shape [2, 2], but [4] is expected"),
        (GOOD[:0], None, "has the shape [], but [4] is expected"),
        (GOOD, np.array([False, True, False, False]), "contains a NULL element at [2]"),
        (GOOD, np.array([True] * 4), "contains a NULL element at [1]"),
    ],
)
@pytest.mark.parametrize("where", [0, 2, 4])
def test_the_row_that_cannot_be_read_is_named(array_bytes, batch, bad, nulls, problem, where):
    values = [array_bytes(GOOD)] * 5
    values[where] = None if bad is None else array_bytes(bad, nulls)
    with pytest.raises(BadRow) as caught:
        read(batch(values), (4,), "f4")
    assert (caught.value.row, caught.value.problem) == (where, problem)
    assert caught.value.hint


def test_the_element_that_is_null_is_named_in_all_dimensions(array_bytes, batch):
    nulls = np.zeros((2, 3, 4), bool)
    nulls[1, 2, 0] = True
    with pytest.raises(BadRow, match=r"row 0 contains a NULL element at \[2\]\[3\]\[1\]") as caught:
        read(batch([array_bytes(np.zeros((2, 3, 4), "f4"), nulls)]), (2, 3, 4), "f4")
    assert caught.value.element == 20


def test_rows_of_one_length_but_two_shapes_are_told_apart(array_bytes, batch):
    values = [array_bytes(np.zeros((2, 3), "f4")), array_bytes(np.zeros((3, 2), "f4"))]
    with pytest.raises(BadRow, match=r"row 1 has the shape \[3, 2\], but \[2, 3\]"):
        read(batch(values), (2, 3), "f4")

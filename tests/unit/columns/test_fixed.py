"""The encoder of tables of arrays: shapes of any number of dimensions and elements, division, images, targets, bad
rows."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.encoder import BadFile
from madlib_mop.columns.encoding.fixed import FixedEncoder, FixedInput, FixedTarget, FixedTargets
from madlib_mop.columns.layout import ArrayLayout
from madlib_mop.columns.raw import Numbers
from madlib_mop.columns.records import Field, RecordReader


def _record(value):
    """Return a record with one field, a bytea or NULL."""
    return struct.pack(">iIi", 1, 17, -1 if value is None else len(value)) + (value or b"")


def _read(values, **layout):
    """Return a column of arrays as a record reader returns it, in the way of many rows and in that of few."""
    reader = RecordReader([Field("x", "bytea", 17, "_float4", layout=ArrayLayout(**layout))])
    records = [_record(value) for value in values]
    (column,) = reader.read(b"".join(records), [len(one) for one in records])
    return column


@pytest.mark.parametrize("n_rows", [2, 40])
@pytest.mark.parametrize("dtype", ["i2", "i4", "i8", "f4", "f8"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3), (70_000,)])
def test_arrays_of_any_shape_keep_it_and_are_divided_in_float32(array_bytes, n_rows, dtype, shape):
    values = np.random.default_rng(0).integers(-100, 100, (n_rows, *shape)).astype(dtype)
    encoder = FixedEncoder([FixedInput("x")], 7.0, None)
    tensors = encoder.encode({"x": _read([array_bytes(row) for row in values], divisor=7.0)})
    assert tensors.n_rows == n_rows
    assert tensors.arrays["x"].tobytes() == (values.astype(np.float32) / np.float32(7)).tobytes()
    assert tensors.arrays["x"].shape == values.shape


@pytest.mark.parametrize(
    ("second", "layout", "problem"),
    [
        (np.ones((1, 2), "f4"), {}, "has the shape [1, 2], but [2] is expected"),
        (np.array([1, np.nan], "f8"), {}, "holds NaN"),
        (np.array([1, np.inf], "f8"), {}, "holds an infinite value"),
        (np.array([1, 1e300], "f8"), {}, "contains a number that is too large for float32 after division"),
        (np.array([1, 1e38], "f4"), {"divisor": 1e-5}, "contains a number that is too large for float32 after"),
        (np.array([1, np.inf], "f4"), {"is_narrowed": True}, "holds an infinite value, or a number that is too large"),
    ],
)
@pytest.mark.parametrize("n_rows", [2, 40])
def test_a_bad_row_is_named(array_bytes, second, layout, problem, n_rows):
    good = array_bytes(np.ones(2, second.dtype))
    with pytest.raises(UnreadableValue) as caught:
        _read([good, array_bytes(second), *[good] * (n_rows - 2)], **layout)
    assert (caught.value.column, caught.value.row) == ("x", 1)
    assert caught.value.problem.startswith(problem)


def test_of_numbers_side_by_side_the_column_is_named(array_bytes):
    good, nulls = np.ones(3, "f4"), np.array([False, False, True])
    for bad, problem in ((array_bytes(good, nulls), "is NULL"), (array_bytes(good * [1, 1, np.nan]), "holds NaN")):
        with pytest.raises(UnreadableValue) as caught:
            _read([array_bytes(good.astype("f8")), bad], parts=("a", "b", "c"))
        assert (caught.value.column, caught.value.problem) == ("c", problem)


def test_a_null_array_is_an_error_of_the_encoder(array_bytes):
    column = _read([array_bytes(np.ones(2, "f4")), None])
    with pytest.raises(UnreadableValue) as caught:
        FixedEncoder([FixedInput("x")], 1.0, None).encode({"x": column})
    assert (caught.value.row, caught.value.problem) == (1, "is NULL")


def test_the_shape_is_checked_once_and_holds_for_later_batches(array_bytes):
    found = []
    reader = RecordReader([Field("x", "bytea", 17, "_float4", layout=ArrayLayout())])
    encoder = FixedEncoder([FixedInput("x")], 1.0, None, lambda number, shape: found.append((number, shape)))
    one = _record(array_bytes(np.ones((2, 2), "f4")))
    for _ in range(2):
        encoder.encode({"x": reader.read(one, [len(one)])[0]})
    assert found == [(0, (2, 2))]
    other = _record(array_bytes(np.ones(4, "f4")))
    with pytest.raises(UnreadableValue, match=r"has the shape \[4\], but \[2, 2\] is expected"):
        reader.read(other, [len(other)])


def test_a_column_may_be_two_inputs(array_bytes):
    column = _read([array_bytes(np.ones(2, "f4"))])
    tensors = FixedEncoder([FixedInput("x"), FixedInput("x")], 1.0, None).encode({"x": column})
    assert len(tensors.arrays) == 2


def test_images_have_the_shape_of_the_first_one():
    def decode(files, wanted, expected):
        assert wanted is None
        for number, file in enumerate(files):
            if expected is not None and len(file) != expected[0]:
                raise BadFile(number, "is too large", "Scale it.")
        return np.array([[[[file[0]]] for _ in file] for file in files], np.uint8)

    encoder = FixedEncoder([FixedInput("x")], 255.0, decode)
    assert encoder.encode({"x": Blobs([b"aa", b"bb"])}).arrays["x"].tolist() == [[[[97]]] * 2, [[[98]]] * 2]
    with pytest.raises(UnreadableValue) as caught:
        encoder.encode({"x": Blobs([b"aa", b"bbb"])})
    assert (caught.value.row, caught.value.problem, caught.value.hint) == (1, "is too large", "Scale it.")


def _positions(values):
    missing = np.array([value is None for value in values])
    return {"y": Numbers(np.array([value or 0 for value in values], float), missing)}


@settings(deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1), st.integers(7, 12))
def test_positions_become_one_hot_rows_or_indices(positions, width):
    one_hot = FixedTargets([FixedTarget("y", width)]).encode(_positions(positions))["y"]
    assert one_hot.dtype == np.int16 and one_hot.shape == (len(positions), width)
    assert (one_hot.sum(axis=1) == 1).all()
    assert (one_hot.argmax(axis=1) + 1).tolist() == positions
    index = FixedTargets([FixedTarget("y", width, as_index=True)]).encode(_positions(positions))["y"]
    assert index.dtype == np.int16 and index.tolist() == [[position - 1] for position in positions]


def test_the_last_of_32768_classes_has_its_index():
    index = FixedTargets([FixedTarget("y", 1 << 15, as_index=True)]).encode(_positions([1 << 15]))["y"]
    assert index.tolist() == [[32_767]]


@pytest.mark.parametrize("as_index", [False, True])
def test_a_value_that_is_no_class_is_named(as_index):
    with pytest.raises(UnreadableValue) as caught:
        FixedTargets([FixedTarget("y", 3, as_index)]).encode(_positions([1, None]))
    assert (caught.value.row, caught.value.problem) == (1, "has a value that is not among the class values")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hnp.arrays("i2", st.tuples(st.integers(1, 5), st.integers(1, 9))), st.sampled_from(["i2", "i4", "i8"]))
def test_integers_that_fit_stay_integers(array_bytes, tensor, kind):
    column = _read([array_bytes(row.astype(kind)) for row in tensor])
    packed = FixedTargets([FixedTarget("x", is_int16=True)]).encode({"x": column})["x"]
    assert packed.dtype == np.int16 and np.array_equal(packed, tensor)


def test_an_integer_that_does_not_fit_is_never_cut(array_bytes):
    column = _read([array_bytes(np.array(row, "i4")) for row in ([1, 2], [40_000, 0])])
    with pytest.raises(UnreadableValue) as caught:
        FixedTargets([FixedTarget("x", is_int16=True)]).encode({"x": column})
    assert caught.value.row == 1 and "contains an integer that does not fit into smallint" in caught.value.problem


def test_targets_that_are_arrays_keep_their_values(array_bytes):
    column = _read([array_bytes(np.array([[0.25], [0.75]], "f8"))] * 2)
    packed = FixedTargets([FixedTarget("x")]).encode({"x": column})["x"]
    assert packed.dtype == np.float32 and packed.tolist() == [[[0.25], [0.75]]] * 2

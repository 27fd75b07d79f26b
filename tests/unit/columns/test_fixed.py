"""The encoder of tables of arrays: shapes of any number of dimensions and elements, division, images, and bad rows."""

import struct

import numpy as np
import pytest

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.encoding.encoder import BadFile
from madlib_mop.columns.encoding.fixed import FixedEncoder, FixedInput
from madlib_mop.columns.layout import ArrayLayout
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

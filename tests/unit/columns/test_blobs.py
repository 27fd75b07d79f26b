"""Bytes of rows in a mapped file behave as those in memory, and come in parts of a limited size."""

import numpy as np
import pytest

from madlib_mop.columns.blobs import Blobs, StoredValues
from madlib_mop.columns.proposals.guesses import form_of_images

VALUES = [b"abc", None, b"", b"0123456789", None, b"z"]
PNG, JPEG = b"\x89PNG\r\n\x1a\n...", b"\xff\xd8\xff\xe0..."


def stored(values) -> Blobs:
    data = np.frombuffer(bytearray(b"".join(value or b"" for value in values)), np.uint8)
    return Blobs(StoredValues.of(data, np.array([-1 if value is None else len(value) for value in values], np.int64)))


@pytest.fixture(params=[Blobs, stored])
def make(request):
    return request.param


def test_values_come_back(make):
    column = make(VALUES)
    assert list(column.values) == VALUES and column.n_rows == 6
    assert column.missing.tolist() == [value is None for value in VALUES]
    assert list(column.begins(2)) == [b"ab", b"", b"01", b"z"]
    assert list(column.values[1:4]) == VALUES[1:4]
    chosen = column.take(np.array([3, 1, 0, 3]))
    assert list(chosen.values) == [VALUES[3], None, b"abc", VALUES[3]]
    assert list(chosen.take(np.array([True, False, True, False])).values) == [VALUES[3], b"abc"]
    assert list(make([]).values) == [] and Blobs.concatenate([column, chosen]).n_rows == 10


@pytest.mark.parametrize(("most_bytes", "most_rows", "parts"), [
    (1 << 20, 100, [[0, 2, 3, 5]]), (1 << 20, 2, [[0, 2], [3, 5]]), (1, 100, [[0], [2], [3], [5]]),
    (3, 100, [[0, 2], [3], [5]]), (11, 100, [[0, 2], [3, 5]]),
])  # fmt: skip
def test_parts_have_limited_bytes_and_rows(make, most_bytes, most_rows, parts):
    found = list(make(VALUES).pieces(most_bytes, most_rows))
    assert [numbers for numbers, _ in found] == parts
    assert [value for _, values in found for value in values] == [value for value in VALUES if value is not None]


def test_a_column_has_images_if_half_of_its_values_begin_so(make):
    for values in ([None, PNG, JPEG, b"text"], [b"text", b"", JPEG, PNG]):
        assert form_of_images(make(values)) is not None
    for values in ([b"GIF8", b"text", PNG], [None], []):
        assert form_of_images(make(values)) is None


def test_a_slice_of_a_file_is_not_read():
    """Taking rows copies no value: the data here are not even there."""
    values = StoredValues(np.zeros(0, np.uint8), np.arange(9) << 30, np.full(9, 1 << 30))
    assert Blobs(values).take(np.arange(4)).n_rows == 4 and not Blobs(values).missing.any()

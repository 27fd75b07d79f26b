"""Typed columns: rows are selected and concatenated without changes, for any batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.columns import raw
from madlib_mop.errors import InvalidParameter


def numbers(*values, family=raw.NUMBER):
    missing = np.array([value is None for value in values], bool)
    return raw.Numbers(np.array([value or 0 for value in values], float), missing, family)


def levels(*texts):
    dictionary = raw.Dictionary("c")
    codes = [-1 if text is None else dictionary.code_of(text.encode()) for text in texts]
    return raw.Levels(np.array(codes, np.int32), dictionary)


def vectors(width, *rows):
    values = np.array([row or [0.0] * width for row in rows], np.float32).reshape(len(rows), width)
    return raw.Vectors(values, np.array([row is None for row in rows], bool), "v")


def rows_of(column):
    """Return the rows of any raw column as a list, None where missing."""
    if isinstance(column, raw.Levels):
        return column.texts()
    if isinstance(column, raw.Blobs):
        return column.values
    missing = column.missing.tolist()
    return [None if lost else value for lost, value in zip(missing, column.values.tolist(), strict=True)]


COLUMNS = {
    "numbers": numbers(1.5, None, -2.0, 3.0),
    "moments": raw.Moments(np.array([5, 0, raw.END, -7]), np.array([False, True, False, False])),
    "levels": levels("b", None, "a", "b"),
    "vectors": vectors(2, [1.0, 2.0], None, [3.0, 4.0], [5.0, 6.0]),
    "blobs": raw.Blobs([b"x", None, b"", b"yz"]),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_rows_taken_apart_and_joined_are_the_same(column):
    rows = rows_of(column)
    order = [3, 1, 0, 2]
    taken = column.take(np.array(order))
    assert rows_of(taken) == [rows[row] for row in order]
    assert rows_of(column.take(np.array([True, False, False, True]))) == [rows[0], rows[3]]
    joined = raw.concatenate([column.take(np.array([0])), column.take(np.array([], int)), column.take(np.arange(1, 4))])
    assert rows_of(joined) == rows and joined.n_rows == 4
    assert type(joined) is type(column) and joined.family == column.family
    assert joined.missing.tolist() == [row is None for row in rows]


@given(st.lists(st.lists(st.none() | st.sampled_from(["", "a", "ä", "bb", "c"]), max_size=5), min_size=1))
def test_levels_of_batches_with_other_codes_join(batches):
    joined = raw.concatenate([levels(*batch) for batch in batches])
    assert joined.texts() == [text for batch in batches for text in batch]
    assert len(joined.levels) == len({text for batch in batches for text in batch if text is not None})


def test_a_dictionary_is_bounded():
    dictionary = raw.Dictionary("zip", max_levels=2)
    assert [dictionary.code_of(text) for text in (b"a", b"b", b"a")] == [0, 1, 0]
    assert dictionary.find(b"c") == -1 and dictionary.find(b"b") == 1
    with pytest.raises(raw.TooManyLevels, match="column 'zip' has more than 2 distinct values"):
        dictionary.code_of(b"c")
    assert dictionary.codes_of([b"b", b"a", b"b"]) == [1, 0, 1]
    with pytest.raises(raw.TooManyLevels):
        dictionary.codes_of([b"a", b"c"])
    assert dictionary.texts() == ["a", "b"] and len(dictionary) == 2
    assert raw.Dictionary().codes_of([b"x", b"y", b"x"]) == [0, 1, 0]


def test_numbers_as_levels_have_the_texts_of_sql():
    assert numbers(3.0, None, -1.0, 3.0, 2.5, 1e15, 0.0, -0.0).as_levels("c").texts() == [
        "3", None, "-1", "3", "2.5", "1000000000000000", "0", "0",
    ]  # fmt: skip
    assert numbers(1.0, 0.0, None, family=raw.BOOLEAN).as_levels().texts() == ["true", "false", None]


def test_the_first_special_value_is_found():
    assert numbers(1.0, None, 2.0).first_special() is None
    assert numbers(1.0, None, -np.inf, np.nan).first_special() == raw.Special(2, "-Infinity")
    assert numbers(np.nan).first_special() == raw.Special(0, "NaN")
    assert COLUMNS["moments"].first_special() == raw.Special(2, "infinity")
    begin = raw.Moments(np.array([0, raw.BEGIN]), np.array([True, False]))
    assert begin.first_special() == raw.Special(1, "-infinity")
    assert vectors(2, [0.0, 1.0], [0.0, np.inf]).first_special() == raw.Special(1, "Infinity")
    assert vectors(0, None).first_special() is None


def test_vectors_of_missing_rows_take_the_width_of_the_others():
    empty = vectors(0, None, None)
    assert empty.width is None
    joined = raw.concatenate([empty, vectors(2, [1.0, 2.0]), empty])
    assert joined.values.shape == (5, 2) and joined.values.dtype == np.float32
    assert rows_of(joined) == [None, None, [1.0, 2.0], None, None]
    with pytest.raises(InvalidParameter, match="column 'v' has 3 elements, where 2 are expected"):
        raw.concatenate([vectors(2, [1.0, 2.0]), vectors(3, [1.0, 2.0, 3.0])])

"""Exchanged columns of encoded rows are those of the encoded rows whose columns were exchanged."""

import numpy as np
import pytest

from madlib_mop.columns.encoding.encoder import Encoder
from tests.helpers.unit.explained import encoded, preprocessor_of, some_rows


def same(a, b):
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", ["age", "joined", "tier", "city", "note", "place"])
def test_a_column_is_exchanged_as_if_the_rows_had_the_other_values(name):
    raw = some_rows()
    _, columns, arrays = encoded(raw)
    sources = np.random.default_rng(1).permutation(40)
    before = [values.copy() for values in arrays]
    exchanged = columns.exchanged(arrays, columns.names.index(name), sources)
    expected = Encoder(preprocessor_of(raw)).encode({**raw, name: raw[name].take(sources)}).arrays.values()
    assert same(exchanged, expected) and not same(exchanged, arrays)
    assert same(arrays, before)


def test_mixed_rows_have_some_columns_of_one_row_and_the_others_of_each_row():
    raw = some_rows()
    _, columns, arrays = encoded(raw)
    row = [values[3:4] for values in arrays]
    mask = np.random.default_rng(2).random((40, len(columns.names))) < 0.5
    mixed = columns.mixed(row, arrays, mask)
    sources = {
        name: raw[name].take(np.where(mask[:, number], 3, np.arange(40))) for number, name in enumerate(columns.names)
    }
    assert same(mixed, Encoder(preprocessor_of(raw)).encode({**raw, **sources}).arrays.values())

"""Partial dependence: values that represent a column, and means that are those of changed rows."""

import numpy as np
import pytest

from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.explaining.dependence import ColumnValue, chosen_rows, partial_dependence
from tests.helpers.unit.explained import encoded, network_of, preprocessor_of, some_rows


def values(*numbers):
    return [ColumnValue(float(n or 0), None if n is None else str(n)) for n in numbers]


def test_numbers_are_represented_by_quantiles_in_their_order_and_null_at_the_end():
    column = values(5, None, 1, 9, 3, 3, 7, None)
    chosen = chosen_rows(column, 3, by_count=False)
    assert [column[row].text for row in chosen] == ["1", "3", "9", None]
    every = chosen_rows(column, 20, by_count=False)
    assert [column[row].text for row in every] == ["1", "3", "5", "7", "9", None]


def test_a_value_of_most_rows_comes_once():
    column = values(*[0] * 90, *range(1, 11))
    texts = [column[row].text for row in chosen_rows(column, 11, by_count=False)]
    assert texts[0] == "0" and texts[-1] == "10" and len(texts) == len(set(texts)) < 11


def test_categories_are_represented_by_the_most_frequent_ones():
    texts = ["b", "a", "b", None, "c", None, None, "a"]
    column = [ColumnValue(0.0, text) for text in texts]
    assert [texts[row] for row in chosen_rows(column, 3, by_count=True)] == [None, "a", "b"]


@pytest.mark.parametrize("by_count", [True, False])
def test_a_column_of_nulls_has_one_value(by_count):
    assert chosen_rows(values(None, None), 5, by_count) == [0]


@pytest.mark.parametrize("name", ["age", "tier", "note"])
def test_the_mean_is_that_of_the_rows_with_the_value(name):
    raw = some_rows()
    _, columns, arrays = encoded(raw)
    predict = network_of(arrays)
    found = partial_dependence(predict, columns, arrays, columns.names.index(name), [3, 11])
    for place, row in enumerate((3, 11)):
        changed = {**raw, name: raw[name].take(np.full(40, row))}
        predicted = predict(list(Encoder(preprocessor_of(raw)).encode(changed).arrays.values()))
        assert found.means[place] == pytest.approx(predicted.mean(axis=0), abs=1e-12)
        assert found.standard_errors[place] == pytest.approx(predicted.std(axis=0, ddof=1) / 40**0.5, abs=1e-12)


def test_a_single_row_has_no_standard_error():
    _, columns, arrays = encoded(some_rows())
    found = partial_dependence(network_of(arrays), columns, [v[:1] for v in arrays], 0, [0])
    assert np.isnan(found.standard_errors).all() and np.isfinite(found.means).all()

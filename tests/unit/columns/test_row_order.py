"""Rows of a source table: their order by their hashes, their classes, and how they are counted."""

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.raw import Levels, Numbers, dictionary_of
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.driver.columns.rows import SourceRows
from madlib_mop.driver.columns.splitting import class_codes
from tests.helpers.unit import columns as helpers


def test_rows_are_ordered_by_both_halves_of_the_hash():
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 50, (5000, 2)).astype(np.uint64) << np.uint64(60)
    rows = SourceRows({}, hashes)
    np.testing.assert_array_equal(rows.order(), np.lexsort((hashes[:, 1], hashes[:, 0])))
    some = rng.random(5000) < 0.5
    np.testing.assert_array_equal(hashes[rows.order(some)], hashes[rows.order()][some[rows.order()]])
    assert some[rows.order(some)].all()


def test_rows_with_different_hashes_are_ordered_by_the_first_half():
    hashes = np.random.default_rng(2).permutation(10_000).astype(np.uint64).reshape(-1, 2)
    np.testing.assert_array_equal(SourceRows({}, hashes).order(), np.argsort(hashes[:, 0]))
    assert not len(SourceRows({}, hashes[:0]).order())


def test_class_codes_tell_all_combinations_of_targets_apart():
    texts = Levels(np.array([0, 1, -1, 0, 1, -1], np.int32), dictionary_of(["a", "b", "unused"]))
    numbers = Numbers(np.array([1.0, 1.0, 1.0, 2.0, 0.0, 0.0]), np.array([False] * 4 + [True] * 2))
    rows = SourceRows({"t": texts, "n": numbers}, np.zeros((6, 2), np.uint64))
    assert len(set(class_codes(rows, ["t"]).tolist())) == 3
    codes = class_codes(rows, ["n", "t"])
    assert codes.dtype == np.int32
    assert len(set(codes.tolist())) == 6


@pytest.mark.parametrize("training", [None, np.arange(40) % 3 > 0])
def test_columns_are_counted_in_pieces_of_a_fixed_size(monkeypatch, training):
    """So what counting takes in memory does not grow with the rows."""
    random = np.random.default_rng(1)
    columns = {
        "number": helpers.numbers(random.random(40).tolist()),
        "moment": helpers.moments(random.integers(0, 9, 40).tolist()),
        "vector": helpers.vectors(random.random((40, 4)).tolist(), 4),
        "text": helpers.texts(["a", None, "b", "c"] * 10),
    }
    whole = {name: column if training is None else column.take(training) for name, column in columns.items()}
    expected = {name: ColumnStatistics.of(column) for name, column in whole.items()}
    sizes, add = [], ColumnStatistics.add
    monkeypatch.setattr(raw, "_PART_ROWS", 7)
    monkeypatch.setattr(raw, "_PART_BYTES", 5 * 16)
    monkeypatch.setattr(
        ColumnStatistics, "add", lambda self, c: (sizes.append((self.family, c.n_rows)), add(self, c))[1]
    )
    found = SourceRows(columns, np.zeros((40, 2), np.uint64)).statistics(training)
    assert {family: max(n for one, n in sizes if one == family) for family, _ in sizes} == {
        "number": 7, "moment": 7, "vector": 5, "text": whole["text"].n_rows,
    }  # fmt: skip
    for name, statistics in found.items():
        for fact in ("n_rows", "n_missing", "n_distinct", "minimum", "maximum", "mean", "std", "level_counts", "width"):
            assert getattr(statistics, fact) == getattr(expected[name], fact), (name, fact)
        assert statistics.quantile(0.3) == expected[name].quantile(0.3)

"""The order of rows by their hashes, and the classes by which they are stratified."""

import numpy as np

from madlib_mop.columns.raw import Levels, Numbers, dictionary_of
from madlib_mop.driver.columns.rows import SourceRows
from madlib_mop.driver.columns.splitting import class_codes


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

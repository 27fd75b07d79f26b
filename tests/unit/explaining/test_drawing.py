"""Rows that are drawn from a table: the same for a seed in every order of reading, and without preference."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from madlib_mop.explaining import drawing
from madlib_mop.explaining.drawing import DrawnRows


def draw(rows, n_drawn, seed, batch=7):
    drawn = DrawnRows(n_drawn, seed)
    for start in range(0, len(rows), batch):
        drawn.add([rows[start : start + batch]])
    return drawn


def hashes_of(drawn):
    assert drawn.rows  # draws from the rows that were added last
    return drawn._drawn.hashes


def test_the_order_of_reading_and_the_batches_change_nothing():
    rows = np.arange(300, dtype=np.float32).reshape(100, 3)
    first = draw(rows, 10, 1)
    again = draw(rows[np.random.default_rng(1).permutation(100)], 10, 1, batch=100)
    assert np.array_equal(first.rows[0], again.rows[0]) and first.n_rows == 100
    assert len({tuple(row) for row in first.rows[0]}) == 10
    assert not np.array_equal(first.rows[0], draw(rows, 10, 2).rows[0])


@pytest.mark.parametrize(("n_recent", "n_contents"), [(1 << 16, 1 << 22), (4, 1 << 22), (1, 0)])
def test_equal_rows_are_drawn_as_often_as_they_are_there(n_recent, n_contents, monkeypatch):
    """90 of 100 rows are equal: about 90 % of the rows that are drawn are so, not all of them or none.

    With (1, 0) no content is counted, so the numbers of the rows are used.
    """
    monkeypatch.setattr(drawing, "_RECENT", n_recent, raising=False)
    monkeypatch.setattr(drawing, "_MOST_CONTENTS", n_contents, raising=False)
    rows = np.concatenate([np.zeros((90, 1)), np.arange(1, 11)[:, np.newaxis]]).astype(np.float32)
    shares = [np.mean(draw(rows, 20, seed).rows[0] == 0) for seed in range(40)]
    assert 0.87 < np.mean(shares) < 0.93 and 0.6 < min(shares) < max(shares)


def test_each_row_is_drawn_about_equally_often():
    rows = np.arange(20, dtype=np.float32)[:, np.newaxis]
    counts = Counter(float(value) for seed in range(400) for value in draw(rows, 5, seed).rows[0][:, 0])
    assert len(counts) == 20 and 60 < min(counts.values()) and max(counts.values()) < 140


def test_labels_stay_with_their_rows_and_count_as_content():
    rows = np.repeat(np.arange(10, dtype=np.float32), 3)[:, np.newaxis]
    labels = [f"{value:g} {number % 3}" for number, value in enumerate(rows[:, 0])]
    found = []
    for order in (np.arange(30), np.random.default_rng(2).permutation(30)):
        drawn: DrawnRows[str] = DrawnRows(12, 3)
        for start in range(0, 30, 8):
            part = order[start : start + 8]
            drawn.add([rows[part]], [labels[row] for row in part])
        assert [label.split()[0] for label in drawn.labels] == [f"{value:g}" for value in drawn.rows[0][:, 0]]
        found.append(drawn.labels)
    assert found[0] == found[1] and len(set(found[0])) == 12


def test_fewer_rows_than_wanted_are_all_drawn():
    assert len(draw(np.ones((3, 2), np.float32), 10, 0).rows[0]) == 3


def test_the_rows_of_a_large_table_do_not_all_stay_in_memory():
    drawn: DrawnRows[None] = DrawnRows(40, 1)
    for start in range(0, 20_000, 50):
        drawn.add([np.arange(start, start + 50, dtype=np.float32)[:, np.newaxis]])
        assert sum(len(part.hashes) for part in drawn._added) < 60
    assert drawn.n_rows == 20_000 and len(np.unique(drawn.rows[0])) == 40


def test_counts_are_the_same_however_often_they_are_merged(monkeypatch):
    rows = np.random.default_rng(3).integers(0, 40, (400, 1)).astype(np.float32)
    hashes = hashes_of(draw(rows, 400, 5))
    assert len(np.unique(hashes)) == 400
    for n_recent in (1, 3, 50):
        monkeypatch.setattr(drawing, "_RECENT", n_recent)
        shuffled = rows[np.random.default_rng(n_recent).permutation(400)]
        assert np.array_equal(hashes_of(draw(shuffled, 400, 5, batch=n_recent + 20)), hashes)


def test_contents_beyond_the_limit_are_all_drawn_independently(monkeypatch):
    """Contents that are counted stay so when there is no room for others, which get the numbers of their rows."""
    monkeypatch.setattr(drawing, "_RECENT", 8)
    monkeypatch.setattr(drawing, "_MOST_CONTENTS", 16)
    rows = np.tile(np.arange(60, dtype=np.float32), 5)[:, np.newaxis]
    drawn = draw(rows, 300, 1)
    assert len(np.unique(hashes_of(drawn))) == 300
    assert 16 <= len(drawn._occurrences._digests) <= 32


@pytest.mark.parametrize("batch", [100, 20_000])
def test_memory_does_not_grow_with_the_table(batch, monkeypatch):
    """20,000 different rows; counts of 2,000 are kept, 16 bytes each."""
    monkeypatch.setattr(drawing, "_RECENT", 200, raising=False)
    monkeypatch.setattr(drawing, "_MOST_CONTENTS", 2000, raising=False)
    rows = np.arange(20_000, dtype=np.float32)[:, np.newaxis]
    tracemalloc.start()
    try:
        drawn = draw(rows, 10, 1, batch=batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert drawn.n_rows == 20_000 and peak < 400_000


def test_fewer_rows_are_drawn_if_their_labels_are_large():
    """The rows that stay are the first of those that are drawn without a limit, however the sizes are spread."""
    random = np.random.default_rng(4)
    rows = np.arange(2000, dtype=np.float32)[:, np.newaxis]
    labels = ["x" * int(length) for length in random.integers(500, 1500, 2000)]
    free, limited = DrawnRows(1000, 1), DrawnRows(1000, 1, len, 20_000)
    for start in range(0, 2000, 10):
        part = slice(start, start + 10)
        for drawn in (free, limited):
            drawn.add([rows[part]], labels[part])
        kept = [label for one in [limited._drawn, *limited._added] if one is not None for label in one.labels]
        assert sum(map(len, kept)) < 20_000 + 20_000 // 4 + 15_000
    n_drawn = len(limited.labels)
    assert 10 < n_drawn <= 40 and sum(map(len, limited.labels)) <= 20_000
    assert limited.labels == free.labels[:n_drawn] and len(free.labels) == 1000
    assert np.array_equal(limited.rows[0], free.rows[0][:n_drawn])


def test_one_row_is_drawn_whatever_its_label():
    drawn = DrawnRows(5, 1, len, 10)
    drawn.add([np.zeros((3, 1), np.float32)], ["x" * 100] * 3)
    assert len(drawn.labels) == 1

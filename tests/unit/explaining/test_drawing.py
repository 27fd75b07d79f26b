"""Rows that are drawn from a table: the same for a seed in every order of reading, and without preference."""

from collections import Counter

import numpy as np

from madlib_mop.explaining.drawing import DrawnRows


def draw(rows, n_drawn, seed, batch=7):
    drawn = DrawnRows(n_drawn, seed)
    for start in range(0, len(rows), batch):
        drawn.add([rows[start : start + batch]])
    return drawn


def test_the_order_of_reading_and_the_batches_change_nothing():
    rows = np.arange(300, dtype=np.float32).reshape(100, 3)
    first = draw(rows, 10, 1)
    again = draw(rows[np.random.default_rng(1).permutation(100)], 10, 1, batch=100)
    assert np.array_equal(first.rows[0], again.rows[0]) and first.n_rows == 100
    assert len({tuple(row) for row in first.rows[0]}) == 10
    assert not np.array_equal(first.rows[0], draw(rows, 10, 2).rows[0])


def test_equal_rows_are_drawn_as_often_as_they_are_there():
    """90 of 100 rows are equal: about 90 % of the rows that are drawn are so, not all of them or none."""
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

"""The rows that gradient boosting gets: all, or a sample of each segment, by the time that it has."""

from types import SimpleNamespace

import pytest

from madlib_mop.driver.inference.boosting import most_training_rows, sample


class Rows:
    """Segments with rows in buffers of 10; remembers which buffers were read."""

    def __init__(self, *n_rows: int):
        self.n_rows, self.read = sum(n_rows), []
        self.parts = [SimpleNamespace(number=number, n_rows=n) for number, n in enumerate(n_rows)]

    def buffers(self, part):
        for start in range(0, part.n_rows, 10):
            self.read.append(part.number)
            yield [[min(10, part.n_rows - start), 3]], [b""]


def sampled(rows: Rows, most_rows: int) -> list[int]:
    return [shapes[0][0] for shapes, _ in sample(rows, most_rows)]


def test_of_few_rows_all_are_used():
    rows = Rows(25, 5)
    assert sampled(rows, 30) == [10, 10, 5, 5]


def test_of_more_each_segment_has_its_share_and_the_others_are_not_read():
    rows = Rows(100, 50)
    assert sampled(rows, 60) == [10] * 6
    assert rows.read == [0] * 4 + [1] * 2


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ((20, [2], 20.0), (20, [2], 40.0)),
        ((20, [0, 0], 20.0), (20, [0], 20.0)),
        ((20, [6], 20.0), (20, [3], 20.0)),
        ((40, [2], 20.0), (20, [2], 20.0)),
    ],
)
def test_half_the_time_and_twice_the_inputs_or_trees_are_half_the_rows(less, more):
    assert 2 * most_training_rows(*less) == pytest.approx(most_training_rows(*more), abs=1)


def test_of_unused_inputs_only_the_memory_counts():
    assert most_training_rows(1024, [2], 20.0) == most_training_rows(512, [2], 20.0)
    assert most_training_rows(1 << 20, [2], 1e6) == 64
    assert most_training_rows(1 << 30, [50], 0.001) == 1

"""How many rows are read ahead: what is lost stays a small part of the time that a statement takes."""

import pytest
from mop_backend.pacing import FEWEST, MOST, MOST_LOST, Pace

SINGLE_S, BATCH_ROW_S, HIT_S = 1e-4, 1e-5, 1e-6


class Statement:
    """A statement with a clock of its own that predicts rows; each is used from a batch with a probability."""

    def __init__(self):
        self.now = 0.0
        self.pace = Pace(lambda: self.now)
        self.useless_s = 0.0
        self.sizes = []

    def take_row(self, is_useful: bool) -> None:
        n = self.pace.rows(searching=False)
        if n:
            self.now += n * BATCH_ROW_S
            self.pace.predicted(n, n * BATCH_ROW_S)
            self.sizes.append(n)
            if is_useful:
                for _ in range(n):
                    self.pace.hit()
                self.now += n * HIT_S
                return
            self.useless_s += n * BATCH_ROW_S
        self.now += SINGLE_S
        self.pace.single(SINGLE_S)


@pytest.mark.parametrize("n_rows", [10, 200, 3000, 50_000])
def test_useless_batches_cost_a_small_part_of_the_statement(n_rows):
    statement = Statement()
    for _ in range(n_rows):
        statement.take_row(is_useful=False)
    assert statement.useless_s <= MOST_LOST * statement.now


def test_a_few_rows_are_predicted_alone():
    statement = Statement()
    for _ in range(int(FEWEST / MOST_LOST) - 1):
        statement.take_row(is_useful=True)
    assert statement.sizes == []


def test_useful_batches_grow_to_the_largest_and_lose_nothing():
    statement = Statement()
    for _ in range(400):
        statement.take_row(is_useful=True)
    assert statement.sizes[0] == FEWEST and statement.sizes[-1] == MOST
    assert statement.pace.lost_s == 0


def test_one_very_slow_batch_does_not_end_reading_for_long():
    statement = Statement()
    while not statement.sizes:
        statement.take_row(is_useful=True)
    statement.now += 0.1
    statement.pace.predicted(FEWEST, 0.1)
    n_before = len(statement.sizes)
    for _ in range(10_000):
        statement.take_row(is_useful=True)
    assert len(statement.sizes) > n_before and statement.sizes[-1] == MOST

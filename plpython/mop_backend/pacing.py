"""Decides how many rows of a table are read ahead, and when: the arithmetic of read_ahead.py, without a session.

The rule is that of ski rental: rows are read ahead only while what this may lose is a small part of the time that the
statement has taken so far. A batch has lost its cost, less the time that its used rows would have taken one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: What read-ahead may lose, as a part of the time since the statement's first row.
MOST_LOST = 1 / 8
#: Rows that are read together.
FEWEST, MOST = 16, 4096
_WEIGHT = 1 / 4  # of the newest measurement in a mean


class Pace:
    """The times of one statement's rows.

    Parameters
    ----------
    clock : callable
        Returns seconds.

    Attributes
    ----------
    lost_s : float
        What the batches so far have cost, less what they saved, in seconds; without the newest batch.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        self._started = clock()
        self.lost_s = 0.0
        self._single_s: float | None = None  # of a row alone
        self._read_s: float | None = None  # of reading a row
        self._batch_row_s: float | None = None  # of reading and predicting a row with others
        self._n_next = FEWEST
        self._cost_s = 0.0  # of the newest batch
        self._n_hits = 0

    def single(self, seconds: float) -> None:
        """Note the time of a row that was predicted alone."""
        self._single_s = _mean(self._single_s, seconds)

    def hit(self) -> None:
        """Note that a row that was read ahead was used."""
        self._n_hits += 1

    def rows(self, searching: bool) -> int:
        """Return how many rows may be read now; 0 if none.

        Parameters
        ----------
        searching : bool
            Whether they are read to find the statement's place in the table, and not predicted.
        """
        self._close_batch()
        if self._single_s is None:
            return 0
        row_s = self._read_s if searching else self._batch_row_s
        n = self.affordable(row_s)
        if not searching:
            n = min(n, self._n_next)
        return n if n >= FEWEST else 0

    def affordable(self, row_s: float | None = None) -> int:
        """Return how many rows of this cost may be lost now; without a cost, that of a row in a batch."""
        single_s = self._single_s or 1.0
        # a mean that holds one very slow batch must not end all reading
        row_s = min(row_s or self._batch_row_s or single_s, single_s)
        left_s = MOST_LOST * (self.clock() - self._started) - self.lost_s - self._cost_s
        return max(0, min(int(left_s / row_s), MOST))

    def searched(self, n_rows: int, seconds: float) -> None:
        """Note rows that were read, in vain or not."""
        self._cost_s += seconds
        self._read_s = _mean(self._read_s, seconds / max(n_rows, 1))

    def predicted(self, n_rows: int, seconds: float) -> None:
        """Note that rows which were read were then predicted, in a further time."""
        self._cost_s += seconds
        self._batch_row_s = _mean(self._batch_row_s, seconds / max(n_rows, 1) + (self._read_s or 0.0))
        self._n_next = max(FEWEST, min(2 * n_rows, MOST))

    def _close_batch(self) -> None:
        """Close the account of the newest batch."""
        lost_s = self._cost_s - self._n_hits * (self._single_s or 0.0)
        if lost_s > 0:
            self.lost_s += lost_s
            if self._n_hits < self._n_next // 4:
                self._n_next = max(FEWEST, self._n_next // 4)
        self._cost_s, self._n_hits = 0.0, 0


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)

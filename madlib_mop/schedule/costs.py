"""The measured costs of visits, and the estimated remaining work; used by longest_first and auto."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from math import exp, log

from .progress import ModelProgress

ALIKE = 1.1  # rates that differ by at most this factor count as equal
_STEP = log(1.25)  # slowness is a power of 1.25: noise does not reach the first one, and changes are rare
_MIN_CHANGE = 0.75  # fraction of a step: a larger difference changes the slowness in use


class MeasuredCosts:
    """Seconds a row of every model measured so far, and seconds spent on every segment.

    A model's rate is the mean over its own visits, weighted by their rows; a model not measured yet counts as
    the mean of the others. A segment's *slowness* is the ratio of the measured to the expected time of its visits, by
    their models' rates. It is 1 until models measured on other segments have visited it, and while the ratio is near
    1.

    Parameters
    ----------
    rows : sequence of int
        By segment number, at least 1.
    """

    def __init__(self, rows: Sequence[int]):
        self.weights = [float(n_rows) for n_rows in rows]  # by segment number: rows times slowness
        self._rows = rows
        self._steps = [0] * len(rows)  # by segment number: slowness is 1.25 to this power
        # by segment number: visits of models with a known rate, their seconds, the expected seconds
        self._compared = [(0, 0.0, 0.0)] * len(rows)
        self._spent_s = [0.0] * len(rows)
        self._n_visits_each = 0  # visits planned on each segment
        self._rates: list[float] = []  # of the models measured, sorted
        self._sum = 0.0

    def plan(self, n_epochs: int) -> None:
        """Count the epochs that a model will make."""
        self._n_visits_each += n_epochs

    def known(self, model: ModelProgress, rate: float, visited: Sequence[int]) -> None:
        """Take over a rate (seconds a row) from an earlier record; it weighs as much as one row measured now.

        ``visited`` are the numbers of the segments that the model has visited in its epoch.
        """
        for number in visited:
            self._spent_s[number] += rate * self._rows[number]
        model.measured_s, model.measured_rows = rate, 1.0
        self._set_rate(model, rate)

    def add(self, model: ModelProgress, number: int, seconds: float) -> bool:
        """Add a finished visit on a segment; return whether its slowness has changed."""
        self._spent_s[number] += seconds
        is_other = model.rate is not None and self._compare(number, seconds, model.rate * self._rows[number])
        model.measured_s += seconds
        model.measured_rows += self.weights[number]
        self._set_rate(model, model.measured_s / model.measured_rows)
        return is_other

    def _compare(self, number: int, seconds: float, expected_s: float) -> bool:
        n_before, seconds_before, expected_before = self._compared[number]
        n, total, expected = n_before + 1, seconds_before + seconds, expected_before + expected_s
        self._compared[number] = n, total, expected
        if n < 2 or total <= 0.0 or expected <= 0.0:
            return False
        steps = log(total / expected) / _STEP
        if abs(steps - self._steps[number]) <= _MIN_CHANGE:
            return False
        self._steps[number] = round(steps)
        self.weights[number] = self._rows[number] * exp(_STEP * round(steps))
        return True

    def _set_rate(self, model: ModelProgress, rate: float) -> None:
        if model.rate is not None:
            del self._rates[bisect_left(self._rates, model.rate)]
            self._sum -= model.rate
        insort(self._rates, rate)
        self._sum += rate
        model.rate = rate

    @property
    def mean_rate(self) -> float | None:
        """Return the mean of the models' rates, seconds a row; None before the first measure."""
        return self._sum / len(self._rates) if self._rates else None

    @property
    def alike(self) -> bool:
        """Return whether the models measured cost about the same, as they do before any measure."""
        return not self._rates or self._rates[-1] <= ALIKE * self._rates[0]

    def left(self, model: ModelProgress) -> float:
        """Return the work left of a model, seconds; 0 before the first measure of any model."""
        rate = self.mean_rate if model.rate is None else model.rate
        return model.rows_left * (rate or 0.0)

    def visit_s(self, model: ModelProgress) -> float:
        """Return the seconds of a model's visit, the mean over the segments; 0 before the first measure."""
        rate = self.mean_rate if model.rate is None else model.rate
        return sum(self.weights) / len(self.weights) * (rate or 0.0)

    def most_left(self, numbers: Iterable[int]) -> int:
        """Return the segment with most work left, up to a constant where shards are even; of equals the first.

        That is what was planned, at the mean rate, less what was spent; so it needs no sum over the models.
        """
        planned, weights, spent = self._n_visits_each * (self.mean_rate or 0.0), self.weights, self._spent_s
        return max(numbers, key=lambda number: planned * weights[number] - spent[number])

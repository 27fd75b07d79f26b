"""What visits have cost so far, and the work left that follows from it; longest_first and auto choose by it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from .progress import Progress

ALIKE = 1.1  # rates that differ by no more than this factor count as alike


class MeasuredCosts:
    """Seconds a row of every model measured so far, and seconds spent on every segment.

    A model's rate is the mean over its own visits, weighted by their rows; a model not measured yet counts as
    the mean of the others. Segments are taken to be equally fast.

    Parameters
    ----------
    units : sequence of int
        Rows by segment number, at least 1.
    """

    def __init__(self, units: Sequence[int]):
        self._units = units
        self._spent_s = [0.0] * len(units)
        self._n_visits_each = 0  # visits planned on each segment
        self._rates: list[float] = []  # of the measured models, sorted
        self._sum = 0.0

    def plan(self, n_epochs: int) -> None:
        """Count the epochs that a model will make."""
        self._n_visits_each += n_epochs

    def known(self, model: Progress, rate: float, visited: Sequence[int]) -> None:
        """Take over a rate (seconds a row) from an earlier record; it weighs as much as one row measured now.

        ``visited`` are the numbers of the segments that the model has visited in its epoch.
        """
        for number in visited:
            self._spent_s[number] += rate * self._units[number]
        model.measured_s, model.measured_units = rate, 1
        self._set_rate(model, rate)

    def add(self, model: Progress, number: int, seconds: float) -> None:
        """Add a finished visit on a segment."""
        self._spent_s[number] += seconds
        model.measured_s += seconds
        model.measured_units += self._units[number]
        self._set_rate(model, model.measured_s / model.measured_units)

    def _set_rate(self, model: Progress, rate: float) -> None:
        if model.rate is not None:
            del self._rates[bisect_left(self._rates, model.rate)]
            self._sum -= model.rate
        insort(self._rates, rate)
        self._sum += rate
        model.rate = rate

    @property
    def mean_rate(self) -> float | None:
        """Give the mean of the models' rates, seconds a row; None before the first measure."""
        return self._sum / len(self._rates) if self._rates else None

    @property
    def alike(self) -> bool:
        """Say whether the models measured cost about the same, as they do before any measure."""
        return not self._rates or self._rates[-1] <= ALIKE * self._rates[0]

    def left(self, model: Progress) -> float:
        """Give the work left of a model, seconds; 0 before the first measure of any model."""
        rate = self.mean_rate if model.rate is None else model.rate
        return model.units_left * (rate or 0.0)

    def left_on(self, number: int) -> float:
        """Give the work left on a segment, seconds, up to a constant where shards are even.

        What was planned, at the mean rate, less what was spent; so it costs O(1) and needs no sum over the models.
        """
        return self._n_visits_each * self._units[number] * (self.mean_rate or 0.0) - self._spent_s[number]

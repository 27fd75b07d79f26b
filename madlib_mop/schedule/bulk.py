"""The plan of model averaging: every segment visited at once, then one average, iteration after iteration.

Bulk-synchronous, with a barrier after each iteration; events in, tasks out, like `Scheduler`. Called by the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .work import EpochDone, Evaluation, Unit, Visit

#: `madlib_mop.run.schedule` of a run of model averaging.
AVERAGING = "averaging"
_Started = TypeVar("_Started", "Visit", "Average", "Evaluation")
#: The key of its only model: that of the first row of a model selection table, so both kinds of run draw the same
#: numbers.
MST_KEY = 1


@dataclass(frozen=True, slots=True)
class Average:
    """Averages the segments' states of ``epoch`` into one; ``segment`` does the work."""

    unit: Unit
    segment: int
    epoch: int

    @property
    def at(self) -> int:
        """The segment whose trainer does it."""
        return self.segment


class BulkSynchronous:
    """Plans the iterations of one unit by events; no clock, no threads, no randomness.

    The caller's loop is that of `Scheduler`: start the tasks that `next_tasks` returns, report each task once by
    `finished` or `requeue`, until `done`. Invariants: visits of an epoch start from the same state, so none starts
    before the average of the epoch before, and the evaluations that were added after it, have ended.

    Parameters
    ----------
    unit : tuple of int
    segments : sequence of int
        Segments that have rows, in their order: a visit's position is its segment's place here.
    workers : sequence of int
        Segments whose sessions may do averages and evaluations; all of ``segments`` among them.
    epoch, last_epoch : int
        The epoch to begin, or to go on with, and the last; nothing is left if ``epoch`` is the greater.
    visited : collection of int
        Segments already visited in that epoch.
    """

    schedule = "averaging"

    def __init__(
        self,
        unit: Unit,
        segments: Sequence[int],
        workers: Sequence[int],
        epoch: int,
        last_epoch: int,
        visited: Collection[int] = (),
    ):
        self.epoch = epoch
        self._unit = unit
        self._positions = {segment: number for number, segment in enumerate(segments, 1)}
        self._workers = tuple(workers)
        self._last_epoch = last_epoch
        self._to_visit = [segment for segment in segments if segment not in visited]
        self._in_flight: dict[int, Visit | Average | Evaluation] = {}
        self._down: set[int] = set()
        self._evaluations: dict[int, deque[Evaluation]] = {segment: deque() for segment in workers}
        self._seconds: dict[int, float] = {}  # segment -> seconds of its newest visit
        self._average_s = 0.0

    @property
    def done(self) -> bool:
        """Return whether nothing is in flight and nothing is left to start."""
        return self.epoch > self._last_epoch and not self._in_flight and not any(self._evaluations.values())

    @property
    def n_unfinished(self) -> int:
        """The number of units with visits left or in flight: 1 or 0."""
        return int(self.epoch <= self._last_epoch)

    def next_tasks(self) -> list[Visit | Average | Evaluation]:
        """Start all tasks that can start now, and return them."""
        tasks: list[Visit | Average | Evaluation] = [
            self._start(self._evaluations[s].popleft()) for s in self._free() if self._evaluations[s]
        ]
        if self._evaluating or self.epoch > self._last_epoch:
            return tasks
        for segment in [s for s in self._free() if s in self._to_visit]:
            self._to_visit.remove(segment)
            tasks.append(self._start(Visit(self._unit, segment, self.epoch, self._positions[segment])))
        free = self._free()
        if free and not self._to_visit and not self._in_flight:
            tasks.append(self._start(Average(self._unit, free[0], self.epoch)))
        return tasks

    def finished(self, task: Visit | Average | Evaluation, seconds: float) -> EpochDone | None:
        """Report that a task has ended and its result is committed; return EpochDone for an average."""
        del self._in_flight[task.segment]
        if isinstance(task, Visit):
            self._seconds[task.segment] = seconds
        if not isinstance(task, Average):
            return None
        self._average_s = seconds
        self.epoch += 1
        self._to_visit = list(self._positions)
        return EpochDone(self._unit, task.epoch, last=task.epoch == self._last_epoch)

    def requeue(self, task: Visit | Average | Evaluation) -> None:
        """Report that a task has no result and must be repeated."""
        del self._in_flight[task.segment]
        if isinstance(task, Visit):
            self._to_visit.append(task.segment)
        elif isinstance(task, Evaluation):
            self._evaluations[task.segment].appendleft(task)

    def add_evaluation(self, unit: Unit, segment: int, payload: object = None) -> Evaluation:
        """Queue an evaluation of the newest state at a segment; no visit starts before it has ended."""
        evaluation = Evaluation(unit, segment, payload)
        self._evaluations[segment].append(evaluation)
        return evaluation

    @property
    def begun(self) -> int:
        """The newest epoch of which a visit was made or is in flight."""
        return self.epoch if len(self._to_visit) < len(self._positions) else self.epoch - 1

    def finish_early(self, last_epoch: int) -> None:
        """Start no further epoch after ``last_epoch``, which is at least the one that has `begun`."""
        self._last_epoch = min(self._last_epoch, last_epoch)

    def segment_down(self, segment: int) -> None:
        """Start nothing on a segment until `segment_up`."""
        self._down.add(segment)

    def segment_up(self, segment: int) -> None:
        """End `segment_down`."""
        self._down.discard(segment)

    def trainer_died(self, segment: int) -> None:
        """Do nothing: each segment makes its own visits, whatever its trainer has traced."""

    def seconds_left(self) -> float | None:
        """Estimate the seconds until all iterations are done, from the newest one; None before the first visit."""
        if not self._seconds:
            return None
        return (self._last_epoch - self.epoch + 1) * (max(self._seconds.values()) + self._average_s)

    @property
    def _evaluating(self) -> bool:
        in_flight = any(isinstance(task, Evaluation) for task in self._in_flight.values())
        return in_flight or any(self._evaluations.values())

    def _free(self) -> list[int]:
        return [s for s in self._workers if s not in self._down and s not in self._in_flight]

    def _start(self, task: _Started) -> _Started:
        self._in_flight[task.segment] = task
        return task

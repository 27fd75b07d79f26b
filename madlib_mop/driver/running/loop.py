"""The loop over a run's tasks that the hopper and model averaging share; subclassed in ``hopper.py``, ``averaging.py``.

A plan of `schedule` chooses the next tasks, and the run's segments report events (`segments`). The writers commit the
results themselves, so this process may die at any moment.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mop_backend.messages import Answer, Died, Done, Failed, Order, SqlFailed

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateKey, StateSlots, sweep_slots
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.evaluation.evaluations import Evaluations
from madlib_mop.driver.running.activity import Activity
from madlib_mop.driver.running.retries import Attempts, RetryDecision, Task
from madlib_mop.driver.running.run_signal import RunSignal
from madlib_mop.driver.running.segments import (
    Notified,
    PolicyAnswered,
    PolicyFailed,
    SegmentEvent,
    SegmentLost,
    SegmentReady,
    Segments,
    TaskAnswered,
    TaskFailed,
)
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.driver.session.stopping import was_cancelled
from madlib_mop.schedule import EpochDone
from madlib_mop.schedule.bounds import Efficiency, SpanSums

_Task = TypeVar("_Task", bound=Task)


class TaskPlan(Protocol[_Task]):
    """The interface of a plan of `schedule`: `Scheduler` and `BulkSynchronous`."""

    @property
    def done(self) -> bool: ...
    def next_tasks(self) -> Sequence[_Task]: ...
    def finished(self, task: _Task, seconds: float) -> EpochDone | None: ...
    def requeue(self, task: _Task) -> None: ...
    def segment_up(self, segment: int) -> None: ...
    def segment_down(self, segment: int) -> None: ...
    def trainer_died(self, segment: int) -> None: ...


@dataclass
class InFlight(Generic[_Task]):
    """A segment's current task: its start time, its order, and the slots for its states, by `StateSlots`' keys."""

    task: _Task
    started: float
    order: Order = field(init=False)
    slots: dict[StateKey, int] = field(default_factory=dict)


class RunLoop(ABC, Generic[_Task]):
    """A running run.

    Parameters
    ----------
    record : Record
    segments : Segments
        They open themselves.
    run : RunRow
    progress : ProgressReporter
        Notified of the run's progress.
    """

    #: Set by subclasses.
    _plan: TaskPlan[_Task]
    _slots: StateSlots
    _evaluations: Evaluations
    _stops: EarlyStops

    def __init__(self, record: Record, segments: Segments, run: RunRow, progress: ProgressReporter):
        self._record = record
        self._segments = segments
        self._run_id = run.run_id
        self._n_segments, self._any_trainer = run.n_segments, run.plan.any_trainer
        self._progress = progress
        self._signal = RunSignal(lambda: record.notify_changes(self._run_id))
        self._activity = Activity(lambda tasks: record.write_tasks(self._run_id, tasks))
        self._models = RunModels(record, self._run_id, self._signal.changed)
        self._attempts = Attempts(run.faults, lambda faults: record.set_run(self._run_id, faults=faults))
        self._in_flight: dict[int, InFlight[_Task]] = {}
        self._account = SpanSums()

    def run(self) -> None:
        """Complete the run.

        Raises
        ------
        Cancelled
            If the run was cancelled.
        MopError
            If the run cannot continue; it can be resumed.
        """
        self._record.listen()
        self._record.clear_tasks(self._run_id)
        self._check_cancelled()  # it can have been cancelled before this session listened
        for mst_key in self._stops.resume():
            self._stopped_early(mst_key)
        self._evaluations.add_missing()
        self._segments.open()
        self._begun()
        while not self._is_over():
            self._start_tasks()
            self._slots.empty_dead()
            for event in self._segments.wait(self._signal.seconds_left):
                self._happened(event)
            self._tick()
            self._write_activity()
            self._signal.send_due()
        self._ended()
        self._record.clear_tasks(self._run_id)
        self._slots.finish()
        sweep_slots(self._record)

    def efficiency(self) -> Efficiency:
        """Return how well the run has used its segments until now."""
        return self._account.efficiency(self._n_segments, self._any_trainer)

    def _begun(self) -> None:
        """Called while the segments are opened."""

    def _is_over(self) -> bool:
        """Return whether no task is left."""
        return self._plan.done

    def _notified(self) -> None:
        """Called after a notification, and once a second: commands to the run may be pending."""

    def _policy_over(self, event: PolicyAnswered | PolicyFailed) -> None:
        """Called after an evaluation of the run's policy."""

    def _tick(self) -> None:
        """Called after every event, and at least once a second."""

    def _ended(self) -> None:
        """Called when no task is left."""

    def _start_tasks(self) -> None:
        for task in self._plan.next_tasks():
            flight = InFlight(task, time.monotonic())
            self._in_flight[task.at] = flight
            flight.order = self._order(flight, self._attempts.begin(task))
            self._segments.begin(task.at, flight.order)

    def _write_activity(self) -> None:
        if self._activity.write_due({s: (flight.started, flight.order) for s, flight in self._in_flight.items()}):
            self._signal.changed()

    @abstractmethod
    def _order(self, flight: InFlight[_Task], attempt: int) -> Order:
        """Return a task's order for its writer; set the slots if it writes states."""

    @abstractmethod
    def _done(self, flight: InFlight[_Task], answer: Done, ended: float) -> None:
        """Continue after a completed task; ``ended`` is the time when the writer's answer arrived."""

    @abstractmethod
    def _stopped_early(self, mst_key: int) -> None:
        """Start no further epoch of a model."""

    @abstractmethod
    def _was_kept(self, flight: InFlight[_Task]) -> bool:
        """Return whether a task was committed although its session was lost; if so, continue as after its answer."""

    @abstractmethod
    def _refused(self, task: _Task, decision: RetryDecision) -> None:
        """Continue after a task without a result."""

    def _happened(self, event: SegmentEvent) -> None:
        """Continue after an event."""
        match event:
            case SegmentReady(segment):
                self._plan.segment_up(segment)
            case TaskAnswered(segment, answer):
                self._signal.changed()
                self._answered(self._in_flight.pop(segment), answer)
            case TaskFailed(segment, error):
                flight = self._in_flight.pop(segment)
                if not self._was_kept(flight):
                    self._no_result(flight, SqlFailed(error))
            case SegmentLost(segment):
                self._plan.segment_down(segment)
                lost = self._in_flight.pop(segment, None)
                if lost is not None and not self._was_kept(lost):
                    self._end_write(lost)
                    self._plan.requeue(lost.task)
            case Notified():
                self._check_cancelled()
                self._notified()
            case PolicyAnswered() | PolicyFailed():
                self._policy_over(event)

    def _answered(self, flight: InFlight[_Task], answer: Answer) -> None:
        if isinstance(answer, Done):
            self._done(flight, answer, time.monotonic())
        else:
            assert isinstance(answer, Failed | Died | SqlFailed), "segments answer the others themselves"
            if isinstance(answer, Died):
                self._plan.trainer_died(flight.task.at)
            self._no_result(flight, answer)

    def _no_result(self, flight: InFlight[_Task], answer: Failed | Died | SqlFailed) -> None:
        """Continue after a task that left nothing behind."""
        self._end_write(flight)
        self._refused(flight.task, self._attempts.decide(flight.task, answer))

    def _check_cancelled(self) -> None:
        """Raise Cancelled if somebody has cancelled the run."""
        if (by := self._record.cancelled_by(self._run_id)) is not None:
            raise was_cancelled(self._run_id, by)

    def _begin_write(self, flight: InFlight[_Task], key: StateKey) -> int:
        flight.slots[key] = self._slots.begin_write(key)
        return flight.slots[key]

    def _end_write(self, flight: InFlight[_Task], n_bytes: Mapping[StateKey, int] | None = None) -> None:
        """Record that a task has stopped writing; ``n_bytes`` are the sizes of its committed states, by their keys."""
        for key, slot in flight.slots.items():
            self._slots.end_write(slot, key, (n_bytes or {}).get(key))

"""The loop over a run's tasks that the hopper and model averaging share; subclassed in ``hopper.py``, ``averaging.py``.

It waits on the sockets of the worker sessions, the catalog session and the caller's backend, and processes each
event. A plan of `schedule` chooses the next tasks. The workers commit the results themselves, so this process may die
at any moment.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from mop_backend.frames import Header

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateKey, StateSlots, sweep_slots
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.evaluation.evaluations import Evaluations
from madlib_mop.driver.running.consistency import RunConsistency
from madlib_mop.driver.running.event_loop import EventLoop
from madlib_mop.driver.running.retries import Attempts, RetryDecision, Task
from madlib_mop.driver.running.workers import Workers
from madlib_mop.driver.session.activity import Activity
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.driver.session.run_signal import RunSignal
from madlib_mop.engines.sessions.session import StatementFailure, WorkerSession
from madlib_mop.engines.sessions.worker import Answer
from madlib_mop.schedule import EpochDone
from madlib_mop.schedule.bounds import SpanSums

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


@dataclass
class InFlight(Generic[_Task]):
    """A worker's current task: its start time, its message, and the slots for its states, by `StateSlots`' keys."""

    task: _Task
    started: float
    order: Header = field(default_factory=dict)
    slots: dict[StateKey, int] = field(default_factory=dict)


class RunLoop(ABC, Generic[_Task]):
    """A running run.

    Parameters
    ----------
    record : Record
    workers : Workers
        Sessions by segment; they open themselves.
    run : RunRow
    progress : ProgressReporter
        Notified of the run's progress.
    stdin_fd : int or None
        Readable, at end of file, when the caller's backend wants the run to stop.
    """

    #: Set by subclasses.
    _plan: TaskPlan[_Task]
    _slots: StateSlots
    _evaluations: Evaluations
    _stops: EarlyStops

    def __init__(self, record: Record, workers: Workers, run: RunRow, progress: ProgressReporter, stdin_fd: int | None):
        self._record = record
        self._workers = workers
        self._run_id = run.run_id
        self._progress = progress
        self._signal = RunSignal(lambda: record.notify_changes(self._run_id))
        self._activity = Activity(lambda tasks: record.write_tasks(self._run_id, tasks))
        self._models = RunModels(record, self._run_id, self._signal.changed)
        self._event_loop = EventLoop(record, workers, self._run_id, stdin_fd)
        self._consistency = RunConsistency(record, run, progress)
        workers.check_shards_by(self._consistency.check_shard)
        self._attempts = Attempts(run.faults, lambda faults: record.set_run(self._run_id, faults=faults))
        self._in_flight: dict[int, InFlight[_Task]] = {}
        self.account = SpanSums()

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
        self._event_loop.look_for_cancel()
        for mst_key in self._stops.resume():
            self._stopped_early(mst_key)
        self._evaluations.add_missing()
        self._workers.open_all()
        self._begun()
        while not self._is_over():
            self._start_tasks()
            self._slots.empty_dead()
            for segment, session in self._event_loop.wait(self._signal.seconds_left):
                if segment is None:
                    self._policy_ready()
                else:
                    self._advance(segment, session)
            if self._event_loop.look_for_cancel():
                self._notified()
            self._workers.reopen_lost()
            self._workers.look_at_waits()
            self._tick()
            self._write_activity()
            self._signal.send_due()
        self._ended()
        self._record.clear_tasks(self._run_id)
        self._slots.finish()
        sweep_slots(self._record)

    def _begun(self) -> None:
        """Called while the workers are opened."""

    def _is_over(self) -> bool:
        """Return whether no task is left."""
        return self._plan.done

    def _notified(self) -> None:
        """Called after a notification, and once a second: commands to the run may be pending."""

    def _policy_ready(self) -> None:
        """Called when the session of the run's policy has new data."""

    def _tick(self) -> None:
        """Called after every event, and at least once a second."""

    def _ended(self) -> None:
        """Called when no task is left."""

    def _start_tasks(self) -> None:
        for task in self._plan.next_tasks():
            flight = InFlight(task, time.monotonic())
            self._in_flight[task.segment] = flight
            flight.order = self._order(flight, self._attempts.begin(task))
            self._workers.begin(task.segment, flight.order)

    def _write_activity(self) -> None:
        if self._activity.write_due({s: (flight.started, flight.order) for s, flight in self._in_flight.items()}):
            self._signal.changed()

    @abstractmethod
    def _order(self, flight: InFlight[_Task], attempt: int) -> Header:
        """Return a task's message for its worker; set the slots if it writes states."""

    @abstractmethod
    def _done(self, flight: InFlight[_Task], fields: Header, ended: float) -> None:
        """Continue after a completed task; ``fields`` are the worker's answer, ``ended`` is its arrival time."""

    @abstractmethod
    def _stopped_early(self, mst_key: int) -> None:
        """Start no further epoch of a model."""

    @abstractmethod
    def _was_kept(self, flight: InFlight[_Task]) -> bool:
        """Return whether a task was committed although its session was lost; if so, continue as after its answer."""

    @abstractmethod
    def _refused(self, task: _Task, decision: RetryDecision) -> None:
        """Continue after a task without a result."""

    def _advance(self, segment: int, session: WorkerSession) -> None:
        event = self._workers.advance(segment, session)
        if event is None:
            return
        flight = self._in_flight.pop(segment, None)
        if isinstance(event, StatementFailure):
            self._session_failed(segment, flight, event)
        elif isinstance(event, Answer):
            assert flight is not None, "a worker answers to tasks only"
            self._answered(flight, event.fields)
        else:
            self._plan.segment_up(segment)

    def _answered(self, flight: InFlight[_Task], fields: Header) -> None:
        ended = time.monotonic()
        self._signal.changed()
        if fields["outcome"] == "done":
            self._consistency.check_versions(fields["versions"])
            self._done(flight, fields, ended)
            return
        self._end_write(flight)
        if fields["outcome"] == "host":
            self._host_lost(flight.task, fields)
        else:
            self._refused(flight.task, self._attempts.decide(flight.task, fields))

    def _session_failed(self, segment: int, flight: InFlight[_Task] | None, failure: StatementFailure) -> None:
        """Continue after a lost session or a failed statement; committed work counts."""
        if failure.lost:
            self._plan.segment_down(segment)
            # when this returns, the backend has ended, so it is known what was committed
            self._workers.lost(segment, failure)
        if flight is None or self._was_kept(flight):
            return
        self._end_write(flight)
        if failure.lost:
            self._plan.requeue(flight.task)
        elif failure.host_lost:
            self._host_lost(flight.task, failure.host_lost)
        else:
            self._refused(flight.task, self._attempts.decide(flight.task, {"outcome": "sql", "error": failure.error}))

    def _host_lost(self, task: _Task, fields: Header) -> None:
        """Let a segment wait for its host; the task has no result and is repeated."""
        self._plan.segment_down(task.segment)
        self._workers.host_lost(task.segment, fields)
        self._plan.requeue(task)

    def _begin_write(self, flight: InFlight[_Task], key: StateKey) -> int:
        flight.slots[key] = self._slots.begin_write(key)
        return flight.slots[key]

    def _end_write(self, flight: InFlight[_Task], n_bytes: Mapping[StateKey, int] | None = None) -> None:
        """Record that a task has stopped writing; ``n_bytes`` are the sizes of its committed states, by their keys."""
        for key, slot in flight.slots.items():
            self._slots.end_write(slot, key, (n_bytes or {}).get(key))

"""The loop over a run's tasks that the hopper and model averaging share; subclassed in ``hopper.py``, ``averaging.py``.

A plan of `schedule` chooses the next tasks, and the run's segments report events (`segments`). The writers commit the
results themselves, so this process may die at any moment. After a task that left no result, `Attempts` decides whether
it is tried again. People who watch are told by `RunSignal`, soon after a run has changed and not for each visit, and by
`Activity`: tasks of segments that have lasted for a second, written at most once a second.
"""

from __future__ import annotations

import json
import re
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from mop_backend.frames import Header
from mop_backend.messages import (
    Answer,
    AverageStates,
    ComputeMetrics,
    Died,
    Done,
    Evaluate,
    Failed,
    Order,
    SqlFailed,
    StateAway,
    StateGone,
    Train,
)

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateKey, StateSlots, sweep_slots
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.evaluation.evaluations import Evaluations, evaluation_task
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
from madlib_mop.errors import is_about_memory
from madlib_mop.schedule import Average, EpochDone, Evaluation, Visit
from madlib_mop.schedule.bounds import Efficiency, SpanSums

Task = Visit | Evaluation | Average


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
        They are opening.
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
        # In a run that nobody changes, the hooks `_begun`, `_notified`, `_tick` and `_ended` only look for changes.
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
        """Called while the segments are opening."""

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

    def _without_state(self, task: _Task, answer: StateAway | StateGone) -> None:
        """Continue after a task whose models' states could not be had from their host."""
        raise AssertionError("the states of this run are on this server")

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
        elif isinstance(answer, StateAway | StateGone):
            if not self._was_kept(flight):  # another session may have done the same order
                self._end_write(flight)
                self._without_state(flight.task, answer)
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


#: By `fault_key` of a task: the number of its failures (``faults``), and how often its trainer was killed (``killed``).
Faults = Mapping[str, Mapping[str, int]]
_SIGNALS: dict[int, str] = {number: number.name for number in signal.Signals}
MAX_FAULTS = 4
MAX_MEMORY_FAULTS = 2
MAX_KILLED = 100


@dataclass(frozen=True)
class RetryDecision:
    """The decision after a failed attempt.

    Attributes
    ----------
    again : bool
        Retry the task.
    ends_run : bool
        No model can continue, because the data are the cause.
    error : dict
        ``sqlstate``, ``message``, ``hint``.
    """

    again: bool
    ends_run: bool
    error: Header

    def reason(self, task: Task) -> str:
        """Return in one line why a model failed, where, and what to do."""
        hint = self.error.get("hint")
        return f"{self.error['message']} ({place_of(task)})" + (f"; {hint}" if hint else "")


def place_of(task: Task) -> str:
    """Return the location of a task."""
    where = "evaluation"
    if isinstance(task, Visit):
        where = f"epoch {task.epoch}, position {task.position}"
    elif isinstance(task, Average):
        where = f"average of epoch {task.epoch}"
    return f"{where}, segment {task.segment}"


def fault_key(task: Task) -> str:
    """Return the key of a task in ``run.faults``: a driver of a later version continues with the counts of this one.

    A task of one model has the text that versions before 1.1.0 recorded, the `repr` of their tasks; so these names and
    their order do not change. Two kinds of counts of version 1.0.0 are not found and begin again at 0, so that a task
    gets some attempts more: those of fused models, which had numbers below 0 (``Visit(model=-1, ...)``), and those of
    evaluations, which were of one shard each.
    """
    models = f"model={task.unit[0]}" if len(task.unit) == 1 else f"models={task.unit}"
    where = f"{models}, segment={task.segment}"
    match task:
        case Visit():
            return f"Visit({where}, epoch={task.epoch}, position={task.position})"
        case Average():
            return f"Average({where}, epoch={task.epoch})"
        case Evaluation():
            of = evaluation_task(task)
            what = f"mst_keys={of.mst_keys}, shards={of.shards}, epoch={of.epoch}"
            payload = f"EvaluationTask({what}, computes_results={of.computes_results})"
            return f"Evaluation({where}, payload={payload})"


class Attempts:
    """Counts the attempts at each task and the faults among them; a killed trainer does not count as a fault of its
    task.

    Faults of tasks to retry are recorded, so a resumed run continues with the counts. The faults of a task that ended
    its model or the run are cleared: resuming a failed run implies that its cause was
    fixed.

    Parameters
    ----------
    recorded : mapping, optional
        The value that an earlier driver passed to ``keep``.
    keep : callable, optional
        Records a dict, of JSON types, of failed tasks to retry.
    """

    def __init__(
        self,
        recorded: Faults | None = None,
        keep: Callable[[Faults], None] | None = None,
    ):
        self._recorded = {task: dict(counts) for task, counts in (recorded or {}).items()}
        self._store = keep or (lambda recorded: None)
        self._faults = Counter({task: counts["faults"] for task, counts in self._recorded.items()})
        self._killed = Counter({task: counts["killed"] for task, counts in self._recorded.items()})
        self._begun = self._faults + self._killed

    def begin(self, task: Task) -> int:
        """Count an attempt; return its number, from 1."""
        key = fault_key(task)
        self._begun[key] += 1
        return self._begun[key]

    def decide(self, task: Task, answer: Failed | Died | SqlFailed) -> RetryDecision:
        """Decide about a writer's answer without a result, and record tasks to retry."""
        key, before = fault_key(task), dict(self._recorded)
        decision = self._decided(key, answer)
        if decision.again:
            self._recorded[key] = {"faults": self._faults[key], "killed": self._killed[key]}
        else:
            self._recorded.pop(key, None)
        if self._recorded != before:
            self._store(dict(self._recorded))
        return decision

    def _decided(self, key: str, answer: Failed | Died | SqlFailed) -> RetryDecision:
        match answer:
            case Died(status, stderr):
                return self._died(key, status, stderr)
            case SqlFailed(error):
                return self._sql(key, error)
            case Failed(error, "model"):
                return RetryDecision(False, False, error)
            case Failed(error, "input"):
                return RetryDecision(False, True, error)
            case Failed(error, kind):
                return self._count(key, error, MAX_MEMORY_FAULTS if kind == "memory" else MAX_FAULTS)

    def _died(self, key: str, status: int, stderr: str) -> RetryDecision:
        if status == -signal.SIGKILL:
            self._killed[key] += 1
            again = self._killed[key] < MAX_KILLED
            message = f"its trainer was killed {self._killed[key]} times"
            hint = "Something on this host, such as the kernel's out-of-memory killer, kills the trainers."
            return RetryDecision(again, False, {"sqlstate": "53200", "message": message, "hint": hint})
        memory = ran_out_of_memory(status, stderr)
        name = _SIGNALS.get(-status, f"status {status}")
        message = "its trainer ran out of memory" if memory else f"its trainer died repeatedly ({name})"
        hint = (
            "Use a smaller batch_size or a smaller network, or raise madlib_mop.trainer_memory_mb."
            if memory
            else f"Its last output: {last_words(stderr)}"
        )
        limit = MAX_MEMORY_FAULTS if memory else MAX_FAULTS
        return self._count(key, {"sqlstate": "53200", "message": message, "hint": hint}, limit)

    def _sql(self, key: str, error: Header) -> RetryDecision:
        """Decide after a failed statement of a segment: missing rights or objects end the run; other errors may be
        temporary."""
        sqlstate = error["sqlstate"] or ""
        if sqlstate == "42P01" and not error.get("hint"):  # the table was dropped, or the engine has moved the shard
            error = {
                **error,
                "hint": "Once the host is available again, madlib_mop.resume continues the run and finds moved shards.",
            }
        if sqlstate == "42501" and not error.get("hint"):
            hint = (
                "If the run's owner has lost a right, grant it again (madlib_mop.grant_use: those of the extension); "
                "madlib_mop.resume then continues the run."
            )
            error = {**error, "hint": hint}
        if sqlstate[:2] in ("42", "28", "22") or sqlstate == "55000":
            return RetryDecision(False, True, error)
        if sqlstate == "55P03":
            hint = "A transaction, possibly the caller's own, holds a lock on a table that the statement needs."
            error = {**error, "hint": hint}
            return RetryDecision(False, True, error)
        self._faults[key] += 1
        n_faults = self._faults[key]
        return RetryDecision(n_faults < MAX_FAULTS, n_faults >= MAX_FAULTS, error)

    def _count(self, key: str, error: Header, limit: int) -> RetryDecision:
        self._faults[key] += 1
        return RetryDecision(self._faults[key] < limit, False, error)


#: Start of the report of ``faulthandler`` after a fatal signal: the stacks of all threads, and extension modules.
_STACKS = re.compile(r"^Fatal Python error: ", re.MULTILINE)
#: The last line of a traceback; messages of TensorFlow's exceptions continue on the following lines.
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::(?P<text>.*))?$")
_MEMORY_ERRORS = ("MemoryError", "_ArrayMemoryError", "ResourceExhaustedError")
_OWN_REPORT = ("madlib_mop.trainer.process.failures.RequestFailure", " not enough memory")
#: Lines with the reason of an abort in C++ code: the runtime's (the last one of these with PyTorch's text), LLVM's, and
#: TensorFlow's log lines of severity F.
_FATAL = (
    re.compile(r"terminate called .*\bstd::bad_alloc\b"),
    re.compile(r"\s*what\(\):\s+(std::bad_alloc|MemoryError)\b"),
    re.compile(r"\s*what\(\):\s.*DefaultCPUAllocator: can't allocate memory"),
    re.compile(r"LLVM ERROR: out of memory"),
    re.compile(r"(F\d{4} |\S+ \S+: F )[^\]]*\].*(OOM when allocating|RESOURCE_EXHAUSTED|ran out of memory)"),
)


def ran_out_of_memory(status: int, stderr: str) -> bool:
    """Return whether the last message of a trainer reports a lack of memory.

    Parameters
    ----------
    status : int
        Exit status; ``-n`` where signal n ended it.
    stderr : str
        The end of its standard error.
    """
    lines = _before_stacks(stderr).splitlines()
    exceptions = [number for number, line in enumerate(lines) if _is_exception(line)]
    if status >= 0:
        return bool(exceptions) and _is_memory_error(lines[exceptions[-1]])
    after = exceptions[-1] + 1 if exceptions else 0
    return any(pattern.match(line) for line in lines[after:] for pattern in _FATAL)


def last_words(stderr: str) -> str:
    """Return the last line before the stacks, at most 300 characters of it; "none" if there is none."""
    lines = [line.strip() for line in _before_stacks(stderr).splitlines() if line.strip()]
    if not lines:
        lines = [line.strip() for line in stderr.splitlines() if line.strip()][:1] or ["none"]
    return lines[-1][-300:]


def _before_stacks(stderr: str) -> str:
    found = _STACKS.search(stderr)
    return stderr[: found.start()] if found else stderr


def _is_exception(line: str) -> bool:
    found = _EXCEPTION.match(line)
    return found is not None and found["name"].endswith(("Error", "Exception", "Failure", "Exit", "Interrupt"))


def _is_memory_error(line: str) -> bool:
    found = _EXCEPTION.match(line)
    if found is None:
        return False
    name, text = found["name"], found["text"] or ""
    last = name.rpartition(".")[2]
    is_own = name == _OWN_REPORT[0] and text.startswith(_OWN_REPORT[1])
    return is_own or last in _MEMORY_ERRORS or is_about_memory(last, text)


SIGNAL_PAUSE_S = 1.0


class RunSignal:
    """Collects changes, and sends them at most every `SIGNAL_PAUSE_S` seconds.

    Parameters
    ----------
    send : callable
        Sends a notification.
    clock : callable
        Returns seconds.
    """

    def __init__(self, send: Callable[[], None], clock: Callable[[], float] = time.monotonic):
        self._send = send
        self._clock = clock
        self._is_pending = False
        self._next = 0.0

    def changed(self) -> None:
        """Note that the run has changed; a transaction that is open now ends before the next `send_due`."""
        self._is_pending = True

    @property
    def seconds_left(self) -> float:
        """Seconds until `send_due` has something to send; infinite if nothing has changed."""
        return max(0.0, self._next - self._clock()) if self._is_pending else float("inf")

    def send_due(self) -> None:
        """Send the changes, unless others were sent just before."""
        if self.seconds_left > 0:
            return
        self._is_pending = False
        self._send()
        self._next = self._clock() + SIGNAL_PAUSE_S


LEAST_S = WRITE_PAUSE_S = 1.0


class Activity:
    """Writes the tasks of segments that have changed.

    Parameters
    ----------
    write : callable
        Writes a sequence of (segment, task as JSON or None, seconds since it began).
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        write: Callable[[Sequence[tuple[int, str | None, float]]], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._write = write
        self._clock = clock
        self._next = 0.0
        self._written: dict[int, float] = {}

    def write_due(self, flights: Mapping[int, tuple[float, Order]]) -> bool:
        """Write what has changed, unless that was done just before; return whether anything was written.

        Parameters
        ----------
        flights : mapping of int to (float, Order)
            For each segment with a task, when it began, and the order for its writer.
        """
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + WRITE_PAUSE_S
        lasting = {s: (began, order) for s, (began, order) in flights.items() if now - began >= LEAST_S}
        ended = [(segment, None, 0.0) for segment in self._written if segment not in lasting]
        begun = [
            (segment, json.dumps(task_of(order)), now - began)
            for segment, (began, order) in lasting.items()
            if self._written.get(segment) != began
        ]
        self._written = {segment: began for segment, (began, _) in lasting.items()}
        if ended or begun:
            self._write([*ended, *begun])
        return bool(ended or begun)


def task_of(order: Order) -> dict[str, Any]:
    """Return a task as the record has it: ``kind``, ``mst_keys``, and ``epoch`` unless it is an evaluation."""
    match order:
        case Train(members=members, epoch=epoch):
            return {"kind": "visit", "mst_keys": [write.mst_key for write in members if write], "epoch": epoch}
        case AverageStates(write=write, epoch=epoch):
            return {"kind": "average", "mst_keys": [write.mst_key], "epoch": epoch}
        case Evaluate(members=keys):
            return {"kind": "evaluation", "mst_keys": [key for key in keys if key is not None]}
        case ComputeMetrics(mst_key=mst_key):
            return {"kind": "evaluation", "mst_keys": [mst_key]}
    raise TypeError(f"segments are given no such order as a task: {order}")

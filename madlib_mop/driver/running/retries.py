"""Decides after a failed task: retry it, fail its model, or end the run. Called by the hopper."""

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mop_backend.frames import Header
from mop_backend.messages import Died, Failed, SqlFailed

from madlib_mop.driver.running.deaths import last_words, ran_out_of_memory
from madlib_mop.schedule import Average, Evaluation, Visit

Task = Visit | Evaluation | Average
#: By task: the number of its failures (``faults``), and how often its trainer was killed (``killed``).
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
        self._begun[repr(task)] += 1
        return self._begun[repr(task)]

    def decide(self, task: Task, answer: Failed | Died | SqlFailed) -> RetryDecision:
        """Decide about a writer's answer without a result, and record tasks to retry."""
        decision, before = self._decided(task, answer), dict(self._recorded)
        if decision.again:
            counts = {"faults": self._faults[repr(task)], "killed": self._killed[repr(task)]}
            self._recorded[repr(task)] = counts
        else:
            self._recorded.pop(repr(task), None)
        if self._recorded != before:
            self._store(dict(self._recorded))
        return decision

    def _decided(self, task: Task, answer: Failed | Died | SqlFailed) -> RetryDecision:
        match answer:
            case Died(status, stderr):
                return self._died(task, status, stderr)
            case SqlFailed(error):
                return self._sql(task, error)
            case Failed(error, "model"):
                return RetryDecision(False, False, error)
            case Failed(error, "input"):
                return RetryDecision(False, True, error)
            case Failed(error, kind):
                return self._count(task, error, MAX_MEMORY_FAULTS if kind == "memory" else MAX_FAULTS)

    def _died(self, task: Task, status: int, stderr: str) -> RetryDecision:
        if status == -signal.SIGKILL:
            self._killed[repr(task)] += 1
            again = self._killed[repr(task)] < MAX_KILLED
            message = f"its trainer was killed {self._killed[repr(task)]} times"
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
        return self._count(task, {"sqlstate": "53200", "message": message, "hint": hint}, limit)

    def _sql(self, task: Task, error: Header) -> RetryDecision:
        """Decide after a failed statement of the worker: missing rights or objects end the run; other errors may be
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
        self._faults[repr(task)] += 1
        n_faults = self._faults[repr(task)]
        return RetryDecision(n_faults < MAX_FAULTS, n_faults >= MAX_FAULTS, error)

    def _count(self, task: Task, error: Header, limit: int) -> RetryDecision:
        self._faults[repr(task)] += 1
        return RetryDecision(self._faults[repr(task)] < limit, False, error)

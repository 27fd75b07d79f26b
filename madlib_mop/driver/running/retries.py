"""Decides after a failed task: retry it, fail its model, or end the run. Called by ``loop.py``."""

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mop_backend.frames import Header
from mop_backend.messages import Died, Failed, SqlFailed

from madlib_mop.driver.evaluation.metrics import evaluation_task
from madlib_mop.driver.running.deaths import last_words, ran_out_of_memory
from madlib_mop.schedule import Average, Evaluation, Visit

Task = Visit | Evaluation | Average
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
        self._faults[key] += 1
        n_faults = self._faults[key]
        return RetryDecision(n_faults < MAX_FAULTS, n_faults >= MAX_FAULTS, error)

    def _count(self, key: str, error: Header, limit: int) -> RetryDecision:
        self._faults[key] += 1
        return RetryDecision(self._faults[key] < limit, False, error)

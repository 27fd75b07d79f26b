"""The handle of a job: a call that a job worker runs without its caller."""

import time
from typing import TYPE_CHECKING, Any

from madlib_mop.catalog.rows.states import JobState
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.calling.statements import whole_number
from madlib_mop.client.calls import Calls, read_own
from madlib_mop.client.runs import Run
from madlib_mop.errors import NotReady

if TYPE_CHECKING:
    import pandas

_ROW = "SELECT state, run_id, error, waits_for FROM madlib_mop.job WHERE job_id = %s"
_ALL = "SELECT * FROM madlib_mop.job WHERE job_id = %s"
_OPEN = (JobState.WAITING, JobState.RUNNING)
_LOOK_S = 2.0


class Job:
    """One job; the handle has only its number.

    Attributes
    ----------
    job_id : int
    """

    def __init__(self, calls: Calls, job_id: int):
        self._calls = calls
        self.job_id = whole_number(job_id, "job_id")

    def __repr__(self) -> str:
        return f"Job({self.job_id})"

    @property
    def state(self) -> str:
        """``waiting``, ``running``, ``finished``, ``failed``, ``cancelled`` or ``skipped``."""
        return str(self._row()[0])

    def frame(self) -> "pandas.DataFrame":
        """Return the job's row of view ``madlib_mop.job``."""
        return read_own(self._calls.sessions, _ALL, [self.job_id])

    def run(self, timeout_s: float | None = None) -> Run:
        """Wait until the job has started its run; return the run.

        Raises
        ------
        TimeoutError
            After ``timeout_s`` seconds. The job stays in the queue; the message says what it waits for.
        NotReady
            If the job ended without a run.
        """
        return Run(self._calls, int(self._await(timeout_s, lambda row: row[1] is not None)[1]))

    def wait(self, timeout_s: float | None = None) -> Run | None:
        """Wait until the job has ended; return its run, or None if it is no training.

        Raises
        ------
        TimeoutError
            After ``timeout_s`` seconds.
        NotReady
            If the job failed, or was cancelled or skipped; the message has the reason.
        """
        row = self._await(timeout_s, lambda row: row[0] == JobState.FINISHED)
        return None if row[1] is None else Run(self._calls, int(row[1]))

    def cancel(self) -> bool:
        """Cancel the job and its repetitions. Return False if it has already ended."""
        return bool(self._calls.call("cancel_job", job_id=self.job_id))

    def _await(self, timeout_s: float | None, is_met: Any) -> tuple[Any, ...]:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        listener = self._calls.sessions.listen()
        try:
            while True:
                row = self._row()
                if is_met(row):
                    return row
                state, _, error, waits_for = row
                if state not in _OPEN:
                    raise noted(NotReady(f"job {self.job_id} is {state}: {error or 'it has no run'}"))
                left = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
                if left <= 0:
                    why = f"; it waits for {waits_for}" if waits_for else ""
                    raise TimeoutError(f"job {self.job_id} is still {state} after {timeout_s} s{why}")
                listener.wait(None, time.monotonic() + left)
        finally:
            listener.close()

    def _row(self) -> tuple[Any, ...]:
        rows = self._calls.sessions.rows(_ROW, [self.job_id])
        if not rows:
            raise bad_input(f"there is no job {self.job_id} that this role may see")
        return rows[0]

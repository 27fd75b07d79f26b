"""Reads a run again and again, whenever its driver tells of a change; called by `runs`."""

import time

from madlib_mop.catalog.live.facts import RUNS_CHANNEL, RunNow
from madlib_mop.catalog.live.reading import read_run
from madlib_mop.client.calling.errors import noted
from madlib_mop.client.calling.sessions import Sessions, rows_of
from madlib_mop.errors import no_run

#: Seconds after which a run is read again although nobody told of a change.
_QUIET_S = 5.0
#: Least time between two readings: seconds, and as a multiple of the time that the last one took.
_MIN_PAUSE_S, _PAUSE_FACTOR = 0.5, 10


def state_of_run(sessions: Sessions, run_id: int, limit: int) -> RunNow:
    """Return the state of a run, with the best ``limit`` models. Raises InvalidParameter if the role sees no such
    run."""
    with sessions.begin() as connection:
        now = read_run(lambda statement, values: rows_of(connection, statement, values), run_id, limit)
    if now is None:
        raise noted(no_run(run_id, "db.runs() lists those that it may see."))
    return now


class RunWatch:
    """Waits for changes of one run, in a session of its own.

    Parameters
    ----------
    sessions : Sessions
    run_id : int
    limit : int
        How many models are read.
    """

    def __init__(self, sessions: Sessions, run_id: int, limit: int = 5):
        self._sessions, self._run_id, self._limit = sessions, run_id, limit
        self.listener = sessions.listen(RUNS_CHANNEL)
        self._next = 0.0

    def read(self) -> RunNow:
        """Return the state of the run."""
        began = time.monotonic()
        now = state_of_run(self._sessions, self._run_id, self._limit)
        ended = time.monotonic()
        self._next = ended + max(_MIN_PAUSE_S, _PAUSE_FACTOR * (ended - began))
        return now

    def wait(self, until: float | None = None) -> None:
        """Wait until it is time to read the run again: it has changed, 5 seconds have passed, or it is ``until``.

        Parameters
        ----------
        until : float, optional
            A time of `time.monotonic`.
        """
        end = min(time.monotonic() + _QUIET_S, float("inf") if until is None else until)
        if not self.listener.sleep(min(self._next, end) - time.monotonic()):
            self.listener.wait(str(self._run_id), end - time.monotonic())

    def close(self) -> None:
        """End the session."""
        self.listener.close()

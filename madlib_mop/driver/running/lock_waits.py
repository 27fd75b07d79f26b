"""Says which locks the sessions of a run wait for, such as those of maintenance; for ``segment_sessions.py``.

Statements of writers and readers wait for locks without a limit. Only a lock of the caller's own session is an error:
the caller's statement waits for the run, so that lock would never be released.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from madlib_mop.catalog.record import Record
from madlib_mop.errors import from_dict

_POLL_EVERY_S = 2.0
_WAITS = """
SELECT l.pid, coalesce(l.relation::pg_catalog.regclass::pg_catalog.text, l.locktype), pg_catalog.pg_blocking_pids(l.pid)
FROM pg_catalog.pg_stat_activity a JOIN pg_catalog.pg_locks l ON l.pid = a.pid AND NOT l.granted
WHERE a.pid = ANY (%s) AND a.wait_event_type = 'Lock'
"""


class LockWaits:
    """The locks that sessions wait for.

    Parameters
    ----------
    record : Record
    caller_pid : int or None
        The session that has called the run.
    tell : callable
        Called with a sentence for each new wait.
    """

    def __init__(self, record: Record, caller_pid: int | None, tell: Callable[[str], None]):
        self._record = record
        self._caller_pid = caller_pid
        self._tell = tell
        self._told: set[tuple[int, str]] = set()
        self._poll_at = 0.0

    def poll(self, sessions: Mapping[int, int]) -> None:
        """Find, at most every two seconds, which of the sessions that work wait for a lock.

        Parameters
        ----------
        sessions : mapping of int to int
            Segment of each session, by its process ID.

        Raises
        ------
        MopError
            55P03, if the caller's own session holds the lock.
        """
        if not sessions or time.monotonic() < self._poll_at:
            return
        self._poll_at = time.monotonic() + _POLL_EVERY_S
        waits = self._record.execute(_WAITS, [list(sessions)])
        self._told &= {(pid, what) for pid, what, _ in waits}
        for pid, what, blockers in waits:
            if self._caller_pid in blockers:
                raise from_dict(
                    {
                        "sqlstate": "55P03",
                        "message": f"segment {sessions[pid]} waits for a lock on {what}, which the caller's own"
                        f" transaction holds (process ID {self._caller_pid})",
                        "hint": "Commit the transaction before the call.",
                    }
                )
            if (pid, what) not in self._told:
                self._told.add((pid, what))
                self._tell(f"segment {sessions[pid]} waits for a lock on {what}, held by {_processes(blockers)}")


def _processes(pids: Sequence[int]) -> str:
    """Return the holders of a lock; a prepared transaction has the process ID 0."""
    known = sorted({pid for pid in pids if pid})
    if not known:
        return "a prepared transaction"
    return f"the session with process ID {known[0]}" if len(known) == 1 else f"sessions {', '.join(map(str, known))}"

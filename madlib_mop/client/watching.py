"""Reads a run again and again, whenever its driver tells of a change, and finds its output table; called by `runs`."""

import time
from dataclasses import dataclass

from madlib_mop.catalog.live.facts import RUNS_CHANNEL, RunNow
from madlib_mop.catalog.live.reading import read_run
from madlib_mop.catalog.names import Relation
from madlib_mop.client.calling.errors import noted
from madlib_mop.client.calling.sessions import ClientSessions, rows_of
from madlib_mop.errors import no_run

#: Seconds after which a run is read again although nobody told of a change.
_QUIET_S = 5.0
#: Least time between two readings: seconds, and as a multiple of the time that the last one took.
_MIN_PAUSE_S, _PAUSE_FACTOR = 0.5, 10
#: A run of another session is finished a moment before its transaction ends, which writes the output table. So the
#: table of a run that has just ended is waited for: seconds.
_COMMIT_S, _COMMIT_PAUSE_S = 10.0, 0.1
_OUTPUT = """
SELECT r.plan #>> '{output,schema}', r.plan #>> '{output,name}', c.oid IS NOT NULL,
       EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
               WHERE a.attrelid = c.oid AND a.attname = 'mst_key' AND NOT a.attisdropped),
       pg_catalog.clock_timestamp() < r.ended_at + interval '1 minute'
FROM madlib_mop.run AS r
LEFT JOIN (pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid)
ON n.nspname = r.plan #>> '{output,schema}' AND c.relname = r.plan #>> '{output,name}'
WHERE r.run_id = %s
"""


@dataclass(frozen=True, slots=True)
class RunOutput:
    """The output table of a run.

    Attributes
    ----------
    table : Relation
    is_there : bool
    has_keys : bool
        Whether it has a column ``mst_key``: the table of ``madlib_keras_fit`` has one model and no such column.
    just_ended : bool or None
        Whether the run has ended within the last minute; None if it has not ended.
    """

    table: Relation
    is_there: bool
    has_keys: bool
    just_ended: bool | None


def read_output(sessions: ClientSessions, run_id: int) -> RunOutput:
    """Return the output table of a run. Raises InvalidParameter if the role sees no such run."""
    rows = sessions.rows(_OUTPUT, [run_id])
    if not rows:
        raise noted(no_run(run_id, "db.runs() lists those that it may see."))
    ((schema, name, is_there, has_keys, just_ended),) = rows
    return RunOutput(Relation(schema, name), is_there, has_keys, just_ended)


def await_output(sessions: ClientSessions, run_id: int) -> None:
    """Wait a moment for the output table of a run that has just finished in another session."""
    until = time.monotonic() + _COMMIT_S
    while time.monotonic() < until:
        output = read_output(sessions, run_id)
        if output.is_there or not output.just_ended:
            return
        time.sleep(_COMMIT_PAUSE_S)


def state_of_run(sessions: ClientSessions, run_id: int, limit: int) -> RunNow:
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
    sessions : ClientSessions
    run_id : int
    limit : int
        How many models are read.
    """

    def __init__(self, sessions: ClientSessions, run_id: int, limit: int = 5):
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

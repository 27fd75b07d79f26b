"""Reads a run again and again, whenever its driver tells of a change, and finds its output table; called by `runs`."""

from dataclasses import dataclass

from madlib_mop.catalog.live.facts import RunNow
from madlib_mop.catalog.live.following import RunFollower, wait_for_output
from madlib_mop.catalog.live.reading import read_run
from madlib_mop.catalog.names import Relation
from madlib_mop.client.calling.errors import noted
from madlib_mop.client.calling.sessions import ClientSessions, rows_of
from madlib_mop.errors import no_run

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

    def look() -> RunOutput | None:
        output = read_output(sessions, run_id)
        return output if output.is_there or not output.just_ended else None

    wait_for_output(look)


def state_of_run(sessions: ClientSessions, run_id: int, limit: int) -> RunNow:
    """Return the state of a run, with the best ``limit`` models. Raises InvalidParameter if the role sees no such
    run."""
    with sessions.begin() as connection:
        now = read_run(lambda statement, values: rows_of(connection, statement, values), run_id, limit)
    if now is None:
        raise noted(no_run(run_id, "db.runs() lists those that it may see."))
    return now


class RunWatch(RunFollower):
    """Reads one run again and again; it hears of changes in a session of its own.

    Parameters
    ----------
    sessions : ClientSessions
    run_id : int
    limit : int
        How many models are read.
    """

    def __init__(self, sessions: ClientSessions, run_id: int, limit: int = 5):
        super().__init__(sessions.listen(), run_id)
        self._sessions, self._limit = sessions, limit

    def read(self) -> RunNow:
        """Return the state of the run."""
        with self.pace.reading():
            return state_of_run(self._sessions, self.run_id, self._limit)

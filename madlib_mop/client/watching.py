"""Reads a run again and again, whenever its driver tells of a change, and finds its output table; called by `runs`."""

from madlib_mop.catalog.facts.now import RunNow, read_now
from madlib_mop.catalog.facts.outputs import RunOutput, read_output
from madlib_mop.catalog.live.following import RunFollower, wait_for_output
from madlib_mop.client.calling.errors import noted
from madlib_mop.client.calling.sessions import ClientSessions, rows_of
from madlib_mop.errors import no_run


def find_output(sessions: ClientSessions, run_id: int) -> RunOutput:
    """Return the output table of a run. Raises InvalidParameter if the role sees no such run."""
    output = read_output(sessions.rows, run_id)
    if output is None:
        raise noted(no_run(run_id, "db.runs() lists those that it may see."))
    return output


def await_output(sessions: ClientSessions, run_id: int) -> None:
    """Wait a moment for the output table of a run that has just finished in another session."""

    def look() -> RunOutput | None:
        output = find_output(sessions, run_id)
        return output if output.is_there or not output.just_ended else None

    wait_for_output(look)


def state_of_run(sessions: ClientSessions, run_id: int, limit: int) -> RunNow:
    """Return the state of a run, with the best ``limit`` models. Raises InvalidParameter if the role sees no such
    run."""
    with sessions.begin() as connection:
        now = read_now(lambda statement, values: rows_of(connection, statement, values), run_id, limit)
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

"""The session of `madlib-mop watch`: it reads a run when the run's driver tells of a change; all three forms use it."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg2

from madlib_mop.catalog.facts.now import RunNow, read_now
from madlib_mop.catalog.live.following import RunFollower, RunListener
from madlib_mop.cli.sessions import connect
from madlib_mop.errors import MopError, connection_lost, no_run, read_server_error


class WatchSession:
    """A session that reads one run, with the rights of an ordinary login.

    Parameters
    ----------
    dsn : str
    run_id : int

    Raises
    ------
    NotReady
        If the login fails.
    """

    def __init__(self, dsn: str, run_id: int):
        self.dsn = dsn
        self.run_id = run_id
        self._connection = connect(dsn)
        self._connection.autocommit = True
        self._fetch("SET jit = off", [])
        self.news = RunFollower(RunListener(self._connection, self._connection.close), run_id)

    def __enter__(self) -> "WatchSession":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.news.close()

    def read(self, limit: int = 100) -> RunNow:
        """Return the state of the run.

        Raises
        ------
        InvalidParameter
            If there is no such run, or the role may not see it.
        NotReady
            If the connection is lost.
        """
        with self.news.pace.reading():
            now = read_now(self._fetch, self.run_id, limit)
        if now is None:
            raise no_run(self.run_id, "SELECT run_id, state FROM madlib_mop.progress;")
        return now

    def _fetch(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, values)
                rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
                return rows
        except psycopg2.Error as error:
            raise mop_error(error) from None


def mop_error(error: psycopg2.Error) -> MopError:
    """Return an error of the server as one of ours: its sentence and its hint."""
    found = read_server_error(error)
    return found.as_error() if found.sqlstate is not None else connection_lost("Run the command again.")

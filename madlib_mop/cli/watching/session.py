"""The session of `madlib-mop watch`: it reads a run when the run's driver tells of a change; all three forms use it."""

import select
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg2

from madlib_mop.catalog.live.facts import RUNS_CHANNEL, RunNow
from madlib_mop.catalog.live.reading import read_run
from madlib_mop.cli.sessions import connect
from madlib_mop.errors import MopError, connection_lost, no_run, read_server_error

#: Seconds after which a run is read again although nobody told of a change.
_QUIET_S = 5.0
#: Least time between two readings: seconds, and as a multiple of the time that the last one took.
_MIN_PAUSE_S, _PAUSE_FACTOR = 0.5, 10


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
        self._told = True
        self._read_at = 0.0
        self._pause_s = 0.0
        self._fetch("SET search_path = pg_catalog, pg_temp", [])  # or operators of other roles would serve the queries
        self._fetch("SET jit = off", [])
        try:
            self._fetch(f"LISTEN {RUNS_CHANNEL}", [])
        except MopError as error:
            if error.sqlstate != "25006":  # a standby: there the run is read every few seconds
                raise

    def __enter__(self) -> "WatchSession":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._connection.close()

    def read(self, limit: int = 100) -> RunNow:
        """Return the state of the run.

        Raises
        ------
        InvalidParameter
            If there is no such run, or the role may not see it.
        NotReady
            If the connection is lost.
        """
        began = time.monotonic()
        self._told = False
        now = read_run(self._fetch, self.run_id, limit)
        if now is None:
            raise no_run(self.run_id, "SELECT run_id, state FROM madlib_mop.progress;")
        self._read_at = time.monotonic()
        self._pause_s = max(_MIN_PAUSE_S, _PAUSE_FACTOR * (self._read_at - began))
        return now

    def wait(self, *others: int, until: float | None = None) -> list[int]:
        """Wait for a change of the run, for 5 seconds without one, or for input.

        Parameters
        ----------
        *others : int
            File descriptors of other inputs.
        until : float, optional
            A time of `time.monotonic` at which to return in any case.

        Returns
        -------
        list of int
            The descriptors that have input. If there are none, it is time to read the run or ``until`` has passed.
        """
        while True:
            end = self._due if until is None else min(self._due, until)
            left = end - time.monotonic()
            if left <= 0:
                return []
            server = self._connection.fileno()
            ready, _, _ = select.select([server, *others], [], [], left)
            if server in ready:
                self._take_notifications()
            inputs = [fd for fd in ready if fd != server]
            if inputs:
                return inputs

    @property
    def is_due(self) -> bool:
        """Whether it is time to read the run again."""
        return time.monotonic() >= self._due

    @property
    def _due(self) -> float:
        return self._read_at + (self._pause_s if self._told else max(_QUIET_S, self._pause_s))

    def look_soon(self) -> None:
        """Read the run again at the next occasion: a command has changed it."""
        self._told = True

    def _take_notifications(self) -> None:
        try:
            self._connection.poll()
        except psycopg2.Error:
            raise connection_lost("Run the command again.") from None
        while self._connection.notifies:
            self._told |= self._connection.notifies.pop().payload.split(" ")[0] == str(self.run_id)

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

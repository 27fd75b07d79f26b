"""One call that trains, in a thread and a session of its own, so that the caller's thread can show and interrupt it.

psycopg2 holds signals back while a statement runs, so the caller's thread runs none.
"""

import threading
import time
from contextlib import closing, suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.catalog.live.following import RunListener
from madlib_mop.client.calling.sessions import ClientSessions, execute, rows_of
from madlib_mop.client.calling.statements import Statement
from madlib_mop.errors import MopError

#: Errors of a query about the run. While its call trains, they are no reason to stop it.
FAILED_QUERIES = (MopError, SQLAlchemyError)
#: Seconds between two looks for the run, if nobody tells of it.
_LOOK_S = 0.5
#: Seconds that a cancelled call may take to end.
_CANCEL_S = 30.0
_BEGUN = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.clock_timestamp()"
_RUN = "SELECT pg_catalog.max(run_id) FROM madlib_mop.run WHERE caller_pid = %s AND created_at >= %s"


class Training:
    """A call that trains. It begins when the object is made.

    Parameters
    ----------
    sessions : ClientSessions
    call : Statement
    run_id : int, optional
        The run, if the call continues one.

    Attributes
    ----------
    done : threading.Event
        Set when the call has ended.
    """

    def __init__(self, sessions: ClientSessions, call: Statement, run_id: int | None = None):
        self.done = threading.Event()
        self._sessions, self._call, self._run_id = sessions, call, run_id
        self._lock = threading.Lock()
        self._raw: Any = None  # the connection, while the call runs in it
        self._is_cancelled = False
        self._where: tuple[int, Any] | None = None
        self._error: BaseException | None = None
        self._waiting: list[RunListener] = []
        threading.Thread(target=self._work, name="madlib_mop training", daemon=True).start()

    def run_id(self) -> int | None:
        """Wait until the run is recorded; return its number, or None if the call ended without one.

        Raises
        ------
        MopError
            If the call failed before.
        """
        if self._run_id is not None:
            return self._run_id
        with closing(self._sessions.listen()) as listener:
            self.attach(listener)
            try:
                while True:
                    has_ended = self.done.is_set()
                    try:
                        self._run_id = self._look()
                    except FAILED_QUERIES:
                        if has_ended:
                            self.result()
                            raise
                    if self._run_id is not None:
                        return self._run_id
                    if has_ended:
                        self.result()
                        return None
                    listener.wait(None, time.monotonic() + _LOOK_S)
            finally:
                self.detach(listener)

    @property
    def known_run_id(self) -> int | None:
        """The number of the run, if it is known yet."""
        return self._run_id

    def result(self) -> None:
        """Wait for the end of the call, and raise its error, if it failed."""
        self.done.wait()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Cancel the statement, as an interrupt in psql does, and wait until it has ended."""
        with self._lock:
            self._is_cancelled = True
            if self._raw is not None:
                with suppress(self._sessions.raw_error):  # the server is out of reach: then the call ends too
                    self._raw.cancel()
        self.done.wait(_CANCEL_S)

    def attach(self, listener: RunListener) -> None:
        """Wake this listener when the call ends."""
        with self._lock:
            self._waiting.append(listener)
        if self.done.is_set():
            listener.wake()

    def detach(self, listener: RunListener) -> None:
        """Leave this listener alone from now on."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(listener)

    def _work(self) -> None:
        try:
            with self._sessions.begin() as connection:
                ((pid, at),) = rows_of(connection, _BEGUN)
                self._where = (int(pid), at)
                if self._enter(connection):
                    try:
                        execute(connection, self._call.text, self._call.values)
                    finally:
                        self._leave()
        except BaseException as error:  # noqa: BLE001 -- raised in the caller's thread
            self._error = error
        finally:
            with self._lock:
                self.done.set()
                for listener in self._waiting:
                    listener.wake()

    def _enter(self, connection: Connection) -> bool:
        with self._lock:
            self._raw = None if self._is_cancelled else connection.connection.driver_connection
            return self._raw is not None

    def _leave(self) -> None:
        with self._lock:
            self._raw = None

    def _look(self) -> int | None:
        if self._where is None:
            return None
        ((run_id,),) = self._sessions.rows(_RUN, self._where)
        return None if run_id is None else int(run_id)

"""One asynchronous connection whose statements the driver waits for on its socket; `worker.py` has two a segment."""

import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import psycopg2
from mop_backend.frames import Header
from psycopg2 import extensions

from madlib_mop.catalog.one_row import one_row
from madlib_mop.catalog.sessions.lost_segments import lost_at_segment
from madlib_mop.engines.sessions.reasons import without_prefix
from madlib_mop.errors import read_server_error


class SessionState(Enum):
    """The state of a session."""

    CONNECTING = "connecting"  # the login is in progress
    OPENING = "opening"  # its first statements are in progress
    IDLE = "idle"  # ready for a statement
    BUSY = "busy"  # a statement is in progress
    BROKEN = "broken"  # the connection is closed; open another session


@dataclass(frozen=True)
class LoginTarget:
    """The login of a session, and its first statements.

    Attributes
    ----------
    keywords : mapping
        Of ``psycopg2.connect``.
    steps : sequence of (str, list)
        Statements with their parameters, one transaction each.
    """

    keywords: Mapping[str, Any] = field(repr=False)
    steps: Sequence[tuple[str, list[Any]]] = ()


@dataclass(frozen=True)
class Opened:
    """The session is ready for its first statement."""


@dataclass(frozen=True)
class Returned:
    """A statement has ended; ``value`` is the first column of its first row."""

    value: Any


@dataclass(frozen=True)
class StatementFailure:
    """The statement failed; ``lost`` is set if the session has ended too."""

    sqlstate: str | None
    message: str
    lost: bool
    hint: str | None = None

    @property
    def host_lost(self) -> Header | None:
        """The worker's answer "host" if rows were to be read from a lost host; else None."""
        if self.lost or not (self.sqlstate or "").startswith("08"):
            return None
        return {"outcome": "host", "server": "of the rows that it had to read", "error": self.error}

    @property
    def error(self) -> Header:
        """The server's message, in the form of a worker's answer "sql"."""
        return {"sqlstate": self.sqlstate, "message": self.message, "hint": self.hint}


class _Ignored(list[Any]):
    """Takes notices and notifications, and keeps none: users' code in a session can send any number of them."""

    def append(self, message: Any) -> None:
        """Keep nothing; psycopg2 calls it."""


class WorkerSession:
    """One connection, moved on by `advance` whenever its socket is ready.

    Parameters
    ----------
    target : LoginTarget
    """

    def __init__(self, target: LoginTarget):
        self.state = SessionState.CONNECTING
        self.events = select.POLLOUT
        self.pid: int | None = None
        self._steps = list(target.steps)
        self._cursor: extensions.cursor | None = None
        self._connection = psycopg2.connect(**target.keywords, client_encoding="UTF8", async_=1)
        self._connection.notices = _Ignored()
        self._connection.notifies = _Ignored()

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``select.poll``."""
        return int(self._connection.fileno())

    def begin(self, statement: str, params: Sequence[Any] | Mapping[str, Any]) -> None:
        """Start a statement; the session must be idle."""
        if self.state is not SessionState.IDLE:
            raise RuntimeError(f"a statement was given to a session that is {self.state.value}")
        self.state = SessionState.BUSY
        self._execute(statement, params)

    def advance(self) -> Opened | Returned | StatementFailure | None:
        """Process the socket's data; return None while the statement is still running."""
        try:
            status = self._connection.poll()
        except psycopg2.Error as error:
            return self._failed(error)
        if status == extensions.POLL_READ:
            self.events = select.POLLIN
            return None
        if status == extensions.POLL_WRITE:
            self.events = select.POLLOUT
            return None
        if self.state is SessionState.IDLE:  # data that belongs to no statement
            return None
        if self.state is SessionState.BUSY:
            assert self._cursor is not None, "a busy session has executed something"
            self._rest()
            try:
                return Returned(one_row(self._cursor)[0])
            except (psycopg2.Error, UnicodeError, IndexError, RuntimeError) as error:
                return StatementFailure(None, f"the statement returned no value that can be read: {error}", lost=False)
        if self.state is SessionState.CONNECTING:
            self.state = SessionState.OPENING
            self.pid = self._connection.info.backend_pid
        if self._steps:
            self._execute(*self._steps.pop(0))
            return None
        self._rest()
        return Opened()

    def close(self) -> None:
        """Close the connection; a busy backend notices it within client_connection_check_interval."""
        self._connection.close()
        self.state = SessionState.BROKEN

    def _rest(self) -> None:
        self.state = SessionState.IDLE
        self.events = select.POLLIN

    def _execute(self, query: str, params: Sequence[Any] | Mapping[str, Any]) -> None:
        self._cursor = self._connection.cursor()
        self._cursor.execute(query, params or None)  # without parameters, a % in the query is left alone
        self.events = select.POLLOUT

    def _failed(self, error: psycopg2.Error) -> StatementFailure:
        lost = self._connection.closed != 0 or self.state in (SessionState.CONNECTING, SessionState.OPENING)
        found = read_server_error(error)
        lost = lost or lost_at_segment(error)
        if lost:
            self.close()
        else:
            self._rest()
        return StatementFailure(found.sqlstate, without_prefix(found.message), lost, found.hint)

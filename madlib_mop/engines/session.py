"""A worker session: one asynchronous connection whose work runs at one segment; the driver waits on its socket."""

import hmac
import json
import select
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import psycopg2
from psycopg2 import extensions

from madlib_mop.engines.login import RunLogin
from madlib_mop.engines.options import GREENPLUM_OPTIONS, SESSION_OPTIONS
from madlib_mop.engines.reasons import without_prefix

# Greenplum's error where a session has lost its process at a segment. It jumps over PL/Python's frames, and the next
# call of a Python function there would crash the coordinator: such a session is never used again.
_LOST_SEGMENT = "58M01"


class SessionState(Enum):
    """Where a worker session is."""

    CONNECTING = "connecting"  # the login is under way
    OPENING = "opening"  # taking the caller's role and starting the trainer
    IDLE = "idle"  # waits for a task
    BUSY = "busy"  # a task is under way
    BROKEN = "broken"  # the connection is lost; open another


@dataclass(frozen=True)
class Address:
    """Where a worker session logs in; ``server`` is "postgres" or "greenplum"."""

    host: str
    port: str
    database: str
    server: str = "postgres"


@dataclass(frozen=True)
class Opened:
    """The session is ready for its first task."""


@dataclass(frozen=True)
class Answer:
    """A task has ended; ``fields`` is what the worker said of it."""

    fields: dict


@dataclass(frozen=True)
class Failure:
    """The statement failed; ``lost`` tells that the session is gone too."""

    sqlstate: str | None
    message: str
    lost: bool
    hint: str | None = None

    @property
    def host_lost(self) -> dict | None:
        """The worker's answer "host", where rows at a host that is lost were to be read from here; else None."""
        if self.lost or not (self.sqlstate or "").startswith("08"):
            return None
        return {"outcome": "host", "server": "of the rows that it was to read", "error": self.error}

    @property
    def error(self) -> dict:
        """What the server said, as a worker's answer "sql" has it."""
        return {"sqlstate": self.sqlstate, "message": self.message, "hint": self.hint}


class WorkerSession:
    """One worker session, moved on by `advance` whenever its socket is ready.

    Parameters
    ----------
    address : Address
    login : RunLogin
        Who logs in.
    caller : str
        The role that the session takes on.
    run_id : int
    segment : int
    admit : callable
        Makes the session with a process number a worker of the run, in the record, and gives its token (str).
    """

    def __init__(
        self,
        address: Address,
        login: RunLogin,
        caller: str,
        run_id: int,
        segment: int,
        admit: Callable[[int], str],
    ):
        self.state = SessionState.CONNECTING
        self.events = select.POLLOUT
        self._caller = caller
        self._run_id = run_id
        self._segment = segment
        self._admit = admit
        self._token = ""
        self._n_tasks = 0
        self._steps: list[tuple[str, list]] = []
        self._cursor = None
        self._connection = psycopg2.connect(
            host=address.host,
            port=address.port,
            dbname=address.database,
            user=login.role,
            password=login.password,
            application_name=f"madlib_mop worker of run {run_id}",
            connect_timeout=10,
            options=GREENPLUM_OPTIONS if address.server == "greenplum" else SESSION_OPTIONS,
            async_=1,
        )
        self.pid: int | None = None

    def fileno(self) -> int:
        """The socket's descriptor, for ``select.poll``."""
        return self._connection.fileno()

    def begin(self, task: dict) -> None:
        """Start a task; the session must be idle."""
        if self.state is not SessionState.IDLE:
            raise RuntimeError(f"a task was given to a session that is {self.state.value}")
        self.state = SessionState.BUSY
        self._n_tasks += 1
        text = json.dumps({**task, "number": self._n_tasks})
        seal = hmac.new(self._token.encode(), text.encode(), "sha256").hexdigest()
        self._execute("SELECT madlib_mop.worker_do(%s, %s)", [text, seal])

    def advance(self) -> Opened | Answer | Failure | None:
        """Take what the socket brought; None while there is more to wait for."""
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
        if self.state is SessionState.BUSY:
            answer = json.loads(self._cursor.fetchone()[0])
            self.state = SessionState.IDLE
            return Answer(answer)
        if self.state is SessionState.CONNECTING:
            self.state = SessionState.OPENING
            self.pid = self._connection.info.backend_pid
            self._token = self._admit(self.pid)
            self._steps = [
                ("SELECT pg_catalog.set_config('role', %s, false)", [self._caller]),
                ("SELECT madlib_mop.worker_open(%s, %s, %s)", [self._run_id, self._token, self._segment]),
            ]
        if self._steps:
            self._execute(*self._steps.pop(0))
            return None
        self.state = SessionState.IDLE
        return Opened()

    def close(self) -> None:
        """Close the connection; a backend that still works notices within its connection check's interval."""
        self._connection.close()
        self.state = SessionState.BROKEN

    def _execute(self, query, params):
        self._cursor = self._connection.cursor()
        self._cursor.execute(query, params)
        self.events = select.POLLOUT

    def _failed(self, error: psycopg2.Error) -> Failure:
        lost = self._connection.closed != 0 or self.state in (SessionState.CONNECTING, SessionState.OPENING)
        message = without_prefix((error.diag.message_primary if error.diag else None) or str(error).strip())
        sqlstate = error.pgcode
        lost = lost or sqlstate == _LOST_SEGMENT
        if lost:
            self.close()
        else:
            self.state = SessionState.IDLE
        return Failure(sqlstate, message, lost, error.diag.message_hint if error.diag else None)

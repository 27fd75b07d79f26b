"""A session beside the caller's, with the caller's rights, whose statements commit: packed tables are visible to the
segments only then."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.catalog.sessions.connection import local_keywords
from madlib_mop.catalog.sessions.session_settings import LIFT_NEW_TIMEOUTS
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.stopping import ignore_from_now_on, sigterm_delayed, stop_reason
from madlib_mop.engines.sessions.access import BECOME
from madlib_mop.engines.sessions.login import RunLogin, create_login, drop_login
from madlib_mop.engines.sessions.session import AsyncSession, CoroutineLoop, LoginTarget, SessionLost, StatementFailed
from madlib_mop.errors import Cancelled, MopError, NotReady, from_dict

_OPTIONS = (
    " -c statement_timeout=0 -c client_connection_check_interval=200 -c idle_in_transaction_session_timeout=0"
    " -c idle_session_timeout=0 -c client_min_messages=notice -c tcp_keepalives_idle=5 -c role=none"
    " -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off"
    " -c search_path=pg_catalog"
)
_SET = "SELECT pg_catalog.set_config(%s, %s, false)"
_TURN_S = 1.0
_QUERY_CANCELED, _LOCK_NOT_AVAILABLE = "57014", "55P03"
_IS_BLOCKED = "SELECT %s::pg_catalog.int4 = ANY (pg_catalog.pg_blocking_pids(%s::pg_catalog.int4))"


class _Forwarded(list[Any]):
    """Notices of the session: each is passed on and not kept."""

    def __init__(self, tell: Callable[[str], None]):
        super().__init__()
        self._tell = tell

    def append(self, message: Any) -> None:
        """Pass a notice on; psycopg2 calls it."""
        self._tell(str(message))


class OutOfTime(Exception):
    """A statement did not end within its time, and was cancelled."""


class OwnSession:
    """A session that logs in as a role that exists as long as it, a member of the caller's, as the readers of runs do.

    Its number is that of a run that does not exist. While the catalog session holds the lock of its driver, nobody
    takes the login role for one that a dead run has left.

    Parameters
    ----------
    call : Call
    record : Record
        The catalog session.
    settings : dict of str to str
        Settings of the caller's session that it gets.
    tell : callable
        Called with each notice, such as ``NOTICE:  text``.
    lock_s : float
        How long a statement waits for a lock of another session.

    Raises
    ------
    MopError
        If it cannot log in.
    """

    def __init__(
        self, call: Call, record: Record, settings: dict[str, str], tell: Callable[[str], None], lock_s: float
    ):
        self._record = record
        self._stop_fd = call.session.stop_fd
        self._caller_pid = call.info.pid
        self._login: RunLogin | None = None
        self._session: AsyncSession | None = None
        self._loop = CoroutineLoop()
        self._lock_ms = _milliseconds(lock_s)
        self._baselines: Sequence[Baseline] = ()
        self._number = record.unused_run_id()
        record.lock_run(self._number)  # defence: lock-of-learn
        try:
            with sigterm_delayed():
                self._login = create_login(record.raw, self._number, call.info.role)
            session = self._session = AsyncSession(self._target(call, settings), _Forwarded(tell))
            self._loop.watch(self._stop_fd, self._stop)
            self._wait(session.connect)
        except SessionLost as loss:
            self.close()
            raise NotReady(
                f"a session with your rights cannot be opened: {loss.message}",
                hint="madlib-mop doctor, run at the server, says what is missing.",
            ) from None
        except BaseException:
            self.close()
            raise

    def newest_run(self) -> int | None:
        """Return the newest run that this session has called."""
        return None if self._session is None else self._record.newest_run_of(self._session.pid, self._number)

    def compare_run(self, baselines: Sequence[Baseline]) -> None:
        """Record what the models of the session's run are compared with, as soon as it has begun one."""
        self._baselines = baselines

    def execute(self, statement: str, params: tuple[Any, ...] = ()) -> Any:
        """Execute and commit a statement; return the first column of its first row. Raises MopError, the server's."""
        session = self._session
        assert session is not None, "it is open"
        try:
            return self._wait(lambda: session.execute(statement, params))
        except StatementFailed as failure:
            error = from_dict(failure.error)
            if error.sqlstate == _LOCK_NOT_AVAILABLE:
                error.hint = error.hint or "Another session has locked a table of this call. Call again later."
            raise error from None
        except SessionLost as loss:
            raise NotReady(
                f"the session that works for this call was lost: {loss.message}",
                hint="The server's log has the reason.",
            ) from None

    def execute_within(self, seconds: float, statement: str) -> Any:
        """Execute a statement as `execute` does, for some seconds at most. Raises OutOfTime, and MopError."""
        self.execute(_SET, ("statement_timeout", str(_milliseconds(seconds))))
        began = time.monotonic()
        try:
            found = self.execute(statement)
        except Cancelled:
            raise
        except MopError as error:
            # users' code can raise this error itself
            is_over = error.sqlstate == _QUERY_CANCELED and time.monotonic() - began >= seconds
            if self.is_free:
                with suppress(MopError):
                    self.execute(_SET, ("statement_timeout", "0"))
            if is_over:
                raise OutOfTime from None
            raise
        self.execute(_SET, ("statement_timeout", "0"))
        return found

    @property
    def is_free(self) -> bool:
        """Whether the session can execute a statement: it is not lost, and the last one has ended."""
        return self._session is not None and not self._session.is_closed and not self._session.is_busy

    def close(self) -> None:
        """End the session, and drop its login role."""
        with sigterm_delayed():
            self._loop.close()
            if self._session is not None:
                self._session.close()
            if not self._record.raw.closed:
                if self._login is not None:
                    drop_login(self._record.raw, self._login.role)
                self._record.unlock_run(self._number)

    def _target(self, call: Call, settings: dict[str, str]) -> LoginTarget:
        info = call.info
        options = f"{_OPTIONS} -c lock_timeout={self._lock_ms}"
        session = {"application_name": f"madlib_mop {call.function}", "connect_timeout": 10, "options": options}
        steps: list[tuple[str, list[Any]]] = [(LIFT_NEW_TIMEOUTS, []), (BECOME, [info.role_oid])]
        steps += [(_SET, [name, value]) for name, value in settings.items()]
        if self._login is None:  # defence: login-of-learn = True
            return LoginTarget({**local_keywords(info.sockets, info.port, info.database), **session}, steps)
        host = self._record.settings().get("worker_host", "127.0.0.1")
        where = {"host": host, "port": info.port, "dbname": info.database}
        return LoginTarget({**where, **self._login.keywords(), **session}, steps)

    def _wait(self, start: Callable[[], Any]) -> Any:
        """Wait until a coroutine has ended; return its result. Raises Cancelled if the caller stops."""
        found: list[Any] = []

        async def work() -> None:
            try:
                found.append((await start(), None))
            except (SessionLost, StatementFailed) as error:
                found.append((None, error))

        self._loop.start(work())
        while not found:
            self._loop.run(_TURN_S)
            if not found:
                self._check_locks()
            self._record_baselines()
        value, error = found[0]
        if error is not None:
            raise error
        return value

    def _record_baselines(self) -> None:
        """While the run trains, pages show them too."""
        run_id = self.newest_run() if self._baselines else None
        if run_id is not None:
            self._record.set_run(run_id, baselines=[one.as_json() for one in self._baselines])
            self._baselines = ()

    def _check_locks(self) -> None:
        """Raise NotReady if the session waits for the caller's transaction, which waits for it: no server sees that."""
        pid = None if self._session is None else self._session.pid
        if pid is not None and self._record.execute(_IS_BLOCKED, [self._caller_pid, pid])[0][0]:
            raise NotReady(
                "this transaction holds a lock that the call's own session waits for",
                hint="COMMIT first, or call it outside of a transaction.",
            )

    def _stop(self) -> None:
        self._loop.unwatch(self._stop_fd)
        ignore_from_now_on()
        raise Cancelled(stop_reason(self._stop_fd))


def _milliseconds(seconds: float) -> int:
    """Return a timeout of the server: whole milliseconds, and not 0, which is none."""
    return max(1, round(seconds * 1000))

"""Sessions at the server, shared by the browsers that logged in as one role; called by `app`.

A password is used while its login lasts, and not kept. So the sessions at the server are opened at a login, and if the
server ends them, people log in again. A browser shares the sessions of a role only after a login of its own as this
role.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
from anyio import to_thread
from psycopg.pq import PGnotify

from madlib_mop.catalog.facts.shared import Fetch
from madlib_mop.catalog.live.following import RUNS_CHANNEL, run_of
from madlib_mop.dash.commands import Command
from madlib_mop.dash.logins import check_rights, log_in
from madlib_mop.dash.settings import DashServer
from madlib_mop.errors import MopError, NotReady, read_server_error

T = TypeVar("T")
Connection = psycopg.Connection[Any]
_LOG = logging.getLogger("madlib_mop.dash")
_ROLE = "SELECT r.oid::pg_catalog.int8 FROM pg_catalog.pg_roles AS r WHERE r.rolname = session_user"
_MAY_LOG_IN = """
SELECT r.rolcanlogin AND coalesce(r.rolvaliduntil > pg_catalog.now(), true) FROM pg_catalog.pg_roles AS r
WHERE r.oid = %s::pg_catalog.oid
"""


class RoleHasLeft(NotReady):
    """The role may not log in any more."""

    def __init__(self) -> None:
        super().__init__(
            "This role may no longer log in, so its sessions have ended.", hint="Log in again, or as another role."
        )


class Line:
    """One session at the server, used by one thread at a time; each use is a task of the event loop."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self._lock = asyncio.Lock()
        self.before: Callable[[], None] = _nothing
        self.after: Callable[[], None] = _nothing

    async def use(self, do: Callable[[Connection], T]) -> T:
        """Call a function with the session in a thread, and return its result.

        Raises
        ------
        NotReady
            If the server has ended the session.
        MopError
            The server's error.
        """
        async with self._lock:
            self.before()
            try:
                return await to_thread.run_sync(do, self.connection)
            except psycopg.Error as error:
                raise mop_error(error, self.connection) from None
            finally:
                self.after()


class Account:
    """The three sessions of a role: one reads what is shown live and listens, one reads reports, one issues commands.

    Attributes
    ----------
    role : str
    role_oid : int
    n_sessions : int
        Browsers that use it.
    """

    def __init__(self, role: str, role_oid: int, connections: Sequence[Connection]):
        self.role = role
        self.role_oid = role_oid
        self.n_sessions = 0
        self.live, self.slow, self.steering = (Line(connection) for connection in connections)
        self.listeners: set[Callable[[int], None]] = set()
        self.closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._fd = self.live.connection.fileno()
        self._is_looking = False
        # psycopg's own would decode payloads, which need not be text of the database's encoding
        self.live.connection.pgconn.notify_handler = self._on_notify
        self.live.before, self.live.after = self._look_away, self._look
        self._look()

    @property
    def is_lost(self) -> bool:
        """Whether a session was closed, by us or by the server."""
        return self.closed.is_set() or any(line.connection.closed for line in (self.live, self.slow, self.steering))

    async def read(self, do: Callable[[Fetch], T]) -> T:
        """Call a function that reads what is shown live; raises as `use` does."""
        return await self.use(self.live, lambda connection: do(_fetch_of(connection)))

    async def issue(self, command: Command) -> object:
        """Issue a command, and return the function's result; raises the server's error, such as a refusal."""

        def call(connection: Connection) -> object:
            row = connection.execute(command.statement, command.values).fetchone()
            return None if row is None else row[0]

        return await self.use(self.steering, call)

    async def use(self, line: Line, do: Callable[[Connection], T]) -> T:
        """Call a function with one of the sessions.

        Raises
        ------
        RoleHasLeft
            If the server reports an error, and the role may no longer log in: then this account is closed.
        NotReady
            If the server has ended the session.
        MopError
            The server's error.
        """
        try:
            return await line.use(do)
        except MopError as error:
            if isinstance(error, NotReady) or await self.may_still_log_in():  # defence: role-that-left = True
                raise
            self.close()
            raise RoleHasLeft from None

    async def may_still_log_in(self) -> bool:
        """Return whether the role could log in now."""
        try:
            rows = await self.live.use(lambda connection: _fetch_of(connection)(_MAY_LOG_IN, [self.role_oid]))
        except MopError:
            return False
        return bool(rows and rows[0][0])

    def close(self) -> None:
        """End the sessions at the server."""
        if not self.closed.is_set():
            self.closed.set()
            self._look_away()
            _close_later([line.connection for line in (self.live, self.slow, self.steering)])

    def _look(self) -> None:
        """Take notifications from now on, as no thread uses the session."""
        if self.live.connection.closed:
            self.close()
        elif not self.closed.is_set():
            self._is_looking = True
            self._loop.add_reader(self._fd, self._on_input)
            self._on_input()

    def _look_away(self) -> None:
        if self._is_looking:  # else a thread may have lost the session, and its descriptor be another connection's
            self._is_looking = False
            self._loop.remove_reader(self._fd)

    def _on_input(self) -> None:
        try:
            pgconn = self.live.connection.pgconn
            pgconn.consume_input()
            while notice := pgconn.notifies():
                self._tell(run_of(notice.extra))
        except psycopg.Error:
            _LOG.warning("the server has ended the sessions of a role")
            self.close()

    def _on_notify(self, notice: PGnotify) -> None:
        self._loop.call_soon_threadsafe(self._tell, run_of(notice.extra))

    def _tell(self, run_id: int | None) -> None:
        if run_id is not None:
            for listener in list(self.listeners):
                listener(run_id)


class Accounts:
    """The accounts of all roles that are logged in."""

    def __init__(self, server: DashServer):
        self._server = server
        self._accounts: dict[int, Account] = {}

    async def log_in(self, role: str, password: str) -> Account:
        """Log in as a role, and return its account.

        Raises
        ------
        LoginFailed
        MopError
            If the role may not use the extension.
        """
        # defence: login-before-sharing = next(((a, a.role_oid) for a in self.live() if a.role == role), None)
        #     or await to_thread.run_sync(_prove, self._server, role, password)
        proof, role_oid = await to_thread.run_sync(_prove, self._server, role, password)
        if (account := self._open_account(role_oid)) is not None:
            _close_later([proof])
            return account
        try:
            others = await to_thread.run_sync(_open_others, self._server, role, password)
        except BaseException:
            proof.close()
            raise
        if (account := self._open_account(role_oid)) is not None:  # another login of the role has ended meanwhile
            _close_later([proof, *others])
            return account
        account = self._accounts[role_oid] = Account(role, role_oid, [proof, *others])
        return account

    def _open_account(self, role_oid: int) -> Account | None:
        """Return the account of a role; None if there is none that a new session can use."""
        account = self._accounts.get(role_oid)
        return None if account is None or account.closed.is_set() or account.is_lost else account

    def live(self) -> list[Account]:
        """Return the accounts that are in use; closed ones are forgotten."""
        self._accounts = {oid: account for oid, account in self._accounts.items() if not account.closed.is_set()}
        return list(self._accounts.values())

    def close(self) -> None:
        """Close all."""
        for account in self.live():
            account.close()


def mop_error(error: psycopg.Error, connection: Connection) -> MopError:
    """Return the server's error as one of ours: its sentence and its hint."""
    found = read_server_error(error)
    if connection.closed or found.sqlstate is None:
        return NotReady("The server has ended the session. Log in again.")
    return found.as_error()


def _prove(server: DashServer, role: str, password: str) -> tuple[Connection, int]:
    connection = log_in(server, role, password)
    try:
        check_rights(connection)
        ((role_oid,),) = connection.execute(_ROLE).fetchall()
        try:
            connection.execute(f"LISTEN {RUNS_CHANNEL}")
        except psycopg.errors.ReadOnlySqlTransaction:  # a standby: there runs are read every few seconds
            pass
    except psycopg.Error as error:
        found = mop_error(error, connection)
        connection.close()
        raise found from None
    except BaseException:
        connection.close()
        raise
    return connection, role_oid


def _open_others(server: DashServer, role: str, password: str) -> tuple[Connection, Connection]:
    slow = log_in(server, role, password)
    try:
        return slow, log_in(server, role, password, is_read_only=False)
    except BaseException:
        slow.close()
        raise


def _nothing() -> None:
    """Do nothing."""


def _fetch_of(connection: Connection) -> Fetch:
    def fetch(statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    return fetch


def _close_later(connections: Sequence[Connection]) -> None:
    """Close connections in a thread: the caller goes on at once, so an account that it found cannot be closed first."""
    threading.Thread(target=_close, args=(connections,), daemon=True).start()


def _close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.cancel_safe(timeout=2)
        connection.close()

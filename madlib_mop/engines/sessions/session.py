"""Asynchronous sessions, and the loop in which coroutines wait for them.

A run has up to two sessions for each segment (`madlib_mop.driver.running.segment_sessions`), a job has one
(`madlib_mop.jobs.working`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import psycopg2
from mop_backend.frames import Header
from psycopg2 import extensions

from madlib_mop.catalog.rows.base import one_row
from madlib_mop.catalog.sessions.lost_segments import lost_at_segment
from madlib_mop.engines.sessions.reasons import without_prefix
from madlib_mop.errors import read_server_error


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


class _SessionError(Exception):
    def __init__(self, sqlstate: str | None, message: str, hint: str | None = None):
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint

    @classmethod
    def by(cls, error: psycopg2.Error) -> Self:
        """Return the error for one of psycopg2."""
        found = read_server_error(error)
        return cls(found.sqlstate, without_prefix(found.message), found.hint)


class StatementFailed(_SessionError):
    """A statement failed; its session can be used again."""

    @property
    def error(self) -> Header:
        """The server's message, as `SqlFailed` has it."""
        return {"sqlstate": self.sqlstate, "message": self.message, "hint": self.hint}


class SessionLost(_SessionError):
    """A session could not be opened, or has ended; it is closed."""


class _Ignored(list[Any]):
    """Takes notices and notifications, and keeps none: users' code in a session can send any number of them."""

    def append(self, message: Any) -> None:
        """Keep nothing; psycopg2 calls it."""


class AsyncSession:
    """One asynchronous connection: coroutines of a running asyncio loop wait for its statements, one at a time.

    Parameters
    ----------
    target : LoginTarget
    notices : list, optional
        Gets the notices of the session. Default: nobody does.

    Attributes
    ----------
    pid : int or None
        Of the server process; None before the login has succeeded.
    is_busy : bool
        Whether the login or a statement is in progress. A coroutine that is cancelled leaves its session busy.
    """

    def __init__(self, target: LoginTarget, notices: list[Any] | None = None):
        self.pid: int | None = None
        self.is_busy = False
        self._target = target
        self._notices = _Ignored() if notices is None else notices  # defence: notices-of-jobs = []
        self._connection: extensions.connection | None = None
        self._unwatch: Callable[[], object] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, here or by the server."""
        return self._connection is None or self._connection.closed != 0

    async def connect(self) -> None:
        """Log in, and execute the first statements. Raises SessionLost if either fails."""
        self.is_busy = True
        try:
            keywords = self._target.keywords
            # defence: encoding-of-a-session = psycopg2.connect(**keywords, async_=1)
            self._connection = psycopg2.connect(**keywords, client_encoding="UTF8", async_=1)
            self._connection.notices = self._notices
            self._connection.notifies = _Ignored()
            await self._answered(self._connection)
            self.pid = self._connection.info.backend_pid
            for statement, params in self._target.steps:
                await self._execute(self._connection, statement, params)
        except psycopg2.Error as error:
            self.close()
            raise SessionLost.by(error) from None
        self.is_busy = False

    async def execute(self, statement: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """Execute a statement; return the first column of its first row.

        Raises
        ------
        StatementFailed
            If it fails; the session can be used again.
        SessionLost
            If the session has ended, or can no longer be used.
        """
        assert self._connection is not None and not self.is_busy, "a session has one statement at a time"
        self.is_busy = True
        try:
            cursor = await self._execute(self._connection, statement, params)
        except psycopg2.Error as error:
            if self.is_closed or lost_at_segment(error):
                self.close()
                raise SessionLost.by(error) from None
            self.is_busy = False
            raise StatementFailed.by(error) from None
        self.is_busy = False
        try:
            return one_row(cursor)[0]
        except (psycopg2.Error, UnicodeError, IndexError, RuntimeError) as error:
            raise StatementFailed(None, f"the statement returned no value that can be read: {error}") from None

    async def idle_until(self, awaited: asyncio.Future[None]) -> None:
        """Wait for a future while no statement is in progress. Raises SessionLost if the server ends the session."""
        assert self._connection is not None and not self.is_busy, "a session that waits for a statement is idle"
        lost: list[SessionLost] = []

        def look() -> None:  # called for data that belongs to no statement, and for the end of the connection
            if (loss := self._loss()) is not None:
                self._stop_watching()
                lost.append(loss)
                if not awaited.done():
                    awaited.set_result(None)

        self._watch(extensions.POLL_READ, self._connection.fileno(), look)
        try:
            await awaited
        finally:
            self._stop_watching()
        if lost:
            raise lost[0]

    def is_lost(self) -> bool:
        """Return whether the server has ended this idle session; it is closed then."""
        return self._loss() is not None

    def close(self) -> None:
        """Close the connection; a busy backend notices it within client_connection_check_interval.

        A coroutine that waits for its statement must be cancelled.
        """
        self._stop_watching()
        self.is_busy = False
        if self._connection is not None:
            self._connection.close()

    def _loss(self) -> SessionLost | None:
        """Read what the server has sent to this idle session; return the error that has ended it, if any."""
        if self._connection is None:
            return SessionLost(None, "the session is not open")
        try:
            self._connection.poll()
        except psycopg2.Error as error:
            self.close()
            return SessionLost.by(error)
        return None

    async def _execute(
        self, connection: extensions.connection, statement: str, params: Sequence[Any] | Mapping[str, Any]
    ) -> extensions.cursor:
        cursor = connection.cursor()
        cursor.execute(statement, params or None)  # without parameters, a % in the statement is left alone
        await self._answered(connection)
        return cursor

    async def _answered(self, connection: extensions.connection) -> None:
        """Wait until the server has answered: psycopg2's `poll` says for what to wait on the socket."""
        loop = asyncio.get_running_loop()
        while (status := connection.poll()) != extensions.POLL_OK:
            ready: asyncio.Future[None] = loop.create_future()
            self._watch(status, connection.fileno(), partial(_set_ready, ready))
            try:
                await ready
            finally:
                self._stop_watching()

    def _watch(self, status: int, fd: int, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if status == extensions.POLL_WRITE:
            loop.add_writer(fd, call)
            self._unwatch = partial(loop.remove_writer, fd)
        else:
            loop.add_reader(fd, call)
            self._unwatch = partial(loop.remove_reader, fd)

    def _stop_watching(self) -> None:
        """Stop waiting on the socket. Only once: the next connection can have the same file descriptor."""
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Run two coroutines at once; if one fails, the other one ends."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.gather(*tasks)
    finally:
        abandon(*tasks)


def abandon(*tasks: asyncio.Task[Any]) -> None:
    """End tasks whose results, errors too, are no longer wanted."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


class CoroutineLoop:
    """An asyncio loop that synchronous code runs in turns, until a coroutine ends or has something to report.

    `run` raises any exception of a coroutine or of a callback, so none is lost, and asyncio writes nothing to stderr.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: self._failed(context.get("exception")))
        self._error: BaseException | None = None

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a coroutine, which begins in the next `run`."""
        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def future(self) -> asyncio.Future[None]:
        """Return a future for which a coroutine can wait."""
        return self._loop.create_future()

    def watch(self, fd: int, call: Callable[[], None] | None = None) -> None:
        """Call something in `run` while a file descriptor is readable; without it, `run` returns."""
        self._loop.add_reader(fd, call or self.wake)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`."""
        self._loop.remove_reader(fd)

    def wake(self) -> None:
        """Let `run` return: a coroutine has something to report."""
        self._loop.stop()

    def run(self, at_most_s: float) -> None:
        """Run the coroutines until one ends or calls `wake`, or for some seconds. Raises the exception of one."""
        timer = self._loop.call_later(at_most_s, self._loop.stop)
        try:
            self._loop.run_forever()  # SIGTERM is raised here while it waits, in a coroutine otherwise
        finally:
            timer.cancel()
        if self._error is not None:
            raise self._error

    def cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """End coroutines where they wait; when this returns, they have ended."""
        waited = list(tasks)
        for task in waited:
            task.cancel()
        while not all(task.done() for task in waited):
            self._loop.stop()
            self._loop.run_forever()  # one turn

    def close(self) -> None:
        """End all coroutines."""
        if not self._loop.is_closed():
            self.cancel(asyncio.all_tasks(self._loop))
            self._loop.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.wake()
        if not task.cancelled():
            self._failed(task.exception())

    def _failed(self, error: BaseException | None) -> None:
        if error is not None:
            self._error = self._error or error
            self._loop.stop()

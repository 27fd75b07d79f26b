"""Interrupt checks of a waiting backend: cancel, terminate, timeouts, and vanished clients."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import stat
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import plpy

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_POLLRDHUP = 0x2000
_statements_allowed = True


class ClientGone(Exception):
    """The client has closed its connection."""


class Interrupted(Exception):
    """A cancel, a timeout or the end of the session; PostgreSQL raises its own error when Python has returned."""


@contextlib.contextmanager
def without_statements() -> Iterator[None]:
    """Let checks run no statement: while segments of Greenplum work for a query, its functions cannot begin another.

    The error would leave the interpreter by a jump, and a later call would crash the coordinator.
    """
    global _statements_allowed
    _statements_allowed = False
    try:
        yield
    finally:
        _statements_allowed = True


def with_whole_cancels(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Return a function that does not leave half of a cancel to the session's next call.

    Greenplum's PL/Python has Python raise KeyboardInterrupt once for each signal. A timeout sends two: the second one
    would be raised where the next call begins.
    """

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            try:  # noqa: SIM105 (a call of suppress would raise it before there is a context)
                _run_pending_calls()
            except KeyboardInterrupt:
                pass
            raise

    return call


def _run_pending_calls() -> None:
    """Do nothing: Python runs its pending calls, such as Greenplum's, where a function begins."""


class Interrupts:
    """The check that a backend makes while it waits for another process.

    ``plpy.execute`` runs PostgreSQL's own interrupt check, which raises on cancel and timeouts and ends the process
    on terminate. PostgreSQL looks at the client's socket only if ``client_connection_check_interval`` was set before
    the statement began, so the socket is watched here as well.
    """

    def __init__(self) -> None:
        self._client = _client_socket_fd()

    def __call__(self) -> None:
        self.check_client()  # first, because PostgreSQL ends the process if the client has disconnected
        if _statements_allowed:
            plpy.execute("select 1")
        elif _is_pending("QueryCancelPending") or _is_pending("ProcDiePending"):
            raise Interrupted("the query was cancelled")

    def check_client(self) -> None:
        """Raise ClientGone if the client has closed its connection."""
        if self._client is not None and _hung_up(self._client):
            raise ClientGone("the client disconnected; its work was stopped")


def _is_pending(flag: str) -> bool:
    """Return a flag of PostgreSQL's own (miscadmin.h), which a signal has set."""
    import ctypes  # not at the top: most calls do without it

    return bool(ctypes.c_int.in_dll(ctypes.CDLL(None), flag).value)


def _client_socket_fd() -> int | None:
    """Find the client's socket: the lowest connected one, since it was accepted before the backend opened any other."""
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(fd))
            try:
                copy.getpeername()
                return fd
            finally:
                copy.close()
    return None


def _hung_up(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, _POLLRDHUP)
    return any(events & (_POLLRDHUP | select.POLLHUP | select.POLLERR) for _, events in poller.poll(0))

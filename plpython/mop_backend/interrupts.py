"""Interrupt checks of a waiting backend: cancel, terminate, timeouts, and vanished clients."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat

import plpy

_POLLRDHUP = 0x2000


class ClientGone(Exception):
    """The client has closed its connection."""


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
        plpy.execute("select 1")

    def check_client(self) -> None:
        """Raise ClientGone if the client has closed its connection."""
        if self._client is not None and _hung_up(self._client):
            raise ClientGone("the client disconnected; its work was stopped")


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

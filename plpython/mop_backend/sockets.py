"""Unix sockets between processes of one operating system user: their addresses, and checks of the peer's user.

An address that begins with a slash is a path in a directory of the server's own, in which
no other user can bind; any other is an abstract name, which every user of the machine can bind once it is free. So the
listening user is checked before any communication.

`address_for` chooses ``pg_stat_tmp`` in the data directory: PostgreSQL's base backups, pg_rewind and pgBackRest leave
its content out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mop_backend.frames import Check

_DIRECTORY = "pg_stat_tmp"
_OURS = "madlib_mop"
_BACKLOG = 128
_PAUSE_S = 0.01


class NotOurs(PermissionError):
    """The process that listens at an address, or the address's directory, belongs to another user."""


def address_for(name: str) -> str:
    """Return the address of a process of this server, by name.

    It creates the directory. If no directory can be accessible to this user only, the address is an abstract name.

    Parameters
    ----------
    name : str

    Returns
    -------
    str
    """
    try:
        if not os.path.isdir(_DIRECTORY):  # a backend works in the data directory
            return name
        path = os.path.join(os.getcwd(), _DIRECTORY, _OURS)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        os.close(_open(path))
    except OSError:
        return name
    return os.path.join(path, name)


def connect(address: str, deadline: float, check: Check | None = None) -> socket.socket:
    """Return a non-blocking socket that is connected to a process of this user.

    Parameters
    ----------
    address : str
    deadline : float
        Time of `time.monotonic`: end of the retries while the listener's queue is full.
    check : callable or None
        Called while waiting; what it raises ends the wait.

    Raises
    ------
    NotOurs
        If another user listens there.
    ConnectionRefusedError, FileNotFoundError
        If no process does.
    TimeoutError
        If the deadline has passed.
    """
    with _place(address) as (bound, _):
        while True:
            # defence: connect-without-waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                peer.connect(bound)
                if owner_of(peer)[1] != os.geteuid():  # defence: peer-of-a-trainer
                    raise NotOurs(errno.EPERM, "the socket belongs to another user")
                return peer
            except BlockingIOError:
                peer.close()
            except BaseException:
                peer.close()
                raise
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "too many connections wait for this socket")
            if check is not None:
                check()
            time.sleep(_PAUSE_S)


def listen(address: str) -> socket.socket | None:
    """Return a socket that listens at an address; None if another process listens there, or is about to.

    Stale socket files are removed, also those of earlier servers and libraries.
    """
    with _place(address) as (bound, directory):
        if directory is not None:
            try:
                # the lock is released when the directory is closed
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            _sweep(directory)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(bound)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            return None
        return listener


def owner_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a connection."""
    size = struct.calcsize("3i")
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


@contextlib.contextmanager
def _place(address: str) -> Iterator[tuple[str, int | None]]:
    """Open an address's directory; yield the address to bind or connect to, and the directory's descriptor or None.

    The path uses the open directory, so it is short enough for a socket, and in the directory that was checked.
    """
    if not address.startswith("/"):
        yield "\0" + address, None
        return
    path, name = os.path.split(address)
    directory = _open(path)
    try:
        yield f"/proc/self/fd/{directory}/{name}", directory
    finally:
        os.close(directory)


def _open(path: str) -> int:
    """Open a directory that this user owns and other users cannot write to. Raises NotOurs."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(directory)
    # defence: directory-of-sockets = status.st_uid != os.geteuid()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        os.close(directory)
        raise NotOurs(errno.EPERM, "other users can write to the directory", path)
    return directory


def _sweep(directory: int) -> None:
    """Remove the sockets of a locked directory that refuse a connection."""
    for name in os.listdir(directory):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(f"/proc/self/fd/{directory}/{name}")
            except ConnectionRefusedError:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)
            except OSError:  # its queue is full, so it is in use
                pass

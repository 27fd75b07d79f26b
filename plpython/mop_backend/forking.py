"""A process that has loaded what its children need, and forks them: trainers, or drivers.

``forkserver.py`` starts it and connects to it: ``python -I -m MODULE SOCKET PID``. For each connection a child is
forked, with the three descriptors that came with it as its stdin, stdout and stderr. The child gets a signal when the
connection closes, and its exit status is the connection's last message. The process has one thread, so it may fork. It
ends with the server (PID), or after an idle time. It has no data, and no rights except those of the server's operating
system user, who alone may connect.

Used by ``madlib_mop/trainer/forkserver.py`` and ``madlib_mop/driver/forkserver.py``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from mop_backend.sockets import owner_of

_IDLE_S = 600.0
_ASKS_WITHIN_S = 1.0


@dataclass(frozen=True)
class ChildKind:
    """The kind of the children.

    Attributes
    ----------
    name : str
        Begins a child's name in ``ps -o comm``; the number of the process that requested it follows.
    run : callable
        The child's work; returns its exit status.
    stop_signal : signal.Signals
        Sent to a child when its connection closes, and when the server ends.
    """

    name: str
    run: Callable[[], int]
    stop_signal: signal.Signals


@dataclass
class _Child:
    pid: int
    pidfd: int
    control: socket.socket | None


def serve_forks(comm: str, load: Callable[[], None], kind: ChildKind) -> None:
    """Run this process, with the words of its command line; see the module's text.

    Parameters
    ----------
    comm : str
        Its name in ``ps -o comm``; at most 15 characters.
    load : callable
        Loads what the children need. Its error is the standard error of the children that are requested meanwhile.
    kind : ChildKind
    """
    listener = socket.socket(fileno=int(sys.argv[1]))
    server = os.pidfd_open(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_comm(comm)
    try:
        load()
    except Exception:
        _send_error(listener, traceback.format_exc())
        raise
    gc.collect()
    gc.freeze()  # permanent objects are not scanned, so their memory stays shared
    Forking(listener, server, kind).run(float(sys.argv[3]) if len(sys.argv) > 3 else _IDLE_S)


class Forking:
    """Forks children and monitors them.

    Parameters
    ----------
    listener : socket.socket
        Where they are requested.
    server : int
        Descriptor of the process with which this one ends.
    kind : ChildKind
        What they are.
    """

    def __init__(self, listener: socket.socket, server: int, kind: ChildKind):
        self._listener = listener
        self._server = server
        self._kind = kind
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self._used_at = time.monotonic()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(server, selectors.EVENT_READ, None)

    def run(self, idle_s: float) -> None:
        """Serve until the server ends, or nothing is forked for ``idle_s`` seconds and no child is left.

        A connection without a request does not count: each call that may start a fork server connects to the sockets of
        all, to remove those of processes that have ended (`sockets.listen`).
        """
        while self._children or time.monotonic() < self._used_at + idle_s:
            left_s = None if self._children else max(0.0, self._used_at + idle_s - time.monotonic())
            for key, _ in self._selector.select(left_s):
                if key.data is None:
                    for child in self._children.values():
                        self._stop(child)
                    return
                if key.fileobj in self._selector.get_map():  # still registered: an earlier event may have closed it
                    key.data()

    def _accept(self) -> None:
        control, _ = self._listener.accept()
        fds: list[int] = []
        try:
            peer, user = owner_of(control)
            if user != os.geteuid():  # defence: user-of-a-fork
                raise PermissionError
            # A client sends its request right after connecting; one that was killed in between must not block the
            # others.
            if not select.select([control], [], [], _ASKS_WITHIN_S)[0]:
                raise TimeoutError
            message, fds, _, _ = socket.recv_fds(control, 16, 3)
            if message != b"fork" or len(fds) != 3:
                raise ConnectionError
            self._fork(control, fds, peer)
        except OSError:
            control.close()
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, control: socket.socket, fds: list[int], peer: int) -> None:
        pid = os.fork()
        if pid == 0:
            _be_child(self._kind, fds, peer)
        self._used_at = time.monotonic()
        child = _Child(pid, os.pidfd_open(pid), control)
        self._children[pid] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._reap(child))
        self._selector.register(control, selectors.EVENT_READ, lambda: self._end(child))
        with contextlib.suppress(OSError):  # the requester has ended: `_end` handles it next
            socket.send_fds(control, [str(pid).encode()], [child.pidfd])

    def _end(self, child: _Child) -> None:
        """Stop a child whose connection was closed."""
        if child.control is not None:
            self._selector.unregister(child.control)
            child.control.close()
            child.control = None
        self._stop(child)

    def _reap(self, child: _Child) -> None:
        """Report how a child has ended."""
        self._used_at = time.monotonic()
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pid]
        if child.control is not None:
            self._selector.unregister(child.control)
            with contextlib.suppress(OSError):
                child.control.send(str(status).encode())
            child.control.close()

    def _stop(self, child: _Child) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.pidfd, self._kind.stop_signal)


def _be_child(kind: ChildKind, fds: list[int], peer: int) -> None:
    """Run as a child until its end; never returns."""
    status = 1
    try:
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _set_comm(f"{kind.name} {peer}")
        status = kind.run()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _set_comm(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)


def _send_error(listener: socket.socket, text: str) -> None:
    """Write why there will be no child to where its errors would be; its pipes close with this process."""
    listener.setblocking(False)
    with contextlib.suppress(OSError):
        while True:
            control, _ = listener.accept()
            control.settimeout(_ASKS_WITHIN_S)
            _, fds, _, _ = socket.recv_fds(control, 16, 3)
            if len(fds) == 3 and owner_of(control)[1] == os.geteuid():
                os.write(fds[2], text.encode())

"""A process that has loaded what its children need, and forks them: trainers, or drivers.

``forkserver.py`` starts it and connects to it: ``python -I -m MODULE SOCKET PID``. For each connection a child is
forked, with the three descriptors that came with it as its stdin, stdout and stderr, and perhaps one more. The child
gets a signal when the connection closes, and its exit status is the connection's last message. The process has one
thread, so it may fork. It ends with the server (PID), or after an idle time. It has no data, and no rights except those
of the server's operating system user, who alone may connect.

Who requested a trainer can release it, at an address that names what it may be used for: with the other ends of its
pipes, so that it lives on. The next process that connects to the address gets it. It is ended after a time, or when
too many wait.

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

from mop_backend.machine import processors
from mop_backend.sockets import listen, owner_of

_IDLE_S = 600.0
_ASKS_WITHIN_S = 1.0
_LONGEST_MESSAGE = 512
_MOST_FDS = 4
#: Children that may wait for each processor that this process may use.
_IDLE_PER_PROCESSOR = 2


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
    may_idle : bool
        Whether a child can be released for another process.
    """

    name: str
    run: Callable[[], int]
    stop_signal: signal.Signals
    may_idle: bool = False


@dataclass
class _Child:
    pid: int
    pidfd: int
    control: socket.socket | None


@dataclass
class _Idle:
    """An idle child that was released: the ends of its pipes and its stderr, and when it is to end."""

    child: _Child
    address: str
    fds: list[int]
    until: float

    @property
    def is_usable(self) -> bool:
        """Whether it still runs, and has written nothing since it was released."""
        return not select.select([self.child.pidfd, self.fds[1]], [], [], 0)[0]


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
    gc.disable()  # without garbage collection, the imports take a tenth less time
    try:
        load()
    except Exception:
        _send_error(listener, traceback.format_exc())
        raise
    gc.collect()
    gc.freeze()  # permanent objects are not scanned, so their memory stays shared
    gc.enable()
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
        self._idle: list[_Idle] = []  # the one that was released last at the end
        self._addresses: dict[str, socket.socket] = {}
        self._most_idle = _IDLE_PER_PROCESSOR * processors()
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
            if self._idle:
                left_s = max(0.0, min(idle.until for idle in self._idle) - time.monotonic())
            for key, _ in self._selector.select(left_s):
                if key.data is None:
                    for child in self._children.values():
                        self._stop(child)
                    return
                if self._selector.get_map().get(key.fd) is key:  # still registered: an earlier event may have closed it
                    key.data()
            for idle in [one for one in self._idle if one.until <= time.monotonic()]:
                self._end_idle(idle)

    def _accept(self) -> None:
        control, fds = self._accepted(self._listener, b"fork")
        if control is None:
            return
        if len(fds) in (3, _MOST_FDS):
            self._fork(control, fds, owner_of(control)[0])
        else:
            control.close()
        _close(fds)

    def _accepted(self, listener: socket.socket, request: bytes) -> tuple[socket.socket | None, list[int]]:
        """Accept a connection; return it with the descriptors of its request, or None if there is no such request."""
        control, _ = listener.accept()
        fds: list[int] = []
        try:
            if owner_of(control)[1] != os.geteuid():  # defence: user-of-a-fork
                raise PermissionError
            # A client sends its request right after connecting; one that was killed in between must not block the
            # others.
            if not select.select([control], [], [], _ASKS_WITHIN_S)[0]:
                raise TimeoutError
            message, fds, _, _ = socket.recv_fds(control, 16, _MOST_FDS)
            if message != request:
                raise ConnectionError
        except OSError:
            control.close()
            _close(fds)
            return None, []
        return control, fds

    def _fork(self, control: socket.socket, fds: list[int], peer: int) -> None:
        pid = os.fork()
        if pid == 0:
            _be_child(self._kind, fds, peer)
        self._used_at = time.monotonic()
        child = _Child(pid, os.pidfd_open(pid), None)
        self._children[pid] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._reap(child))
        self._hand_over(child, control, [child.pidfd])

    def _hand_over(self, child: _Child, control: socket.socket, fds: list[int]) -> None:
        """Give a child to the process at the other end of a connection."""
        child.control = control
        self._selector.register(control, selectors.EVENT_READ, lambda: self._hear(child))
        with contextlib.suppress(OSError):  # the requester has ended: `_hear` handles it next
            socket.send_fds(control, [str(child.pid).encode()], fds)

    def _hear(self, child: _Child) -> None:
        """Stop a child whose connection was closed, or keep it idle if its user has released it."""
        assert child.control is not None, "it is registered"
        message, fds = b"", list[int]()
        with contextlib.suppress(OSError):
            message, fds, _, _ = socket.recv_fds(child.control, _LONGEST_MESSAGE, 3)
        if not (self._kind.may_idle and len(fds) == 3 and self._keep_idle(child, message, fds)):
            _close(fds)
            self._stop(child)
        self._selector.unregister(child.control)
        child.control.close()  # tells its user that it waits, or ends
        child.control = None

    def _keep_idle(self, child: _Child, message: bytes, fds: list[int]) -> bool:
        """Keep a child for who connects to an address; return whether it waits there now."""
        words = message.decode().split(" ", 2)
        if len(words) != 3 or words[0] != "release":
            return False
        _, seconds, address = words
        if address not in self._addresses:
            try:
                listener = listen(address)
            except OSError:  # its directory was removed or belongs to another user
                listener = None
            if listener is None:
                return False
            self._addresses[address] = listener
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._hand_on(address))
        self._idle.append(_Idle(child, address, fds, time.monotonic() + float(seconds)))
        if len(self._idle) > self._most_idle:
            self._end_idle(self._idle[0])
        return True

    def _hand_on(self, address: str) -> None:
        """Give the child that was released last at an address to the process that asks for it."""
        control, fds = self._accepted(self._addresses[address], b"acquire")
        _close(fds)
        if control is None:
            return
        self._used_at = time.monotonic()
        for idle in [one for one in reversed(self._idle) if one.address == address]:
            if idle.is_usable:
                self._hand_over(idle.child, control, [idle.child.pidfd, *idle.fds])
                self._forget(idle)
                return
            self._end_idle(idle)
        control.close()

    def _end_idle(self, idle: _Idle) -> None:
        self._forget(idle)
        self._stop(idle.child)

    def _forget(self, idle: _Idle) -> None:
        """Close what this process has of a child that waited; nothing listens at an address at which none waits."""
        self._idle.remove(idle)
        _close(idle.fds)
        if all(other.address != idle.address for other in self._idle):
            listener = self._addresses.pop(idle.address)
            self._selector.unregister(listener)
            listener.close()

    def _reap(self, child: _Child) -> None:
        """Report how a child has ended."""
        self._used_at = time.monotonic()
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pid]
        for idle in [one for one in self._idle if one.child is child]:
            self._forget(idle)
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
        os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))
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


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


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
            _, fds, _, _ = socket.recv_fds(control, 16, _MOST_FDS)
            if len(fds) >= 3 and owner_of(control)[1] == os.geteuid():
                os.write(fds[2], text.encode())

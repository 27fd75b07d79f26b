"""A process that has loaded what its children need, and forks them: trainers, or drivers.

``forkserver.py`` starts it and connects to it: ``python -I -m MODULE SOCKET PID``. For each connection a child is
forked, with the three descriptors that came with it as its stdin, stdout and stderr, and perhaps one more. The child
gets a signal when the connection closes, and its exit status is the connection's last message. The process has one
thread, so it may fork. It ends with the server (PID), or after an idle time. It has no data, and no rights except those
of the server's operating system user, who alone may connect.

Who requested a trainer can release it, at an address that names what it may be used for: with the other ends of its
pipes, so that it lives on. The next process that connects to the address gets it. It is ended after a time, or when
too many wait.

Some children are shared: they serve several processes, each at a *seat*, a socket. Who asks to share names a role and
what the child may be used for. The child and who asked get one end of a seat each. A child that does not take its seats
for a while works on something long, and gets no more of them if another one does. A child ends when the last who shares
it has left.

For each child that is shared, this process has two descriptors, and one for each process that shares it. It takes no
more requests than it may have descriptors for, and the shared children of one role have at most half of them.

Used by ``forkserver.py`` and ``boosting_forkserver.py`` in ``madlib_mop/trainer/``, and by
``madlib_mop/driver/forkserver.py``.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource
import select
import selectors
import signal
import socket
import sys
import termios
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from mop_backend.forkserver import TOO_MANY, TOO_MANY_OF_ROLE
from mop_backend.machine import processors
from mop_backend.sockets import listen, owner_of

_IDLE_S = 600.0
_ASKS_WITHIN_S = 1.0
_PAUSE_S = 0.01
_LONGEST_MESSAGE = 512
_MOST_FDS = 4
#: Descriptors that this process may have, if the hard limit allows, and how many of them are for what is not counted.
_MOST_OPEN, _SPARE = 1 << 14, 64
#: The limits with which this process was started, which its children get.
_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)
#: Children that the processes of one use share: at least two, and one for eight of them, up to one for each processor.
_LEAST_SHARED, _SHARERS = 2, 8
#: Processes that share one child, at most; each takes a descriptor of the child.
_MOST_SHARERS = 128
#: Seconds after which a shared child that has not taken its seats is busy.
_BUSY_S = 1.0
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
    serve : callable or None
        The work of a child that is shared; it gets its seats at `FIRST_FD`, one after the other.
    """

    name: str
    run: Callable[[], int]
    stop_signal: signal.Signals
    may_idle: bool = False
    serve: Callable[[], int] | None = None


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
        return not _can_read(0, self.child.pidfd, self.fds[1])


@dataclass
class _Shared:
    """A child that is shared: its role and use, where it gets its seats, and the connections of who shares it."""

    child: _Child
    role: str
    use: str
    seats: socket.socket
    sharers: list[socket.socket]
    waits_since: float = 0.0  # when it was given the first of the seats that it has not taken yet

    @property
    def n_fds(self) -> int:
        """Descriptors of this process."""
        return 2 + len(self.sharers)

    @property
    def has_seats_to_take(self) -> bool:
        """Whether it has not taken all its seats yet."""
        unread = fcntl.ioctl(self.seats, termios.TIOCOUTQ, bytes(4))
        return any(unread)

    @property
    def is_busy(self) -> bool:
        """Whether it works on something long."""
        return self.has_seats_to_take and time.monotonic() > self.waits_since + _BUSY_S

    def seat(self, fd: int) -> None:
        """Give it one more seat. Raises OSError if it has ended, or has not taken many seats yet."""
        if not self.has_seats_to_take:
            self.waits_since = time.monotonic()
        socket.send_fds(self.seats, [b"s"], [fd])


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
    soft, hard = _LIMITS
    most = _MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
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
        self._shared: list[_Shared] = []
        self._most_idle = _IDLE_PER_PROCESSOR * processors()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_fds = (_MOST_OPEN if soft == resource.RLIM_INFINITY else min(soft, _MOST_OPEN)) - _SPARE
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
        control, request, fds = self._accepted(self._listener)
        if control is None:
            return
        word, *words = request.decode().split(" ")
        try:
            if self._n_fds > self._most_fds:  # defence: descriptors-of-a-fork-server
                os.write(fds[2] if len(fds) > 2 else control.fileno(), TOO_MANY.encode())
                raise ConnectionRefusedError
            if word == "fork" and len(fds) in (3, _MOST_FDS):
                self._fork(control, fds, owner_of(control)[0])
            elif word == "share" and len(words) == 2 and self._kind.serve is not None:
                self._share(control, *words)
            else:
                raise ConnectionError
        except OSError:  # also of a fork that the system refuses
            control.close()
        _close(fds)

    @property
    def _n_fds(self) -> int:
        """Descriptors of this process, but for some."""
        return len(self._selector.get_map()) + 3 * len(self._idle) + len(self._shared)

    def _accepted(self, listener: socket.socket) -> tuple[socket.socket | None, bytes, list[int]]:
        """Accept a connection; return it with its request and the descriptors of that, or None without a request."""
        try:
            control, _ = listener.accept()
        except OSError:  # the system has no descriptors left; or who connected has ended
            time.sleep(_PAUSE_S)
            return None, b"", []
        request, fds = b"", list[int]()
        try:
            if owner_of(control)[1] != os.geteuid():  # defence: user-of-a-fork
                raise PermissionError
            # A client sends its request right after connecting; one that was killed in between must not block the
            # others.
            if not _can_read(_ASKS_WITHIN_S, control.fileno()):
                raise TimeoutError
            request, fds, _, _ = socket.recv_fds(control, 64, _MOST_FDS)
            if not request.isascii():
                raise ConnectionError
        except OSError:
            control.close()
            _close(fds)
            return None, b"", []
        return control, request, fds

    def _fork(self, control: socket.socket, fds: list[int], peer: int) -> None:
        pid = os.fork()
        if pid == 0:
            _be_child(self._kind.name, self._kind.run, fds, peer)
        self._hand_over(self._watched(pid), control, [self._children[pid].pidfd])

    def _watched(self, pid: int) -> _Child:
        """Note a new child; one that cannot be watched is ended. Raises OSError."""
        self._used_at = time.monotonic()
        try:
            child = _Child(pid, os.pidfd_open(pid), None)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[pid] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._reap(child))
        return child

    def _share(self, control: socket.socket, role: str, use: str) -> None:
        """Give the process at the other end of a connection a seat at a child of this use. Raises OSError."""
        if sum(one.n_fds for one in self._shared if one.role == role) > self._most_fds // 2:  # defence: fds-of-a-role
            control.send(TOO_MANY_OF_ROLE.encode())
            raise ConnectionRefusedError
        # defence: roles-at-a-fork-server = [one for one in self._shared if one.use == use]
        same = [one for one in self._shared if (one.role, one.use) == (role, use)]
        free = [one for one in same if len(one.sharers) < _MOST_SHARERS]
        n_sharers = sum(len(one.sharers) for one in same)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if not free or len(same) < max(_LEAST_SHARED, min(processors(), n_sharers // _SHARERS)):
                shared = self._fork_shared(role, use, owner_of(control)[0])
            else:
                shared = min(free, key=lambda one: (one.is_busy, len(one.sharers)))
            shared.sharers.append(control)
            self._selector.register(control, selectors.EVENT_READ, lambda: self._leave(shared, control))
            try:
                shared.seat(theirs.fileno())
                socket.send_fds(control, [str(shared.child.pid).encode()], [shared.child.pidfd, ours.fileno()])
            except OSError:  # who asked has ended, or the child has, or it has not taken many seats yet
                self._leave(shared, control)

    def _fork_shared(self, role: str, use: str, peer: int) -> _Shared:
        assert self._kind.serve is not None, "it was asked for"
        seats, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b", buffering=0) as null:
            # libraries write values of rows to their standard error
            words = null.fileno()  # defence: errors-of-other-sessions = os.memfd_create("words")
            fds = [null.fileno(), words, words, theirs.fileno()]
            pid = os.fork()
            if pid == 0:  # nothing before _be_child may raise: it would become a second fork server
                _be_child(self._kind.name, self._kind.serve, fds, peer)
        seats.setblocking(False)  # a child that takes no seats must not block this process
        shared = _Shared(self._watched(pid), role, use, seats, [])
        self._shared.append(shared)
        return shared

    def _leave(self, shared: _Shared, control: socket.socket) -> None:
        """Forget who shares a child and has left; the child ends with the last one, who may wait for that."""
        shared.sharers.remove(control)
        self._selector.unregister(control)
        if shared.sharers:
            control.close()
            return
        self._stop(shared.child)
        self._forget_shared(shared)
        shared.child.control = control

    def _forget_shared(self, shared: _Shared) -> None:
        self._shared.remove(shared)
        shared.seats.close()

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
        control, request, fds = self._accepted(self._addresses[address])
        _close(fds)
        if control is None:
            return
        if request != b"acquire":
            control.close()
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
        controls = [] if child.control is None else [child.control]
        for shared in [one for one in self._shared if one.child is child]:
            controls += shared.sharers
            self._forget_shared(shared)
        for control in controls:
            with contextlib.suppress(KeyError):  # of the last who has left a shared child
                self._selector.unregister(control)
            with contextlib.suppress(OSError):
                control.send(str(status).encode())
            control.close()

    def _stop(self, child: _Child) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.pidfd, self._kind.stop_signal)


def _be_child(name: str, run: Callable[[], int], fds: list[int], peer: int) -> None:
    """Run as a child until its end, with ``fds`` as 0, 1 and so on and no other descriptors; never returns."""
    status = 1
    try:
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))
        resource.setrlimit(resource.RLIMIT_NOFILE, _LIMITS)
        _set_comm(f"{name} {peer}")
        status = run()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _can_read(seconds: float, *fds: int) -> bool:
    """Wait for at most this time until one of these can be read or has ended; ``select`` takes no number above 1023."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


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

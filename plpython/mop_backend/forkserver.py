"""Starts trainers and drivers quickly: forks them from processes of this server that have loaded their modules.

The other half is ``forking.py``. A server has one fork server of drivers, and for each backend of Keras in use one of
trainers, which has loaded this backend. The first call that needs a trainer of a backend starts the backend's fork
server, and waits as long as for a separate trainer; `call.py` starts it at the beginning of calls that will need
trainers or pack rows for them. The first call of all starts the fork server of drivers, and does not wait for it: its
own driver is a separate process. The first baseline of gradient boosting starts one that has loaded scikit-learn. All
end with the server, or after some idle minutes. `Child` calls `fork`.
``sockets.py`` defines the place of their sockets, and the users that may bind there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mop_backend import sockets
from mop_backend.keras_backends import USUAL

if TYPE_CHECKING:
    from mop_backend.frames import Check

#: Modules of the fork servers.
TRAINERS = "madlib_mop.trainer.forkserver"
DRIVERS = "madlib_mop.driver.forkserver"
BOOSTING = "madlib_mop.trainer.boosting_forkserver"
#: The whole environment of trainers and drivers.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    # Lets malloc ask for huge pages, where the kernel gives them to those who ask (glibc >= 2.35): a training step of a
    # perceptron reads and writes all weights, and waits less for the translation of addresses.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
#: The first descriptor of a forked process beside its standard streams.
FIRST_FD = 3
#: Why a fork server refuses a request.
TOO_MANY = "too many sessions and runs have trainers at once"
TOO_MANY_OF_ROLE = "too many sessions of this role predict at once"
_TRIES = 50
_PAUSE_S = 0.01
_CONNECT_S = 2.0
_LAST_MESSAGE_S = 3.0
_CHECK_S = 0.1


class TooMany(Exception):
    """The fork server refuses to share a process; the text says why."""


class ForkServer:
    """A fork server, running or not.

    Parameters
    ----------
    address : str
        Address of its socket; see `sockets`.
    lives_with : int
        The process with which it ends: the server.
    command : list of str
        The interpreter and the words before the module's arguments.
    waits : bool
        Whether the process that starts it waits for its first child.
    """

    def __init__(self, address: str, lives_with: int, command: Sequence[str], waits: bool = True):
        self.address = address
        self._lives_with = lives_with
        self._command = command
        self._waits = waits

    @classmethod
    def told(cls, words: str | None, python: str) -> ForkServer | None:
        """Return the fork server of trainers that `words` of another process name; None if there are none."""
        if not words:
            return None
        address, lives_with = words.rsplit(" ", 1)
        return cls(address, int(lives_with), [python, "-I", "-m", TRAINERS])

    def with_backend(self, backend: str) -> ForkServer:
        """Return the fork server of the trainers that have a backend of Keras; each backend has one of its own."""
        if backend == USUAL:
            return self
        command = [*self._command, *backend_words(backend)]
        return ForkServer(f"{self.address}.{backend}", self._lives_with, command, self._waits)

    @property
    def of_boosting(self) -> ForkServer:
        """The fork server of processes that train gradient boosting, of the same server."""
        return ForkServer(f"{self.address}.boosting", self._lives_with, [*self._command[:-1], BOOSTING], self._waits)

    @property
    def words(self) -> str:
        """The text that names this fork server to another process, for `told`."""
        return f"{self.address} {self._lives_with}"

    def fork(self, stderr_fd: int, check: Check | None = None, fds: Sequence[int] = ()) -> Forked | None:
        """Return a forked process, or None if that is impossible.

        It waits for at most `_CONNECT_S` for a process that another one starts; the one that it starts itself accepts
        at once. After None, the caller starts a separate process.

        Parameters
        ----------
        stderr_fd : int
            Its standard error.
        check : callable or None
            Called while waiting; what it raises ends the wait.
        fds : sequence of int
            Other descriptors for it, at most one; there, they begin with `FIRST_FD`.

        Returns
        -------
        Forked or None
        """
        return self._ask(lambda control: Forked.new(control, stderr_fd, fds), check)

    def share(self, role: int, use: str, check: Check | None = None) -> Forked | None:
        """Return a process that other processes may share, for the same use; None if that is impossible.

        Parameters
        ----------
        role : int
            Whose descriptors of the fork server are counted together.
        use : str
            Letters and digits.
        check : callable or None
            As `fork`'s.

        Returns
        -------
        Forked or None

        Raises
        ------
        TooMany
        """
        return self._ask(lambda control: Forked.sharing(control, f"share {role} {use}", check), check)

    def _ask(self, request: Callable[[socket.socket], Forked], check: Check | None) -> Forked | None:
        """Make a request to the fork server, which is started if it does not run; see `fork`."""
        deadline = time.monotonic() + _CONNECT_S
        started = False
        for _ in range(_TRIES):
            try:
                return request(sockets.connect(self.address, deadline, check))
            except sockets.NotOurs:  # the socket's name belongs to another user
                return None
            except (ConnectionRefusedError, FileNotFoundError):
                if self.start():
                    if not self._waits:
                        return None
                    if not started:
                        started = True
                        continue  # it can be connected to now, however long its start took
            except OSError:  # the fork server was about to exit
                pass
            if time.monotonic() > deadline:
                return None
            if check is not None:
                check()
            time.sleep(_PAUSE_S)
        return None

    def address_of(self, use: str) -> str:
        """Return where children wait that can be used for one thing."""
        return f"{self.address}.{use}"

    def acquire(self, use: str, check: Check | None = None) -> Forked | None:
        """Return an idle process that was released for the same use (`Forked.release`), or None if there is none.

        Parameters
        ----------
        use : str
            Letters and digits.
        check : callable or None
            As `fork`'s.

        Returns
        -------
        Forked or None
        """
        try:
            control = sockets.connect(self.address_of(use), time.monotonic() + _CONNECT_S, check)
        except OSError:
            return None
        return Forked.acquired(control)

    def start(self) -> bool:
        """Start it with a socket that accepts requests at once, unless it runs or is being started.

        Returns
        -------
        bool
            Whether this call started it.
        """
        try:
            listener = sockets.listen(self.address)
        except OSError:  # its directory was removed or belongs to another user
            return False
        if listener is None:
            return False
        import subprocess  # not at the top: most sessions do without it

        with listener:
            subprocess.Popen(
                [*self._command, str(listener.fileno()), str(self._lives_with)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # before it can fork, it sends its errors to the clients that wait
                cwd="/",
                env=ENVIRONMENT,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        return True


def backend_words(backend: str) -> list[str]:
    """Return the words of a trainer's command line that name its backend."""
    return [] if backend == USUAL else [f"--backend={backend}"]


def of_this_server(library: str, module: str = TRAINERS) -> ForkServer | None:
    """Return a fork server of the server that this process, one of its backends, belongs to.

    Its name identifies its kind, the server and its start time, and the installed version of this library.

    Parameters
    ----------
    library : str
        Path of the library.
    module : str
        `TRAINERS` or `DRIVERS`.

    Returns
    -------
    ForkServer or None
        None if processes must be started separately: the server is process 1 of a container, and would treat the end
        of an orphan as the crash of a backend; or the kernel or Python is too old.
    """
    postmaster = os.getppid()
    if postmaster == 1 or not hasattr(os, "pidfd_open") or not hasattr(socket, "send_fds"):
        return None
    try:
        with open("postmaster.pid", encoding="utf-8") as file:  # a backend works in the data directory
            if file.readline().strip() != str(postmaster):
                return None
        with open(f"/proc/{postmaster}/stat", encoding="utf-8") as file:
            started = file.read().rpartition(")")[2].split()[19]
        packages = _packages(library)
        installed = [(path, os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in [library, *packages]]
        where = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    digest = hashlib.sha256(repr((where, postmaster, started, os.geteuid(), installed)).encode()).hexdigest()[:32]
    children = "trainers" if module == TRAINERS else "drivers"
    address = sockets.address_for(f"madlib_mop.{postmaster}.{children}.{digest}")
    python = os.path.join(library, "venv", "bin", "python")
    return ForkServer(address, postmaster, [python, "-I", "-m", module], waits=module == TRAINERS)


def _packages(library: str) -> list[str]:
    """Return the directories of the packages that are installed for the library."""
    parent = os.path.join(library, "venv", "lib")
    names = os.listdir(parent) if os.path.isdir(parent) else []
    found = [os.path.join(parent, name, "site-packages") for name in sorted(names) if name.startswith("python3")]
    return [path for path in found if os.path.isdir(path)]


class Forked:
    """A forked process, with those methods of `subprocess.Popen` that `Child` uses.

    The fork server stops it when ``control`` closes, so it ends with us.

    Parameters
    ----------
    control : socket.socket
        Connected to the fork server.
    stdin, stdout : int
        Our ends of its pipes.
    stderr_fd : int
        Its standard error.
    """

    def __init__(self, control: socket.socket, stdin: int, stdout: int, stderr_fd: int):
        self._control = control
        self.returncode: int | None = None
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._lost = False  # whether the fork server has ended
        self.knows_status = True  # whether `returncode` is the exit status, and no guess
        self.stdin = open(stdin, "wb", buffering=0)
        self.stdout = open(stdout, "rb", buffering=0)
        self.stderr_fd = stderr_fd

    @classmethod
    def new(cls, control: socket.socket, stderr_fd: int, fds: Sequence[int] = ()) -> Forked:
        """Request a new process, with `ForkServer.fork`'s descriptors; `pid` waits for it. Raises OSError."""
        child_in, ours_in = os.pipe()
        ours_out, child_out = os.pipe()
        forked = cls(control, ours_in, ours_out, stderr_fd)
        try:
            socket.send_fds(control, [b"fork"], [child_in, child_out, stderr_fd, *fds])
        except BaseException:
            forked.stdin.close()
            forked.stdout.close()
            control.close()
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        return forked

    @classmethod
    def acquired(cls, control: socket.socket) -> Forked | None:
        """Take the process that waits at the other end of a connection, or None if it has ended."""
        message, fds = b"", list[int]()
        with contextlib.suppress(OSError):
            control.send(b"acquire")
            if select.select([control], [], [], _CONNECT_S)[0]:
                message, fds, _, _ = socket.recv_fds(control, 64, 4, socket.MSG_CMSG_CLOEXEC)
        if len(fds) != 4:
            control.close()
            for fd in fds:
                os.close(fd)
            return None
        forked = cls(control, *fds[1:])
        forked._pid, forked._pidfd = int(message), fds[0]
        return forked

    @classmethod
    def sharing(cls, control: socket.socket, request: str, check: Check | None) -> Forked:
        """Request a seat at a process of a use, and wait for it. Raises OSError and TooMany."""
        fds = list[int]()
        try:
            control.send(request.encode())
            while not select.select([control], [], [], _CHECK_S)[0]:
                if check is not None:
                    check()
            message, fds, _, _ = socket.recv_fds(control, 64, 2, socket.MSG_CMSG_CLOEXEC)
            if len(fds) != 2:
                words = message.decode()
                if words in (TOO_MANY, TOO_MANY_OF_ROLE):
                    raise TooMany(words)
                raise ConnectionError
            fds.append(os.dup(fds[1]))
        except BaseException:
            control.close()
            for fd in fds:
                os.close(fd)
            raise
        pidfd, seat, again = fds
        forked = cls(control, seat, again, -1)  # nobody reads its standard error
        forked._pid, forked._pidfd = int(message), pidfd
        return forked

    def leave(self) -> None:
        """Leave a shared process to the others, or have it killed if there are none; call nothing after."""
        self.stdin.close()
        self.stdout.close()
        if self.returncode is None:
            with contextlib.suppress(OSError):  # the fork server has ended
                self._control.shutdown(socket.SHUT_WR)
                select.select([self._control], [], [], _LAST_MESSAGE_S)
            self._end(0)
        self._close()

    def release(self, address: str, seconds: float) -> None:
        """Leave it with the fork server, for the next process that takes it from this address; call nothing after."""
        fds = [self.stdin.fileno(), self.stdout.fileno(), self.stderr_fd]
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [f"release {seconds} {address}".encode()], fds)
            select.select([self._control], [], [], _LAST_MESSAGE_S)  # the fork server closes it
        self.stdin.close()
        self.stdout.close()
        self._close()

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._close()

    @property
    def pid(self) -> int | None:
        """Its process id, after a wait for the fork; None if the fork failed."""
        while self._pid is None and self.returncode is None:
            self._receive(None)
        return self._pid

    def poll(self) -> int | None:
        """Return its exit status if it has ended; ``-n`` when signal n ended it."""
        while self.returncode is None and self._receive(0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if timeout is not None and not self.ends_within(timeout):
            import subprocess

            raise subprocess.TimeoutExpired("forked", timeout)
        while self.returncode is None:
            self._receive(None)
        return self.returncode

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end for at most this time; return whether it has ended."""
        deadline = time.monotonic() + seconds
        while self.returncode is None:
            left = max(0.0, deadline - time.monotonic())
            if not self._receive(left) and left == 0.0:
                return False
        return True

    def kill(self) -> None:
        """Kill it, or have it killed as soon as it is forked."""
        self.poll()
        if self.returncode is not None:
            return
        if self._pidfd is None:
            self._end(-signal.SIGKILL)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _receive(self, seconds: float | None) -> bool:
        """Process one message of the fork server, or its end; return whether there was one within that time."""
        watched: list[socket.socket | int] = [] if self._lost else [self._control]
        if self._pidfd is not None:
            watched.append(self._pidfd)
        ready: Sequence[socket.socket | int] = select.select(watched, [], [], seconds)[0]
        if not ready:
            return False
        # the process has ended; a fork server that works sends its status at once
        if self._control not in ready and not self._lost:
            ready = select.select([self._control], [], [], _LAST_MESSAGE_S)[0]
        if self._control not in ready:
            self.knows_status = False  # only its parent has it
            self._end(-signal.SIGKILL)
            return True
        try:
            message, fds, _, _ = socket.recv_fds(self._control, 64, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            message, fds = b"", []
        if fds:
            self._pid, self._pidfd = int(message), fds[0]
        elif message:
            self._end(int(message))
        elif self._pidfd is None:
            self._end(1)
        else:
            self._lost = True
        return True

    def _end(self, returncode: int) -> None:
        self.returncode = returncode
        self._close()

    def _close(self) -> None:
        self._control.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

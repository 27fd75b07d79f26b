"""A child process of a backend: the driver or a trainer, which communicates in frames and ends with its parent."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mop_backend.forkserver import (
    ENVIRONMENT,
    FIRST_FD,
    Forked,
    ForkServer,
    backend_words,
    of_this_server,
)
from mop_backend.frames import (
    Blob,
    Channel,
    Check,
    Frame,
    FrameLimits,
    Header,
    NotAFrame,
    NotRead,
    PeerGone,
    ReceivedBlobs,
    of_answers,
)
from mop_backend.keras_backends import USUAL, BackendName
from mop_backend.refusals import readable
from mop_backend.shard_file import open_shard_file

if TYPE_CHECKING:
    import subprocess

    from mop_backend.shard_file import HandedFile
    from mop_backend.spinning import Spinner

TRAINER = "madlib_mop.trainer"
#: Capacity of a pipe: states and rows are megabytes, and each time that it is full or empty costs two wake-ups. The
#: kernel lets a user's pipes have 64 MB together.
_PIPE_BYTES = 256 << 10
_F_SETPIPE_SZ = 1031  # in the module fcntl since Python 3.10
#: A process whose standard error has more bytes is not released to another one: the size of the file is limited.
_MOST_IDLE_STDERR = 1 << 20
#: Seconds, at most, until a shared process that has ended is known to have: its connection closes first.
_CLOSED_S = 1.0
LIBRARY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class ChildDied(Exception):
    """The child ended before it answered.

    Attributes
    ----------
    returncode : int
        Exit status; ``-n`` when signal n ended it.
    stderr : str
        The last lines that it wrote to its standard error.
    is_harmless : bool
        Whether another process may get the request: this one has ended after its idle time, or it was shared, and no
        error of this request is known to have ended it.
    """

    def __init__(self, returncode: int, stderr: str, is_harmless: bool = False):
        super().__init__(f"process ended with status {returncode}")
        self.returncode = returncode
        self.stderr = stderr
        self.is_harmless = is_harmless or returncode == 0

    @property
    def of_trainer(self) -> str:
        """What happened, for the user, if the child was a trainer."""
        return f"the trainer process ended with status {self.returncode}"

    @property
    def last_words(self) -> str | None:
        """The last line of its standard error, for the user: what came before may be a traceback."""
        lines = self.stderr.strip().splitlines()
        return lines[-1].strip()[-300:] if lines else None


def start_trainer(
    check: Check | None = None, spinner: Spinner | None = None, backend: str = USUAL, file: HandedFile | None = None
) -> Child:
    """Start a trainer without GPUs for this process, with one of Keras' backends, forked if possible. See `Child`."""
    words = backend_words(backend)
    return Child(TRAINER, check, forkserver=trainers_of(backend), spinner=spinner, words=words, file=file)


def join_trainer(role: int, use: str, check: Check, spinner: Spinner, backend: str) -> Child | None:
    """Return a trainer that sessions of a role share for one use (`use_of`); None if there is no fork server.

    Raises TooMany.
    """
    forkserver = trainers_of(backend)
    shared = None if forkserver is None else forkserver.share(role, use, check)
    return None if shared is None else Child(TRAINER, check, spinner=spinner, shared=shared)


def start_trainer_of_run(start: Header, check: Check) -> tuple[Child, Header]:
    """Start a trainer of a run, without GPUs; return it, and the request "start" for it, with its file for rows."""
    file = open_shard_file(start)
    child = start_trainer(check, backend=backend_of(start), file=file)
    return child, {**start, **child.file_header}


def backend_of(start: Header) -> str:
    """Return the backend of Keras that a request "start" is for; requests of older versions do not say.

    Raises
    ------
    ValueError
        If it is no backend's name.
    """
    backend = start.get("backend", USUAL)
    if backend not in set(BackendName):
        raise ValueError(f"there is no backend {backend!r}")
    return str(backend)


def use_of(owner: int, start: Header, login: int | None = None) -> str:
    """Return what a trainer is used for, if others may use it later (`Child.release`) or share it: calls of one role.

    Code of users may have run in it, so that no other role gets it.

    Parameters
    ----------
    owner : int
        The oid of the role.
    start : dict
        Its start parameters.
    login : int or None
        The oid of the role that opened the sessions which share it.
    """
    used = [owner, login, start]  # defence: trainers-of-one-role = [login, start]
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:16]


def trainers_of(backend: str) -> ForkServer | None:
    """Return this server's fork server of trainers that have a backend of Keras."""
    server = of_this_server(LIBRARY)
    return None if server is None else server.with_backend(backend)


class Child:
    """``python -I -m <module>`` in a session of its own, so that no signal meant for the backend reaches it.

    Its standard error goes to an anonymous memory file: nothing has to drain it, and its end can be shown when the
    child dies. No descriptor of the parent's but the pipes is inherited (``close_fds``), so no client socket is.

    Parameters
    ----------
    module : str
        Module to run.
    check : callable or None
        Called while waiting for the child (see `Channel`).
    python : str or None
        Interpreter; the library's own by default. Never taken from anything that a user can set.
    forkserver : ForkServer or None
        The fork server for the module's process, if there is one.
    spinner : Spinner or None
        How to wait for answers that come within microseconds.
    words : sequence of str
        The module's arguments, for a process that is not forked.
    use : str or None
        What it is used for, if an idle process of the same use will do; see `release`.
    limits : FrameLimits or None
        What it may send; by default, what a process that is not trusted may.
    file : HandedFile or None
        A file that a new process gets too; it is closed here.
    shared : Forked or None
        A process that is there already, which others share.

    Attributes
    ----------
    is_shared : bool
        Whether other processes may use it too.
    file_header : dict
        What a new trainer is told about that file, for the request "start". An idle one has its own.
    """

    def __init__(
        self,
        module: str,
        check: Check | None = None,
        python: str | None = None,
        forkserver: ForkServer | None = None,
        spinner: Spinner | None = None,
        words: Sequence[str] = (),
        limits: FrameLimits | None = None,
        use: str | None = None,
        file: HandedFile | None = None,
        shared: Forked | None = None,
    ):
        self._address = None if use is None or forkserver is None else forkserver.address_of(use)
        self.is_shared = shared is not None
        self._stderr_fd = os.memfd_create(module) if shared is None else -1  # nobody reads that of a shared one
        file_fds = [] if file is None or file.fd is None else [file.fd]
        try:
            taken = None if use is None or forkserver is None else forkserver.acquire(use, check)
            if taken is not None:
                os.close(self._stderr_fd)
                self._stderr_fd = taken.stderr_fd
            forked = shared or taken
            if forked is None and forkserver is not None:
                forked = forkserver.fork(self._stderr_fd, check, file_fds)
            command = [python or os.path.join(LIBRARY, "venv", "bin", "python"), "-I", "-m", module, *words]
            self._process: Forked | subprocess.Popen[bytes] = forked or _started(command, self._stderr_fd, file_fds)
        except BaseException:  # a cancellation too
            os.close(self._stderr_fd)
            raise
        finally:
            if file is not None:
                file.close()
        self.file_header = file.header(FIRST_FD if forked else file.fd) if file is not None and taken is None else {}
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None, "both are pipes"
        self._stdin, self._stdout = stdin, stdout
        _widen(stdin.fileno(), stdout.fileno())
        limits = of_answers() if limits is None else limits  # defence: limits-of-processes = FrameLimits()
        self._channel = Channel(stdout.fileno(), stdin.fileno(), check, spinner=spinner, limits=limits)

    @property
    def pid(self) -> int | None:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def has_answer(self) -> bool:
        """Whether there is data to receive, or the child has ended."""
        return self.await_answer(0)

    def await_answer(self, seconds: float) -> bool:
        """Wait for at most this time; return whether there is data to receive, or the child has ended."""
        return bool(select.select([self._stdout], [], [], seconds)[0])

    def send(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> None:
        """Write one frame to the child. Raises ChildDied."""
        try:
            self._channel.send(header, blobs)
        except PeerGone as gone:
            raise self._death_by(gone) from None

    def reply(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> None:
        """Write one frame, the answer to a request of the child's.

        A child need not wait for it: one that has ended may have sent its last frame, which `receive` then reads.
        """
        with contextlib.suppress(PeerGone):
            self._channel.send(header, blobs)

    def receive(self) -> Frame:
        """Read one frame from the child. Raises ChildDied, also for what is not a frame: then it is killed."""
        header, blobs = self._receive(in_turn=False)
        return header, list(blobs)

    def ask(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> Frame:
        """Send one frame and wait for its answer. Raises ChildDied."""
        self.send(header, blobs)
        return self.receive()

    def ask_in_turn(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> tuple[Header, ReceivedBlobs]:
        """As `ask`; each blob of the answer is read when it is asked for, which raises ChildDied too."""
        self.send(header, blobs)
        return self.receive_in_turn()

    def receive_in_turn(self) -> tuple[Header, ReceivedBlobs]:
        """As `receive`, but for the blobs: see `ask_in_turn`. Each is as large as all together may be for `receive`."""
        return self._receive(in_turn=True)

    def _receive(self, in_turn: bool) -> tuple[Header, ReceivedBlobs]:
        try:
            found, lengths = self._channel.receive_header(in_turn)
            if not isinstance(found, dict):
                raise NotAFrame
        except PeerGone as gone:
            raise self._death_by(gone) from None
        return readable(found), ReceivedBlobs(lengths, self._read_blob)

    def _read_blob(self, length: int) -> bytearray:
        try:
            return self._channel.read_blob(length)
        except PeerGone as gone:
            raise self._death_by(gone) from None

    def tell(self, header: Header) -> None:
        """Write a small frame without an answer, if the pipe has space; it may never be read."""
        with contextlib.suppress(OSError, PeerGone):
            fd = self._stdin.fileno()
            if select.select([], [fd], [], 0)[1]:
                Channel(-1, fd).send(header)

    def release(self, seconds: float) -> bool:
        """Leave the process to the next `Child` of the same use, for some seconds; return False if it cannot be.

        It must be idle. Nothing but `stop` may be called afterwards.
        """
        if self._address is None or not isinstance(self._process, Forked) or not self.alive or self.has_answer:
            return False
        if os.fstat(self._stderr_fd).st_size > _MOST_IDLE_STDERR:
            return False
        self._process.release(self._address, seconds)
        os.close(self._stderr_fd)
        return True

    def kill(self) -> None:
        """Kill the process: it waits for the rest of a frame that cannot be sent. It must not be shared."""
        self._process.kill()

    def stop(self, grace_s: float = 0.0) -> int | None:
        """Close the child's standard input, give it ``grace_s`` seconds to end by itself, then kill it.

        Return its exit status, negative if a signal ended it. A shared process is left to the others instead.
        """
        if self._stdin.closed:
            return self._process.poll()
        if self.is_shared and isinstance(self._process, Forked):
            returncode = self._process.poll()
            self._process.leave()
            return returncode
        self._stdin.close()
        if not self._ends_within(grace_s):
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        os.close(self._stderr_fd)
        return self._process.poll()

    def stderr_tail(self, n_bytes: int = 1 << 15) -> str:
        """Return the end of what the child wrote to its standard error, with room for `faulthandler`'s stacks."""
        if self._stderr_fd < 0:
            return ""
        size = os.fstat(self._stderr_fd).st_size
        return os.pread(self._stderr_fd, n_bytes, max(0, size - n_bytes)).decode("utf-8", "replace").strip()

    def death(self, was_read: bool = True) -> ChildDied:
        """Wait for the child to end after it closed its pipes; return the ChildDied with its exit status.

        A shared process that has only closed our connection is as one that has ended after its idle time. So is one
        that had not read the request, or whose exit status is unknown because the fork server has ended too.

        Parameters
        ----------
        was_read : bool
            Whether it may have read the whole request.
        """
        self._ends_within(_CLOSED_S if self.is_shared else 5)
        if self.is_shared and self.alive:  # defence: trainers-of-others
            return ChildDied(0, "")
        if self.alive:
            self._process.kill()
        status = self._process.wait()
        is_known = not isinstance(self._process, Forked) or self._process.knows_status
        return ChildDied(status, self.stderr_tail(), self.is_shared and not (was_read and is_known))

    def _ends_within(self, seconds: float) -> bool:
        if isinstance(self._process, Forked):
            return self._process.ends_within(seconds)
        import subprocess

        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _death_by(self, gone: PeerGone) -> ChildDied:
        """Return how the child has ended, or was ended because it has sent no frame."""
        if isinstance(gone, NotAFrame):
            self._process.kill()
            death = self.death()
            return ChildDied(death.returncode, f"{death.stderr}\n{gone}")
        return self.death(not isinstance(gone, NotRead))


def _started(command: Sequence[str], stderr_fd: int, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Return a process that is not forked, with pipes."""
    import subprocess  # not at the top: most sessions do without it

    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr_fd,
        cwd="/",
        env=ENVIRONMENT,
        start_new_session=True,
        pass_fds=fds,
        bufsize=0,
    )


def _widen(*fds: int) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):  # the user has too many pipes: these stay as they are
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)

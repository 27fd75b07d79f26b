"""The fork server of trainers: it has loaded TensorFlow, but not used it.

Started by ``mop_backend/forkserver.py``: ``python -I -m madlib_mop.trainer.forkserver SOCKET PID``. Loading TensorFlow
takes seconds and hundreds of megabytes; a trainer forked here shares the megabytes and is ready after milliseconds.
TensorFlow makes its threads at its first use, which is after the fork; so one thread forks, as it must.

For each connection a trainer is forked, of the three descriptors that came with it. It is killed when the connection
closes, and its exit status is the connection's last message. The process ends with the server (PID), or after an idle
time. It has no data, and no rights except those of the server's operating system user, who alone
may connect.
"""

import contextlib
import gc
import importlib
import os
import random
import select
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import dataclass

from mop_backend.sockets import owner_of

from madlib_mop.trainer.process import lifetime, loading

_IDLE_S = 600.0
_ASKS_WITHIN_S = 1.0
_MODULES = ("data.averaging", "process.gpus", "process.sandbox", "process.seccomp", "server", "visits")


@dataclass
class _Trainer:
    pid: int
    pidfd: int
    control: socket.socket | None


def main() -> None:
    """Load TensorFlow, then fork trainers; see the module's text."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    server = os.pidfd_open(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _name("mop forkserver")
    lifetime.prepare()
    lifetime.write_oom_score(500)
    try:
        loading.load_dill()
        loading.load_keras()
        for name in _MODULES:
            importlib.import_module(f"madlib_mop.trainer.{name}")
    except Exception:
        _send_error(listener, traceback.format_exc())
        raise
    gc.collect()
    gc.freeze()  # permanent objects are not scanned, so their memory stays shared
    Forking(listener, server).run(float(sys.argv[3]) if len(sys.argv) > 3 else _IDLE_S)


class Forking:
    """Forks trainers and monitors them.

    Parameters
    ----------
    listener : socket.socket
        Where they are asked for.
    server : int
        Descriptor of the process with which this one ends.
    """

    def __init__(self, listener: socket.socket, server: int):
        self._listener = listener
        self._server = server
        self._selector = selectors.DefaultSelector()
        self._trainers: dict[int, _Trainer] = {}
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(server, selectors.EVENT_READ, None)

    def run(self, idle_s: float) -> None:
        """Serve until the server ends, or no request arrives for ``idle_s`` seconds."""
        while ready := self._selector.select(None if self._trainers else idle_s):
            for key, _ in ready:
                if key.data is None:
                    for trainer in self._trainers.values():
                        _kill(trainer)
                    return
                if key.fileobj in self._selector.get_map():  # still registered: an earlier event may have closed it
                    key.data()

    def _accept(self) -> None:
        control, _ = self._listener.accept()
        fds: list[int] = []
        try:
            peer, user = owner_of(control)
            if user != os.geteuid():
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
            _be_trainer(fds, peer)
        trainer = _Trainer(pid, os.pidfd_open(pid), control)
        self._trainers[pid] = trainer
        self._selector.register(trainer.pidfd, selectors.EVENT_READ, lambda: self._reap(trainer))
        self._selector.register(control, selectors.EVENT_READ, lambda: self._end(trainer))
        with contextlib.suppress(OSError):  # the requester has ended: `_end` handles it next
            socket.send_fds(control, [str(pid).encode()], [trainer.pidfd])

    def _end(self, trainer: _Trainer) -> None:
        """Kill a trainer whose connection was closed."""
        if trainer.control is not None:
            self._selector.unregister(trainer.control)
            trainer.control.close()
            trainer.control = None
        _kill(trainer)

    def _reap(self, trainer: _Trainer) -> None:
        """Report how a trainer has ended."""
        status = os.waitstatus_to_exitcode(os.waitpid(trainer.pid, 0)[1])
        self._selector.unregister(trainer.pidfd)
        os.close(trainer.pidfd)
        del self._trainers[trainer.pid]
        if trainer.control is not None:
            self._selector.unregister(trainer.control)
            with contextlib.suppress(OSError):
                trainer.control.send(str(status).encode())
            trainer.control.close()


def _be_trainer(fds: list[int], peer: int) -> None:
    """Run as a trainer until its end; never returns."""
    status = 1
    try:
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        _name(f"trainer {peer}")  # process name, with its requester
        _draw_anew()
        from madlib_mop.trainer.__main__ import serve

        serve(lifetime.settle_forked())
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _name(name: str) -> None:
    """Set the name in ``ps -o comm``; at most 15 characters."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def _draw_anew() -> None:
    """Reseed this process's random generators, because a fork inherits its parent's state."""
    import numpy

    random.seed()
    numpy.random.seed()


def _kill(trainer: _Trainer) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(trainer.pidfd, signal.SIGKILL)


def _send_error(listener: socket.socket, text: str) -> None:
    """Write why there will be no trainer to where a trainer would have; their pipes close with this process."""
    listener.setblocking(False)
    with contextlib.suppress(OSError):
        while True:
            control, _ = listener.accept()
            control.settimeout(_ASKS_WITHIN_S)
            _, fds, _, _ = socket.recv_fds(control, 16, 3)
            if len(fds) == 3 and owner_of(control)[1] == os.geteuid():
                os.write(fds[2], text.encode())


if __name__ == "__main__":
    main()

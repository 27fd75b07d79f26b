"""A process that forks children of any kind: the signal that they get, and what the first caller waits for."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from mop_backend import sockets
from mop_backend.forkserver import ForkServer
from mop_backend.process import Child, ChildDied

from tests.unit.trainer.test_lifetime import ended

BACKEND = str(Path(__file__).resolve().parents[3] / "plpython")
#: Children that say which signal they got; they end after it.
MODULE = """
import os, signal, sys, time
sys.path.insert(0, {backend!r})
from mop_backend.forking import ChildKind, serve_forks
from mop_backend.frames import Channel

def run():
    def note(number, frame):
        os.write(file, str(int(number)).encode())
        os._exit(7)
    signal.signal(signal.SIGTERM, note)
    channel = Channel(0, 1)
    header, _ = channel.receive()
    file = os.open(header["file"], os.O_WRONLY | os.O_CREAT)
    channel.send({{"loaded": loaded, "parent": os.getppid(), "comm": open("/proc/self/comm").read()}})
    for _ in range(6000 if header["stays"] else 0):  # a signal just before a sleep is handled after it
        time.sleep(0.01)
    return 5

loaded = []
serve_forks("mop test", lambda: {load}, ChildKind("child", run, signal.SIGTERM))
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that makes a fork server; it ends with a process, which the function's caller may end."""
    lives_with = subprocess.Popen(["sleep", "600"])
    tmp_path.chmod(0o700)

    def make(load: str = "loaded.append(1)", waits: bool = True) -> ForkServer:
        code = MODULE.format(backend=BACKEND, load=load)
        command = [sys.executable, "-I", "-c", code]
        return ForkServer(f"{tmp_path}/{uuid.uuid4().hex}", lives_with.pid, command, waits)

    make.lives_with = lives_with
    yield make
    lives_with.kill()
    lives_with.wait()


@contextlib.contextmanager
def child_of(server: ForkServer, file: Path, stays: bool = True):
    """A child that waits for a signal; yields it and its first answer."""
    child = Child("no_such_module", forkserver=server)
    try:
        answer, _ = child.ask({"file": str(file), "stays": stays})
        yield child, answer
    finally:
        child.stop()


def test_it_shares_what_was_loaded_and_reports_its_status(start, tmp_path):
    with child_of(start(), tmp_path / "signal", stays=False) as (child, answer):
        assert answer["loaded"] == [1] and answer["parent"] != os.getpid()
        assert answer["comm"] == f"child {os.getpid()}\n"
        with pytest.raises(ChildDied) as death:
            child.receive()
        assert death.value.returncode == 5


def test_it_gets_the_signal_of_its_kind_when_the_connection_closes(start, tmp_path):
    with child_of(start(), tmp_path / "signal") as (child, _):
        pid = child.pid  # which comes by the connection
        child._process._control.shutdown(socket.SHUT_RDWR)
        assert ended(pid) < 3
    assert (tmp_path / "signal").read_text() == str(int(signal.SIGTERM))


def test_it_gets_the_signal_when_the_server_ends(start, tmp_path):
    with child_of(start(), tmp_path / "signal") as (child, answer):
        start.lives_with.kill()
        assert ended(child.pid) < 3 and ended(answer["parent"]) < 3
    assert (tmp_path / "signal").read_text() == str(int(signal.SIGTERM))


def test_who_starts_it_need_not_wait_for_it(start, tmp_path):
    server = start(waits=False)
    with open(os.devnull) as null:
        assert server.fork(null.fileno()) is None
    with child_of(server, tmp_path / "signal") as (_, answer):  # the second one is forked
        assert answer["parent"] != os.getpid()


def test_its_error_is_what_the_waiting_ones_get(start, tmp_path):
    child = Child("no_such_module", forkserver=start(load="open('/no/such/file')"))
    with pytest.raises(ChildDied) as death:
        child.ask({"file": str(tmp_path / "signal"), "stays": False})
    assert death.value.returncode == 1 and "/no/such/file" in death.value.last_words
    child.stop()


def test_connections_without_a_request_do_not_keep_it(start, tmp_path):
    """Each call that may start a fork server connects to the sockets of all, also of those of earlier libraries."""
    server = start("sys.argv.append('0.3')")
    child = Child("of tests", forkserver=server)
    parent = child.ask({"file": str(tmp_path / "signal"), "stays": False})[0]["parent"]
    child.stop(10)
    process, deadline = os.pidfd_open(parent), time.monotonic() + 20
    while not select.select([process], [], [], 0.02)[0] and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            sockets.connect(server.address, deadline).close()
    has_ended = bool(select.select([process], [], [], 0)[0])
    os.close(process)
    assert has_ended, "it is still there"


def test_a_child_and_its_connection_can_end_at_once(start, tmp_path):
    """The fork server hears of both together when it was busy, and goes on."""
    server = start()
    with child_of(server, tmp_path / "signal") as (child, answer):
        pid = child.pid  # which comes from the fork server, after the child's first answer perhaps
        os.kill(answer["parent"], signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        child._process._control.shutdown(socket.SHUT_RDWR)
        os.kill(answer["parent"], signal.SIGCONT)
    with child_of(server, tmp_path / "signal") as (_, again):
        assert again["parent"] == answer["parent"]


def test_only_children_that_may_idle_are_kept(start, tmp_path):
    """Those of other kinds, such as drivers, get their signal."""
    server = start()
    with child_of(server, tmp_path / "signal") as (child, _):
        pid = child.pid
        ends = [child._process.stdin.fileno(), child._process.stdout.fileno(), child._stderr_fd]
        socket.send_fds(child._process._control, [f"release 60 {server.address_of('u')}".encode()], ends)
        assert ended(pid) < 3 and server.acquire("u") is None
    assert (tmp_path / "signal").read_text() == str(int(signal.SIGTERM))

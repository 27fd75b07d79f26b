"""Another operating system user cannot use the fork server, impersonate it, or block its clients."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid

import pytest
from mop_backend import forkserver, sockets
from mop_backend.forkserver import ForkServer
from mop_backend.process import TRAINER, Child

from tests.helpers.unit.trainer import command
from tests.unit.trainer.test_forkserver import START, forkserver_of
from tests.unit.trainer.test_lifetime import ended

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
_IMPOSTOR = """
import os, socket, sys, time
os.setuid({user})
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\\0" + {address!r})
listener.listen({backlog})
waiting = []
while {full} and len(waiting) < 3:  # of the room of no more than one, nothing is left
    waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
    try:
        waiting[-1].connect("\\0" + {address!r})
    except BlockingIOError:
        break
print("bound", flush=True)
sys.stdin.read()
"""


class Cancelled(Exception):
    """The exception of an interrupt check."""


def cancel():
    raise Cancelled


def named(address: str) -> ForkServer:
    """Return a fork server of an address, which ends with this process or after five idle seconds."""
    words = command("madlib_mop.trainer.forkserver")
    words[-1] = words[-1].replace("runpy.run", "sys.argv.append('5'); runpy.run")
    return ForkServer(address, os.getpid(), words)


@pytest.fixture
def abstract():
    """A free abstract name."""
    return f"madlib_mop.test.{uuid.uuid4().hex}"


@pytest.fixture
def path(tmp_path):
    """A free path in a directory of this user's."""
    tmp_path.chmod(0o700)
    return f"{tmp_path}/{uuid.uuid4().hex}"


@contextlib.contextmanager
def impostor(address: str, full: bool):
    """Have another user listen at an abstract name, and accept nobody; ``full``: so that a connect would block."""
    code = _IMPOSTOR.format(user=NOBODY, address=address, backlog=0 if full else 10, full=full)
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout.readline() == "bound\n"
        yield
        process.kill()


def try_as_nobody(code: str) -> subprocess.CompletedProcess:
    """Run Python as another user."""
    code = f"import os, socket, sys; os.setuid({NOBODY}); {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)


@as_root
def test_an_impostor_leads_to_no_fork_at_once(abstract):
    with impostor(abstract, full=False):
        checks = []
        assert named(abstract).fork(2, lambda: checks.append(1)) is None
        assert not checks  # it did not wait
        with pytest.raises(sockets.NotOurs):
            sockets.connect(abstract, time.monotonic())


@pytest.mark.slow
@as_root
@pytest.mark.timeout(60)  # a blocking connect would never end
def test_an_impostor_who_lets_nobody_connect_does_not_keep_us_waiting(abstract):
    with impostor(abstract, full=True):
        assert named(abstract).fork(2) is None
        with pytest.raises(Cancelled):
            named(abstract).fork(2, cancel)
        with pytest.raises(TimeoutError):
            sockets.connect(abstract, time.monotonic())


@as_root
def test_a_trainer_of_its_own_comes_where_an_impostor_listens(abstract):
    with impostor(abstract, full=False):
        child = Child("json.tool", python=sys.executable, forkserver=named(abstract))
        assert child._process.args[0] == sys.executable
        child.stop()


@pytest.mark.slow
@as_root
def test_other_users_get_nothing_by_an_abstract_name(abstract):
    server = named(abstract)
    child = Child(TRAINER, forkserver=server)
    assert child.ask(START)[0]["ok"]
    done = try_as_nobody(
        f"s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('\\0' + {abstract!r}); r, w = os.pipe();"
        " socket.send_fds(s, [b'fork'], [r, w, 2]); print(s.recv(10))"
    )
    assert done.stdout.strip() == "b''" or "ConnectionReset" in done.stderr or "BrokenPipe" in done.stderr
    child.stop()


@as_root
def test_other_users_can_neither_connect_nor_bind_in_the_directory(path):
    with sockets.listen(path):
        os.chmod(path, 0o777)  # the directory's rights must keep other users out
        for call in (f"connect({path!r})", f"bind({path + '-'!r})"):
            done = try_as_nobody(f"socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).{call}")
            assert "PermissionError" in done.stderr


def test_a_directory_that_others_can_write_to_is_not_used(path):
    os.chmod(os.path.dirname(path), 0o770)
    assert sockets_refuse(path)


@as_root
def test_a_directory_of_another_users_is_not_used(path):
    os.chown(os.path.dirname(path), NOBODY, -1)
    assert sockets_refuse(path)


def test_a_link_is_no_directory(path, tmp_path):
    os.symlink(os.path.dirname(path), tmp_path / "link")
    with pytest.raises(OSError):
        sockets.listen(f"{tmp_path}/link/name")


def sockets_refuse(path: str) -> bool:
    """Return whether binding and connecting to a path fail, and no trainer comes from there."""
    with pytest.raises(sockets.NotOurs):
        sockets.listen(path)
    with pytest.raises(sockets.NotOurs):
        sockets.connect(path, time.monotonic())
    return named(path).fork(2) is None and not os.path.exists(path)


def test_sockets_that_nobody_listens_at_are_removed(path):
    left = [path, os.path.join(os.path.dirname(path), "of an earlier server")]
    for name in left:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
            gone.bind(f"/proc/self/fd/{os.open(os.path.dirname(path), os.O_PATH)}/{os.path.basename(name)}")
    with sockets.listen(path) as listener:
        assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
        assert sockets.listen(path) is None  # another process listens there
        with sockets.connect(path, time.monotonic()) as ours:
            assert sockets.owner_of(ours) == (os.getpid(), os.geteuid())
        assert listener.accept()


@pytest.mark.slow
def test_it_is_forked_from_after_a_kill_has_left_the_socket(path):
    server = named(path)
    child = Child(TRAINER, forkserver=server)
    assert child.ask(START)[0]["ok"]
    first = forkserver_of(child)
    os.kill(first, signal.SIGKILL)
    ended(first)
    other = Child(TRAINER, forkserver=server)
    assert other.ask(START)[0]["ok"] and forkserver_of(other) != first
    child.stop()
    other.stop()


@pytest.mark.slow
def test_it_is_forked_from_after_a_start_that_took_long(path, monkeypatch):
    monkeypatch.setattr(forkserver, "_CONNECT_S", 0.0)  # a machine that stood still
    child = Child(TRAINER, forkserver=named(path))
    assert child.ask(START)[0]["ok"]
    child.stop()


@pytest.mark.slow
def test_a_fork_server_that_hangs_holds_up_no_stop(path):
    """While it is stopped, it reports neither forked nor ended trainers."""
    child = Child(TRAINER, forkserver=named(path))
    assert child.ask(START)[0]["ok"]
    stuck = forkserver_of(child)
    os.kill(stuck, signal.SIGSTOP)
    waiting = Child(TRAINER, cancel, forkserver=named(path))
    try:
        with pytest.raises(Cancelled):
            waiting.ask(START)
        for one in (waiting, child):
            one.stop()
            assert not one.alive
    finally:
        os.kill(stuck, signal.SIGKILL)


def test_the_address_is_in_the_data_directory_where_that_can_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sockets.address_for("name") == "name"
    (tmp_path / "pg_stat_tmp").mkdir()
    assert sockets.address_for("name") == f"{tmp_path}/pg_stat_tmp/madlib_mop/name"
    assert stat.S_IMODE((tmp_path / "pg_stat_tmp" / "madlib_mop").stat().st_mode) == 0o700
    (tmp_path / "pg_stat_tmp" / "madlib_mop").chmod(0o777)
    assert sockets.address_for("name") == "name"

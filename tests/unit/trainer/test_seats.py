"""Processes that share a child, without Keras: none of them blocks or ends what the others use, whatever it does."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from mop_backend import forkserver
from mop_backend.forkserver import TOO_MANY, ForkServer, TooMany
from mop_backend.frames import Header, encoded, parsed
from mop_backend.process import Child, ChildDied

from madlib_mop.trainer.process.seats import _Headers
from tests.helpers.faults import wait_for
from tests.helpers.unit.trainer import REPOSITORY
from tests.unit.trainer.test_lifetime import ended

#: Shared children that answer with as many bytes as they are asked for, after some seconds; others that end at once.
MODULE = """
import os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, {limits})
sys.path[:0] = {paths}
from mop_backend import forking
from mop_backend.forking import ChildKind, serve_forks
from mop_backend.forkserver import FIRST_FD
from mop_backend.frames import FrameLimits
from madlib_mop.trainer.process import seats
from madlib_mop.trainer.process.seats import Seats
if {patience_s} is not None:
    seats._LEFT_S = seats._STALLED_S = forking._BUSY_S = {patience_s}

def serve():
    seats, n = Seats(FIRST_FD), 0
    seats.watch()
    while (ready := seats.ready({idle_s})) is not None:
        for seat in ready:
            request = seats.receive(seat, FrameLimits(blob_bytes=1 << 20))
            if request is None:
                continue
            header, n = request[0], n + 1
            seats.serves([seat])
            if "file" in header:
                open(header["file"], "w").close()
            time.sleep(header.get("sleep", 0))
            if "status" in header:
                os._exit(header["status"])
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            seats.send(seat, {{"n": n, "most": soft}}, [bytes(header.get("size", 0))])
        seats.serves([])
    return 0

serve_forks("mop test", lambda: None, ChildKind("child", lambda: 5, signal.SIGKILL, may_idle=True, serve=serve))
"""
USUAL = (1024, 4096)
PATIENCE_S = 0.3


@pytest.fixture
def start(tmp_path):
    """Return a function that makes a fork server, with these limits of descriptors.

    With ``patience_s``, who stalls, has left or works for long is not waited for a second, but for this time.
    """
    tmp_path.chmod(0o700)
    with subprocess.Popen(["sleep", "600"]) as lives_with:

        def make(
            limits: tuple[int, int] = USUAL, idle_s: float | None = None, patience_s: float | None = None
        ) -> ForkServer:
            paths = [str(REPOSITORY), str(REPOSITORY / "plpython")]
            code = MODULE.format(limits=limits, paths=paths, idle_s=idle_s, patience_s=patience_s)
            command = [sys.executable, "-I", "-c", code]
            return ForkServer(f"{tmp_path}/{uuid.uuid4().hex}", lives_with.pid, command)

        yield make
        lives_with.kill()


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def fds() -> set[str]:
    """Return the descriptors of this process."""
    return set(os.listdir("/proc/self/fd"))


def children_of(pid: int) -> list[str]:
    """Return the names of the processes that a process has forked."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    found = [Path(f"/proc/{child}/comm") for thread in threads for child in (thread / "children").read_text().split()]
    names = []
    for file in found:
        with contextlib.suppress(OSError):  # it has ended
            names.append(file.read_text().strip())
    return names


def share(stack: contextlib.ExitStack, server: ForkServer, use: str = "s", role: int = 10) -> Child:
    """Return a child that others share."""
    shared = server.share(role, use)
    assert shared is not None
    child = Child("no_such_module", shared=shared)
    stack.callback(child.stop)
    return child


def several(stack: contextlib.ExitStack, server: ForkServer) -> list[Child]:
    """Return the same child three times or more, as processes share it."""
    children = [share(stack, server) for _ in range(6)]
    return [child for child in children if child.pid == children[0].pid]


def parent_of(child: Child) -> int:
    return int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])


def ask(child: Child, **header) -> Header:
    return child.ask(header)[0]


def died(child: Child) -> ChildDied:
    """Return how a child has ended that does not answer."""
    with pytest.raises(ChildDied) as death:
        child.receive()
    return death.value


def answer_within(seconds: float, child: Child) -> Header:
    child.send({})
    assert child.await_answer(seconds), "nothing answers"
    return child.receive()[0]


def test_who_stops_in_the_middle_of_a_request_loses_its_seat(start, stack):
    stalled, other, *_ = several(stack, start(patience_s=PATIENCE_S))
    os.write(stalled._stdin.fileno(), b"\0\0\0")
    assert answer_within(10, other)["n"] == 1
    with pytest.raises(ChildDied) as death:
        stalled.receive()
    assert (death.value.returncode, death.value.last_words) == (0, None)
    assert ask(other)["n"] == 2


def test_who_does_not_read_an_answer_loses_its_seat(start, stack):
    stalled, other, *_ = several(stack, start(patience_s=PATIENCE_S))
    stalled.send({"size": 64 << 20})
    stalled.await_answer(10)
    assert answer_within(10, other)["n"] == 2
    with pytest.raises(ChildDied) as death:
        stalled.receive()
    assert death.value.returncode == 0


def test_who_reads_a_large_answer_gets_all_of_it(start, stack):
    one, other, *_ = several(stack, start())
    _, (blob,) = one.ask({"size": 64 << 20})
    assert blob == bytes(64 << 20) and ask(other)["n"] == 2


def test_who_sends_too_much_loses_its_seat_before_it_is_read(start, stack):
    large, other, *_ = several(stack, start(patience_s=PATIENCE_S))
    with pytest.raises(ChildDied) as death:
        large.ask({}, [bytes((1 << 20) + 1)])
    assert death.value.returncode == 0
    assert ask(other)["n"] == 1


def test_the_child_of_others_is_not_killed_by_who_has_lost_a_seat(start, stack):
    lost, other, *_ = several(stack, start(patience_s=PATIENCE_S))
    os.write(lost._stdin.fileno(), b"\0\0\0")
    with pytest.raises(ChildDied):
        lost.receive()
    lost.stop()
    assert other.alive and ask(other)["n"] == 1


def test_a_request_of_who_has_left_is_not_worked_on(start, stack):
    busy, left, other, *_ = several(stack, start())
    busy.send({"sleep": 0.5})
    left.send({"sleep": 60})
    left.stop()
    assert answer_within(10, other)["n"] == 2
    assert busy.receive()[0]["n"] == 1


def test_work_for_who_has_left_ends_with_the_child_and_the_others_may_ask_again(start, stack, tmp_path):
    left, other, *_ = several(stack, start(patience_s=PATIENCE_S))
    left.send({"sleep": 60, "file": f"{tmp_path}/works"})
    wait_for((tmp_path / "works").exists, 10, "its work")
    left.stop()
    with pytest.raises(ChildDied) as death:
        ask(other)
    assert death.value.returncode == 0


def test_seats_are_closed_when_they_are_left(start, stack):
    server = start()
    one, _ = share(stack, server), share(stack, server)
    n_fds = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (one.pid, parent_of(one))]
    for _ in range(300):
        with contextlib.ExitStack() as short:
            ask(share(short, server))
    assert ask(one)["n"] >= 1
    for pid, before in zip((one.pid, parent_of(one)), n_fds, strict=True):
        assert len(os.listdir(f"/proc/{pid}/fd")) <= before + 2


def test_a_shared_child_has_no_standard_error_that_anybody_reads(start, stack):
    one, *_ = several(stack, start())
    assert [os.readlink(f"/proc/{one.pid}/fd/{fd}") for fd in (0, 1, 2)] == 3 * ["/dev/null"]
    assert one.stderr_tail() == ""


def test_a_fork_server_raises_its_limit_of_descriptors_but_not_that_of_its_children(start, stack):
    one = share(stack, start((200, 3000)))
    assert resource.prlimit(parent_of(one), resource.RLIMIT_NOFILE) == (3000, 3000)
    assert ask(one)["most"] == 200


def test_the_shared_children_of_a_role_leave_descriptors_for_those_of_others(start, stack):
    server = start((164, 164))
    with contextlib.ExitStack() as first, pytest.raises(TooMany, match="of this role"):
        for number in range(200):
            share(first, server, f"u{number}", role=1)
    others = []
    with contextlib.ExitStack() as first:
        with pytest.raises(TooMany, match="of this role"):
            for number in range(200):
                share(first, server, f"u{number}", role=1)
        others = [share(stack, server, f"o{number}", role=2) for number in range(5)]
        assert len({child.pid for child in others}) == 5
    wait_for(lambda: len(os.listdir(f"/proc/{parent_of(others[0])}/fd")) < 60, 10, "the end of the first ones")
    ask(share(stack, server, "u", role=1))


def test_a_fork_server_without_descriptors_refuses_and_goes_on(start, stack):
    server = start((164, 164))
    first = share(stack, server)
    with pytest.raises(TooMany, match=TOO_MANY):
        for number in range(200):
            share(stack, server, f"u{number}", role=100 + number)
    own = Child("no_such_module", forkserver=server)
    stack.callback(own.stop)
    with pytest.raises(ChildDied) as death:
        own.ask({})
    assert (death.value.returncode, death.value.last_words) == (1, TOO_MANY)
    assert ask(first)["n"] == 1 and len(os.listdir(f"/proc/{parent_of(first)}/fd")) < 164


def test_a_fork_server_never_becomes_two(start, stack, monkeypatch):
    """Whatever fails while it forks."""
    monkeypatch.setattr(forkserver, "_TRIES", 2)
    monkeypatch.setattr(forkserver, "_CONNECT_S", 0.5)
    server = start()
    parent = parent_of(share(stack, server))
    soft, hard = resource.prlimit(parent, resource.RLIMIT_NOFILE)
    n_fds, n_shared = len(os.listdir(f"/proc/{parent}/fd")), 0

    def check() -> None:
        if time.monotonic() > until:
            raise TimeoutError

    for n_more in range(9):
        resource.prlimit(parent, resource.RLIMIT_NOFILE, (n_fds + n_more, hard))
        until = time.monotonic() + 0.5
        shared = server.share(10, f"u{n_more}", check)
        if shared is not None:
            child = Child("no_such_module", shared=shared)
            stack.callback(child.stop)
            assert answer_within(5, child)["n"] == 1
            child.stop()
            n_shared += 1
    assert 0 < n_shared < 9
    resource.prlimit(parent, resource.RLIMIT_NOFILE, (soft, hard))
    assert parent_of(share(stack, server, "u")) == parent
    wait_for(lambda: {name.split()[0] for name in children_of(parent)} == {"child"}, 10, "children that have names")


def test_children_of_several_roles_are_never_the_same(start, stack):
    server = start()
    first, second = ({share(stack, server, role=role).pid for _ in range(4)} for role in (1, 2))
    assert len(first) == len(second) == 2 and not first & second


def test_a_child_that_works_for_long_gets_no_more_seats_until_it_takes_those_that_it_has(start, stack, tmp_path):
    server = start(patience_s=PATIENCE_S)
    busy, other = share(stack, server), share(stack, server)
    busy.send({"sleep": 1.5, "file": f"{tmp_path}/works"})
    wait_for((tmp_path / "works").exists, 10, "its work")
    waits = share(stack, server)
    assert waits.pid == busy.pid
    waits.stop()  # as a session whose statement is cancelled
    time.sleep(PATIENCE_S + 0.1)
    assert {share(stack, server).pid for _ in range(3)} == {other.pid}
    assert busy.receive()[0]["n"] == 1
    wait_for(lambda: share(stack, server).pid == busy.pid, 10, "seats at the one that was busy")


def test_a_crash_is_one_of_those_alone_whose_requests_have_begun(start, stack):
    mistaken, waits, idle, *_ = several(stack, start())
    mistaken.send({"sleep": 0.5, "status": 9})
    wait_for(lambda: not mistaken.await_answer(0.2), 10, "its work")
    waits.send({})
    assert (died(mistaken).returncode, died(mistaken).is_harmless) == (9, False)
    assert died(waits).is_harmless
    with pytest.raises(ChildDied) as death:
        idle.ask({})
    assert death.value.is_harmless


def test_who_joins_a_child_that_ends_after_its_idle_time_may_ask_another_one(start, stack):
    server, n_ended = start(idle_s=0.02), 0
    for number in range(100):
        child = share(stack, server)  # the earlier ones have not left
        time.sleep(0.0005 * (number % 80))
        try:
            assert ask(child)["n"] >= 1
        except ChildDied as death:
            assert death.is_harmless
            n_ended += 1
    assert 0 < n_ended < 100


def test_a_child_whose_exit_status_is_unknown_has_done_no_harm(start, stack):
    one, *_ = several(stack, start())
    parent = parent_of(one)
    one.send({"sleep": 0.5, "status": 0})
    os.kill(parent, signal.SIGKILL)
    death = died(one)
    assert (death.returncode, death.is_harmless) == (-signal.SIGKILL, True)


def test_who_stops_waiting_for_a_seat_leaves_nothing(start, stack):
    server = start()
    parent = parent_of(share(stack, server))
    before, n_fds = fds(), len(os.listdir(f"/proc/{parent}/fd"))
    waited = []

    def cancel() -> None:
        waited.append(1)
        if len(waited) > 2:
            raise KeyboardInterrupt

    os.kill(parent, signal.SIGSTOP)
    try:
        with pytest.raises(KeyboardInterrupt):
            server.share(10, "s", cancel)
    finally:
        os.kill(parent, signal.SIGCONT)
    assert fds() == before
    ask(share(stack, server))
    wait_for(lambda: len(os.listdir(f"/proc/{parent}/fd")) <= n_fds + 3, 10, "the end of what was asked for")


def test_who_has_no_descriptor_left_for_a_seat_leaves_nothing(start, stack, monkeypatch):
    server = start()
    share(stack, server)
    before = fds()

    def fail(fd: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(forkserver, "_TRIES", 3)
    monkeypatch.setattr(forkserver.os, "dup", fail)
    assert server.share(10, "s") is None and fds() == before


def test_a_shared_child_outlives_the_fork_server_until_all_have_left(start, stack):
    one, other, *rest = several(stack, start())
    os.kill(parent_of(one), signal.SIGKILL)
    assert answer_within(10, one)["n"] == 1
    for child in (one, *rest):
        child.stop()
    assert answer_within(10, other)["n"] == 2
    other.stop()
    ended(other.pid)


def test_a_header_that_comes_again_is_not_what_was_made_of_it_before():
    headers = _Headers()
    text = encoded({"op": "predict_row", "key": "a", "fields": [["x", "integer", 23, "int4"]]})
    first = headers.parse(bytearray(text))
    first.pop("key")
    again = headers.parse(bytearray(text))
    assert again == parsed(text) and again["fields"] is first["fields"]
    assert headers.parse(text.replace(b'"a"', b'"b"'))["key"] == "b"


LONG = encoded({"op": "predict_row", "key": "a" * 5000})
MANY = encoded({"op": "predict_row", "key": "a", "lengths": [3, 4]})


OTHERS = [b"[1]", b"1", b'{"op": "start", "a": []}', LONG, MANY]


@pytest.mark.parametrize("text", OTHERS, ids=lambda text: repr(text[:20]))
def test_other_headers_are_parsed_each_time(text):
    headers = _Headers()
    assert headers.parse(text) == headers.parse(text) == parsed(text)
    assert not headers._known


def test_few_headers_are_kept():
    headers = _Headers()
    for number in range(1000):
        assert headers.parse(encoded({"op": "predict_row", "key": number}))["key"] == number
        assert len(headers._known) <= 256

"""Following a run without a server: when it is read again, what wakes a wait, and a session that is lost."""

import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import psycopg2
import pytest

from madlib_mop.catalog.live import following
from madlib_mop.catalog.live.following import News, ReadingPace, RunFollower, RunListener, wait_for_output


class Raw:
    """A connection of psycopg2 whose server is the other end of a pair of sockets: each line is a notification."""

    def __init__(self):
        self.own, self.server = socket.socketpair()
        self.notifies = []
        self.statements = []

    def fileno(self):
        return self.own.fileno()

    def poll(self):
        received = self.own.recv(4096)
        if not received:
            raise psycopg2.OperationalError("server closed the connection unexpectedly")
        self.notifies += [SimpleNamespace(payload=line) for line in received.decode().splitlines()]

    @contextmanager
    def cursor(self):
        yield SimpleNamespace(execute=self.statements.append)


class Raw3(Raw):
    """A connection of psycopg 3: one method returns what has come, and does not wait."""

    def __init__(self):
        super().__init__()
        self.own.setblocking(False)
        self.notifies = self._notifies

    def _notifies(self, timeout):
        assert timeout == 0
        try:
            received = self.own.recv(4096)
        except BlockingIOError:
            return []
        if not received:
            raise ValueError("server closed the connection unexpectedly")
        return [SimpleNamespace(payload=line) for line in received.decode().splitlines()]


@pytest.fixture(params=[Raw, Raw3], ids=["psycopg2", "psycopg 3"])
def raw(request):
    made = request.param()
    yield made
    made.own.close()
    made.server.close()


@pytest.fixture
def listener(raw):
    made = RunListener(raw, lambda: None)
    yield made
    made.close()


def soon() -> float:
    return time.monotonic() + 0.05


def late() -> float:
    return time.monotonic() + 60


def test_it_listens_to_changes_of_runs(raw, listener):
    assert raw.statements == ["LISTEN madlib_mop_runs"]


def test_a_server_where_nobody_can_listen_is_looked_at_now_and_then(raw):
    def refuse(statement):
        raise psycopg2.errors.ReadOnlySqlTransaction

    raw.statements = SimpleNamespace(append=refuse)
    assert RunListener(raw, lambda: None).wait(7, soon()) == News()


def test_a_change_of_the_run_ends_the_wait_and_one_of_another_does_not(raw, listener):
    raw.server.sendall(b"7 done\n")
    assert listener.wait(7, late()).is_told
    raw.server.sendall(b"77\nnonsense\n")
    assert listener.wait(7, soon()) == News()
    raw.server.sendall(b"77\n")
    assert listener.wait(None, late()).is_told


def test_a_change_that_came_with_the_answer_of_a_statement_is_heard(raw, listener):
    if isinstance(raw, Raw3):
        raw.server.sendall(b"7\n")  # psycopg 3 keeps it until it is asked
    else:
        raw.notifies.append(SimpleNamespace(payload="7"))
    assert listener.wait(7, late()).is_told
    assert listener.wait(7, soon()) == News(), "it is heard once"


def test_input_and_wake_end_the_wait(raw, listener):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x")
        assert listener.wait(7, late(), ours.fileno()) == News(inputs=(ours.fileno(),))
    threading.Timer(0.05, listener.wake).start()
    assert listener.wait(7, late()) == News(is_woken=True)
    listener.wake()
    assert listener.sleep(60) and not listener.sleep(0.0)


def test_a_lost_session_is_told_once_and_then_the_pauses_decide(raw, listener):
    raw.server.close()
    assert listener.wait(7, late()).is_told, "a reading finds out"
    raw.own.close()  # and is not used again
    assert listener.wait(7, soon()) == News()
    listener.wake()
    assert listener.wait(7, late()).is_woken


class Clock:
    """The time, which passes when a listener waits."""

    def __init__(self, monkeypatch, changes=()):
        self.now, self.changes = 100.0, list(changes)
        monkeypatch.setattr(following.time, "monotonic", lambda: self.now)

    def wait(self, run_id, until, *others):
        told = [at for at in self.changes if self.now < at <= until]
        self.now = min(told, default=until)
        return News(is_told=bool(told))


@pytest.mark.parametrize(
    ("changes", "reading_s", "due"),
    [((), 0.0, 105.0), ((100.1,), 0.0, 100.5), ((103.0,), 0.0, 103.0), ((100.2, 100.3), 0.0, 100.5),
     ((101.0,), 0.3, 103.3), ((), 2.0, 122.0)],
)  # fmt: skip
def test_a_run_is_read_soon_after_a_change_with_a_pause_and_otherwise_every_five_seconds(
    monkeypatch, changes, reading_s, due
):
    clock = Clock(monkeypatch, changes)
    follower = RunFollower(clock, 7)
    assert follower.is_due, "it was not read yet"
    with follower.pace.reading():
        clock.now += reading_s
    assert follower.wait() == () and clock.now == pytest.approx(due) and follower.is_due


def test_a_change_during_the_reading_counts(monkeypatch):
    clock = Clock(monkeypatch)
    pace = ReadingPace()
    with pace.reading():
        pace.tell()
    assert pace.due == clock.now + 0.5


def test_a_wait_ends_at_the_callers_time(monkeypatch):
    clock = Clock(monkeypatch)
    follower = RunFollower(clock, 7)
    with follower.pace.reading():
        pass
    assert follower.wait(until=101.0) == () and clock.now == 101.0 and not follower.is_due


def test_the_output_table_is_waited_for_ten_seconds(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(following.time, "sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))
    looks = iter([None, None, "table"])
    assert wait_for_output(lambda: next(looks)) == "table"
    began = clock.now
    assert wait_for_output(lambda: None) is None and clock.now - began == pytest.approx(10.0, abs=0.2)

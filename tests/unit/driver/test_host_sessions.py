"""Sessions of a driver at hosts: whatever a host does, the driver goes on after a moment."""

import socket
import threading
import time
from contextlib import closing
from types import SimpleNamespace
from unittest import mock

import psycopg2
import pytest
from mop_backend import hops, process, seals
from mop_backend.messages import StateAway, StateGone
from mop_backend.process import ChildDied

from madlib_mop.catalog.record import HeldByHosts
from madlib_mop.driver.running import host_sessions
from madlib_mop.driver.running.host_sessions import HostSessions
from tests.helpers.unit.rows import a_model

STATE = [b"ab", b"c"]
RUN = 7
#: What a relay answers or raises, and what the host says, which can be anything.
FAILURES = [
    {"host_lost": {"message": "it is gone"}},
    {"host_refused": {"sqlstate": "28000", "message": "it rejects the login", "hint": None}},
    {"died": {"status": 1, "stderr": ""}}, {"host_lost": 7}, {"error": {"message": "no"}}, ChildDied(-9, "killed"),
    MemoryError(), OSError("too many processes"),
]  # fmt: skip


class Relay:
    """A relay to a host, and its session there.

    Attributes
    ----------
    fails : Exception or dict or None
        What each request raises, or what is the answer to it.
    opens, answers : threading.Event
        Not set: it does not answer to a login, or to a request.
    """

    def __init__(self, log, name):
        self.fails, self.opens, self.answers = None, threading.Event(), threading.Event()
        self.log, self.name, self.parts, self.n_open = log, name, STATE, 0
        self.opens.set()
        self.answers.set()

    def started(self, check):
        """Return a new process."""
        assert self.n_open == 0, "one session a host"
        self.n_open += 1
        self.sent, self.is_open, self.check = [], False, check
        return self

    def send(self, header):
        self.sent.append(header)

    def receive(self):
        if not self.is_open:
            assert self.sent.pop(0)["op"] == "connect"
            self._wait(self.opens)
            self.is_open = True
            self.log.append(f"{self.name} is open")
        header = self.sent.pop(0)
        self._wait(self.answers)
        self.log.append(header)
        if isinstance(self.fails, Exception):
            raise self.fails
        if self.fails is not None:
            return self.fails, []
        if header["op"] in ("let_go", "keep_only"):
            return {}, []
        return {"n_parts": len(self.parts)}, [self.parts[header["part"]]]

    def stop(self):
        self.n_open -= 1

    def _wait(self, event):
        until = time.monotonic() + 5
        while not event.wait(0.01):
            assert time.monotonic() < until, "the limit of time ends it"
            self.check()


class Hosts:
    """Two hosts, and the record of a run with states there."""

    def __init__(self, monkeypatch):
        self.log = []
        self.at = {name: Relay(self.log, name) for name in ("alpha", "beta")}
        self.record = SimpleNamespace(execute=self.access, held_by_hosts=self.held)
        self.no_access = {}
        self.sessions = HostSessions(self.record, RUN)
        self.starting = None
        monkeypatch.setattr(host_sessions, "Child", lambda module, check, python: self.start(check))
        monkeypatch.setattr(host_sessions, "_RELAY_S", 0.0)
        monkeypatch.setattr(host_sessions, "_SWEEP_S", 0.5)
        monkeypatch.setattr(host_sessions, "_MOMENT_S", 0.2)

    def access(self, query, params):
        run_id, server = params
        assert run_id == RUN and "host_access" in query
        if server in self.no_access:
            raise self.no_access[server]
        self.starting = server
        return [({"options": {}},)]

    def start(self, check):
        """Return a relay; the access that was asked for last says to which host."""
        return self.at[self.starting].started(check)

    def sent(self, op="held_part"):
        """Return the requests of one kind that were answered."""
        return [entry for entry in self.log if isinstance(entry, dict) and entry["op"] == op]

    def held(self, run_id):
        self.log.append("read")
        state = {"run_id": RUN, "mst_key": 1, "digest": "d"}
        copies = [mock.Mock(**state, version=v, server=server) for v, server in ((2, "alpha"), (3, "beta"))]
        return HeldByHosts(copies, [RUN, 9])

    def told(self):
        """Return the states that hosts were told to keep."""
        return [tuple(entry["states"]) for entry in self.sent("keep_only")]

    @property
    def n_open(self):
        """How many relays there are."""
        return sum(relay.n_open for relay in self.at.values())


@pytest.fixture
def hosts(monkeypatch):
    return Hosts(monkeypatch)


def a_state(key=1, server="alpha", version=3):
    digest = seals.digest_of_all(STATE)
    return a_model(key, run_id=RUN, state_version=version, digest=digest, state_server=server, state_bytes=3)


def test_a_state_is_fetched(hosts):
    assert hosts.sessions.fetch(a_state()) == STATE and not hosts.n_open


@pytest.mark.parametrize("parts", [[b"ab", b"X"], [b"", b"abc"]])
def test_another_state_than_the_recorded_one_is_gone(hosts, parts):
    hosts.at["alpha"].parts = parts
    assert hosts.sessions.fetch(a_state()) == StateGone("alpha", (1,))


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_what_fails_at_a_host_ends_no_run(hosts, failure):
    hosts.at["alpha"].fails = failure
    assert isinstance(away := hosts.sessions.fetch(a_state()), StateAway) and away.message
    hosts.sessions.sweep(["alpha", "beta"])
    assert len(hosts.told()) == 1 and not hosts.n_open


def test_a_host_that_was_removed_ends_no_run(hosts):
    hosts.no_access["alpha"] = psycopg2.errors.ObjectNotInPrerequisiteState("server alpha is no longer a host")
    assert hosts.sessions.fetch(a_state()) == StateAway("alpha", "server alpha is no longer a host")
    hosts.sessions.sweep(["alpha", "beta"])
    assert len(hosts.told()) == 1


def test_a_host_that_does_not_answer_is_waited_for_a_moment_only(hosts):
    alpha = hosts.at["alpha"]
    alpha.answers.clear()
    began = time.monotonic()
    assert hosts.sessions.fetch(a_state()) is None
    assert hosts.sessions.fetch(a_state(2, "beta")) is None, "one is fetched at a time"
    assert time.monotonic() - began < 3
    alpha.answers.set()
    assert hosts.sessions.fetch(a_state()) == STATE
    assert hosts.sessions.fetch(a_state(2, "beta")) == STATE


def test_a_state_that_does_not_come_in_time_is_away(hosts, monkeypatch):
    """Its session has ended then: no try leaves anything behind."""
    monkeypatch.setattr(hops, "_SPARE_S", 0.1)
    hosts.at["alpha"].answers.clear()
    n_threads = threading.active_count()
    for _ in range(3):
        assert "too long" in hosts.sessions.fetch(a_state()).message
        assert not hosts.n_open and threading.active_count() == n_threads
    assert hosts.sessions.fetch(a_state(2, "beta")) == STATE


@pytest.mark.parametrize("silent", ["opens", "answers"])
def test_a_state_that_nobody_wants_any_more_is_not_waited_for(hosts, silent):
    event = getattr(hosts.at["alpha"], silent)
    event.clear()
    assert hosts.sessions.fetch(a_state(version=3)) is None and hosts.n_open == 1
    assert hosts.sessions.fetch(a_state(version=4)) is None and hosts.n_open == 1
    hosts.sessions.close()
    assert not hosts.n_open


def test_a_state_that_was_lost_when_it_was_asked_for_is_not_lost_when_it_was_made_again(hosts):
    """Nobody has read the answer meanwhile: an evaluation has missed the state too. Its bits are the same again."""
    alpha = hosts.at["alpha"]
    alpha.answers.clear()
    assert hosts.sessions.fetch(a_state()) is None
    alpha.parts = [b"nothing"]
    alpha.answers.set()
    time.sleep(0.3)
    hosts.sessions.forget(1)
    alpha.parts = STATE
    assert hosts.sessions.fetch(a_state()) == STATE


def test_a_state_that_one_host_has_lost_is_not_lost_at_another_one(hosts):
    alpha = hosts.at["alpha"]
    alpha.answers.clear()
    assert hosts.sessions.fetch(a_state()) is None
    alpha.parts = [b"nothing"]
    alpha.answers.set()
    time.sleep(0.3)
    assert hosts.sessions.fetch(a_state(server="beta")) == STATE


def test_a_state_that_has_come_is_kept_for_who_asked_for_it_and_not_for_long(hosts, monkeypatch):
    alpha = hosts.at["alpha"]
    alpha.answers.clear()
    assert hosts.sessions.fetch(a_state()) is None
    alpha.answers.set()
    time.sleep(0.3)
    assert hosts.sessions.fetch(a_state(2, "beta")) is None
    hosts.sessions.tick()
    assert hosts.sessions.fetch(a_state()) == STATE and len(hosts.sent()) == 2
    alpha.answers.clear()
    assert hosts.sessions.fetch(a_state()) is None
    alpha.answers.set()
    time.sleep(0.3)
    monkeypatch.setattr(host_sessions, "_KEPT_S", 0.0)
    assert hosts.sessions._fetch is not None
    hosts.sessions.tick()
    assert hosts.sessions._fetch is None, "no memory is needed any more"
    monkeypatch.undo()


def test_a_host_that_is_silent_is_left_with_its_process(monkeypatch):
    """As it is: a relay that logs in at a host that accepts connections, and never answers."""
    monkeypatch.setattr(hops, "_SPARE_S", 1.5)
    started = []

    class Child(process.Child):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(host_sessions, "Child", Child)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        options = {"host": "127.0.0.1", "port": str(silent.getsockname()[1]), "user": "u", "sslmode": "disable"}
        access = {"options": options, "needs_password": True, "coordinator": "c", "key": "00" * 32}
        record = SimpleNamespace(execute=lambda *_: [(access,)])
        sessions, began = HostSessions(record, RUN), time.monotonic()
        while (found := sessions.fetch(a_state())) is None:
            assert time.monotonic() - began < 30
        assert "too long" in found.message
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(10)
            while connection.recv(1000):
                pass  # until the session has ended
    (relay,) = started
    assert not relay.alive


def test_a_state_that_was_on_its_way_is_not_taken_for_a_newer_one(hosts):
    alpha = hosts.at["alpha"]
    alpha.answers.clear()
    assert hosts.sessions.fetch(a_state(version=3)) is None
    alpha.answers.set()
    time.sleep(0.1)
    assert hosts.sessions.fetch(a_state(version=4)) == STATE
    assert {entry["state"][2] for entry in hosts.sent()} == {3, 4}


def test_hosts_are_told_what_the_record_says_when_their_sessions_are_open(hosts):
    """A run can begin while a session opens: its states must not be let go."""
    hosts.sessions.sweep(["alpha", "beta"])
    words = [entry if isinstance(entry, str) else entry["op"] for entry in hosts.log]
    assert words == ["alpha is open", "let_go", "beta is open", "let_go", "read", "keep_only", "keep_only"]
    assert sorted(hosts.told()) == [([RUN, 1, 2, "d"],), ([RUN, 1, 3, "d"],)]
    assert all(entry["runs"] == [RUN, RUN, 9] and entry["run_id"] == RUN for entry in hosts.log[5:])


@pytest.mark.parametrize("silent", ["opens", "answers"])
def test_a_sweep_does_not_wait_for_a_host_that_is_silent(hosts, silent):
    getattr(hosts.at["alpha"], silent).clear()
    began = time.monotonic()
    hosts.sessions.sweep(["alpha", "beta"])
    assert time.monotonic() - began < 3
    assert len(hosts.told()) == 1 and not hosts.n_open

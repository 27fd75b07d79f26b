"""Sessions of a driver at hosts: whatever a host does, the driver goes on after a moment."""

import threading
import time
from types import SimpleNamespace
from unittest import mock

import psycopg
import psycopg2
import pytest
from mop_backend import seals
from mop_backend.frames import TooLarge
from mop_backend.messages import StateAway, StateGone

from madlib_mop.catalog.record import HeldByHosts
from madlib_mop.driver.running import host_sessions
from madlib_mop.driver.running.host_sessions import HostSessions
from madlib_mop.engines.hosts.login import NotLetIn
from madlib_mop.engines.hosts.relay import NotSealed
from madlib_mop.errors import NotReady
from tests.helpers.unit.rows import a_model

STATE = [b"ab", b"c"]
RUN = 7
FAILURES = [
    psycopg.OperationalError("it is gone"), NotLetIn("28000", "it rejects the login", ""), NotSealed(), TooLarge(),
    MemoryError(), NotReady("it has another version"), ValueError("invalid literal"), AttributeError("encode"),
]  # fmt: skip


class Host:
    """A host, and its session.

    Attributes
    ----------
    fails : Exception or None
        What its session raises at each request.
    opens, answers : threading.Event
        Not set: it does not answer to a login, or to a request.
    """

    def __init__(self, log):
        self.fails, self.opens, self.answers = None, threading.Event(), threading.Event()
        self.log, self.parts, self.is_closed = log, STATE, False
        self.opens.set()
        self.answers.set()

    def ask(self, header, blobs, wait):
        assert not blobs and wait and not self.is_closed
        self.answers.wait(5)
        self.log.append(header)
        if self.fails is not None:
            raise self.fails
        if header["op"] == "keep_only":
            return {}, []
        return {"n_parts": len(self.parts)}, [self.parts[header["part"]]]

    def close(self):
        self.is_closed = True


class Hosts:
    """Two hosts, and the record of a run with states there."""

    def __init__(self, monkeypatch):
        self.log = []
        self.at = {name: Host(self.log) for name in ("alpha", "beta")}
        self.record = SimpleNamespace(execute=self.access, held_by_hosts=self.held)
        self.no_access = {}
        self.sessions = HostSessions(self.record, RUN)
        monkeypatch.setattr(host_sessions, "_session", self.session)
        monkeypatch.setattr(host_sessions, "_SWEEP_S", 0.5)
        monkeypatch.setattr(host_sessions, "_MOMENT_S", 0.2)

    def access(self, query, params):
        run_id, server = params
        assert run_id == RUN and "host_access" in query
        if server in self.no_access:
            raise self.no_access[server]
        return [({"options": {}},)]

    def session(self, access):
        host = self.at[access["server"]]
        host.opens.wait(5)
        self.log.append(f"{access['server']} is open")
        host.is_closed = False
        return host

    def held(self, run_id):
        self.log.append("read")
        state = {"run_id": RUN, "mst_key": 1, "digest": "d"}
        copies = [mock.Mock(**state, version=v, server=server) for v, server in ((2, "alpha"), (3, "beta"))]
        return HeldByHosts(copies, [RUN, 9])

    def told(self):
        """Return the states that hosts were told to keep."""
        return [tuple(entry["states"]) for entry in self.log if isinstance(entry, dict) and entry["op"] == "keep_only"]


@pytest.fixture
def hosts(monkeypatch):
    return Hosts(monkeypatch)


def a_state(key=1, server="alpha", version=3):
    digest = seals.digest_of_all(STATE)
    return a_model(key, run_id=RUN, state_version=version, digest=digest, state_server=server, state_bytes=3)


def test_a_state_is_fetched(hosts):
    assert hosts.sessions.fetch(a_state()) == STATE and hosts.at["alpha"].is_closed


@pytest.mark.parametrize("parts", [[b"ab", b"X"], [b"", b"abc"]])
def test_another_state_than_the_recorded_one_is_gone(hosts, parts):
    hosts.at["alpha"].parts = parts
    assert hosts.sessions.fetch(a_state()) == StateGone("alpha", (1,))


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_what_fails_at_a_host_ends_no_run(hosts, failure):
    hosts.at["alpha"].fails = failure
    assert isinstance(away := hosts.sessions.fetch(a_state()), StateAway) and away.message
    hosts.sessions.sweep(["alpha", "beta"])
    assert len(hosts.told()) == 2 and all(host.is_closed for host in hosts.at.values())


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
    monkeypatch.setattr(host_sessions, "_LOGIN_S", 0.0)
    monkeypatch.setattr(host_sessions, "transfer_s", lambda n_bytes: 0.1)
    hosts.at["alpha"].answers.clear()
    assert "too long" in hosts.sessions.fetch(a_state()).message
    assert hosts.sessions.fetch(a_state(2, "beta")) == STATE


def test_a_state_that_was_on_its_way_is_not_taken_for_a_newer_one(hosts):
    alpha = hosts.at["alpha"]
    alpha.answers.clear()
    assert hosts.sessions.fetch(a_state(version=3)) is None
    alpha.answers.set()
    time.sleep(0.1)
    assert hosts.sessions.fetch(a_state(version=4)) == STATE
    assert {entry["state"][2] for entry in hosts.log if isinstance(entry, dict)} == {3, 4}


def test_hosts_are_told_what_the_record_says_when_their_sessions_are_open(hosts):
    """A run can begin while a session opens: its states must not be let go."""
    hosts.sessions.sweep(["alpha", "beta"])
    assert sorted(hosts.log[:2]) == ["alpha is open", "beta is open"] and hosts.log[2] == "read"
    assert sorted(hosts.told()) == [([RUN, 1, 2, "d"],), ([RUN, 1, 3, "d"],)]
    assert all(entry["runs"] == [RUN, RUN, 9] and entry["run_id"] == RUN for entry in hosts.log[3:])


@pytest.mark.parametrize("silent", ["opens", "answers"])
def test_a_sweep_does_not_wait_for_a_host_that_is_silent(hosts, silent):
    getattr(hosts.at["alpha"], silent).clear()
    began = time.monotonic()
    hosts.sessions.sweep(["alpha", "beta"])
    assert time.monotonic() - began < 3
    assert len(hosts.told()) == 1
    getattr(hosts.at["alpha"], silent).set()

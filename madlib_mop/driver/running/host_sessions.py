"""What a run's driver asks of hosts: it fetches states that are needed here, and tells hosts which ones to hold.

Called by `segment_sessions`. Writers have relays to hosts for visits; what a driver asks for is rare. Its sessions are
in relays too (`engines.hosts.relay`): such a process has limits of memory, and is ended when a host takes too long. A
state is fetched in a thread, so the driver waits only for a moment, and goes on.
"""

import sys
import time
from collections.abc import Collection
from contextlib import closing, suppress
from threading import Thread
from typing import NamedTuple

import psycopg2
from mop_backend.frames import Frame, Header
from mop_backend.hops import TOO_LONG, HopFailed, Pulled, StateLost, answer_s, fetch
from mop_backend.messages import StateAway, StateGone
from mop_backend.process import Child, ChildDied

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow

_ACCESS = "SELECT madlib_mop_internal.host_access(%s, %s)"
_RELAY = "madlib_mop.engines.hosts.relay"
_FAILURES = (HopFailed, ChildDied, OSError, MemoryError)
_MOMENT_S = 0.5
#: How long a run waits, at its begin and at its end, for sessions at hosts, and then until they have let go of states;
#: and for how long more with each host, as relays start.
_SWEEP_S, _RELAY_S = 3.0, 0.3
#: How long a state that has come is kept for who asked for it; then another one may come.
_KEPT_S = 30.0
_MOST_REASON = 500  # characters; a host sends it


class _Limit:
    """A limit of time, which a session at a host has for each answer."""

    def __init__(self) -> None:
        self._until = 0.0
        self.is_over = False

    def begin(self, seconds: float) -> None:
        """Let so much time pass from now on."""
        self._until = time.monotonic() + seconds

    def check(self) -> None:
        """Raise HopFailed if the time is over."""
        if self.is_over or time.monotonic() > self._until:
            raise HopFailed(TOO_LONG)


class _Host:
    """A session at a host, in a relay.

    Parameters
    ----------
    access : dict
        The relay's request "connect", without its ``op``.
    limit : _Limit
    """

    def __init__(self, access: Header, limit: _Limit):
        self._relay = Child(_RELAY, limit.check, python=sys.executable)
        try:
            self.send({**access, "op": "connect"})
        except BaseException:
            self.close()
            raise

    def send(self, request: Header) -> None:
        """Send a request. Raises `_FAILURES`, as all methods do."""
        self._relay.send(request)

    def receive(self) -> Frame:
        """Return the answer to a request."""
        header, blobs = self._relay.receive()
        for kind in ("host_lost", "host_refused", "error", "died"):
            if kind in header:  # whatever is in it: it may come from the host
                said = header[kind].get("message") if isinstance(header[kind], dict) else None
                raise HopFailed(str(said or "its session has ended"))
        return header, [bytes(blob) for blob in blobs]

    def close(self) -> None:
        """End the relay, and so the session."""
        self._relay.stop()


class _Wanted(NamedTuple):
    """A state that is to be fetched, and from where."""

    server: str
    mst_key: int
    version: int
    digest: str | None


class _Fetch(Thread):
    """The fetch of a state in a thread, which ends in a limited time, whatever the host does.

    Attributes
    ----------
    wanted : _Wanted
    found : list of bytes or None
        Its parts, when the thread has ended.
    failure : Exception or None
    """

    def __init__(self, wanted: _Wanted, access: Header, model: ModelRow):
        super().__init__(daemon=True)
        self.wanted = wanted
        self.found: list[bytes] | None = None
        self.failure: Exception | None = None
        self._access, self._model = access, model
        self._limit = _Limit()
        self._came_at = 0.0
        self.start()

    def run(self) -> None:
        """Fetch the state."""
        try:
            self.found = _fetched(self._access, self._model, self._limit)
        except Exception as error:  # for the driver's own thread
            self.failure = error
        self._came_at = time.monotonic()

    def drop(self) -> None:
        """End it, and what it has found: that is not the newest state any more."""
        self._limit.is_over = True

    @property
    def is_dropped(self) -> bool:
        """Whether what it finds is of no use."""
        is_old = not self.is_alive() and time.monotonic() > self._came_at + _KEPT_S
        return self._limit.is_over or is_old


class HostSessions:
    """The sessions of a driver at hosts.

    Parameters
    ----------
    record : Record
    run_id : int
    """

    def __init__(self, record: Record, run_id: int):
        self._record, self._run_id = record, run_id
        self._fetch: _Fetch | None = None  # one at a time: a state takes memory

    def fetch(self, model: ModelRow) -> list[bytes] | StateAway | StateGone | None:
        """Return the parts of a model's newest state, which a host holds, or why that is not possible now; None: ask
        again later, it is on its way or another one is."""
        assert model.state_server is not None, "a host holds it"
        wanted = _Wanted(model.state_server, model.mst_key, model.state_version, model.digest)
        if self._fetch is not None and self._fetch.wanted != wanted:
            self.forget(model.mst_key)
        self.tick()
        if self._fetch is None:
            try:
                self._fetch = _Fetch(wanted, self._access(wanted.server), model)
            except (psycopg2.Error, *_FAILURES) as error:
                return StateAway(wanted.server, _reason_of(error))
        begun = self._fetch
        if begun.wanted != wanted or begun.is_dropped:
            return None
        begun.join(_MOMENT_S)
        if begun.is_alive():
            return None
        self._fetch = None
        if isinstance(begun.failure, StateLost):
            return StateGone(wanted.server, (model.mst_key,))
        if begun.failure is not None:
            return StateAway(wanted.server, _reason_of(begun.failure))
        return begun.found

    def forget(self, mst_key: int) -> None:
        """Take no answer about a model's state that was asked for before: the state is lost, and made again."""
        if self._fetch is not None and self._fetch.wanted.mst_key == mst_key:
            self._fetch.drop()
            self._fetch.join(_MOMENT_S)
            self.tick()

    def tick(self) -> None:
        """Have no memory for a state that nobody asks for any more."""
        if self._fetch is not None and self._fetch.is_dropped and not self._fetch.is_alive():
            self._fetch = None

    def close(self) -> None:
        """End the sessions."""
        if self._fetch is not None:
            self.forget(self._fetch.wanted.mst_key)

    def sweep(self, servers: Collection[str]) -> None:
        """Let hosts let go of all states of the run that the record does not name, and of those of runs that are over.

        This is left to the next sweep for hosts that are not reached in time: the run does not need it.
        """
        limit = _Limit()
        hosts: dict[str, _Host] = {}
        opened: set[str] = set()
        try:
            limit.begin(_SWEEP_S + _RELAY_S * len(servers))
            for server in servers:
                with suppress(psycopg2.Error, *_FAILURES):
                    hosts[server] = _session(self._access(server), limit)
                    hosts[server].send({"op": "let_go", "run_id": self._run_id, "states": []})  # to have an answer
            for server, host in hosts.items():
                with suppress(*_FAILURES):
                    host.receive()
                    opened.add(server)
            # Read now that the sessions are open: each lets go only what its host has held since before that.
            held = self._record.held_by_hosts(self._run_id)
            limit.begin(_SWEEP_S)
            asked: set[str] = set()
            for server in opened:
                states = [[c.run_id, c.mst_key, c.version, c.digest] for c in held.copies if c.server == server]
                request = {"op": "keep_only", "states": states, "runs": [self._run_id, *held.runs]}
                with suppress(*_FAILURES):
                    hosts[server].send({**request, "run_id": self._run_id})
                    asked.add(server)
            for server in asked:
                with suppress(*_FAILURES):
                    hosts[server].receive()
        finally:
            for host in hosts.values():
                host.close()

    def _access(self, server: str) -> Header:
        """Return how a session at a host is opened, as the run's owner. Raises psycopg2.Error."""
        ((access,),) = self._record.execute(_ACCESS, [self._run_id, server])
        return {**access, "server": server, "run_id": self._run_id}


def _session(access: Header, limit: _Limit) -> _Host:
    return _Host(access, limit)


def _fetched(access: Header, model: ModelRow, limit: _Limit) -> list[bytes]:
    """Return the parts of a state, which its host sends. Raises StateLost and `_FAILURES`."""
    name = [model.run_id, model.mst_key, model.state_version, model.digest]
    n_bytes = model.state_bytes or 0

    def ask(request: Header) -> Frame:
        limit.begin(answer_s(n_bytes))
        host.send(request)
        return host.receive()

    limit.begin(answer_s(0))
    with closing(_session(access, limit)) as host:
        return [bytes(part) for part in fetch(ask, name, Pulled(model.digest, n_bytes), None)]


def _reason_of(error: Exception) -> str:
    if isinstance(error, ChildDied):
        return f"the relay to it ended with status {error.returncode}: {error.last_words or 'no last words'}"
    return " ".join(str(error).split())[:_MOST_REASON] or type(error).__name__

"""Sessions of a run's driver at hosts: they fetch states that are needed here, and tell hosts which ones to hold.

Called by `segment_sessions`. Writers have relays to hosts for visits; what a driver asks for is rare. Each session is
in a thread of its own, so the driver waits only for a moment for a host, whatever that does.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from functools import partial
from threading import Thread
from typing import Generic, NamedTuple, TypeVar

import psycopg
import psycopg2
from mop_backend.frames import Header, TooLarge
from mop_backend.hops import HopFailed, Pulled, StateLost, fetch, transfer_s
from mop_backend.messages import StateAway, StateGone

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.engines.hosts.login import NotLetIn
from madlib_mop.engines.hosts.relay import HostSession, NotSealed
from madlib_mop.engines.sessions.reasons import plain_reason
from madlib_mop.errors import MopError

_ACCESS = "SELECT madlib_mop_internal.host_access(%s, %s)"
_FAILURES = (psycopg.Error, psycopg2.Error, MopError, NotLetIn, NotSealed, TooLarge, MemoryError, HopFailed)
_MOMENT_S = 0.5
_LOGIN_S = 30.0
#: How long a run waits, at its begin and at its end, for logins at hosts, and then until they have let go of states.
_SWEEP_S = 3.0
_Found = TypeVar("_Found")


class _InThread(Thread, Generic[_Found]):
    """A step in a thread that does not keep the process from ending."""

    def __init__(self, step: Callable[[], _Found]):
        super().__init__(daemon=True)
        self.found: _Found | None = None
        self.failure: Exception | None = None
        self._step = step
        self.start()

    def run(self) -> None:
        """Do the step."""
        try:
            self.found = self._step()
        except Exception as error:  # for the driver's own thread
            self.failure = error


class _Fetch(NamedTuple):
    """A state that is being fetched: which one, from where, and when it must be here."""

    state: tuple[int, int]
    server: str
    until: float
    thread: _InThread[list[bytes]]


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
        server, state = model.state_server, (model.mst_key, model.state_version)
        assert server is not None, "a host holds it"
        begun = self._fetch
        if begun is not None and begun.state != state and begun.thread.is_alive() and time.monotonic() < begun.until:
            return None
        if begun is None or begun.state != state:
            try:
                step = partial(_fetched, self._access(server), model)
            except _FAILURES as error:
                return StateAway(server, _reason_of(error))
            until = time.monotonic() + _LOGIN_S + transfer_s(model.state_bytes or 0)
            self._fetch = begun = _Fetch(state, server, until, _InThread(step))
        begun.thread.join(_MOMENT_S)
        is_over = time.monotonic() > begun.until
        if begun.thread.is_alive() and not is_over:
            return None
        self._fetch = None
        found, failure = begun.thread.found, begun.thread.failure
        if isinstance(failure, StateLost):
            return StateGone(server, (model.mst_key,))
        reason = "it takes too long to send a state" if failure is None else _reason_of(failure)
        return StateAway(server, reason) if found is None else found

    def sweep(self, servers: Collection[str]) -> None:
        """Let hosts let go of all states of the run that the record does not name, and of those of runs that are over.

        This is left to the next sweep for hosts that are not reached in time: the run does not need it.
        """
        accesses: dict[str, Header] = {}
        for server in servers:
            with suppress(psycopg2.Error):
                accesses[server] = self._access(server)
        hosts = _found_in_time({server: partial(_session, access) for server, access in accesses.items()})
        # Read now that the sessions are open: each lets go only what its host has held since before that.
        held = self._record.held_by_hosts(self._run_id)
        steps = {}
        for server, host in hosts.items():
            states = [[c.run_id, c.mst_key, c.version, c.digest] for c in held.copies if c.server == server]
            request = {"run_id": self._run_id, "states": states, "runs": [self._run_id, *held.runs]}
            steps[server] = partial(_keep_only, host, request)
        _found_in_time(steps)

    def _access(self, server: str) -> Header:
        """Return how a session at a host is opened, as the run's owner. Raises psycopg2.Error."""
        ((access,),) = self._record.execute(_ACCESS, [self._run_id, server])
        return {**access, "server": server, "run_id": self._run_id}


def _session(access: Header) -> HostSession:
    return HostSession(access)


def _fetched(access: Header, model: ModelRow) -> list[bytes]:
    """Return the parts of a state, which its host sends. Raises StateLost and `_FAILURES`."""
    name = [model.run_id, model.mst_key, model.state_version, model.digest]
    with closing(_session(access)) as host:
        ask = partial(host.ask, blobs=[], wait=True)
        return [bytes(part) for part in fetch(ask, name, Pulled(model.digest, model.state_bytes or 0), None)]


def _keep_only(host: HostSession, request: Header) -> bool:
    with closing(host):
        host.ask({"op": "keep_only", **request}, [], True)
    return True


def _found_in_time(steps: Mapping[str, Callable[[], _Found]]) -> dict[str, _Found]:
    """Return what the steps of a sweep have found, of those that end in time and do not fail."""
    until = time.monotonic() + _SWEEP_S
    threads = {name: _InThread(step) for name, step in steps.items()}
    for thread in threads.values():
        thread.join(max(0.0, until - time.monotonic()))
    return {name: thread.found for name, thread in threads.items() if thread.found is not None}


def _reason_of(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        return plain_reason(error)
    if isinstance(error, NotSealed):
        return "an answer does not come from the host"
    text = " ".join(str(error).split())
    if isinstance(error, _FAILURES):
        return text or type(error).__name__
    return f"its answers cannot be read: {type(error).__name__}: {text}"  # psycopg reads what a host sends with it

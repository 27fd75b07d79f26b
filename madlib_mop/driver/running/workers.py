"""The workers of a run, one for each segment: opens them, and reopens lost ones. Called by the hopper.

A segment can be at another host. If that is lost, its session here stays open and retries to start the trainer there
until it succeeds or the waiting time is over.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from mop_backend.frames import Header

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import Plan, PolicyPlan
from madlib_mop.catalog.sessions.login_failures import LoginFailure, diagnose
from madlib_mop.driver.running.lock_waits import LockWaits
from madlib_mop.driver.running.place import Place
from madlib_mop.engines.sessions.access import Access, reader_name, writer_name
from madlib_mop.engines.sessions.login import renew_login
from madlib_mop.engines.sessions.session import Opened, SessionState, StatementFailure, WorkerSession
from madlib_mop.engines.sessions.worker import Answer, SegmentWorker
from madlib_mop.errors import NotReady, OutOfResources, from_dict

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_MAX_FAILED_OPENINGS = 8  # consecutive
_MAX_LOST_AT_WORK = 100  # consecutive
_FULL = (LoginFailure.ROLE_FULL, LoginFailure.DATABASE_FULL, LoginFailure.SERVER_FULL)
_LOCAL, _BY_PASSWORD = "local all all peer", "host all all 127.0.0.1/32 scram-sha-256"  # lines of pg_hba.conf
_REFUSED_STATES = ("28", "3D", "42")  # login rejected, no such database, missing right


@dataclass
class _LostHost:
    """A segment with a lost host: start time, last message, number of retries, and time of the next one."""

    since: float
    message: str
    n_tries: int = 0
    ask_at: float | None = None  # monotonic time; None while a request is in flight


class Workers:
    """Workers by segment.

    Parameters
    ----------
    record : Record
    access : Access
        How their sessions log in.
    plan : Plan
        The run's.
    tell : callable
        Called with a sentence when a host is lost, when it is available again, and when a session waits for a lock.
    place : Place
        Of the run among those that train at once.
    caller_pid : int or None
        The session that has called the run.
    """

    def __init__(
        self,
        record: Record,
        access: Access,
        plan: Plan,
        tell: Callable[[str], None],
        place: Place,
        caller_pid: int | None,
    ):
        segments = [shard.segment_id for shard in plan.training.segments]
        self._record = record
        self._access = access
        self._run_id = access.run_id
        self._elsewhere = {shard.segment_id for shard in plan.training.segments if shard.server}
        self._workers: dict[int, SegmentWorker | None] = dict.fromkeys(segments)
        self._failed_openings = dict.fromkeys(segments, 0)
        self._lost_at_work = dict.fromkeys(segments, 0)
        self._reopen_at: dict[int, float] = {}
        self._lost_hosts: dict[int, _LostHost] = {}
        self._host_wait_s = plan.host_wait_s
        self._notify = tell
        self._place = place
        self._lock_waits = LockWaits(record, caller_pid, tell)
        self._on_shard: Callable[[str, int, Header], None] = _accept
        self._policy_session: WorkerSession | None = None

    def check_shards_by(self, check: Callable[[str, int, Header], None]) -> None:
        """Set the check of every shard that a trainer has loaded, before its use; see `SegmentWorker`."""
        self._on_shard = check

    def open_all(self) -> None:
        """Start to open every worker; at the end of a pause too, when the login may have expired."""
        self._renew_login()
        for segment in self._workers:
            self._open(segment)

    def sessions(self) -> list[tuple[int | None, WorkerSession]]:
        """Return the sessions to poll, with their segments; that of the policy has none."""
        opened = [(segment, worker) for segment, worker in self._workers.items() if worker is not None]
        found: list[tuple[int | None, WorkerSession]] = [
            (segment, s) for segment, worker in opened for s in worker.sessions
        ]
        session = self._policy_session
        return found if session is None or session.state is SessionState.BROKEN else [*found, (None, session)]

    def open_policy_session(self, plan: PolicyPlan, query: str) -> WorkerSession:
        """Open the session of the run's policy; it is polled and ended with the workers."""
        self._renew_login()
        self._policy_session = WorkerSession(self._access.policy(query, plan.search_path, plan.timeout_s))
        return self._policy_session

    def begin(self, segment: int, order: Header) -> None:
        """Send a task to a segment's worker."""
        self._worker(segment).begin(order)

    def advance(self, segment: int, session: WorkerSession) -> Opened | Answer | StatementFailure | None:
        """Process a session's data; see `SegmentWorker.advance`.

        A host that is available again counts as an opened worker.
        """
        if session.state is SessionState.BROKEN:  # closed since the poll
            return None
        event = self._worker(segment).advance(session)
        if isinstance(event, Answer) and segment in self._lost_hosts:
            return self._host_answered(segment, event.fields)
        if isinstance(event, StatementFailure) and segment in self._lost_hosts and not event.lost:
            raise from_dict(event.error)
        if isinstance(event, Opened):
            self._failed_openings[segment] = 0
            if segment in self._lost_hosts:  # its session was lost as well
                self._lost_hosts[segment].ask_at = time.monotonic()
                return None
        elif isinstance(event, Answer) and event.fields["outcome"] != "host":
            self._lost_at_work[segment] = 0
        return event

    def host_lost(self, segment: int, fields: Header) -> None:
        """Schedule a retry of a segment's host, after its worker's answer "host" to a task.

        Raises
        ------
        NotReady
            If it was lost too many times in a row while working.
        """
        message = fields["error"]["message"]
        self._lost_at_work[segment] += 1
        if self._lost_at_work[segment] > _MAX_LOST_AT_WORK:
            raise NotReady(
                f"the host of segment {segment} was lost {_MAX_LOST_AT_WORK} times in a row while it was working",
                detail=message,
                hint=f"The log of that server has the reason; SELECT madlib_mop.resume({self._run_id}); continues the "
                f"run.",
            )
        self._lost_hosts[segment] = _LostHost(time.monotonic(), message, self._lost_at_work[segment] - 1)
        self._ask_later(segment)
        self._notify(f"segment {segment} waits for its host {fields['server']}: {message}")

    def lost(self, segment: int, failure: StatementFailure) -> None:
        """Schedule the reopening of a lost session.

        Raises
        ------
        NotReady, OutOfResources
            If the server rejects it permanently, or it was lost too many times in a row.
        """
        self._failed_openings[segment] += 1
        self._lost_at_work[segment] += 1
        found = diagnose(failure.message, failure.sqlstate, _LOCAL if "on socket" in failure.message else _BY_PASSWORD)
        refused = (failure.sqlstate or "")[:2] in _REFUSED_STATES or not found.may_pass
        if self._lost_at_work[segment] > _MAX_LOST_AT_WORK:
            raise NotReady(
                f"the sessions of segment {segment} were lost {_MAX_LOST_AT_WORK} times in a row while it was working",
                detail=failure.message,
                hint=f"The server's log has the reason; SELECT madlib_mop.resume({self._run_id}); continues the run.",
            )
        if self._failed_openings[segment] > _MAX_FAILED_OPENINGS and found.failure in _FULL:
            raise OutOfResources(
                f"the sessions of segment {segment} found no free connection"
                f" at {self._access.host}:{self._access.port}",
                detail=failure.message,
                hint=found.hint,
            )
        if refused or self._failed_openings[segment] > _MAX_FAILED_OPENINGS:
            raise NotReady(
                f"the sessions of segment {segment} cannot be opened at {self._access.host}:{self._access.port}",
                detail=failure.message,
                hint=found.hint,
            )
        self._end(self._worker(segment).pids, 5000)
        pause = min(_FIRST_PAUSE_S * 2 ** (self._failed_openings[segment] - 1), _LONGEST_PAUSE_S)
        self._reopen_at[segment] = time.monotonic() + pause

    def look_at_waits(self) -> None:
        """Say which locks the sessions at work wait for, and give the run's place back if they wait for rows too long.

        Raises
        ------
        MopError
            If the caller's own session holds a lock.
        """
        working = {worker: segment for segment, worker in self._workers.items() if worker is not None}
        self._lock_waits.look({pid: segment for worker, segment in working.items() for pid in worker.busy_pids})
        at_work = [worker for worker in working if worker.has_task]
        self._place.look(bool(at_work) and all(worker.is_reading for worker in at_work))

    def seconds_to_reopen(self) -> float:
        """Return the time until the next reopening of a session or retry of a host; infinite if none is due."""
        asked = [host.ask_at for host in self._lost_hosts.values() if host.ask_at is not None]
        return max(0.0, min([*self._reopen_at.values(), *asked], default=float("inf")) - time.monotonic())

    def reopen_lost(self) -> None:
        """Reopen sessions that are due."""
        now = time.monotonic()
        for segment in [segment for segment, at in self._reopen_at.items() if at <= now]:
            del self._reopen_at[segment]
            self._renew_login()
            self._open(segment)
        for segment, host in self._lost_hosts.items():
            if host.ask_at is not None and host.ask_at <= now and self._is_idle(segment):
                host.ask_at = None
                self.begin(segment, {"do": "start"})

    def close(self) -> list[int]:
        """Close every connection, so that its session ends; return the sessions' process IDs."""
        pids = [pid for worker in self._workers.values() if worker is not None for pid in worker.pids]
        if self._policy_session is not None and self._policy_session.state is not SessionState.BROKEN:
            pids += [self._policy_session.pid] if self._policy_session.pid is not None else []
            self._policy_session.close()
        for worker in self._workers.values():
            if worker is not None:
                worker.close()
        return pids

    def pause(self) -> None:
        """End every session, until `open_all`."""
        self._end(self.close(), 2000)
        self._workers = dict.fromkeys(self._workers)
        self._reopen_at.clear()
        self._lost_hosts.clear()

    def _renew_login(self) -> None:
        """Let the run's role log in again: its password is valid for a minute."""
        if self._access.login is not None:
            renew_login(self._record.raw, self._access.login.role)

    def _open(self, segment: int) -> None:
        targets = self._access.writer(segment), self._access.reader()
        reads_here = segment not in self._elsewhere
        self._workers[segment] = SegmentWorker(*targets, reads_here, self._on_shard, self._renew_login)

    def _end(self, pids: list[int], wait_ms: int) -> None:
        """End sessions of this run that still exist."""
        names = [writer_name(self._run_id), reader_name(self._run_id)]
        ours = "FROM pg_catalog.pg_stat_activity WHERE pid = ANY (%s) AND application_name = ANY (%s)"
        ended = f"SELECT madlib_mop_calls.end_sessions(pg_catalog.array_agg(pid), %s) {ours}"
        self._record.execute(ended, [wait_ms, pids, names])

    def _worker(self, segment: int) -> SegmentWorker:
        worker = self._workers[segment]
        assert worker is not None, "all are opened before any is given work"
        return worker

    def _is_idle(self, segment: int) -> bool:
        worker = self._workers[segment]
        return worker is not None and worker.is_idle

    def _host_answered(self, segment: int, fields: Header) -> Opened | None:
        """Process a worker's answer about its lost host; raises an error that is permanent."""
        host = self._lost_hosts[segment]
        waited_s = time.monotonic() - host.since
        if fields["outcome"] == "done":
            del self._lost_hosts[segment]
            self._notify(f"segment {segment} continues: its host is available again after {waited_s:.1f} s")
            return Opened()
        if fields["outcome"] in ("failed", "sql"):
            raise from_dict(fields["error"])
        if fields["outcome"] == "host":
            host.message = fields["error"]["message"]
        if waited_s > self._host_wait_s:
            raise NotReady(
                f"the host of segment {segment} was not available again within {self._host_wait_s} s",
                detail=host.message,
                hint=f"SELECT madlib_mop.resume({self._run_id}); continues the run when the host"
                " is available again; SET madlib_mop.host_wait_s to wait longer.",
            )
        self._ask_later(segment)
        return None

    def _ask_later(self, segment: int) -> None:
        host = self._lost_hosts[segment]
        host.ask_at = time.monotonic() + min(_FIRST_PAUSE_S * 2**host.n_tries, _LONGEST_PAUSE_S)
        host.n_tries += 1


def _accept(data_set: str, segment_id: int, shard: Header) -> None:
    """Accept every shard, for runs without checks."""

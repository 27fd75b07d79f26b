"""The segments of a run on the server: for each one a coroutine that opens its sessions, works, and opens lost ones.

The writer has the trainer and writes the record; it is logged in as the server's own user and touches no relation of
users. If the trainer lacks the rows of a shard, it reports that. Then the reader, which is logged in as the run's
role with the caller's rights, reads them and sends them over a socket (mop_backend.rows), and the task is repeated. The
trainer's figures about the rows are checked before training (`RunConsistency`).

A segment can be at another host, and needs no reader here then. If the host is lost, the writer here stays open and
retries to start the trainer there until it succeeds or the waiting time is over.

Statements of writers and readers wait for locks without a limit. Only a lock of the caller's own session is an error:
the caller's statement waits for the run, so that lock would never be released (`LockWaits`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from mop_backend.frames import Header
from mop_backend.keras_backends import BackendName
from mop_backend.messages import (
    Answer,
    Detour,
    Done,
    Failed,
    HostGone,
    LoadedRows,
    LoadShard,
    NeedsRows,
    Order,
    ReleaseTrainer,
    ShardLoaded,
    ShardName,
    SqlFailed,
    StartTrainer,
    StateAway,
    StateGone,
    Train,
    Unread,
    as_text,
    read_answer,
)

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.catalog.rows.run import SAMPLE, RunRow
from madlib_mop.catalog.sessions.login_failures import LoginFailure, diagnose
from madlib_mop.driver.estimates.memory import is_dispatched
from madlib_mop.driver.running.admission import Place
from madlib_mop.driver.running.host_sessions import HostSessions
from madlib_mop.driver.running.segments import (
    Notified,
    PolicyAnswered,
    PolicyFailed,
    SegmentEvent,
    SegmentLost,
    SegmentReady,
    TaskAnswered,
    TaskFailed,
)
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.driver.session.stopping import ignore_from_now_on, stop_reason
from madlib_mop.engines.sessions.access import Access, reader_name, writer_name
from madlib_mop.engines.sessions.login import renew_login
from madlib_mop.engines.sessions.session import (
    AsyncSession,
    CoroutineLoop,
    SessionLost,
    StatementFailed,
    abandon,
    both,
)
from madlib_mop.errors import Cancelled, InvalidParameter, NotReady, OutOfResources, from_dict


async def _send_rows(reader: AsyncSession, reading: Header) -> StatementFailed | None:
    """Let a reader send the rows of a shard to the writer; return its failure, after which it is closed."""
    try:
        await reader.execute(_SEND, reading)
    except StatementFailed as failure:
        reader.close()  # also closes its processes on Greenplum segments, which may hold the socket
        return failure
    return None


_TICK_S = 1.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_RELEASED_WITHIN_S = 2.0
_ENDED_WITHIN_MS, _END_PAUSE_S = 5000, 0.5
_MAX_FAILED_OPENINGS = 8  # consecutive
_LOGIN_S = 0.02  # in which most have logged in; the server then prepares them without the driver
_MAX_LOST_AT_WORK = 100  # consecutive
_FULL = (LoginFailure.ROLE_FULL, LoginFailure.DATABASE_FULL, LoginFailure.SERVER_FULL)
_LOCAL, _BY_PASSWORD = "local all all peer", "host all all 127.0.0.1/32 scram-sha-256"  # lines of pg_hba.conf
_REFUSED_STATES = ("28", "3D", "42")  # login rejected, no such database, missing right
_DO = "SELECT madlib_mop_internal.writer_do(%s)"
_SEND = "SELECT madlib_mop_calls.reader_send(%(address)s, %(query)s, %(key)s, %(n_columns)s, %(at)s)"


class SegmentSessions:
    """The segments of a run that trains on this server; see `segments.Segments`.

    Its `wait` is the one place where the driver of a run waits: for the sessions, for notifications of the catalog
    session, and for the caller's backend.

    Parameters
    ----------
    record : Record
    access : Access
        How the sessions log in.
    run : RunRow
    progress : ProgressReporter
        Told when a host is lost and available again, and when a session waits for a lock.
    reading_limit_s : float
        Seconds after which the run lets others train while all its segments only wait for rows.
    caller_pid : int or None
        The session that has called the run.
    stop_fd : int or None
        Readable, at end of file, when the caller's backend wants the run to stop.
    """

    def __init__(
        self,
        record: Record,
        access: Access,
        run: RunRow,
        progress: ProgressReporter,
        reading_limit_s: float,
        caller_pid: int | None,
        stop_fd: int | None,
    ):
        self._record = record
        self._access = access
        self._plan = run.plan
        self._run_id = run.run_id
        consistency = RunConsistency(record, run, progress)
        self._shared = _Shared(
            record,
            access,
            consistency,
            self._emit,
            progress.tell,
            self._renew_login,
            run.plan.host_wait_s,
            begins_visits=not run.plan.any_trainer and not run.plan.gpus,  # else they are few, or go to the GPU
            keeps_readers=not is_dispatched(run.plan),
        )
        self._lock_waits = LockWaits(record, caller_pid, progress.tell)
        self._place = Place(record, run.run_id, reading_limit_s, progress.tell)
        self._stop_fd = stop_fd
        self._host_sessions = HostSessions(record, run.run_id)
        self._loop = CoroutineLoop()
        self._workers: dict[int, _Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._policy: AsyncSession | None = None
        self._is_paused = False
        self._events: list[SegmentEvent] = []
        self._poll_at = 0.0
        self._loop.watch(record.raw.fileno())
        if stop_fd is not None:
            self._loop.watch(stop_fd, self._stop)

    def open(self) -> None:
        """Start to open all segments; at the end of a pause too, when the login may have expired."""
        self._is_paused = False
        self._renew_login()
        for shard in self._plan.training.segments:
            worker = _Worker(self._shared, shard.segment_id, not shard.server, self._loop)
            self._workers[shard.segment_id] = worker
            self._tasks.append(self._loop.start(worker.run()))
        self._loop.run(_LOGIN_S)

    def begin(self, segment: int, order: Order) -> None:
        """Give a task to a segment that is ready."""
        self._workers[segment].begin(order)

    def ask_policy(self, plan: PolicyPlan, query: str) -> None:
        """Evaluate the policy in a session of its own; one evaluation at a time."""
        self._loop.start(self._evaluate(plan, query))

    def wait(self, at_most_s: float) -> list[SegmentEvent]:
        """Wait for the next events; see `segments.Segments`."""
        self._loop.run(0.0 if self._events else min(_TICK_S, at_most_s))  # a pause may have left some
        self._poll_waits()
        self._host_sessions.tick()
        raw = self._record.raw
        raw.poll()
        if raw.notifies or time.monotonic() >= self._poll_at:
            raw.notifies.clear()
            self._poll_at = time.monotonic() + _TICK_S
            self._events.append(Notified())
        events, self._events = self._events, []
        return events

    def fetch(self, model: ModelRow) -> list[bytes] | StateAway | StateGone | None:
        """Read the parts of a model's newest state at its host; see `segments.Segments`."""
        return self._host_sessions.fetch(model)

    def forget_fetch(self, mst_key: int) -> None:
        """Take no answer that was asked for before; see `segments.Segments`."""
        self._host_sessions.forget(mst_key)

    def sweep(self, servers: Collection[str]) -> None:
        """Send each host the states that it is to hold; see `segments.Segments`."""
        self._host_sessions.sweep(servers)

    def pause(self) -> None:
        """End all sessions, until `open`; an evaluation of the policy, which has a time limit, is not disturbed."""
        self._is_paused = True
        pids = [pid for worker in self._workers.values() for pid in worker.pids]
        self._close_workers()
        if self._policy is not None and not self._policy.is_busy:
            self._policy.close()
            pids += [self._policy.pid] if self._policy.pid is not None else []
        _end_backends(self._record, self._run_id, pids, 2000)

    def close(self, releases_trainers: bool = False) -> None:
        """End all sessions for good; each backend notices that its connection was closed."""
        if releases_trainers and self._plan.trainer_idle_s > 0:
            self._release_trainers(self._plan.trainer_idle_s)
        self._close_workers()
        self._host_sessions.close()
        if self._policy is not None:
            self._policy.close()
        self._loop.close()

    def _release_trainers(self, idle_s: float) -> None:
        """Release the trainers of idle segments to a later run. What is not done in time is not done."""
        if self._stop_fd is not None:
            self._loop.unwatch(self._stop_fd)  # the run has ended
        self._loop.cancel(self._tasks)  # they wait for tasks
        released = [self._loop.start(worker.release_trainer(idle_s)) for worker in self._workers.values()]
        deadline = time.monotonic() + _RELEASED_WITHIN_S
        while not all(task.done() for task in released) and time.monotonic() < deadline:
            self._loop.run(deadline - time.monotonic())
        self._loop.cancel(released)

    def _close_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._loop.cancel(self._tasks)
        self._workers.clear()
        self._tasks.clear()

    def _emit(self, event: SegmentEvent) -> None:
        self._events.append(event)
        self._loop.wake()

    def _stop(self) -> None:
        """End `wait`: the caller's backend has written to its pipe, or has closed it."""
        assert self._stop_fd is not None, "it is readable"
        self._loop.unwatch(self._stop_fd)
        ignore_from_now_on()
        raise Cancelled(stop_reason(self._stop_fd))

    def _renew_login(self) -> None:
        """Let the run's role log in again: its password is valid for a minute."""
        if self._access.login is not None:
            renew_login(self._record.raw, self._access.login.role)

    def _poll_waits(self) -> None:
        """Say which locks the sessions at work wait for, and give the run's place back if they wait for rows too long.

        Raises
        ------
        MopError
            If the caller's own session holds a lock.
        """
        self._lock_waits.poll({pid: segment for segment, worker in self._workers.items() for pid in worker.busy_pids})
        at_work = [worker for worker in self._workers.values() if worker.has_task]
        self._place.poll(bool(at_work) and all(worker.is_reading for worker in at_work))

    async def _evaluate(self, plan: PolicyPlan, query: str) -> None:
        """Evaluate the policy once; its session stays open for the next time, except during a pause."""
        try:
            if self._policy is None or self._policy.is_lost():
                self._renew_login()
                self._policy = AsyncSession(self._access.policy(query, plan.search_path, plan.timeout_s))
                await self._policy.connect()
            rows = await self._policy.execute(f"EXECUTE policy ({self._run_id})")
            self._emit(PolicyAnswered(rows))
        except (StatementFailed, SessionLost) as failure:
            self._emit(PolicyFailed(failure.sqlstate, failure.message, lost=isinstance(failure, SessionLost)))
        if self._is_paused and self._policy is not None:
            self._policy.close()


@dataclass(frozen=True)
class _Shared:
    """What the workers of a run share."""

    record: Record
    access: Access
    consistency: RunConsistency
    emit: Callable[[SegmentEvent], None]
    tell: Callable[[str], None]
    renew_login: Callable[[], None]
    host_wait_s: float
    begins_visits: bool  # while the rows arrive
    keeps_readers: bool
    told_detours: set[tuple[str, str]] = field(default_factory=set)

    def tell_detours(self, detours: Sequence[Detour]) -> None:
        """Write one NOTICE for each pair of hosts whose states go through this server."""
        for detour in detours:
            if (pair := (detour.sender, detour.receiver)) not in self.told_detours:
                self.told_detours.add(pair)
                self.tell(
                    f"states go from host {detour.sender} to host {detour.receiver} through this server:"
                    f" {detour.reason}"
                )


@dataclass
class _LostHost:
    """A lost host of a segment: start time, last message, and number of retries."""

    since: float
    message: str
    n_tries: int

    def pause_s(self) -> float:
        """Return the seconds until the next retry, and count it."""
        self.n_tries += 1
        return min(_FIRST_PAUSE_S * 2.0 ** (self.n_tries - 1), _LONGEST_PAUSE_S)


class _HostLost(Exception):
    """The host of a segment is lost: a foreign server, or the one of the rows."""

    def __init__(self, server: str, message: str):
        super().__init__(message)
        self.server = server
        self.message = message


class _Worker:
    """The worker of a segment: its writer, and its reader.

    Parameters
    ----------
    shared : _Shared
    segment : int
    reads_here : bool
        Whether a reader will certainly be needed; then it is opened at once.
    loop : CoroutineLoop
        In which `run` runs.
    """

    def __init__(self, shared: _Shared, segment: int, reads_here: bool, loop: CoroutineLoop):
        self._shared = shared
        self._run_id = shared.access.run_id
        self._segment = segment
        self._reads_here = reads_here
        self._loop = loop
        self._writer, self._reader = self._new_sessions()
        self._order: Order | None = None
        self._given = loop.future()  # done when there is an order
        self._n_failed_openings = 0
        self._n_lost_at_work = 0
        self._lost_host: _LostHost | None = None
        self.is_reading = False  # whether its task waits for the rows of a shard

    @property
    def _sessions(self) -> list[AsyncSession]:
        return [self._writer] if self._reader is None else [self._writer, self._reader]

    @property
    def pids(self) -> list[int]:
        """Return the process IDs of its sessions."""
        return [session.pid for session in self._sessions if session.pid is not None]

    @property
    def busy_pids(self) -> list[int]:
        """Return the process IDs of the sessions with a statement in progress."""
        return [session.pid for session in self._sessions if session.is_busy and session.pid is not None]

    @property
    def has_task(self) -> bool:
        """Whether it works on a task."""
        return self._order is not None

    def begin(self, order: Order) -> None:
        """Start a task; the worker is ready."""
        self._order = order
        if not self._given.done():  # else its session has just been lost, which `run` will report
            self._given.set_result(None)

    def close(self) -> None:
        """Close both sessions."""
        for session in self._sessions:
            session.close()

    async def release_trainer(self, idle_s: float) -> None:
        """Release the trainer to a later run; `run` has ended."""
        if self.has_task or self._writer.pid is None or self._writer.is_busy or self._writer.is_lost():
            return
        with suppress(StatementFailed, SessionLost):
            await self._tell(ReleaseTrainer(idle_s))

    async def run(self) -> None:
        """Open the sessions and complete task after task; open them again when they are lost. It never returns.

        Raises
        ------
        NotReady, OutOfResources
            If the server rejects the sessions permanently, they or the host were lost too many times in a row, or the
            process of a lost writer does not end.
        MopError
            If the rows of a shard are not the run's, or a host that was lost refuses the run.
        """
        while True:
            try:
                await self._open()
                while True:
                    if self._lost_host is not None:
                        await self._wait_for_host(self._lost_host)
                    self._shared.emit(SegmentReady(self._segment))
                    try:
                        while True:
                            await self._complete_next_task()
                    except _HostLost as loss:
                        self._lose_host(loss)
                        self._shared.emit(SegmentLost(self._segment))
            except SessionLost as loss:
                self._order, self.is_reading = None, False
                pause_s = self._count_loss(loss)
                self.close()
                await self._end_processes()
                self._shared.emit(SegmentLost(self._segment))
                await asyncio.sleep(pause_s)
                self._shared.renew_login()
                self._writer, self._reader = self._new_sessions()

    def _new_sessions(self) -> tuple[AsyncSession, AsyncSession | None]:
        access = self._shared.access
        return AsyncSession(access.writer(self._segment)), AsyncSession(access.reader()) if self._reads_here else None

    async def _end_processes(self) -> None:
        """End the processes of both sessions, and wait for the writer's: until it has ended, it may commit its visit.

        Raises
        ------
        NotReady
            If it does not end.
        """
        began, wait_ms = time.monotonic(), _ENDED_WITHIN_MS
        while self._writer.pid in _end_backends(self._shared.record, self._run_id, self.pids, wait_ms):
            if wait_ms:
                self._shared.tell(
                    f"segment {self._segment} waits for the end of its lost session {self._writer.pid}, which may still"
                    " commit a visit"
                )
            if time.monotonic() - began > self._shared.host_wait_s:
                raise NotReady(
                    f"the lost session {self._writer.pid} of segment {self._segment} has not ended within"
                    f" {self._shared.host_wait_s} s",
                    hint=f"SELECT madlib_mop.resume({self._run_id}); continues the run when it has ended.",
                )
            wait_ms = 0
            await asyncio.sleep(_END_PAUSE_S)

    async def _open(self) -> None:
        self._given = self._loop.future()
        if self._reader is None:
            await self._writer.connect()
        else:
            await both(self._writer.connect(), self._reader.connect())
        self._n_failed_openings = 0

    async def _complete_next_task(self) -> None:
        """Wait for an order, and report what became of it."""
        await self._writer.idle_until(self._given)
        self._given = self._loop.future()
        assert self._order is not None, "it was given"
        event: SegmentEvent
        try:
            answer = await self._do(self._order)
            if isinstance(answer, HostGone):
                raise _HostLost(answer.server, answer.message)
            if isinstance(answer, Done):
                self._shared.consistency.check_versions(answer.versions)
                self._shared.tell_detours(answer.detours)
            event = TaskAnswered(self._segment, answer)
            self._n_lost_at_work = 0
        except StatementFailed as failure:
            if (failure.sqlstate or "").startswith("08"):
                raise _HostLost("of the rows that it had to read", failure.message) from None
            event = TaskFailed(self._segment, failure.error)
        finally:
            self._order, self.is_reading = None, False
        self._shared.emit(event)

    async def _do(self, order: Order) -> Answer:
        """Return the writer's answer to an order, after loading the rows that its trainer lacks.

        The first visit of a shard: order -> NeedsRows; LoadShard, while the reader sends the rows -> ShardLoaded, which
        is compared with the record; the order again -> Done. The trainer may begin the visit while the rows arrive.
        """
        while True:
            # This statement is the transaction of a visit: the session is in autocommit, so it commits the new state,
            # the visit row and the model row when `writer_do` returns, and before the answer arrives here. If the
            # connection is lost meanwhile, the record says whether the visit was committed (`RunLoop`).
            answer = await self._tell(order)
            if not isinstance(answer, NeedsRows):
                return answer
            ended = await self._load(answer, order)
            if ended is not None:
                return ended

    async def _tell(self, order: Order) -> Answer:
        """Give the writer an order; return its answer."""
        return read_answer(str(await self._writer.execute(_DO, [as_text(order)])))

    async def _load(self, wanted: NeedsRows, waiting: Order) -> Answer | None:
        """Load the rows of a shard into the trainer, and check them; return the writer's answer if it cannot load."""
        self.is_reading = True
        failed: StatementFailed | None = None
        begin: Train | None = None
        if self._shared.begins_visits and isinstance(waiting, Train) and waiting.shard == wanted.shard:
            # a trainer that had too little memory for rows and visit together may have enough for one after the other
            begin = waiting if waiting.attempt == 1 else None
        load = LoadShard(wanted.shard, reader_pid=None, begin=begin)
        if wanted.reader is None:  # the rows come to the trainer in another way
            answer = await self._tell(load)
        else:
            reader = await self._open_reader()
            load.reader_pid = reader.pid
            answer, failed = await self._load_by(reader, wanted.reader, load)
        self.is_reading = False
        if isinstance(answer, Unread):
            raise failed or StatementFailed(answer.error["sqlstate"], answer.error["message"])
        if isinstance(answer, Failed) and answer.kind == "input":  # a trainer does not know whose rows they are
            message = f"{answer.error['message']} ({self._shared.consistency.place_of(wanted.shard)})"
            return replace(answer, error={**answer.error, "message": message})
        if not isinstance(answer, ShardLoaded):
            return answer
        self._shared.consistency.check_shard(wanted.shard, answer.shard)  # defence: rows-of-the-run
        if self._reader is not None and answer.shard.cached and not self._shared.keeps_readers:
            self._reader.close()  # on Greenplum, it has a process at every segment
            self._reader = None
        return None

    async def _load_by(
        self, reader: AsyncSession, reading: Header, order: LoadShard
    ) -> tuple[Answer, StatementFailed | None]:
        """Let the reader send rows while the writer loads them; return the writer's answer, and the reader's failure.

        Whatever happens, the reader is not busy at the end: a busy one is closed.
        """
        sending = asyncio.ensure_future(_send_rows(reader, reading))
        loading = asyncio.ensure_future(self._tell(order))
        try:
            await asyncio.wait([sending, loading], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # raises SessionLost
            answer = await loading
            return answer, (await sending if isinstance(answer, ShardLoaded | Unread) else None)
        finally:
            abandon(sending, loading)
            if reader.is_busy:
                reader.close()

    async def _open_reader(self) -> AsyncSession:
        """Return the reader, opened if need be: by then, the password of the run's role may have expired."""
        if self._reader is None or self._reader.is_lost():
            self._shared.renew_login()
            self._reader = AsyncSession(self._shared.access.reader())
            await self._reader.connect()
        return self._reader

    def _count_loss(self, loss: SessionLost) -> float:
        """Count the loss of a session; return the seconds after which to open another one.

        Raises
        ------
        NotReady, OutOfResources
            If the server rejects it permanently, or it was lost too many times in a row.
        """
        self._n_failed_openings += 1
        self._n_lost_at_work += 1
        access = self._shared.access
        found = diagnose(loss.message, loss.sqlstate, _LOCAL if "on socket" in loss.message else _BY_PASSWORD)
        refused = (loss.sqlstate or "")[:2] in _REFUSED_STATES or not found.may_pass
        if self._n_lost_at_work > _MAX_LOST_AT_WORK:
            raise NotReady(
                f"the sessions of segment {self._segment} were lost {_MAX_LOST_AT_WORK} times in a row while it was"
                " working",
                detail=loss.message,
                hint=f"The server's log has the reason; SELECT madlib_mop.resume({self._run_id}); continues the run.",
            )
        if self._n_failed_openings > _MAX_FAILED_OPENINGS and found.failure in _FULL:
            raise OutOfResources(
                f"the sessions of segment {self._segment} found no free connection at {access.host}:{access.port}",
                detail=loss.message,
                hint=found.hint,
            )
        if refused or self._n_failed_openings > _MAX_FAILED_OPENINGS:
            raise NotReady(
                f"the sessions of segment {self._segment} cannot be opened at {access.host}:{access.port}",
                detail=loss.message,
                hint=found.hint,
            )
        return min(_FIRST_PAUSE_S * 2.0 ** (self._n_failed_openings - 1), _LONGEST_PAUSE_S)

    def _lose_host(self, loss: _HostLost) -> None:
        """Count the loss of a host at work. Raises NotReady if it was lost too many times in a row."""
        self._n_lost_at_work += 1
        if self._n_lost_at_work > _MAX_LOST_AT_WORK:
            raise NotReady(
                f"the host of segment {self._segment} was lost {_MAX_LOST_AT_WORK} times in a row while it was working",
                detail=loss.message,
                hint=f"The log of that server has the reason; SELECT madlib_mop.resume({self._run_id}); continues the "
                f"run.",
            )
        self._lost_host = _LostHost(time.monotonic(), loss.message, self._n_lost_at_work - 1)
        self._shared.tell(f"segment {self._segment} waits for its host {loss.server}: {loss.message}")

    async def _wait_for_host(self, host: _LostHost) -> None:
        """Let the writer start the trainer at a lost host again and again, with pauses, until that succeeds.

        Raises
        ------
        NotReady
            If the waiting time is over.
        MopError
            If the host refuses it.
        """
        limit_s = self._shared.host_wait_s
        while True:
            await asyncio.sleep(host.pause_s())
            try:
                answer = await self._tell(StartTrainer())
            except StatementFailed as failure:
                raise from_dict(failure.error) from None
            waited_s = time.monotonic() - host.since
            if isinstance(answer, Done):
                break
            if isinstance(answer, Failed | SqlFailed):
                raise from_dict(answer.error)
            if isinstance(answer, HostGone):
                host.message = answer.message
            if waited_s > limit_s:
                raise NotReady(
                    f"the host of segment {self._segment} was not available again within {limit_s} s",
                    detail=host.message,
                    hint=f"SELECT madlib_mop.resume({self._run_id}); continues the run when the host"
                    " is available again; SET madlib_mop.host_wait_s to wait longer.",
                )
        self._lost_host = None
        self._shared.tell(f"segment {self._segment} continues: its host is available again after {waited_s:.1f} s")


def _end_backends(record: Record, run_id: int, pids: list[int], wait_ms: int) -> list[int]:
    """End sessions of a run that still exist; return those that have not ended within a time."""
    names = [writer_name(run_id), reader_name(run_id)]
    ours = "FROM pg_catalog.pg_stat_activity WHERE pid = ANY (%s) AND application_name = ANY (%s)"
    ended = f"SELECT madlib_mop_calls.end_sessions(pg_catalog.array_agg(pid), %s) {ours}"
    ((remaining,),) = record.execute(ended, [wait_ms, pids, names])
    return list(remaining)


_VERSIONS = ("python", *BackendName, "keras", "numpy")


class RunConsistency:
    """The recorded data and versions of a run.

    Parameters
    ----------
    record : Record
    run : RunRow
    progress : ProgressReporter
        Notified of changed versions.
    """

    def __init__(self, record: Record, run: RunRow, progress: ProgressReporter):
        self._record = record
        self._n_rows = {
            (data_set, shard.segment_id): (packed.table, shard.n_rows)
            for data_set, packed in run.plan.data_sets.items()
            for shard in packed.segments
        }
        if (sample := run.plan.sample) is not None:
            table, _ = self._n_rows[sample.data_set, sample.segment_id]
            self._n_rows[SAMPLE, sample.segment_id] = table, sample.n_rows
        self._versions = run.versions
        self._run_id = run.run_id
        self._progress = progress
        self._fingerprints = {(s.data_set, s.segment_id): s.fingerprint for s in record.segments(self._run_id)}

    def place_of(self, shard: ShardName) -> str:
        """Return the table and the segment of a shard, in words."""
        table, _ = self._n_rows[shard.data_set, shard.segment_id]
        return f"{table}, segment {shard.segment_id}"

    def check_shard(self, shard: ShardName, loaded: LoadedRows) -> None:
        """Check the rows that a trainer has loaded against those that the caller could see and those of earlier visits.

        Called before anything is trained or evaluated on it.

        Raises
        ------
        NotReady, InvalidParameter
        """
        key = (shard.data_set, shard.segment_id)
        table, planned = self._n_rows[key]
        if loaded.n_rows != planned:
            raise NotReady(
                f"{table}: the worker of segment {shard.segment_id} can see {loaded.n_rows} rows, but the caller could "
                f"see {planned}",
                hint="Commit the transaction that packed the table, and do not change the table while a run uses"
                " it. If a row policy reads a setting with a function, set it with ALTER ROLE, so that it applies to "
                "other sessions too.",
            )
        known = self._fingerprints.get(key)
        if known is None:
            self._record.set_segment(self._run_id, *key, fingerprint=loaded.fingerprint, n_bytes=loaded.n_bytes)
            self._fingerprints[key] = loaded.fingerprint
        elif known != loaded.fingerprint:
            raise InvalidParameter(
                f"{table}: the rows of segment {shard.segment_id} differ from the rows that the run was trained on",
                hint="Restore the packed table, or start a new run.",
            )

    def check_versions(self, answer: Header) -> None:
        """Record the versions of the run's training; warn if they have changed since its start."""
        versions = {str(name): answer[name] for name in _VERSIONS if name in answer}
        if versions == self._versions:
            return
        if self._versions:
            self._progress.versions_changed(self._versions, versions)
        self._versions = versions
        self._record.set_run(self._run_id, versions=versions)


_POLL_EVERY_S = 2.0
_WAITS = """
SELECT l.pid, coalesce(l.relation::pg_catalog.regclass::pg_catalog.text, l.locktype), pg_catalog.pg_blocking_pids(l.pid)
FROM pg_catalog.pg_stat_activity a JOIN pg_catalog.pg_locks l ON l.pid = a.pid AND NOT l.granted
WHERE a.pid = ANY (%s) AND a.wait_event_type = 'Lock'
"""


class LockWaits:
    """The locks that sessions wait for.

    Parameters
    ----------
    record : Record
    caller_pid : int or None
        The session that has called the run.
    tell : callable
        Called with a sentence for each new wait.
    """

    def __init__(self, record: Record, caller_pid: int | None, tell: Callable[[str], None]):
        self._record = record
        self._caller_pid = caller_pid
        self._tell = tell
        self._told: set[tuple[int, str]] = set()
        self._poll_at = 0.0

    def poll(self, sessions: Mapping[int, int]) -> None:
        """Find, at most every two seconds, which of the sessions that work wait for a lock.

        Parameters
        ----------
        sessions : mapping of int to int
            Segment of each session, by its process ID.

        Raises
        ------
        MopError
            55P03, if the caller's own session holds the lock.
        """
        if not sessions or time.monotonic() < self._poll_at:
            return
        self._poll_at = time.monotonic() + _POLL_EVERY_S
        waits = self._record.execute(_WAITS, [list(sessions)])
        self._told &= {(pid, what) for pid, what, _ in waits}
        for pid, what, blockers in waits:
            if self._caller_pid in blockers:
                raise from_dict(
                    {
                        "sqlstate": "55P03",
                        "message": f"segment {sessions[pid]} waits for a lock on {what}, which the caller's own"
                        f" transaction holds (process ID {self._caller_pid})",
                        "hint": "Commit the transaction before the call.",
                    }
                )
            if (pid, what) not in self._told:
                self._told.add((pid, what))
                self._tell(f"segment {sessions[pid]} waits for a lock on {what}, held by {_processes(blockers)}")


def _processes(pids: Sequence[int]) -> str:
    """Return the holders of a lock; a prepared transaction has the process ID 0."""
    known = sorted({pid for pid in pids if pid})
    if not known:
        return "a prepared transaction"
    return f"the session with process ID {known[0]}" if len(known) == 1 else f"sessions {', '.join(map(str, known))}"

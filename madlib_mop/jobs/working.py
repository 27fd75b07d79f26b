"""The worker: claims due jobs, runs each in a session with the rights of its owner, and writes what became of it.

``madlib-mop work`` runs one; there can be several. The worker's catalog session is a superuser's and touches the
extension's tables only. A job's statement runs in a session of its own (`sessions.py`) and never passes through this
process. If a worker dies, another one ends the sessions of its jobs and lets the jobs wait again.
"""

import asyncio
import re
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import psycopg2
from sqlalchemy.exc import DBAPIError

from madlib_mop.catalog.jobs import Jobs
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.job import JobRow
from madlib_mop.catalog.rows.states import JobState
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.catalog.sessions.login_failures import diagnose
from madlib_mop.engines.sessions.ending import sweep
from madlib_mop.engines.sessions.login import JOB_PREFIX, create_login, drop_login, sweep_logins
from madlib_mop.engines.sessions.session import AsyncSession, CoroutineLoop, SessionLost, StatementFailed
from madlib_mop.errors import MopError, NotReady
from madlib_mop.jobs.recurrence import NoNextTime, is_cron, next_time
from madlib_mop.jobs.sessions import JobServer, end_session, target
from madlib_mop.jobs.statements import STARTS_RUN
from madlib_mop.jobs.stopping import StopSignals

_LOOK_EVERY_S = 5.0  # for jobs whose worker has died
_LOGIN_RETRY_S = 5.0
_RECONNECT_S = 1.0
_MAX_ATTEMPTS, _AT_ONCE, _MOST_RETRY_S = 100, 3, 60.0
_GRACE_S = 10.0  # a session that still runs so long after its cancel or time limit is terminated
_MOST_MEMORY_BYTES = 512 << 20
#: What libpq says, as it closes the connection, of a message for which there is no memory.
_TOO_LARGE = re.compile("lost synchronization with server|allocate memory|out of memory")
_MOST_CHARACTERS = 2000  # of an error in the record; a line of the log has a tenth
_RUN = "SELECT madlib_mop_calls.run_job(%s, %s, %s)"
_LINE = "host all all 127.0.0.1/32 scram-sha-256"  # of pg_hba.conf


@dataclass
class _Active:
    """A job at work.

    Attributes
    ----------
    job : JobRow
    session : AsyncSession or None
        None when it was lost and must be ended on the server too.
    task : asyncio.Task or None
        The coroutine that waits for its statement.
    is_cancelling : bool
        Whether its statement was cancelled.
    end_by : float or None
        When its session is terminated, as monotonic time: the statement can catch what cancels it.
    exceeded : bool
        Whether its session was terminated because of its time limit.
    """

    job: JobRow
    session: AsyncSession | None
    task: asyncio.Task[None] | None = None
    is_cancelling: bool = False
    end_by: float | None = None
    exceeded: bool = False


def limit_memory() -> None:
    """Limit the memory of this process, which reads what the jobs of all roles send."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def work(dsn: str, slots: int, tell: Callable[[str], None], stop: StopSignals) -> None:
    """Run jobs until a signal stops this process; reconnect when the server has restarted.

    Parameters
    ----------
    dsn : str
        A superuser's login.
    slots : int
        Number of jobs to run at once.
    tell : callable
        Called with a line for each start and end of a job.
    stop : StopSignals

    Raises
    ------
    NotReady
        If the first login fails, or the database has no extension with jobs.
    """
    record = _open(dsn)
    while not stop.is_set:
        try:
            worker = JobWorker(record, _server(record, dsn), slots, tell, stop)
            worker.run()
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName, psycopg2.errors.UndefinedFunction):
            raise _no_jobs() from None
        except (psycopg2.Error, DBAPIError) as error:
            if not record.raw.closed:
                raise
            tell(f"the session of this worker was lost: {str(error).strip().splitlines()[0]}")
            record = _reopen(dsn, stop) or record
    if not record.raw.closed:
        record.raw.close()


def _open(dsn: str) -> Record:
    record = Record(*connect_by_dsn(dsn))
    ((table,),) = record.execute("SELECT to_regclass('madlib_mop.job_record')::text")
    if table is None:
        raise _no_jobs()
    ((encoding,),) = record.execute("SELECT current_setting('server_encoding')")
    # defence: encoding-of-a-database
    if encoding == "SQL_ASCII":  # users could store texts that no worker can read
        raise NotReady(
            "jobs need a database with an encoding. Received: SQL_ASCII",
            hint="CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0; makes one.",
        )
    return record


def _no_jobs() -> NotReady:
    return NotReady(
        "this database has no jobs of madlib_mop",
        hint="CREATE EXTENSION madlib_mop CASCADE; or ALTER EXTENSION madlib_mop UPDATE; jobs need PostgreSQL,"
        " alone or with Citus.",
    )


def _reopen(dsn: str, stop: StopSignals) -> Record | None:
    while not stop.is_set:
        try:
            return Record(*connect_by_dsn(dsn))
        except NotReady:
            stop.wait(_RECONNECT_S)
    return None


def _server(record: Record, dsn: str) -> JobServer:
    ((database, port),) = record.execute("SELECT current_database()::text, current_setting('port')")
    return JobServer(dsn, record.settings().get("worker_host", "127.0.0.1"), port, database)


class JobWorker:
    """Runs jobs with one catalog session.

    Parameters
    ----------
    record : Record
    server : JobServer
    slots : int
    tell : callable
    stop : StopSignals
    """

    def __init__(self, record: Record, server: JobServer, slots: int, tell: Callable[[str], None], stop: StopSignals):
        self._record = record
        self._jobs = Jobs(record)
        self._server = server
        self._slots = slots
        self._tell = tell
        self._stop = stop
        self._active: dict[int, _Active] = {}
        self._look_at = 0.0
        self._loop = CoroutineLoop()
        self._loop.watch(record.raw.fileno())
        self._loop.watch(stop.fileno())

    def run(self) -> None:
        """Run jobs until a signal. Raises psycopg2.Error or DBAPIError if the catalog session is lost."""
        self._jobs.listen()
        self._me = self._jobs.register(self._slots)
        try:
            while not self._stop.is_set:
                self._record.raw.notifies.clear()
                self._look_for_orphans()
                self._cancel()
                self._terminate()  # defence: end-of-stubborn-jobs
                self._wait(self._fill())
            self._leave()
        finally:  # where the catalog session was lost, the next one finds these jobs as orphans
            for active in list(self._active.values()):
                if active.session is not None:
                    active.session.close()
            self._loop.close()

    def _look_for_orphans(self) -> None:
        """Take over the jobs of workers that have ended; drop login roles that they have left; end lost runs."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        for job in self._jobs.orphans():
            if self._jobs.adopt(job, self._me):
                self._tell(f"job {job.job_id}: its worker has ended")
                self._active[job.job_id] = _Active(job, None)
        for active in [active for active in self._active.values() if active.session is None]:
            self._recover(active.job)
        sweep_logins(self._record.raw, self._jobs.is_live, JOB_PREFIX)
        for run_id in sweep(self._record):
            self._tell(f"run {run_id}: its driver no longer exists")

    def _cancel(self) -> None:
        """Cancel the statements of jobs that cancel_job() names."""
        for job in self._jobs.cancelled(self._me):
            active = self._active.get(job.job_id)
            if active is None or active.session is None or active.is_cancelling:
                continue
            active.is_cancelling = True
            active.end_by = time.monotonic() + _GRACE_S
            if job.session_pid is not None:
                self._record.execute("SELECT pg_cancel_backend(%s)", [job.session_pid])

    def _terminate(self) -> None:
        """Terminate the sessions of jobs that go on after their cancel or their time limit."""
        for active in list(self._active.values()):
            if active.session is not None and active.end_by is not None and active.end_by <= time.monotonic():
                self._close(active)
                active.exceeded = not active.is_cancelling
                self._recover(active.job)

    def _fill(self) -> bool:
        """Start due jobs while there are free slots; return whether there may be more.

        A claimed job can end at once. So the number of claims is limited: other sessions wait meanwhile.
        """
        for _ in range(self._slots):
            if len(self._active) >= self._slots or self._stop.is_set:
                return False
            job = self._claim()
            if job is None:
                return False
            if job.state is JobState.RUNNING:
                self._start(job)
            else:
                self._tell(f"job {job.job_id} is {job.state}")
        return True

    def _claim(self) -> JobRow | None:
        """Claim a job and add its next repetition, in one transaction."""
        with self._record.transaction():
            job = self._jobs.claim(self._me)
            # defence: jobs-of-dropped-roles = job is None or job.every is None or not self._jobs.is_last(job)
            if job is None or job.every is None or not (self._jobs.is_last(job) and self._jobs.has_roles(job)):
                return job
            self._record.execute("SAVEPOINT repetition")
            try:
                self._repeat(job, job.every)
            except (psycopg2.Error, NoNextTime) as error:
                self._record.execute("ROLLBACK TO repetition")
                why = f"it cannot be repeated: {str(error).strip().splitlines()[0]}"
                self._jobs.record_end(job, JobState.FAILED, why)
                return self._jobs.known(job.job_id)
            return job

    def _repeat(self, job: JobRow, every: str) -> None:
        following = self._jobs.repeat(job.job_id)
        if is_cron(every):
            now: datetime = self._record.execute("SELECT clock_timestamp()")[0][0]
            self._jobs.set_next(following, next_time(every, now, job.time_zone).isoformat())
        elif not self._jobs.set_next_interval(following, job.time_zone):
            raise NoNextTime(f"{every!r} is below one second")

    def _start(self, job: JobRow) -> None:
        if (why := self._jobs.refusal(job)) is not None:
            self._record_end(job, JobState.FAILED, why)
            return
        login = None
        try:
            login = create_login(self._record.raw, job.job_id, job.owner, JOB_PREFIX)
            job = replace(job, login_role=None if login is None else login.role)
            self._jobs.set_session(job, job.login_role, None)
            session = AsyncSession(target(self._server, job, login))
        except (psycopg2.Error, MopError) as error:
            if self._record.raw.closed:
                raise
            if login is not None:
                drop_login(self._record.raw, login.role)
            self._record_end(job, JobState.FAILED, f"it could not be started: {str(error).strip().splitlines()[0]}")
            return
        active = self._active[job.job_id] = _Active(job, session)
        active.task = self._loop.start(self._do(active, session))
        self._tell(f"job {job.job_id} of {job.owner} starts" + (f", attempt {job.attempt}" * (job.attempt > 1)))

    def _wait(self, is_hurried: bool = False) -> None:
        """Wait for the next event, or not if ``is_hurried``."""
        raw = self._record.raw
        wait_s = 0.0 if raw.notifies or is_hurried else max(0.0, self._look_at - time.monotonic())
        if len(self._active) < self._slots and (next_s := self._jobs.seconds_to_next()) is not None:
            wait_s = min(wait_s, max(0.0, next_s) + 0.001)
        self._loop.run(wait_s)
        raw.poll()

    async def _do(self, active: _Active, session: AsyncSession) -> None:
        """Run a job in a session of its own, and write what became of it."""
        try:
            await session.connect()
        except (SessionLost, MemoryError) as loss:
            self._not_let_in(active, loss if isinstance(loss, SessionLost) else SessionLost(None, "out of memory"))
            return
        active.job = job = replace(active.job, session_pid=session.pid)
        self._jobs.set_session(job, job.login_role, session.pid)
        if self._jobs.known(job.job_id).cancelled_by is not None:
            self._end(active)
            return
        if job.time_limit_ms:
            active.end_by = time.monotonic() + job.time_limit_ms / 1000 + _GRACE_S
        try:
            await session.execute(_RUN, [job.job_id, job.attempt, self._interrupted_run(job)])
        except StatementFailed as failure:
            self._end(active, failure)
        except (SessionLost, MemoryError) as loss:
            if isinstance(loss, MemoryError) or _TOO_LARGE.search(loss.message):
                self._end(active, StatementFailed(None, "its session sent a message that is too large for the worker"))
            else:
                active.session = None
                self._recover(job)
        else:
            self._end(active)

    def _interrupted_run(self, job: JobRow) -> int | None:
        """Return the run that the job has started in an earlier attempt, which is resumed."""
        if job.function not in STARTS_RUN or job.run_id is None:
            return None
        run = self._record.run(job.run_id)
        return job.run_id if run is not None and run.owner_oid == job.owner_oid else None

    def _close(self, active: _Active) -> None:
        """End the session of a job where its statement is."""
        if active.task is not None:
            self._loop.cancel([active.task])
        if active.session is not None:
            active.session.close()
            active.session = None

    def _end(self, active: _Active, failure: StatementFailed | None = None) -> None:
        """Write the end of a job whose session is still there, and end the session."""
        if active.session is not None:
            active.session.close()
            active.session = None
        job = self._jobs.known(active.job.job_id)
        if failure is not None and job.cancelled_by is None:
            self._record_end(job, JobState.FAILED, _reason(job, failure))
        else:
            self._recover(job)
            return
        end_session(self._record, job)
        self._active.pop(job.job_id, None)

    def _not_let_in(self, active: _Active, failure: SessionLost) -> None:
        """Let a job wait whose session was not opened, or end it if the server refuses such logins."""
        job = active.job
        found = diagnose(failure.message, failure.sqlstate, _LINE)
        self._active.pop(job.job_id, None)
        if job.login_role is not None:
            drop_login(self._record.raw, job.login_role)
        cancelled_by = self._jobs.known(job.job_id).cancelled_by
        if cancelled_by is not None:
            self._record_end(job, JobState.CANCELLED, f"it was cancelled by {cancelled_by}")
        elif found.may_pass:
            self._tell(f"job {job.job_id}: its session could not be opened, it waits: {_one_line(failure.message)}")
            self._jobs.put_back(job, _LOGIN_RETRY_S, f"its session could not be opened: {_one_line(failure.message)}")
        else:
            self._record_end(job, JobState.FAILED, f"its session could not be opened: {failure.message} ({found.hint})")

    def _recover(self, job: JobRow) -> bool:
        """End what is left of a job's session; then write that it was done, or let it wait again.

        Return False if its session does not end; it is tried again then.
        """
        job = self._jobs.known(job.job_id)
        if not end_session(self._record, job):
            return False
        if self._jobs.is_done(job):
            self._record_end(job, JobState.FINISHED)
        elif job.cancelled_by is not None:
            self._record_end(job, JobState.CANCELLED, f"it was cancelled by {job.cancelled_by}")
        elif job.job_id in self._active and self._active[job.job_id].exceeded:
            self._record_end(job, JobState.FAILED, _exceeded(job))
        elif job.attempt >= _MAX_ATTEMPTS:
            self._record_end(job, JobState.FAILED, f"it was interrupted {job.attempt} times")
        else:
            n_later = job.attempt - _AT_ONCE  # a job that ends its session or the server each time pauses between them
            self._jobs.put_back(job, min(2.0**n_later, _MOST_RETRY_S) if n_later > 0 else 0.0)
            self._tell(f"job {job.job_id} was interrupted, and waits")
        self._active.pop(job.job_id, None)
        return True

    def _record_end(self, job: JobRow, state: JobState, detail: str | None = None) -> None:
        self._jobs.record_end(job, state, detail and detail[:_MOST_CHARACTERS])
        self._tell(f"job {job.job_id} is {state}" + (f": {_one_line(detail)}" if detail else ""))

    def _leave(self) -> None:
        """End the sessions of this worker's jobs, and let the jobs wait for another one."""
        for active in list(self._active.values()):
            self._close(active)
            self._recover(active.job)
        self._jobs.leave(self._me)


def _reason(job: JobRow, failure: StatementFailed) -> str:
    """Return why a job has failed, with the hint that its owner would have read."""
    if failure.sqlstate == "57014" and job.time_limit_ms and "statement timeout" in failure.message:
        return _exceeded(job)
    return failure.message + (f" ({failure.hint})" if failure.hint else "")


def _exceeded(job: JobRow) -> str:
    return f"it exceeded its time limit of {job.time_limit_ms / 1000:g} s"


def _one_line(text: str) -> str:
    """Return a text of users as a part of one line of the log."""
    # defence: lines-of-the-log = "".join(c for c in text[: _MOST_CHARACTERS // 10])
    return "".join(c if c.isprintable() else " " for c in text[: _MOST_CHARACTERS // 10])

"""The jobs in the record: claimed and settled by workers (`madlib_mop.jobs`), changed by the commands on jobs.

A worker claims jobs under a lock on table job_worker, which no other role can lock, so workers claim one after the
other. Whether a job was done is not decided here: its own transaction writes a row of job_done.
"""

from collections.abc import Mapping
from typing import Any

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.job import JobRow, WorkerIdentity
from madlib_mop.catalog.rows.states import JobState

#: Workers listen here for new and changed jobs; the payload is not used.
JOBS_CHANNEL = "madlib_mop_jobs"

_COLUMNS = """
SELECT j.job_id, j.series_id, j.name, j.function, pg_get_userbyid(j.owner)::pg_catalog.text AS owner, j.owner::pg_catalog.oid::pg_catalog.int8 AS owner_oid,
       pg_get_userbyid(j.submitted_by)::pg_catalog.text AS submitted_by, j.submitted_by::pg_catalog.oid::pg_catalog.int8 AS submitted_by_oid,
       j.as_superuser, j.every, j.after, j.if_running,
       coalesce(extract(epoch FROM j.time_limit) * 1000, 0)::pg_catalog.int8 AS time_limit_ms,
       left(w.settings ->> 'TimeZone', 100) AS time_zone,  -- defence: settings-of-jobs = w.settings ->> 'TimeZone' AS time_zone,
       j.state, j.attempt, coalesce(j.run_id, (
           SELECT max(r.run_id) FROM madlib_mop.run r
           WHERE r.caller_pid = j.session_pid AND r.owner = j.owner AND r.created_at >= j.started_at)) AS run_id,
       j.session_pid, j.login_role::pg_catalog.text, j.cancelled_by::pg_catalog.text
FROM madlib_mop.job_record j LEFT JOIN madlib_mop.job_statement w ON w.statement_id = j.statement_id
"""  # noqa: E501
# A job may wait for jobs of roles that its owner acts as, and learns nothing of others.
_BEFORE = """
LEFT JOIN madlib_mop.job_record before ON before.job_id = j.after
     AND pg_has_role(j.owner, before.owner, 'MEMBER')  -- defence: jobs-to-wait-for
"""
# Of roles with due jobs only, each by an index: jobs that have ended are kept, and may be very many.
_NEXT = f"""
WITH busy AS (
    SELECT o.owner,
           (SELECT count(*) FROM madlib_mop.job_record r WHERE r.owner = o.owner AND r.state = 'running') AS n,
           -- defence: turn-of-a-role = (SELECT max(r.started_at)
           (SELECT max(coalesce(r.started_at, CASE WHEN r.state <> 'cancelled' THEN r.ended_at END))
            FROM madlib_mop.job_record r WHERE r.owner = o.owner) AS at
    FROM (SELECT DISTINCT owner FROM madlib_mop.job_record
          WHERE state = 'waiting' AND due_at <= statement_timestamp()) o
)
SELECT j.job_id FROM madlib_mop.job_record j {_BEFORE}
JOIN busy ON busy.owner = j.owner
WHERE j.state = 'waiting' AND j.due_at <= statement_timestamp()
      AND coalesce(before.state, '') NOT IN ('waiting', 'running')
      AND (j.if_running <> 'queue' OR NOT EXISTS (
          SELECT FROM madlib_mop.job_record s
          WHERE s.state = 'running' AND s.owner = j.owner AND (s.name = j.name OR s.series_id = j.series_id)))
ORDER BY busy.n, busy.at NULLS FIRST, j.owner, j.priority DESC, j.due_at, j.job_id LIMIT 1 FOR UPDATE OF j
"""
_SAME_NAME = """
SELECT min(s.job_id) FROM madlib_mop.job_record s JOIN madlib_mop.job_record j ON j.job_id = %s
WHERE s.state = 'running' AND s.owner = j.owner AND (s.name = j.name OR s.series_id = j.series_id)
"""
# The worker's own session, and its start, identify it: a number of a process may be used again.
_ALIVE = """
SELECT a.pid FROM pg_stat_activity a JOIN pg_roles o ON o.oid = a.usesysid
WHERE a.pid = j.worker_pid AND a.backend_start = j.worker_start AND o.rolsuper
"""
# Months have different lengths, so the number of intervals since the first time is an estimate then.
_NEXT_INTERVAL = """
UPDATE madlib_mop.job_record SET due_at = next.at
FROM (
    SELECT min(j.start + k * j.step) AS at
    FROM (SELECT series_start AS start, every::pg_catalog.interval AS step,
                 floor(greatest(0, extract(epoch FROM clock_timestamp() - series_start)) / extract(epoch FROM every::pg_catalog.interval)) AS n
          FROM madlib_mop.job_record WHERE job_id = %(job_id)s AND every::pg_catalog.interval >= '1 second') AS j
    CROSS JOIN LATERAL generate_series(
        greatest(0, j.n - 3 - CASE WHEN j.step >= '28 days' THEN floor(j.n / 20) ELSE 0 END), j.n + 3) AS k
    WHERE j.start + k * j.step > clock_timestamp()
) AS next
WHERE job_id = %(job_id)s AND next.at IS NOT NULL RETURNING 1
"""  # noqa: E501
_REPEAT = """
INSERT INTO madlib_mop.job_record (series_id, name, function, statement_id, owner, submitted_by, as_superuser,
    priority, submitted_at, due_at, every, series_start, if_running, time_limit)
SELECT coalesce(series_id, job_id), name, function, statement_id, owner, submitted_by, as_superuser,
    priority, submitted_at, due_at, every, coalesce(series_start, due_at), if_running, time_limit
FROM madlib_mop.job_record WHERE job_id = %s RETURNING job_id
"""
_ADMISSIBLE = """
SELECT o.rolname::pg_catalog.text, coalesce(o.rolsuper, false),
       s.rolname::pg_catalog.text, coalesce(s.rolcanlogin, false),
       coalesce(s.rolsuper, false) OR coalesce(pg_has_role(s.oid, o.oid, %s), false),
       coalesce(has_schema_privilege(o.oid, 'madlib_mop_calls', 'USAGE')
           AND has_function_privilege(o.oid, 'madlib_mop_calls.run_job(bigint, integer, bigint)', 'EXECUTE')
           AND has_database_privilege(o.oid, current_database(), 'CONNECT'), false)
FROM (SELECT %s::pg_catalog.oid AS owner, %s::pg_catalog.oid AS submitted_by) AS j
LEFT JOIN pg_roles o ON o.oid = j.owner LEFT JOIN pg_roles s ON s.oid = j.submitted_by
"""


class Jobs:
    """The jobs in the record.

    Parameters
    ----------
    record : Record
    """

    def __init__(self, record: Record):
        self._record = record

    # The commands

    def job(self, job_id: int) -> JobRow | None:
        """Return a job; of a repeated one, its newest repetition."""
        newest = f"{_COLUMNS} WHERE j.series_id = %s ORDER BY j.job_id DESC LIMIT 1"
        found = self._jobs(newest, [job_id]) or self._jobs(f"{_COLUMNS} WHERE j.job_id = %s", [job_id])
        return found[0] if found else None

    def n_workers(self) -> int:
        """Return the number of workers that are alive."""
        return int(self._value(f"SELECT count(*) FROM {_WORKERS}"))

    def cancel(self, job: JobRow, by: str) -> bool:
        """Cancel a waiting job, or ask the worker of a running one to; return False if it has already ended."""
        waiting = (
            "UPDATE madlib_mop.job_record SET state = 'cancelled', detail = %s, cancelled_by = %s,"
            " ended_at = clock_timestamp() WHERE state = 'waiting' AND (job_id = %s OR series_id = %s) RETURNING job_id"
        )
        running = (
            "UPDATE madlib_mop.job_record SET cancelled_by = %s"
            " WHERE state = 'running' AND (job_id = %s OR series_id = %s) RETURNING job_id"
        )
        series = job.series_id or job.job_id
        with self._record.transaction():
            self.lock()
            found = self._record.execute(waiting, [f"it was cancelled by {by}", by, job.job_id, series])
            found += self._record.execute(running, [by, job.job_id, series])
            self.notify()
        return bool(found)

    def change(self, job: JobRow, values: Mapping[str, Any]) -> bool:
        """Change columns of a waiting job; return False if it is no longer waiting."""
        if values.keys() & {"due_at", "every"}:  # a first job has no start of a series, for which due_at counts
            values = {**values, "series_start": None}
        casts = {"due_at": "::pg_catalog.timestamptz", "time_limit": "::pg_catalog.interval"}
        changes = ", ".join(f"{name} = %({name})s{casts.get(name, '')}" for name in values)
        query = f"UPDATE madlib_mop.job_record SET {changes} WHERE job_id = %(job_id)s AND state = 'waiting'"
        found = self._record.execute(f"{query} RETURNING 1", {**values, "job_id": job.job_id})
        self.notify()
        return bool(found)

    def make_due(self, job: JobRow) -> bool:
        """Make a waiting job due now; its series keeps its start. Return False if it is no longer waiting."""
        query = (
            "UPDATE madlib_mop.job_record SET due_at = 'now',"
            " series_start = CASE WHEN every IS NOT NULL THEN coalesce(series_start, due_at) END"
            " WHERE job_id = %s AND state = 'waiting' RETURNING 1"
        )
        found = self._record.execute(query, [job.job_id])
        self.notify()
        return bool(found)

    def purge(self, owners: list[int], older_than_s: float) -> int:
        """Delete the jobs of some owners that ended longer ago than some seconds; return their number.

        A job is kept while another one waits to run after it: that would fail without it.
        """
        query = (
            "DELETE FROM madlib_mop.job_record j WHERE owner::pg_catalog.oid::pg_catalog.int8 = ANY (%s)"
            " AND state NOT IN ('waiting', 'running')"
            " AND ended_at < clock_timestamp() - make_interval(secs => %s)"
            " AND NOT EXISTS (SELECT FROM madlib_mop.job_record w WHERE w.state = 'waiting' AND w.after = j.job_id"
            " AND pg_has_role(w.owner, j.owner, 'MEMBER')) RETURNING 1"
        )
        unused = (
            "DELETE FROM madlib_mop.job_statement s WHERE owner::pg_catalog.oid::pg_catalog.int8 = ANY (%s)"
            " AND NOT EXISTS (SELECT FROM madlib_mop.job_record j WHERE j.statement_id = s.statement_id)"
        )
        with self._record.transaction():
            n = len(self._record.execute(query, [owners, older_than_s]))
            self._record.execute(unused, [owners])
        return n

    def owners(self) -> list[int]:
        """Return the oids of the owners of jobs."""
        query = "SELECT DISTINCT owner::pg_catalog.oid::pg_catalog.int8 FROM madlib_mop.job_record"
        return [row[0] for row in self._record.execute(query)]

    # The workers

    def register(self, slots: int) -> WorkerIdentity:
        """Record this session as a worker's, and forget workers that have ended; return its identity."""
        self._record.execute(f"DELETE FROM madlib_mop.job_worker w WHERE NOT EXISTS (SELECT FROM {_WORKERS_LIKE})")
        query = (
            "INSERT INTO madlib_mop.job_worker (pid, session_start, slots) SELECT pid, backend_start, %s"
            " FROM pg_stat_activity WHERE pid = pg_backend_pid() RETURNING pid, session_start::pg_catalog.text"
        )
        return WorkerIdentity(*self._record.execute(query, [slots])[0])

    def leave(self, worker: WorkerIdentity) -> None:
        """Forget this worker."""
        query = "DELETE FROM madlib_mop.job_worker WHERE pid = %s AND session_start = %s::pg_catalog.timestamptz"
        self._record.execute(query, [worker.pid, worker.session_start])

    def claim(self, worker: WorkerIdentity) -> JobRow | None:
        """Take the next due job; None if none is due.

        It is RUNNING then, or has ended at once: SKIPPED, or FAILED because the job before it has not finished.
        """
        with self._record.transaction():
            self.lock()
            found = self._record.execute(_NEXT)
            if not found:
                return None
            job = self.known(found[0][0])
            if (end := self._unfit(job)) is not None:
                self._end(job, *end)
                return self.known(job.job_id)
            self._record.execute(
                "UPDATE madlib_mop.job_record SET state = 'running', attempt = attempt + 1, detail = NULL,"
                " started_at = clock_timestamp(), worker_pid = %s, worker_start = %s::pg_catalog.timestamptz,"
                " session_pid = NULL, login_role = NULL, run_id = %s WHERE job_id = %s",
                [worker.pid, worker.session_start, job.run_id, job.job_id],
            )
            return self.known(job.job_id)

    def repeat(self, job_id: int) -> int:
        """Add the next repetition of a repeated job, at the same time as this one, until it is set; return its job_id.

        The first one then belongs to its series.
        """
        query = "UPDATE madlib_mop.job_record SET series_id = job_id WHERE job_id = %s AND series_id IS NULL"
        self._record.execute(query, [job_id])
        return int(self._value(_REPEAT, [job_id]))

    def is_last(self, job: JobRow) -> bool:
        """Return whether a job has no later repetition."""
        query = "SELECT 1 FROM madlib_mop.job_record WHERE series_id = %s AND job_id > %s LIMIT 1"
        return not self._record.execute(query, [job.series_id or job.job_id, job.job_id])

    def has_roles(self, job: JobRow) -> bool:
        """Return whether the owner and the submitter of a job still exist; without them it can never run again."""
        query = "SELECT count(*) FROM pg_roles WHERE oid::pg_catalog.int8 IN (%s, %s)"
        oids = {job.owner_oid, job.submitted_by_oid}
        return int(self._value(query, [job.owner_oid, job.submitted_by_oid])) == len(oids)

    def set_next_interval(self, job_id: int, time_zone: str | None) -> bool:
        """Move a repetition to the next of its series' intervals; return False if the interval is below a second.

        Days and months are those of the time zone. To be called in a transaction.

        Raises
        ------
        psycopg2.DataError
            If it is no interval, or the time is out of range.
        """
        if time_zone:
            self._record.execute("SELECT set_config('TimeZone', %s, true)", [time_zone])
        return bool(self._record.execute(_NEXT_INTERVAL, {"job_id": job_id}))

    def set_next(self, job_id: int, due_at: str) -> None:
        """Move a repetition to a time, in ISO format."""
        self._record.execute("UPDATE madlib_mop.job_record SET due_at = %s WHERE job_id = %s", [due_at, job_id])

    def set_session(self, job: JobRow, login_role: str | None, session_pid: int | None) -> None:
        """Write with which role and in which session a job runs; committed before its statement starts."""
        query = "UPDATE madlib_mop.job_record SET login_role = %s, session_pid = %s WHERE job_id = %s AND attempt = %s"
        self._record.execute(query, [login_role, session_pid, job.job_id, job.attempt])

    def is_done(self, job: JobRow) -> bool:
        """Return whether the transaction of a job was committed."""
        return bool(self._record.execute("SELECT 1 FROM madlib_mop.job_done WHERE job_id = %s", [job.job_id]))

    def record_end(self, job: JobRow, state: JobState, detail: str | None = None) -> None:
        """Write the end of a running job, and wake those that wait for it."""
        with self._record.transaction():
            self._end(job, state, detail)
            self._record.execute("DELETE FROM madlib_mop.job_done WHERE job_id = %s", [job.job_id])
            self.notify()

    def put_back(self, job: JobRow, wait_s: float = 0.0, why: str | None = None) -> None:
        """Let a running job wait again, for some seconds at least; its next worker knows its run.

        Parameters
        ----------
        job : JobRow
        wait_s : float
        why : str or None
            Why its session could not be opened: then this was no attempt.
        """
        self._record.execute(
            "UPDATE madlib_mop.job_record SET state = 'waiting', run_id = %s, session_pid = NULL, login_role = NULL,"
            " worker_pid = NULL, worker_start = NULL, detail = %s, attempt = attempt - %s,"
            " series_start = CASE WHEN every IS NOT NULL THEN coalesce(series_start, due_at) END,"
            " due_at = CASE WHEN %s > 0 THEN clock_timestamp() + %s * interval '1 second' ELSE due_at END"
            " WHERE job_id = %s AND state = 'running'",
            [job.run_id, why, int(why is not None), wait_s, wait_s, job.job_id],
        )
        self.notify()

    def orphans(self) -> list[JobRow]:
        """Return the running jobs whose worker has ended."""
        return self._jobs(f"{_COLUMNS} WHERE j.state = 'running' AND NOT EXISTS ({_ALIVE})", [])

    def adopt(self, job: JobRow, worker: WorkerIdentity) -> bool:
        """Become the worker of a running job whose worker has ended; return False if another one did before."""
        query = (
            "UPDATE madlib_mop.job_record j SET worker_pid = %s, worker_start = %s::pg_catalog.timestamptz"
            f" WHERE job_id = %s AND state = 'running' AND attempt = %s AND NOT EXISTS ({_ALIVE}) RETURNING 1"
        )
        with self._record.transaction():
            self.lock()
            values = [worker.pid, worker.session_start, job.job_id, job.attempt]
            return bool(self._record.execute(query, values))

    def is_live(self, job_id: int) -> bool:
        """Return whether a job is running and its worker is alive."""
        query = f"SELECT 1 FROM madlib_mop.job_record j WHERE job_id = %s AND state = 'running' AND EXISTS ({_ALIVE})"
        return bool(self._record.execute(query, [job_id]))

    def cancelled(self, worker: WorkerIdentity) -> list[JobRow]:
        """Return the running jobs of a worker that were cancelled."""
        where = (
            "j.state = 'running' AND j.cancelled_by IS NOT NULL AND j.worker_pid = %s"
            " AND j.worker_start = %s::pg_catalog.timestamptz"
        )
        return self._jobs(f"{_COLUMNS} WHERE {where}", [worker.pid, worker.session_start])

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next job is due; None if none waits for its time."""
        query = (
            "SELECT extract(epoch FROM min(due_at) - clock_timestamp()) FROM madlib_mop.job_record"
            " WHERE state = 'waiting' AND due_at > clock_timestamp()"
        )
        seconds = self._value(query)
        return None if seconds is None else float(seconds)

    def refusal(self, job: JobRow) -> str | None:
        """Return why a job may not run with the rights that its owner and its submitter have now; None if it may."""
        rights = "USAGE, SET" if self._record.raw.server_version >= 160000 else "MEMBER"
        ((owner, is_super, submitter, can_login, acts_as, may_use),) = self._record.execute(
            _ADMISSIBLE, [rights, job.owner_oid, job.submitted_by_oid]
        )
        if owner is None:
            return "the role that it runs as was dropped"
        if submitter is None:
            return "the role that submitted it was dropped"
        if is_super and not job.as_superuser:  # defence: job-of-a-new-superuser
            return f"role {owner} has become a superuser since it was submitted. Submit it again"
        if not can_login:  # defence: job-may-log-in
            return f"role {submitter}, which submitted it, may no longer log in"
        if not acts_as:  # defence: job-acts-as-owner
            return f"role {submitter}, which submitted it, is no longer a member of role {owner}"
        if not may_use:  # defence: job-may-use-us
            return f"role {owner} may no longer use madlib_mop in this database. See madlib_mop.grant_use()"
        return None

    def lock(self) -> None:
        """Wait until no other session claims or cancels jobs; until the end of the transaction."""
        self._record.execute("LOCK TABLE madlib_mop.job_worker IN EXCLUSIVE MODE")

    def listen(self) -> None:
        """Subscribe to notifications of new and changed jobs."""
        self._record.execute(f"LISTEN {JOBS_CHANNEL}")

    def notify(self) -> None:
        """Wake all workers."""
        self._record.execute("SELECT pg_notify(%s, '')", [JOBS_CHANNEL])

    def known(self, job_id: int) -> JobRow:
        """Return a job that exists."""
        return self._jobs(f"{_COLUMNS} WHERE j.job_id = %s", [job_id])[0]

    def _unfit(self, job: JobRow) -> tuple[JobState, str] | None:
        """Return how a due job ends without a start; None if it is to start."""
        if job.after is not None:
            query = f"SELECT before.state FROM madlib_mop.job_record j {_BEFORE} WHERE j.job_id = %s"
            state = self._value(query, [job.job_id])
            if state != JobState.FINISHED:
                became = f"is {state}" if state else "does not exist any more, or is not a job of its owner's"
                return JobState.FAILED, f"it was to run after job {job.after}, which {became}"
        same = self._value(_SAME_NAME, [job.job_id])
        if same is None:
            return None
        sentence = f"job {same}, which has the same name or series, was running when it was due"
        return (JobState.FAILED if job.if_running == "error" else JobState.SKIPPED), sentence

    def _end(self, job: JobRow, state: JobState, detail: str | None) -> None:
        self._record.execute(
            "UPDATE madlib_mop.job_record SET state = %s, detail = %s, run_id = %s, ended_at = clock_timestamp(),"
            " session_pid = NULL, login_role = NULL, worker_pid = NULL, worker_start = NULL"
            " WHERE job_id = %s AND state IN ('waiting', 'running')",
            [str(state), detail, job.run_id, job.job_id],
        )

    def _jobs(self, query: str, params: list[Any]) -> list[JobRow]:
        with self._record.raw.cursor() as cursor:
            cursor.execute(query, params)
            names = [column.name for column in cursor.description or ()]
            return [JobRow.from_row(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]

    def _value(self, query: str, params: list[Any] | None = None) -> Any:
        return self._record.execute(query, params or [])[0][0]


_WORKERS = """
madlib_mop.job_worker w JOIN pg_stat_activity a ON a.pid = w.pid AND a.backend_start = w.session_start
"""
_WORKERS_LIKE = "pg_stat_activity a WHERE a.pid = w.pid AND a.backend_start = w.session_start"

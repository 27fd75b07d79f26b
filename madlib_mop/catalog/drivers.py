"""The driver of a run, requests to cancel it, and which runs train at once; mixed into `Record`.

A driver holds an advisory lock during its lifetime. A cancel is committed to the run's row. A driver reads the row
after it has started to listen and at later checks, so no cancel is lost.

Each driver asks for admission before it opens its sessions. A run whose driver is alive is admitted (column
``admitted_at``) or waits (``asked_at``). The next run is one of the role with the fewest admitted runs; among these, of
the role whose last admission was longest ago; then the run that has waited longest.

In PostgreSQL, every role can take any advisory lock, and lock any role by granting something to it. With one of the
extension's locks, a session could block another user's run, or prevent that a run's login role is dropped. So sessions
that hold such a lock, or wait for it and would get it next, are ended when only a driver needs it (`end_holders`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection
from sqlalchemy import func, select, update

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.live.following import RUNS_CHANNEL
from madlib_mop.catalog.record_session import RecordSession
from madlib_mop.catalog.rows.states import LOCK_CLASS, RunState, lock_number

_SESSIONS = """
SELECT madlib_mop_calls.end_sessions(pg_catalog.array_agg(DISTINCT l.pid), 10000)
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_get_activity(l.pid) a ON true
LEFT JOIN pg_catalog.pg_roles o ON o.oid = a.usesysid
-- defence: waiting-for-locks = WHERE l.granted AND l.pid <> pg_catalog.pg_backend_pid()
WHERE l.pid <> pg_catalog.pg_backend_pid()
      AND o.rolsuper IS NOT TRUE  -- defence: locks-of-autovacuum = AND NOT o.rolsuper
      AND ({lock}) HAVING pg_catalog.count(*) > 0
"""
# A prepared transaction has no process; the lock on its own transaction number identifies it.
_PREPARED = """
SELECT p.gid FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_locks own ON own.virtualtransaction = l.virtualtransaction AND own.locktype = 'transactionid'
JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = own.transactionid
JOIN pg_catalog.pg_roles o ON o.rolname = p.owner
WHERE l.pid IS NULL AND own.pid IS NULL AND NOT o.rolsuper AND p.database = pg_catalog.current_database() AND ({lock})
"""


def end_holders(catalog: connection, lock: str, params: Sequence[Any]) -> None:
    """End the sessions that hold a lock or wait for it, autovacuum's too, and roll back prepared transactions with it.

    Superusers' sessions are not ended. Prepared transactions cannot be rolled back while the catalog session is in a
    transaction.

    Parameters
    ----------
    catalog : psycopg2 connection
        The catalog session.
    lock : str
        A condition on row ``l`` of ``pg_locks``, with the parameters' slots.
    params : sequence
    """
    with catalog.cursor() as cursor:
        cursor.execute(_SESSIONS.format(lock=lock), params)  # defence: holders-of-locks
        if catalog.info.transaction_status != TRANSACTION_STATUS_IDLE:
            return
        cursor.execute(_PREPARED.format(lock=lock), params)
        for (gid,) in cursor.fetchall():  # defence: prepared-holders
            cursor.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


_LOCK = """
l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s::pg_catalog.int8 AND l.objid = %s::pg_catalog.int8
AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""
_DRIVER = f"""
SELECT 1 FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
JOIN pg_catalog.pg_roles o ON o.oid = a.usesysid WHERE l.granted AND o.rolsuper AND {_LOCK}
"""
#: The locks of drivers, by `lock_number`.
DRIVER_LOCKS = f"""
SELECT l.objid::pg_catalog.int8 AS lock_number FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
JOIN pg_catalog.pg_roles o ON o.oid = a.usesysid
WHERE l.granted AND o.rolsuper AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = {LOCK_CLASS}::pg_catalog.int8
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""  # noqa: E501
#: Whether a lock of `DRIVER_LOCKS`, as ``d``, is that of a run, as ``r``; so written that an index finds the run.
IS_LOCK_OF_RUN = """
(r.run_id = d.lock_number
 OR r.run_id > 4294967295 AND pg_catalog.mod(r.run_id - 1, 4294967295) + 1 = d.lock_number)
"""
CHANNEL = "madlib_mop_cancel"
_END_DRIVER = f"""
SELECT madlib_mop_calls.end_sessions(pg_catalog.array_agg(DISTINCT l.pid), 1000)
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
JOIN pg_catalog.pg_roles o ON o.oid = a.usesysid
WHERE l.granted AND o.rolsuper AND l.pid <> pg_catalog.pg_backend_pid() AND {_LOCK}
"""
_RUNNING = "SELECT run_id FROM madlib_mop.run WHERE state = 'running'"
# Whose activity is not tracked may be at work. The locks come as an array: Greenplum's pg_locks asks the segments,
# which it cannot do while a query reads a table there.
_LOST_RUNS = f"""
SELECT r.run_id FROM madlib_mop.run r
WHERE r.state = 'running' AND r.run_id = ANY (%s)
      AND NOT EXISTS (SELECT FROM pg_catalog.unnest(%s::pg_catalog.int8[]) d (lock_number) WHERE {IS_LOCK_OF_RUN})
      AND NOT EXISTS (
          SELECT FROM pg_catalog.pg_stat_activity a
          WHERE a.pid = r.caller_pid AND a.pid IS DISTINCT FROM %s::pg_catalog.int4
                AND a.datname = pg_catalog.current_database() AND a.state IN ('active', 'disabled'))
"""
_END_STATEMENT = """
SELECT pg_catalog.pg_cancel_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE pid = %s AND datname = pg_catalog.current_database() AND state = 'active' AND query_start < %s
"""
_COUNT_LOST_SECONDS = """
UPDATE madlib_mop.run AS r SET training_s = k.elapsed_s
FROM (SELECT pg_catalog.max(elapsed_s) AS elapsed_s FROM madlib_mop.metric WHERE run_id = %s) AS k
WHERE r.run_id = %s AND k.elapsed_s > r.training_s
"""


class RunDrivers(RecordSession):
    """The drivers of runs; mixed into `Record`."""

    def __init__(self) -> None:
        self._driven: set[int] = set()

    def lock_run(self, run_id: int) -> bool:
        """Become the run's driver; return False if another process is. Later cancels are for this driver.

        Every role can take advisory locks. A session that is not a driver and holds this lock would block the run, so
        it is ended; prepared transactions with the lock are rolled back unless this session is in a transaction.
        """
        if run_id in self._driven:
            return True
        end_holders(self.raw, _LOCK, [LOCK_CLASS, lock_number(run_id)])
        if self._scalar(select(func.pg_try_advisory_lock(LOCK_CLASS, _lock_key(run_id)))):
            self._driven.add(run_id)
        return run_id in self._driven

    def lock_run_anew(self, run_id: int) -> bool:
        """Become the driver of a stopped run, and clear an earlier cancel and pause; return False as `lock_run` does.

        `ask_to_cancel` waits for the row lock taken here. So it runs either before, and finds no driver, or after,
        and its write is kept.
        """
        end_holders(self.raw, _LOCK, [LOCK_CLASS, lock_number(run_id)])
        with self.transaction() as session:
            session.execute(select(t.run.c.run_id).where(t.run.c.run_id == run_id).with_for_update(key_share=True))
            if not self.lock_run(run_id):
                return False
            self.set_run(run_id, cancelled_by=None, paused_by=None)
        return True

    def count_lost_seconds(self, run_id: int) -> None:
        """Add the seconds of training of a driver that was killed, as far as recorded metrics say them."""
        self.execute(_COUNT_LOST_SECONDS, [run_id, run_id])

    def unlock_run(self, run_id: int) -> None:
        """Stop being the run's driver; no effect in other processes. A session that was lost has lost the lock."""
        if run_id in self._driven:
            self._driven.remove(run_id)
            if not self.raw.closed:
                self._scalar(select(func.pg_advisory_unlock(LOCK_CLASS, _lock_key(run_id))))

    def end_driver(self, run_id: int) -> None:
        """End the catalog session of a run's driver, which holds the run's lock; one that hangs ends later."""
        self.execute(_END_DRIVER, [LOCK_CLASS, lock_number(run_id)])

    def lock_state(self, run_id: int) -> RunState | None:
        """Return the state of a run, which no other session can change until the transaction's end."""
        query = select(t.run.c.state).where(t.run.c.run_id == run_id).with_for_update(key_share=True)
        rows = self._rows(query)
        return RunState(rows[0]["state"]) if rows else None

    def lost_runs(self, asks: int | None = None) -> list[int]:
        """Return the runs that are recorded as running, but whose driver and caller have ended.

        ``asks`` is the session that asks: its own statement continues no run.
        """
        running = [run_id for (run_id,) in self.execute(_RUNNING)]  # before the locks: a run that begins has one soon
        if not running:
            return []
        return [run_id for (run_id,) in self.execute(_LOST_RUNS, [running, self.driver_locks(), asks])]

    def driver_locks(self) -> list[int]:
        """Return the locks of the drivers that are at work, by `lock_number`."""
        return [number for (number,) in self.execute(DRIVER_LOCKS)]

    def end_statement(self, pid: int | None, asked_at: datetime) -> None:
        """Cancel the statement of a session of this database, if it has run since that time."""
        self.execute(_END_STATEMENT, [pid, asked_at])

    def is_live(self, run_id: int) -> bool:
        """Return whether a process is the run's driver now."""
        return bool(self.execute(_DRIVER, [LOCK_CLASS, lock_number(run_id)]))

    def listen(self) -> None:
        """Subscribe to notifications of cancelled runs and of commands to runs."""
        with self.raw.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")

    def ask_to_cancel(self, run_id: int, by: str, asks: int | None = None) -> bool:
        """Commit a cancel to the run's row and wake its driver; return False if the run is not training.

        The caller's backend restarts a killed driver. Until then, the backend counts as the driver. ``asks`` is the
        session that cancels.
        """
        with self.transaction() as session:
            query = select(t.run.c.state, t.run.c.caller_pid).where(t.run.c.run_id == run_id)
            state, caller_pid = session.execute(query.with_for_update(key_share=True)).one()
            if RunState(state).is_trained:
                return False
            if not self.is_live(run_id) and not (state == RunState.RUNNING and self.is_at_work(caller_pid, asks)):
                return False
            self.set_run(run_id, cancelled_by=by)
            self._scalar(select(func.pg_notify(CHANNEL, str(run_id))))
        return True

    def notify_change(self, run_id: int) -> None:
        """Notify live pages of a change of a run, at the commit of the change's transaction."""
        self._scalar(select(func.pg_notify(RUNS_CHANNEL, str(run_id))))

    def notify_changes(self, run_id: int) -> None:
        """Notify live pages of changes that were committed before.

        A notification is a commit. It is not durable, so this one does not wait for the disk.
        """
        without_wait = func.set_config("synchronous_commit", "off", True)
        self._rows(select(func.pg_notify(RUNS_CHANNEL, str(run_id)), without_wait))

    def cancelled_by(self, run_id: int) -> str | None:
        """Return the role that has cancelled the run since its driver started."""
        role: str | None = self._scalar(select(t.run.c.cancelled_by).where(t.run.c.run_id == run_id))
        return role

    def is_at_work(self, pid: int | None, asks: int | None = None) -> bool:
        """Return whether a session of this database is running a statement; True if its activity is not tracked.

        Parameters
        ----------
        pid : int or None
        asks : int or None
            The session whose statement asks: it is running no other one.
        """
        if pid is None or pid == asks:
            return False
        query = (
            "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = %s AND datname = pg_catalog.current_database()"
            " AND state IN ('active', 'disabled')"
        )
        return bool(self.execute(query, [pid]))


def _lock_key(run_id: int) -> int:
    """Return a run's number as the functions of advisory locks take it: with a sign."""
    number = lock_number(run_id)
    return number if number < 1 << 31 else number - (1 << 32)


#: Drivers of waiting runs listen here.
ADMISSION_CHANNEL = "madlib_mop_admission"
_NO_RUN = 0  # the advisory lock of the drivers' class that a driver holds while it asks
_ADMISSION_LOCK = "l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s::pg_catalog.int8 AND l.objid = 0"
_QUEUE = f"""
WITH live AS (
    SELECT r.run_id, r.owner, r.asked_at, r.admitted_at, r.paused_by FROM madlib_mop.run r
    JOIN pg_catalog.unnest(%(locks)s::pg_catalog.int8[]) d (lock_number) ON {IS_LOCK_OF_RUN}
), active AS (
    SELECT owner, count(*) AS n FROM live WHERE admitted_at IS NOT NULL AND paused_by IS NULL AND run_id <> %(run_id)s
    GROUP BY owner
)
SELECT (SELECT coalesce(sum(n), 0) FROM active)::pg_catalog.int8, coalesce(array(
    SELECT l.run_id FROM live l LEFT JOIN active a ON a.owner = l.owner
    LEFT JOIN (SELECT owner, max(admitted_at) AS at FROM madlib_mop.run GROUP BY owner) last ON last.owner = l.owner
    WHERE l.admitted_at IS NULL AND l.asked_at IS NOT NULL
    ORDER BY coalesce(a.n, 0), last.at NULLS FIRST, l.asked_at, l.run_id), ARRAY[]::pg_catalog.int8[])
"""  # noqa: E501
#: Sessions of a run besides those of its segments: the caller's and the driver's.
N_CALLER_AND_DRIVER = 2
#: Connections that a run leaves to other sessions, such as to watch runs, if it begins while another one trains.
N_LEFT_FREE = 3
FREE_CONNECTIONS = """
SELECT pg_catalog.current_setting('max_connections')::pg_catalog.int8
       - pg_catalog.current_setting('superuser_reserved_connections')::pg_catalog.int8
       - coalesce(pg_catalog.current_setting('reserved_connections', true)::pg_catalog.int8, 0) -- PostgreSQL 16
       - (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')
"""


def n_segment_sessions(n_segments: int, n_at_hosts: int = 0) -> int:
    """Return the number of a run's writers, one for each segment, and readers, one for each that is not at a host."""
    return 2 * n_segments - n_at_hosts


@dataclass(frozen=True)
class Queue:
    """The runs when a driver has asked.

    Attributes
    ----------
    n_active : int
        Admitted runs, other than this one and paused ones.
    n_before : int
        Waiting runs that come before this one.
    free_connections : int
        Of the server.
    """

    n_active: int
    n_before: int
    free_connections: int


class RunAdmission(RunDrivers):
    """The admission of runs; mixed into `Record`."""

    def ask(self, run_id: int) -> None:
        """Begin to wait."""
        values = {"asked_at": func.clock_timestamp(), "admitted_at": None}
        self._do(update(t.run).where(t.run.c.run_id == run_id).values(**values))

    def admit(self, run_id: int, limit: int, n_connections: int, fits: bool) -> Queue | None:
        """Admit a run if it is its turn; return None then, otherwise what it waits for.

        Parameters
        ----------
        run_id : int
        limit : int
            Number of runs that train at once.
        n_connections : int
            Connections that the run needs.
        fits : bool
            Whether there is memory for it. A run that is alone is admitted without.
        """
        end_holders(self.raw, _ADMISSION_LOCK, [LOCK_CLASS])
        with self.transaction():
            self._scalar(select(func.pg_advisory_xact_lock(LOCK_CLASS, _NO_RUN)))
            ((n_active, waiting),) = self.execute(_QUEUE, {"run_id": run_id, "locks": self.driver_locks()})
            free = self.free_connections()
            n_before = waiting.index(run_id) if run_id in waiting else 0
            has_room = n_active < limit and fits and free >= n_connections
            if n_before or (n_active and not has_room):
                return Queue(n_active, n_before, free)
            self.mark_admitted(run_id)
        return None

    def free_connections(self) -> int:
        """Return how many more sessions the server accepts."""
        ((free,),) = self.execute(FREE_CONNECTIONS)
        return int(free)

    def data_directory(self) -> str:
        """Return the server's data directory."""
        ((path,),) = self.execute("SELECT pg_catalog.current_setting('data_directory')")
        return str(path)

    def mark_admitted(self, run_id: int) -> None:
        """Admit a run without asking."""
        self.set_run(run_id, admitted_at=func.clock_timestamp())

    def release_place(self, run_id: int) -> None:
        """Let a run that has a driver count neither as one that trains nor as one that waits."""
        self.set_run(run_id, asked_at=None, admitted_at=None)

    def wake_waiting(self) -> None:
        """Wake the drivers of waiting runs: a run has ended."""
        self._scalar(select(func.pg_notify(ADMISSION_CHANNEL, "")))

    def listen_for_admission(self) -> None:
        """Subscribe to the ends of runs."""
        with self.raw.cursor() as cursor:
            cursor.execute(f"LISTEN {ADMISSION_CHANNEL}")

"""The driver of a run, and requests to cancel it; mixed into `Record`.

A driver holds an advisory lock during its lifetime. A cancel is committed to the run's row. A driver reads the row
after it has started to listen and at later checks, so no cancel is lost.
"""

from datetime import datetime

from sqlalchemy import func, select

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.live.following import RUNS_CHANNEL
from madlib_mop.catalog.record_session import RecordSession
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.catalog.run_locks import LOCK_CLASS, lock_number
from madlib_mop.catalog.sessions.lock_holders import end_holders

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

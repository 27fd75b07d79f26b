"""Who drives a run, and who has cancelled it; mixed into `Record`.

A driver holds an advisory lock as long as it lives. A cancel is a committed fact on the run's row: what a driver finds
there after it has begun to listen, and whenever it looks again, is never lost.
"""

from sqlalchemy import func, select, update

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.lock_holders import end_holders
from madlib_mop.catalog.record_session import RecordSession
from madlib_mop.catalog.rows.states import RunState

_LOCK_CLASS = 0x6D6F70  # "mop": the first key of the advisory lock that a run's driver holds
_LOCK = """
l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s::pg_catalog.int8 AND l.objid = %s::pg_catalog.int8
AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""
_DRIVER = f"""
SELECT 1 FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
JOIN pg_catalog.pg_roles o ON o.oid = a.usesysid WHERE l.granted AND o.rolsuper AND {_LOCK}
"""
CHANNEL = "madlib_mop_cancel"


class RunDrivers(RecordSession):
    """The drivers of runs; mixed into `Record`."""

    def __init__(self) -> None:
        self._driven: set[int] = set()

    def take(self, run_id: int) -> bool:
        """Become the run's driver; False while another process is. A cancel that comes from now on is for this driver.

        Advisory locks are open to every role. Who is no driver and holds this one, which nobody else needs, would keep
        its owner from the run: that is ended, but for a prepared transaction where this session has one open itself.
        """
        if run_id in self._driven:
            return True
        end_holders(self.raw, _LOCK, [_LOCK_CLASS, run_id])
        if self._scalar(select(func.pg_try_advisory_lock(_LOCK_CLASS, run_id))):
            self._driven.add(run_id)
        return run_id in self._driven

    def take_anew(self, run_id: int) -> bool:
        """Become the driver of a run that stood still, and forget an earlier cancel of it; False as `take`.

        `ask_to_cancel` waits for the row that is locked here. So it comes either before, and finds nobody at work, or
        after, and what it writes is kept.
        """
        end_holders(self.raw, _LOCK, [_LOCK_CLASS, run_id])
        with self.transaction() as session:
            session.execute(select(t.run.c.run_id).where(t.run.c.run_id == run_id).with_for_update(key_share=True))
            if not self.take(run_id):
                return False
            self.set_run(run_id, cancelled_by=None)
        return True

    def give_up(self, run_id: int) -> None:
        """End being the run's driver; nothing happens in a process that is not."""
        if run_id in self._driven:
            self._driven.remove(run_id)
            self._scalar(select(func.pg_advisory_unlock(_LOCK_CLASS, run_id)))

    def is_live(self, run_id: int) -> bool:
        """Return whether some process is the run's driver now."""
        return bool(self.execute(_DRIVER, [_LOCK_CLASS, run_id]))

    def listen(self) -> None:
        """Ask to be told when somebody cancels a run."""
        with self.raw.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")

    def ask_to_cancel(self, run_id: int, by: str) -> bool:
        """Commit to the run's row that it is to stop, and wake its driver; False if nobody trains it.

        A driver that was killed is restarted by the caller's backend. Until then that backend counts as one.
        """
        with self.transaction() as session:
            query = select(t.run.c.state, t.run.c.caller_pid).where(t.run.c.run_id == run_id)
            state, caller_pid = session.execute(query.with_for_update(key_share=True)).one()
            if RunState(state).is_trained:
                return False
            if not self.is_live(run_id) and not (state == RunState.RUNNING and self._is_at_work(caller_pid)):
                return False
            self.set_run(run_id, cancelled_by=by)
            self._scalar(select(func.pg_notify(CHANNEL, str(run_id))))
        return True

    def cancelled_by(self, run_id: int) -> str | None:
        """Return who has cancelled the run since its driver began."""
        role: str | None = self._scalar(select(t.run.c.cancelled_by).where(t.run.c.run_id == run_id))
        return role

    def end_training(self, run_id: int) -> bool:
        """Mark a run as trained; False, and nothing is done, if it was cancelled before."""
        query = update(t.run).where(t.run.c.run_id == run_id, t.run.c.cancelled_by.is_(None))
        query = query.values(state=str(RunState.TRAINED))
        with self._engine.connect() as session:
            return session.execute(query).rowcount == 1

    def _is_at_work(self, pid: int | None) -> bool:
        """Return whether a session of this database has a statement under way; yes where it does not tell of that."""
        query = (
            "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = %s AND datname = pg_catalog.current_database()"
            " AND state IN ('active', 'disabled')"
        )
        return bool(self.execute(query, [pid]))

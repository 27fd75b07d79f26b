"""Ends a run: first its state in the record, then its sessions, trainers and login role.

The order matters. A process of the run may hang, and whoever ends the run may be killed meanwhile: then the record is
right, and what is left has no rights. Called by the run's driver at its end (`end_run`), and for a run whose driver has
died by whoever finds it: the caller's backend, `madlib_mop.cancel`, the next call that trains, job workers and the
doctor (`end_lost_run`, `sweep`). Who takes over or drops a run first ends its old writers (`end_old_writers`).
"""

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.engines.sessions.access import reader_name, writer_name
from madlib_mop.engines.sessions.login import drop_login, login_roles, sweep_logins
from madlib_mop.errors import NotReady

_DRIVER_GONE = "its driver no longer exists"
_SESSIONS = """
SELECT coalesce(pg_catalog.array_agg(a.pid), ARRAY[]::pg_catalog.int4[])
FROM pg_catalog.pg_stat_activity a JOIN pg_catalog.pg_roles r ON r.oid = a.usesysid
WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid() AND r.rolsuper
      AND a.application_name = ANY (%s)
"""
_END = "SELECT madlib_mop_calls.end_sessions(%s::pg_catalog.int4[], %s)"


def end_run(record: Record, run_id: int, state: RunState, detail: str | None, training_s: float = 0.0) -> None:
    """Write the end of a run that this session drives, and stop being its driver, in one transaction.

    So no other session can see an ended run that still has a driver. The state of a run that another session has ended
    stays as it is.
    """
    with record.transaction():
        if record.lock_state(run_id) in (RunState.RUNNING, state):
            record.end_run(run_id, state, detail, training_s)
        record.unlock_run(run_id)


@dataclass(frozen=True)
class Left:
    """What a driver leaves of its run: process IDs of sessions, and login roles."""

    pids: Sequence[int]
    roles: Sequence[str]


def left_of(record: Record, run_id: int) -> Left:
    """Return what there is of a run.

    Called before the lock of the run is released: what comes later belongs to its next driver.
    """
    ((pids,),) = record.execute(_SESSIONS, [[writer_name(run_id), reader_name(run_id)]])
    return Left(pids, login_roles(record.raw, run_id))


def clean(record: Record, left: Left) -> None:
    """End the sessions and trainers of a run that has ended, and drop its login role.

    A session whose process is stopped (SIGSTOP) ends when it continues. Its trainer is killed.
    """
    record.execute(_END, [left.pids, 0])
    for role in left.roles:
        drop_login(record.raw, role)
    ((remaining,),) = record.execute(_END, [left.pids, 1000])
    if remaining and (record.raw.info.host or "").startswith("/"):  # they are on this machine
        _kill_children(remaining)


def end_lost_run(record: Record, run_id: int) -> bool:
    """End a run whose driver has died; return False if another process drives it.

    Its session may still exist: if its process is stopped, it keeps the lock of the run.
    """
    if not record.lock_run(run_id):
        return False
    left = left_of(record, run_id)
    end_run(record, run_id, RunState.INTERRUPTED, _DRIVER_GONE)
    clean(record, left)
    return True


def end_forcibly(record: Record, run_id: int, state: RunState, detail: str) -> None:
    """End a run whose driver does not react, or was killed while its session hangs."""
    record.end_driver(run_id)
    left = left_of(record, run_id)
    with contextlib.suppress(psycopg2.Error, SQLAlchemyError):  # the session that hangs may have locked the run's row
        record.lock_run(run_id)  # a session that hangs keeps the lock
        end_run(record, run_id, state, detail)
    clean(record, left)


def end_old_writers(record: Record, run_id: int) -> None:
    """End the writers that a dead driver of the run has left running.

    Raises
    ------
    NotReady
        If one does not end, because its commits would be unknown to the run's next driver.
    """
    ((left,),) = record.execute(
        "SELECT madlib_mop_calls.end_sessions(pg_catalog.array_agg(pid), 10000) FROM pg_catalog.pg_stat_activity"
        " WHERE application_name = %s AND usename = session_user AND datname = pg_catalog.current_database()",
        [writer_name(run_id)],
    )
    if left:
        raise NotReady(
            f"session {left[0]} of an earlier driver is still working on run {run_id}",
            hint="Call again when it has ended.",
        )


def sweep(record: Record, asks: int | None = None, but: int = 0) -> list[int]:
    """End the runs of this database whose driver has died and that nothing continues; return their numbers.

    The login roles that dead runs of this database, and runs of dropped databases, have left are dropped.

    Parameters
    ----------
    record : Record
    asks : int or None
        The session that asks: its own statement continues no run.
    but : int
        A run that is left alone, apart from its login roles: its next driver, this one, has just begun.
    """
    ended = [run_id for run_id in record.lost_runs(asks) if run_id != but and _swept(record, run_id)]
    sweep_logins(record.raw, lambda number: number != but and record.is_live(number))
    return ended


def _swept(record: Record, run_id: int) -> bool:
    """End a lost run; return False if it cannot be ended now, such as one whose row is locked."""
    try:
        record.execute("SET lock_timeout = 2000")
        return end_lost_run(record, run_id)
    except (psycopg2.Error, SQLAlchemyError):
        record.unlock_run(run_id)
        return False
    finally:
        if not record.is_lost:
            record.execute("RESET lock_timeout")


def _kill_children(pids: Sequence[int]) -> None:
    """Kill the trainers and relays of server processes that hang: their children, and trainers forked for them."""
    forked = {f"trainer {pid}" for pid in pids}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            process = os.pidfd_open(int(entry.name))  # from here on, the number means the same process
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes().split(b"\0")
                is_child = parent in pids and any(word.startswith(b"madlib_mop.") for word in words)
                if is_child or (entry / "comm").read_text().strip() in forked:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)

"""Ends the writers of a run that its dead driver has left running."""

from madlib_mop.catalog.record import Record
from madlib_mop.engines.sessions.access import writer_name
from madlib_mop.errors import NotReady


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

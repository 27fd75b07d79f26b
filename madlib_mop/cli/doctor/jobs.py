"""The check of the workers that run jobs."""

from collections.abc import Iterator

from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState, Finding

_WORKERS = """
SELECT count(*), coalesce(sum(w.slots), 0) FROM madlib_mop.job_worker w
JOIN pg_catalog.pg_stat_activity a ON a.pid = w.pid AND a.backend_start = w.session_start
"""
_WAITING = "SELECT count(*) FROM madlib_mop.job_record WHERE state = 'waiting' AND due_at <= pg_catalog.now()"


def check(context: CheckContext) -> Iterator[Finding]:
    """Return the finding about workers: none is a fault only if jobs wait for one."""
    if not context.is_superuser or context.value("SELECT pg_catalog.to_regclass('madlib_mop.job_worker')") is None:
        return
    n_workers, slots = context.row(_WORKERS) or (0, 0)
    waiting = context.value(_WAITING)
    if n_workers:
        workers = "1 worker runs" if n_workers == 1 else f"{n_workers} workers run"
        yield Finding("jobs", CheckState.OK, f"{workers} up to {slots} jobs at once; {waiting} are waiting")
    elif waiting:
        mend = "Start a worker: madlib-mop work, as the server's operating system user (docs/administration.md)."
        yield Finding("jobs", CheckState.WARN, f"{waiting} due jobs wait, and no worker is running", mend)
    else:
        yield Finding("jobs", CheckState.OK, "none is due; no worker is running (madlib-mop work)")

"""Points of a run at which a test stops its driver, by a lock on the table that the driver needs next."""

from contextlib import contextmanager

from tests.helpers.faults import BackgroundFit, newest_run, wait_for

_WAITS = """
SELECT a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.application_name = 'madlib_mop driver' AND a.datname = current_database()
      AND (%(table)s::text IS NULL OR l.relation = %(table)s::regclass)
"""
# Read when a driver takes a run, before it marks the run as begun; a new run of these tests writes nothing to it.
FIRST_READ = "madlib_mop.custom_function"
# Read after the run is marked as begun, and before the driver listens.
BEFORE_LISTENING = "madlib_mop.model"
# Read after the driver has begun to listen and before it opens a worker, and while output tables are written.
METRICS = "madlib_mop.metric"


class Gate:
    """A lock that the driver will wait for, held by a session of the test."""

    def __init__(self, db, statement: str, table: str | None = None):
        self._db = db
        self._table = table
        self._connection = db.connect(autocommit=False)
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def wait_for_driver(self, n: int = 1) -> None:
        """Wait until this number of catalog sessions wait, for the gate's table if it has one."""
        wait_for(lambda: len(self._db.rows(_WAITS, {"table": self._table})) >= n, what="a driver at the gate")

    def open(self) -> None:
        """Release the lock."""
        self._connection.close()


@contextmanager
def gate(db, table: str):
    """Lock a table; always release the lock at the end."""
    held = Gate(db, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE", table)
    try:
        yield held
    finally:
        held.open()


@contextmanager
def begun(db, statement: str):
    """Make a call and stop it after its run is recorded; return the call and the run."""
    with gate(db, FIRST_READ) as held:
        call = BackgroundFit(db, statement)
        held.wait_for_driver()
        yield call, newest_run(db)


@contextmanager
def held_at_outputs(db, statement: str):
    """Make a call and stop its driver while it writes output tables; return the call, the run and the driver."""
    with begun(db, statement) as (call, run_id):
        metrics = Gate(db, f"LOCK TABLE {METRICS} IN SHARE MODE", METRICS)
    metrics.wait_for_driver()  # now it has written its part of the run's row
    pid = db.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id])
    runs = Gate(db, "LOCK TABLE madlib_mop.run IN SHARE MODE", "madlib_mop.run")
    metrics.open()
    untrained = "SELECT 1 FROM madlib_mop.model WHERE run_id = %s AND state <> 'trained'"
    wait_for(lambda: not db.rows(untrained, [run_id]), what="the last visits")
    runs.wait_for_driver()
    metrics = Gate(db, f"LOCK TABLE {METRICS} IN ACCESS EXCLUSIVE MODE", METRICS)
    runs.open()
    metrics.wait_for_driver()
    try:
        yield call, run_id, pid
    finally:
        metrics.open()

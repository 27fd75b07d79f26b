"""Workers of jobs as processes of their own, and what became of a job; called by the tests of jobs."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.faults import wait_for
from tests.helpers.security.attacks import user

ALICE, CAROL = "alice_jobs", "carol_jobs"
RUNNING = (
    "SELECT count(*) FROM madlib_mop.job_record r JOIN pg_stat_activity a ON a.pid = r.session_pid WHERE r.job_id = %s"
)
ROLES = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'madlib_mop_job_%'"
_ENDED = ("finished", "failed", "cancelled", "skipped")


class JobWorker:
    """``madlib-mop work`` on a database."""

    def __init__(self, db, slots: int = 2, options: tuple[str, ...] = ()):
        self._db = db
        self._lines = tempfile.NamedTemporaryFile("w")  # noqa: SIM115 -- a pipe that nobody reads fills
        self.process = subprocess.Popen(
            [sys.executable, "-m", "madlib_mop.cli", "work", "--slots", str(slots), "--dsn", db.dsn, *options],
            stdin=subprocess.DEVNULL, stderr=self._lines, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        """The lines so far."""
        return Path(self._lines.name).read_text()

    def __enter__(self):
        n = self._n_workers()
        wait_for(lambda: self._n_workers() > n or self.process.poll() is not None, what="the worker")
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end; return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """Kill it."""
        self.stop(signal.SIGKILL)

    def _n_workers(self) -> int:
        return self._db.value(
            "SELECT count(*) FROM madlib_mop.job_worker w JOIN pg_stat_activity a ON a.pid = w.pid"
            " AND a.backend_start = w.session_start"
        )


def submit(db, statement: str, role: str | None = None, **options) -> int:
    """Submit a job; return its job_id."""
    named = "".join(f", {name} => %s" for name in options)
    with db.caller(role).cursor() as cursor:
        cursor.execute(f"SELECT madlib_mop.submit(%s{named})", [statement, *options.values()])
        return cursor.fetchone()[0]


def state_of(db, job_id: int) -> str:
    """Return the state of a job."""
    return db.value("SELECT state FROM madlib_mop.job WHERE job_id = %s", [job_id])


def end_of(db, job_id: int, within_s: float = 60) -> tuple[str, str | None]:
    """Wait for the end of a job; return its state and its error."""
    wait_for(lambda: state_of(db, job_id) in _ENDED, within_s, f"the end of job {job_id}")
    ((state, error),) = db.rows("SELECT state, error FROM madlib_mop.job WHERE job_id = %s", [job_id])
    return state, error


def make_marks(db) -> None:
    """Create Alice and Carol, and a table for the marks that their jobs leave."""
    user(db, ALICE)
    user(db, CAROL)
    db.rows("CREATE TABLE mark (job text, at timestamptz DEFAULT clock_timestamp())")
    db.rows(f"GRANT INSERT, SELECT ON mark TO {ALICE}, {CAROL}")


def marks(db, name: str) -> int:
    """Return how often a job has left its mark."""
    return db.value("SELECT count(*) FROM mark WHERE job = %s", [name])


def mark(name: str, sleep_s: float = 0) -> str:
    """Return a statement that leaves a mark."""
    return f"INSERT INTO mark SELECT '{name}' FROM pg_sleep({sleep_s})"

"""How long submit() takes, and how many small jobs a worker runs in a second: that of `make server`, or a new one."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import psycopg2
from ratios import Ratio

N_SUBMITTED, N_RUN = 100, 60
MOST_MS = 50.0
ROOT = Path(__file__).resolve().parents[1]
_WORKERS = """
SELECT count(*) FROM madlib_mop.job_worker w JOIN pg_stat_activity a ON a.pid = w.pid AND a.backend_start = w.session_start
"""  # noqa: E501
_LEFT = "SELECT count(*) FROM madlib_mop.job WHERE job_id = ANY (%s) AND state IN ('waiting', 'running')"


def compare_jobs(dsn: str) -> list[Ratio]:
    """Submit jobs far in the future and due ones; print the times."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            _submit(cursor, None)  # it starts the fork server of drivers
            time.sleep(2)
            submitted_ms = [_submit(cursor, "2999-01-01") for _ in range(N_SUBMITTED)]
            cursor.execute("SELECT job_id FROM madlib_mop.job WHERE state = 'waiting' AND name = 'benchmark'")
            for (job_id,) in cursor.fetchall():
                cursor.execute("SELECT madlib_mop.cancel_job(%s)", [job_id])
            per_second = _run_some(cursor, dsn)
            cursor.execute("SELECT madlib_mop.purge_jobs('0')")
    finally:
        connection.close()
    submit_ms = statistics.median(submitted_ms)
    worst_ms = sorted(submitted_ms)[int(0.95 * N_SUBMITTED)]
    print(f"\njobs: {N_SUBMITTED} calls of submit, then {N_RUN} jobs of one SELECT with a worker")
    print(f"  submit, median                           {submit_ms:7.1f} ms")
    print(f"  submit, 95 of 100 are faster than        {worst_ms:7.1f} ms")
    print(f"  jobs in a second                         {per_second:7.1f}")
    ratios = [Ratio("jobs: submit / 50 ms", submit_ms / MOST_MS, 1.0)]
    print(*ratios, sep="\n", flush=True)
    return ratios


def _submit(cursor, at: str | None, name: str | None = "benchmark") -> float:
    """Submit a job; return the milliseconds that it took."""
    begun = time.perf_counter()
    cursor.execute("SELECT madlib_mop.submit('SELECT 1', name => %s, if_running => 'queue', at => %s)", [name, at])
    return 1000 * (time.perf_counter() - begun)


def _run_some(cursor, dsn: str) -> float:
    """Return the jobs in a second, from the start of the first to the end of the last."""
    ids = []
    for _ in range(N_RUN):
        cursor.execute("SELECT madlib_mop.submit('SELECT 1')")
        ids.append(cursor.fetchone()[0])
    command = [sys.executable, "-m", "madlib_mop.cli", "work", "--dsn", dsn]
    cursor.execute(_WORKERS)
    has_worker = cursor.fetchone()[0] > 0
    worker = None if has_worker else subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            cursor.execute(_LEFT, [ids])
            if not cursor.fetchone()[0]:
                break
            time.sleep(0.1)
    finally:
        if worker is not None:
            worker.terminate()
            worker.wait()
    cursor.execute(
        "SELECT extract(epoch FROM max(ended_at) - min(started_at)) FROM madlib_mop.job WHERE job_id = ANY (%s)", [ids]
    )
    return N_RUN / float(cursor.fetchone()[0])

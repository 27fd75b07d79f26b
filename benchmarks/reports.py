"""Reports: time and size for runs of 100 and 10,000 models, which are rows without training; called by run.py."""

import statistics
import time
from contextlib import closing

from ratios import Ratio
from server import Server

from tests.helpers.reports import record_large_run

SIZES = (100, 10_000)
N_TURNS = 3
MOST_S, MOST_MB, MOST_SMALL_MB = 20.0, 20.0, 5.0


def compare_reports(dsn: str) -> list[Ratio]:
    """Measure and print; return the ratios."""
    server = Server(dsn)
    print(f"\nreports: medians of {N_TURNS}")
    measured = {}
    for n_models in SIZES:
        measured[n_models] = _report(server, n_models)
        print(f"  {n_models:6,} models {measured[n_models][0]:18.2f} s {measured[n_models][1]:10.2f} MB")
    (_, small_mb), (large_s, large_mb) = (measured[n] for n in SIZES)
    ratios = [
        Ratio("report: time for 10,000 models / 20 s", large_s / MOST_S, 1.0),
        Ratio("report: size for 10,000 models / 20 MB", large_mb / MOST_MB, 1.0),
        Ratio("report: size for 100 models / 5 MB", small_mb / MOST_SMALL_MB, 1.0),
    ]
    print(*ratios, sep="\n", flush=True)
    return ratios


def _report(server: Server, n_models: int) -> tuple[float, float]:
    """Return the seconds that a report takes in a new session, and its size in megabytes."""
    ((run_id, owner),) = server.rows("SELECT nextval('madlib_mop.run_run_id_seq'), current_user")
    record_large_run(server, run_id, owner, n_models)
    times, size_mb = [], 0.0
    try:
        for _ in range(N_TURNS):
            with closing(server.connect()) as connection, connection.cursor() as cursor:
                began = time.perf_counter()
                cursor.execute("SELECT madlib_mop.report(%s)", [run_id])
                size_mb = len(cursor.fetchone()[0].encode()) / 1e6
                times.append(time.perf_counter() - began)
    finally:
        server.rows("DELETE FROM madlib_mop.run WHERE run_id = %s", [run_id])
    return statistics.median(times), size_mb

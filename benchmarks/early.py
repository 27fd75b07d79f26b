"""How early sixteen configurations can be compared (metrics_every, breadth_first), and what these metrics cost."""

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import psycopg2
from hopper import SCHEMA, configure, load_rows, seconds_of
from ratios import Ratio
from workload import images

#: Rows of a segment while the configurations race to their first metric; the least and the most segments then.
ROWS_OF_SEGMENT, FEWEST, MOST = 2500, 4, 8
N_SEGMENTS = 2  # in the measurement of the costs
#: The race is run with few rows, where starting the trainers counts most, and with so many times of them.
N_TIMES_ROWS = 5
MOST_OF_SEQUENTIAL, MOST_OF_MAKESPAN = 0.10, 0.05
_FIRST = """
SELECT extract(epoch FROM max(v.ended_at) - min(r.created_at))::float8, min(m.n_rows), count(*)
FROM madlib_mop.visit_metric m JOIN madlib_mop.visit v USING (run_id, mst_key, epoch, position)
JOIN madlib_mop.run r USING (run_id) WHERE m.run_id = %s AND m.visits = 1 AND m.ordinal = 0
"""
_COST = """
SELECT sum((v.timing ->> 'sample_s')::float8) / (r.makespan_s * r.n_segments), min(r.makespan_s)
FROM madlib_mop.visit v JOIN madlib_mop.run r USING (run_id)
WHERE run_id = %s GROUP BY r.makespan_s, r.n_segments
"""


def compare_early(dsn: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Train the convolutional networks one after the other for an epoch, and with the hopper; print the ratios."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        ratios = [_first_metrics(cursor, n) for n in (N_TIMES_ROWS * n_rows, n_rows)]
        _pack(cursor, N_SEGMENTS)
        cost, makespan_s = _run(cursor, n_epochs, _COST)
        cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    print(f"  makespan of {n_epochs} epochs, {N_SEGMENTS} segments                     {makespan_s:7.1f} s")
    ratios.append(Ratio("early: metrics after visits / makespan", cost, MOST_OF_MAKESPAN))
    print(*ratios, sep="\n", flush=True)
    return ratios


def _first_metrics(cursor, n_rows: int) -> Ratio:
    """Return the time until all configurations have a metric, as a share of an epoch of plain Keras."""
    x, y, x_valid, y_valid, source = images(n_rows, n_rows // 4)
    load_rows(cursor, x, y, x_valid, y_valid)
    configure(cursor, "conv")
    sequential_s = _one_after_the_other(x, y, x_valid, y_valid)
    n_segments = min(max(FEWEST, n_rows // ROWS_OF_SEGMENT), MOST)
    _pack(cursor, n_segments)
    first_s, n_sample, n_models = _run(cursor, 1, _FIRST)
    print(f"\nearly: {n_models} configurations, {n_rows} rows of {source}, breadth_first, metrics after each visit")
    print(f"  plain Keras, one after the other, one epoch           {sequential_s:7.1f} s")
    print(f"  all have a metric of {n_sample} rows, {n_segments:2d} segments          {first_s:7.1f} s")
    name = f"early: first metric of all, {n_rows:,} rows / plain Keras"
    return Ratio(name, first_s / sequential_s, MOST_OF_SEQUENTIAL)


def _pack(cursor, n_segments: int) -> None:
    cursor.execute("DROP TABLE IF EXISTS train, train_summary, valid, valid_summary")
    cursor.execute(f"SET madlib_mop.segments = {n_segments}")
    cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
    cursor.execute("SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid', 'y', 'x', 'train')")


def _run(cursor, n_epochs: int, query: str) -> tuple:
    """Train with metrics after each visit; return the figures of a query about the run, and drop it."""
    cursor.execute(
        "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', %s, validation_table := 'valid',"
        " seed := 1, schedule := 'breadth_first', metrics_every := 'visit', replace := true)",
        [n_epochs],
    )
    cursor.execute("SELECT max(run_id) FROM madlib_mop.run")
    (run_id,) = cursor.fetchone()
    cursor.execute(query, [run_id])
    figures = cursor.fetchone()
    cursor.execute("SELECT madlib_mop.drop_run(%s)", [run_id])
    return figures


def _one_after_the_other(x, y, x_valid, y_valid) -> float:
    """Return the time of a script that trains all configurations for an epoch, with a thread for each core."""
    one_hot = np.eye(10, dtype=np.float32)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data.npz"
        np.savez(path, x=x, y=one_hot[y], x_valid=x_valid, y_valid=one_hot[y_valid])
        script = Path(__file__).with_name("plain_keras.py")
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
        words = [sys.executable, script, "conv", path, "1", "0", "1", str(len(os.sched_getaffinity(0)))]

        def run() -> None:
            if subprocess.run(words, env=environment, stderr=subprocess.DEVNULL).returncode:
                raise SystemExit("a plain Keras script failed")

        return seconds_of(run)

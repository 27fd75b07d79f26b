"""Sixteen configurations with the hopper on two segments, compared with parallel Keras scripts on the same rows."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
from breakdown import breakdown
from ratios import Ratio
from tables import make_table
from workload import build, configurations, features, images

SCHEMA = "mop_bench"
N_SEGMENTS = 2
_LOOK_S = 0.5  # between two measurements of disk usage, which slow the run down
LIMITS = {"conv": 0.65, "mlp": 0.35, "fused": 0.20}
_VISITS = """
SELECT extract(epoch FROM sum(ended_at - started_at)) FROM madlib_mop.visit WHERE run_id = %s
GROUP BY epoch ORDER BY epoch
"""
_DISK = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
WHERE c.relnamespace = 'madlib_mop'::regnamespace AND c.relname LIKE 'model\\_state\\_%' AND c.relkind = 'r'
"""


@dataclass(frozen=True)
class Measured:
    """Both ways on the same rows.

    Attributes
    ----------
    plain_s, hopper_s : float
    peak_bytes : int
        Most disk space that the run's states took at once.
    figures : dict
        Of the run's record.
    source : str
        What the rows are.
    """

    plain_s: float
    hopper_s: float
    peak_bytes: int
    figures: dict[str, Any]
    source: str

    @property
    def ratio(self) -> float:
        return self.hopper_s / self.plain_s


def compare(dsn: str, grid: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Run both ways on the same rows; print their times, the run's disk usage and the breakdown of its time."""
    found = measure(dsn, grid, n_rows, n_epochs)
    figures = found.figures
    print(f"\n{grid}: 16 configurations, {n_rows} rows of {found.source}, {n_epochs} epochs, {N_SEGMENTS} segments")
    print(f"  plain Keras, {N_SEGMENTS} processes side by side   {found.plain_s:7.1f} s")
    print(f"  hopper, in the database                {found.hopper_s:7.1f} s")
    ratios = [
        Ratio(f"{grid}: hopper / plain Keras", found.ratio, LIMITS[grid]),
        Ratio(f"{grid}: makespan / lower bound", figures["ratio"]),
        Ratio(f"{grid}: disk used by states / sum of states", found.peak_bytes / figures["states"], 3.0),
    ]
    print(*ratios, sep="\n")
    for what, part in (("whole run", figures["whole"]), ("after the first epoch", figures["later"])):
        print(f"  of the segments' time, {what}, outside of training and evaluating {part.outside_share:6.1%}")
        print(part, flush=True)
    return ratios


def measure(
    dsn: str, grid: str, n_rows: int, n_epochs: int, backend: str = "tensorflow", n_gpus: int = 0
) -> Measured:
    """Run plain Keras and the hopper, one after the other, on a backend of Keras; both use the GPUs if there are any.

    The processes of plain Keras then share them as the hopper's trainers do.
    """
    x, y, x_valid, y_valid, source = images(n_rows, n_rows // 4)
    if grid == "fused":
        x, x_valid, source = features(x, x_valid, source)
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            load(cursor, x, y, x_valid, y_valid)
            configure(cursor, grid)
            plain_s = _plain(grid, n_epochs, x, y, x_valid, y_valid, backend, n_gpus)
            disk = _DiskWatch(dsn)
            cursor.execute(f"SET madlib_mop.fused_training = {'on' if grid == 'fused' else 'off'}")
            cursor.execute(f"SET madlib_mop.backend = '{backend}'")
            hopper_s = seconds_of(lambda: _fit(cursor, n_epochs, use_gpus=n_gpus > 0))
            peak = disk.stop()
            figures = _figures(cursor)
            cursor.execute(f"SELECT madlib_mop.drop_run({figures['run_id']}); DROP SCHEMA {SCHEMA} CASCADE")
    finally:
        connection.close()
    return Measured(plain_s, hopper_s, peak, figures, source)


def load(cursor, x, y, x_valid, y_valid) -> None:
    load_rows(cursor, x, y, x_valid, y_valid)
    cursor.execute(f"SET madlib_mop.segments = {N_SEGMENTS}")
    cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
    cursor.execute("SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid', 'y', 'x', 'train')")


def load_rows(cursor, x, y, x_valid, y_valid) -> None:
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
    for table, xs, ys in (("train_rows", x, y), ("valid_rows", x_valid, y_valid)):
        make_table(cursor, table, xs, ys)
    cursor.execute("SET client_min_messages = warning")


def configure(cursor, grid: str) -> None:
    model_ids: dict[tuple[int, float], int] = {}
    cursor.execute("CREATE TABLE mst (mst_key serial, model_id integer, compile_params varchar, fit_params varchar)")
    cursor.execute("CREATE TABLE mst_summary (model_arch_table varchar, object_table varchar)")
    cursor.execute("INSERT INTO mst_summary VALUES ('arch')")
    for c in configurations(grid):
        key = (c.architecture, c.l2)
        if key not in model_ids:
            cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", [build(grid, *key).to_json()])
            model_ids[key] = len(model_ids) + 1
        optimizer = f"Adam(lr={c.learning_rate})"
        compile_params = f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']"
        cursor.execute(
            "INSERT INTO mst (model_id, compile_params, fit_params) VALUES (%s, %s, %s)",
            [model_ids[key], compile_params, f"batch_size={c.batch_size}, epochs=1"],
        )


def _fit(cursor, n_epochs: int, use_gpus: bool) -> None:
    cursor.execute(
        "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', %s, validation_table := 'valid',"
        " metrics_compute_frequency := %s, use_gpus := %s, seed := 1)",
        [n_epochs, n_epochs, use_gpus],  # evaluated once, after the last epoch, as plain_keras.py does
    )


def _plain(grid: str, n_epochs: int, x, y, x_valid, y_valid, backend: str, n_gpus: int) -> float:
    """Return the time of the plain scripts, from their start to the end of the last one."""
    one_hot = np.eye(10, dtype=np.float32)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data.npz"
        np.savez(path, x=x, y=one_hot[y], x_valid=x_valid, y_valid=one_hot[y_valid])
        script = Path(__file__).with_name("plain_keras.py")
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "KERAS_BACKEND": backend,
        }

        def run():
            processes = [
                subprocess.Popen(
                    [sys.executable, script, grid, path, str(n_epochs), str(number), str(N_SEGMENTS)],
                    env={**environment, "CUDA_VISIBLE_DEVICES": str(number % n_gpus if n_gpus else -1)},
                    stderr=subprocess.DEVNULL,
                )
                for number in range(N_SEGMENTS)
            ]
            if any([process.wait() for process in processes]):
                raise SystemExit("a plain Keras script failed")

        return seconds_of(run)


def _figures(cursor) -> dict:
    cursor.execute("SELECT max(run_id) FROM madlib_mop.run")
    (run_id,) = cursor.fetchone()
    cursor.execute("SELECT makespan_s / lower_bound_s FROM madlib_mop.run WHERE run_id = %s", [run_id])
    (ratio,) = cursor.fetchone()
    cursor.execute("SELECT sum(state_bytes) FROM madlib_mop.model WHERE run_id = %s", [run_id])
    (states,) = cursor.fetchone()
    cursor.execute(_VISITS, [run_id])
    return {
        "run_id": run_id,
        "epochs": [float(seconds) for (seconds,) in cursor.fetchall()],
        "ratio": ratio,
        "states": float(states),
        "whole": breakdown(cursor, run_id, N_SEGMENTS),
        "later": breakdown(cursor, run_id, N_SEGMENTS, after_epoch=1),
    }


class _DiskWatch:
    """Monitors the disk usage of the states of runs, in a session of its own."""

    def __init__(self, dsn: str):
        self._connection = psycopg2.connect(dsn)
        self._connection.autocommit = True
        self._start, self._peak, self._stopped = self._bytes(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """End monitoring; return the maximum number of bytes above those at the start."""
        self._stopped.set()
        self._thread.join()
        self._connection.close()
        return self._peak - self._start

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            self._peak = max(self._peak, self._bytes())

    def _bytes(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(_DISK)
            return cursor.fetchone()[0]


def seconds_of(work) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun

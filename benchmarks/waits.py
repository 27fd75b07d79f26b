"""A user's waiting times besides training: the first NOTICE of a run, an evaluation, a leaderboard of 10,000 models.

Called by run.py. Each is printed with its lower bound: importing TensorFlow, Keras' own evaluate, a SELECT.
"""

import select
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import psycopg2
from hopper import SCHEMA, configure, seconds_of
from psycopg2 import extensions, extras
from ratios import Ratio
from tables import make_table
from workload import build, images

_N_MODELS, _N_EPOCHS = 10_000, 10
_FIT = "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', 1, seed := 1)"
_RECORD = f"""
WITH made AS (
    INSERT INTO madlib_mop.run (kind, state, owner, source_table, model_output_table, model_arch_table, num_iterations,
        seed, schedule, n_models, n_segments, plan)
    SELECT 'fit_multiple_model', 'finished', current_user::regrole, 't', 'm', 'a', {_N_EPOCHS}, 1, 'rotation', 100, 2,
        '{{}}'
    FROM generate_series(1, {_N_MODELS // 100}) RETURNING run_id),
models AS (
    INSERT INTO madlib_mop.model (run_id, mst_key, ordinal, model_id, compile_params, fit_params, model_arch, state,
        epoch, position, last_epoch)
    SELECT run_id, k, k, 1, 'optimizer=''adam'', loss=''mse''', 'batch_size=32', '{{}}', 'trained',
        {_N_EPOCHS}, 2, {_N_EPOCHS}
    FROM made, generate_series(1, 100) AS k RETURNING run_id)
INSERT INTO madlib_mop.metric (run_id, mst_key, epoch, data_set, ordinal, name, value, elapsed_s)
SELECT run_id, k, epoch, data_set, ordinal, (ARRAY['loss', 'accuracy'])[ordinal + 1], random(), epoch
FROM made, generate_series(1, 100) AS k, generate_series(1, {_N_EPOCHS}) AS epoch,
    unnest(ARRAY['training', 'validation']) AS data_set, generate_series(0, 1) AS ordinal
"""


def compare_waits(dsn: str, n_rows: int) -> list[Ratio]:
    """Measure and print; return the ratios."""
    x, y, *_ = images(n_rows, 1)
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
        cursor.execute("SET client_min_messages = warning; SET madlib_mop.segments = 2")
        make_table(cursor, "train_rows", x, y)
        cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
        configure(cursor, "mlp")
        import_s = seconds_of(
            lambda: subprocess.run([sys.executable, "-c", "import tensorflow"], stderr=-3, check=True)
        )
        first_s, fit_s = _first_notice(dsn)
        evaluate_s, keras_s = _evaluation(cursor, x, y)
        newest = "SELECT madlib_mop.drop_run((SELECT max(run_id) FROM madlib_mop.run))"
        cursor.execute(f"{newest}; DROP SCHEMA {SCHEMA} CASCADE")
        board_s, one_s = _leaderboard(cursor)
    print(f"\nwaiting: 16 perceptrons, {n_rows} rows; a record of {_N_MODELS:,} models")
    print(f"  first NOTICE of a run                  {first_s:7.2f} s   of {fit_s:.1f} s")
    print(f"  importing TensorFlow in a process      {import_s:7.2f} s")
    print(f"  madlib_keras_evaluate                  {evaluate_s:7.2f} s")
    print(f"  Keras' evaluate, in memory             {keras_s:7.2f} s")
    print(f"  leaderboard of {_N_MODELS:,} models           {board_s:7.2f} s")
    print(f"  leaderboard of one run of 100 models   {one_s:7.3f} s", flush=True)
    return [
        Ratio("waiting: first NOTICE / import tensorflow", first_s / import_s),
        Ratio("waiting: evaluate / import tensorflow", evaluate_s / import_s),
    ]


def _first_notice(dsn: str) -> tuple[float, float]:
    """Return the seconds until a run's first NOTICE reaches the client, and until the run's end."""
    with closing(psycopg2.connect(dsn, async_=True)) as connection:
        extras.wait_select(connection)
        cursor = connection.cursor()
        cursor.execute(f"SET search_path = {SCHEMA}; SET madlib_mop.segments = 2")
        extras.wait_select(connection)
        connection.notices.clear()
        begun = time.monotonic()
        cursor.execute(_FIT)
        first_s = None
        while (state := connection.poll()) != extensions.POLL_OK:
            if connection.notices and first_s is None:
                first_s = time.monotonic() - begun
            select.select([connection] if state == extensions.POLL_READ else [], [], [], 10)
        return first_s, time.monotonic() - begun


def _evaluation(cursor, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the seconds of madlib_keras_evaluate for one model, and of Keras' evaluate for a loaded model."""
    import keras

    model = build("mlp", 0, 1e-4)
    model.compile(keras.optimizers.Adam(), "categorical_crossentropy", metrics=["accuracy"])
    one_hot = np.eye(10, dtype=np.float32)[y]
    model.evaluate(x[:64], one_hot[:64], verbose=0)
    keras_s = seconds_of(lambda: model.evaluate(x, one_hot, verbose=0))
    return (
        seconds_of(lambda: cursor.execute("SELECT madlib.madlib_keras_evaluate('models', 'train', 'told', NULL, 1)")),
        keras_s,
    )


def _leaderboard(cursor) -> tuple[float, float]:
    """Return the seconds of reading the whole leaderboard of many runs, and of reading one run's part of it.

    The rows are written in a transaction that is rolled back.
    """
    cursor.execute("BEGIN")
    cursor.execute(_RECORD)
    cursor.execute("ANALYZE madlib_mop.run; ANALYZE madlib_mop.model; ANALYZE madlib_mop.metric")
    whole_s = seconds_of(lambda: _read(cursor, "SELECT * FROM madlib_mop.leaderboard", _N_MODELS))
    newest = "(SELECT max(run_id) FROM madlib_mop.run)"
    one_s = seconds_of(lambda: _read(cursor, f"SELECT * FROM madlib_mop.leaderboard WHERE run_id = {newest}", 100))
    cursor.execute("ROLLBACK")
    return whole_s, one_s


def _read(cursor, query: str, n_least: int) -> None:
    cursor.execute(query)
    n_rows = len(cursor.fetchall())
    if n_rows < n_least:
        raise RuntimeError(f"{n_rows} rows of the leaderboard, where {n_least} are recorded")

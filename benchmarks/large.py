"""Rows of four times a trainer's memory limit: training from its file on disk, against training in memory.

Also how long the first visit waits for rows, shuffled and in the order of the table.
"""

import numpy as np
import psycopg2
from hopper import SCHEMA, seconds_of
from ratios import Ratio
from tables import make_table

#: MB: a trainer's limit in which its rows do not fit, and one in which they do.
LIMIT_MB, AMPLE_MB = 512, 4000
_TIMES, _SIDE, _N_BUFFER = 4, 64, 256
_COMPUTED = """
SELECT sum((timing ->> 'compute_s')::float8) FROM madlib_mop.visit
WHERE run_id = (SELECT max(run_id) FROM madlib_mop.run)
"""
_WAITED = """
SELECT coalesce(sum((timing ->> 'rows_s')::float8), 0) FROM madlib_mop.visit
WHERE run_id = (SELECT max(run_id) FROM madlib_mop.run)
"""


def compare_large(dsn: str, n_epochs: int) -> list[Ratio]:
    """Train on one segment, with the rows in memory and on disk, check that the weights are the same bits.

    Rows are arrays of 64 x 64 x 3 numbers; there are so many that they take four times the lower limit. The shorter one
    of two runs counts. Two more runs on disk have one epoch, one of them without ``shuffle``.
    """
    n_rows = _TIMES * (LIMIT_MB << 20) // (4 * _SIDE * _SIDE * 3) // _N_BUFFER * _N_BUFFER
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            _load(cursor, n_rows)
            seconds, computed = {}, {}
            for name, limit, cache in 2 * (("disk", LIMIT_MB, 50), ("memory", AMPLE_MB, AMPLE_MB - 1000)):
                cursor.execute(f"SET madlib_mop.trainer_memory_mb = {limit}")
                cursor.execute(f"SET madlib_mop.shard_cache_mb = {cache}")
                cursor.execute(f"DROP TABLE IF EXISTS models_{name}, models_{name}_info, models_{name}_summary")
                took = seconds_of(lambda n=name: _fit(cursor, f"models_{n}", n_epochs))
                seconds[name] = min(took, seconds.get(name, took))
                cursor.execute(_COMPUTED)
                ((trained,),) = cursor.fetchall()
                computed[name] = min(trained, computed.get(name, trained))
            waited = {}
            cursor.execute(f"SET madlib_mop.trainer_memory_mb = {LIMIT_MB}; SET madlib_mop.shard_cache_mb = 50")
            for name, selection in ("shuffled", "mst"), ("in order", "mst_in_order"):
                table = f"{selection}_once"
                seconds[name] = seconds_of(lambda t=table, s=selection: _fit(cursor, t, 1, s))
                cursor.execute(_WAITED)
                ((waited[name],),) = cursor.fetchall()
            cursor.execute(
                "SELECT count(*), count(*) FILTER (WHERE a.model_weights = b.model_weights)"
                " FROM models_memory a JOIN models_disk b USING (mst_key)"
            )
            n_models, n_same = cursor.fetchone()
            cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    finally:
        connection.close()
    print(f"\nlarge: {n_rows} rows, {_TIMES} x the limit of {LIMIT_MB} MB, {n_models} models, {n_epochs} epochs")
    print(f"  in memory    {seconds['memory']:7.1f} s, of it training {computed['memory']:7.1f} s")
    print(f"  on disk      {seconds['disk']:7.1f} s, of it training {computed['disk']:7.1f} s")
    ratio = Ratio("large: rows on disk / in memory", seconds["disk"] / seconds["memory"], 1.2)
    print(ratio)
    print(f"  models with the same weights {n_same:4d} of {n_models}")
    for name, waited_s in waited.items():
        print(f"  one epoch {name:<11} {seconds[name]:7.1f} s; it waits {waited_s:5.1f} s for rows", flush=True)
    return [ratio]


def _load(cursor, n_rows: int) -> None:
    """Write a packed table of one segment, by repeating a buffer, and a small network."""
    import keras

    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
    x = np.random.default_rng(1).normal(size=(_N_BUFFER, _SIDE, _SIDE, 3)).astype(np.float32)
    make_table(cursor, "rows_of_images", x, np.arange(_N_BUFFER) % 10)
    cursor.execute("SET madlib_mop.segments = 1")
    cursor.execute(
        "SELECT madlib.training_preprocessor_dl('rows_of_images', 'train', 'y', 'x', %s, seed := 1)", [_N_BUFFER]
    )
    cursor.execute(
        "INSERT INTO train (__dist_key__, y, x, y_shape, x_shape, buffer_id)"
        " SELECT __dist_key__, y, x, y_shape, x_shape, buffer_id + i FROM train, generate_series(1, %s) i",
        [n_rows // _N_BUFFER - 1],
    )
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((_SIDE, _SIDE, 3)), layers.Conv2D(8, 5, strides=2, activation="relu"),
        layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax"),
    ])  # fmt: skip
    cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", [model.to_json()])
    params = ["loss='categorical_crossentropy', optimizer='SGD(lr=0.001)', metrics=['accuracy']"]
    for selection, fit_params in ("mst", "batch_size=32"), ("mst_in_order", "batch_size=32, shuffle=False"):
        given = [selection, params, [f"{fit_params}, epochs=1"]]
        cursor.execute("SELECT madlib.load_model_selection_table('arch', %s, ARRAY[1], %s, %s)", given)


def _fit(cursor, table: str, n_epochs: int, selection: str = "mst") -> None:
    cursor.execute(
        "SELECT madlib.madlib_keras_fit_multiple_model('train', %s, %s, %s, seed := 1, schedule := 'rotation')",
        [table, selection, n_epochs],
    )

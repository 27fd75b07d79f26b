"""How long madlib_keras_predict takes, beside plain Keras and a bare CREATE TABLE AS of the same output rows.

    make/python.sh benchmarks/predict.py "$(make -s dsn)"

Target: 100,000 rows of a small perceptron in at most 3x the time of Keras' own ``model.predict`` (rows in memory, its
default batch size) plus that of the CREATE TABLE AS. On our side the start of a trainer is included, on Keras' not.
"""

import argparse
import os
import time
from contextlib import closing
from dataclasses import dataclass

import psycopg2

ROWS, MODELS, OUTPUT, COPY = "bench_predict_rows", "bench_predict_models", "bench_predict_output", "bench_predict_copy"
FORMS = ("'prob'", "'response'", "3", "0.5")
TARGET = 3.0


@dataclass(frozen=True)
class Measurement:
    """One comparison; times in seconds.

    Attributes
    ----------
    n_rows, width, n_classes : int
        Rows, reals a row, classes.
    pred_type : str
        As SQL.
    n_written : int
        Rows of the output.
    predict_s, keras_s, copy_s : float
        Of madlib_keras_predict, Keras' predict, CREATE TABLE AS.
    """

    n_rows: int
    width: int
    n_classes: int
    pred_type: str
    n_written: int
    predict_s: float
    keras_s: float
    copy_s: float

    @property
    def ratio(self) -> float:
        """What it costs to have it in the database."""
        return self.predict_s / (self.keras_s + self.copy_s)

    def __str__(self) -> str:
        return (
            f"{self.n_rows:,} rows of {self.width} reals, {self.n_classes} classes, pred_type {self.pred_type}:"
            f" {self.n_written:,} rows written in {self.predict_s:.1f} s; Keras {self.keras_s:.1f} s,"
            f" CREATE TABLE AS {self.copy_s:.1f} s; ratio {self.ratio:.2f} (target {TARGET:.0f})"
        )


def measure(dsn: str, n_rows: int = 100_000, width: int = 64, n_classes: int = 10) -> list[Measurement]:
    """Predict random rows with a perceptron of random weights, in each form of pred_type.

    Parameters
    ----------
    dsn : str
        Of a server with the extension.
    n_rows, width, n_classes : int
        Rows, reals a row, classes.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import numpy as np

    layers = keras.layers
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((width,)), layers.Dense(32, "relu"), layers.Dense(32, "relu"), layers.Dense(n_classes, "softmax")]
    )
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        _drop(cursor)
        try:
            _write_model(cursor, model, n_classes)
            cursor.execute(
                f"CREATE TABLE {ROWS} AS SELECT i AS id, (SELECT array_agg(random()::real + 0 * (i + j))"
                " FROM generate_series(1, %s) j)::real[] AS x FROM generate_series(1, %s) i",
                [width, n_rows],
            )
            cursor.execute(f"VACUUM ANALYZE {ROWS}")
            cursor.execute(f"SELECT x FROM {ROWS}")
            x = np.array([row for (row,) in cursor], np.float32)
            model.predict(x[:64], verbose=0)
            keras_s = _seconds(lambda: model.predict(x, verbose=0))
            return [_compare(cursor, n_rows, width, n_classes, form, keras_s) for form in FORMS]
        finally:
            _drop(cursor)


def _compare(cursor, n_rows: int, width: int, n_classes: int, pred_type: str, keras_s: float) -> Measurement:
    cursor.execute(f"DROP TABLE IF EXISTS {OUTPUT}, {COPY}")
    cursor.execute("CHECKPOINT")
    predict_s = _seconds(
        lambda: cursor.execute(
            f"SELECT madlib.madlib_keras_predict('{MODELS}', '{ROWS}', 'id', 'x', '{OUTPUT}', {pred_type}, false, 1)"
        )
    )
    cursor.execute(f"SELECT count(*) FROM {OUTPUT}")
    ((n_written,),) = cursor.fetchall()
    cursor.execute("CHECKPOINT")
    copy_s = _seconds(lambda: cursor.execute(f"CREATE TABLE {COPY} AS TABLE {OUTPUT}"))
    return Measurement(n_rows, width, n_classes, pred_type, n_written, predict_s, keras_s, copy_s)


def _write_model(cursor, model, n_classes: int) -> None:
    """Write the tables that a run would have left."""
    import numpy as np

    weights = np.concatenate([array.ravel() for array in model.get_weights()]).astype(np.float32).tobytes()
    cursor.execute(
        f"CREATE TABLE {MODELS} AS SELECT 1 AS mst_key, %s::bytea AS model_weights, %s::json AS model_arch",
        [weights, model.to_json()],
    )
    cursor.execute(
        f"CREATE TABLE {MODELS}_info AS SELECT 1 AS mst_key, %s::text AS compile_params, ''::text AS fit_params,"
        " NULL::text[] AS metrics_type, NULL::text AS loss_type",
        ["loss='categorical_crossentropy', optimizer='sgd'"],
    )
    cursor.execute(
        f"CREATE TABLE {MODELS}_summary AS SELECT ARRAY['y'] AS dependent_varname, ARRAY['x'] AS independent_varname,"
        " ARRAY['integer'] AS dependent_vartype, 1.0::real AS normalizing_const, %s::integer[] AS y_class_values",
        [list(range(n_classes))],
    )


def _seconds(work) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _drop(cursor) -> None:
    cursor.execute(f"DROP TABLE IF EXISTS {ROWS}, {OUTPUT}, {COPY}, {MODELS}, {MODELS}_info, {MODELS}_summary")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn", help="URI of a server with the extension")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    arguments = parser.parse_args()
    for measurement in measure(arguments.dsn, arguments.rows, arguments.width, arguments.classes):
        print(measurement, flush=True)


if __name__ == "__main__":
    main()

"""The time of madlib_keras_predict, compared with plain Keras and a CREATE TABLE AS of the same output rows, and the
cost of calls of madlib_mop.predict. Run by `make bench`, or alone:

    make/python.sh benchmarks/predict.py "$(make -s dsn)"

Target: 100,000 rows of a small perceptron in at most 3x the time of Keras' own ``model.predict`` (rows in memory, its
default batch size) plus that of the CREATE TABLE AS. On our side the start of a trainer is included, on Keras' not.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import psycopg2
from ratios import Ratio

ROWS, MODELS, OUTPUT, COPY = "bench_predict_rows", "bench_predict_models", "bench_predict_output", "bench_predict_copy"
VIEW = "bench_predict_view"
FORMS = ("'prob'", "'response'", "3", "0.5")
TARGET = 3.0
_WARM_ROWS, _BATCH_ROWS = 3000, 1000


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
        """Ratio of the time in the database, without writing, to Keras' time."""
        return (self.predict_s - self.copy_s) / self.keras_s

    def __str__(self) -> str:
        return (
            f"{self.n_rows:,} rows of {self.width} reals, {self.n_classes} classes, pred_type {self.pred_type}:"
            f" {self.n_written:,} rows written in {self.predict_s:.1f} s; Keras {self.keras_s:.1f} s,"
            f" CREATE TABLE AS {self.copy_s:.1f} s; ratio {self.ratio:.2f} (target {TARGET:.0f})"
        )


@dataclass(frozen=True)
class ScalarCosts:
    """Costs of calls of madlib_mop.predict, in seconds.

    Attributes
    ----------
    cold_s : float
        The first call of a session.
    new_model_s : float
        The first call for another model.
    warm_s : float
        A call for one row.
    view_s : float
        One row of a view that calls predict for each.
    rows_s : float
        One row by predict_rows, of batches of `_BATCH_ROWS`.
    batch_row_s : float
        One row of a call for `_BATCH_ROWS`.
    """

    cold_s: float
    new_model_s: float
    warm_s: float
    view_s: float
    rows_s: float
    batch_row_s: float

    @property
    def ratio(self) -> float:
        """Ratio of the time of a row of a view to that of a row in a batch of a thousand."""
        return self.view_s / self.rows_s

    def __str__(self) -> str:
        return (
            f"madlib_mop.predict: cold {self.cold_s:.2f} s, new model {self.new_model_s:.2f} s, warm"
            f" {self.warm_s * 1e6:,.0f} us a row, {_BATCH_ROWS} rows a call {self.batch_row_s * 1e6:,.1f} us a row"
            f" ({self.warm_s / self.batch_row_s:,.0f} times less)\n"
            f"  predict through a view, ms a row {self.view_s * 1e3:10.3f}\n"
            f"  predict_rows, ms a row           {self.rows_s * 1e3:10.3f} ({self.ratio:,.0f} times less)"
        )


def measure(
    dsn: str, n_rows: int = 100_000, width: int = 64, n_classes: int = 10
) -> Iterator["Measurement | ScalarCosts"]:
    """Predict random rows with a perceptron of random weights, in each form of pred_type, then row by row.

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
            for form in FORMS:
                yield _compare(cursor, n_rows, width, n_classes, form, keras_s)
            with closing(psycopg2.connect(dsn)) as session, session.cursor() as fresh:
                yield _scalar_costs(fresh)
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


def _scalar_costs(cursor) -> ScalarCosts:
    def seconds(query):
        return _seconds(lambda: cursor.execute(query))

    one = f"SELECT madlib_mop.predict('{MODELS}', 1, x) FROM {ROWS} WHERE id = 1"
    cold_s, new_model_s = seconds(one), seconds(one.replace(", 1,", ", 2,"))
    warm = f"SELECT count(madlib_mop.predict('{MODELS}', 1, x)) FROM {ROWS} WHERE id <= {_WARM_ROWS}"
    batches = (
        f"SELECT count(madlib_mop.predict('{MODELS}', 1, xs)) FROM (SELECT array_agg(x ORDER BY id) AS xs FROM {ROWS}"
        f" WHERE id <= {20 * _BATCH_ROWS} GROUP BY (id - 1) / {_BATCH_ROWS}) AS b"
    )
    cursor.execute(f"CREATE VIEW {VIEW} AS SELECT id, madlib_mop.predict('public.{MODELS}', 1, x) AS p FROM {ROWS}")
    through_view = f"SELECT count(p) FROM {VIEW} WHERE id <= {_WARM_ROWS}"
    by_rows = (
        f"SELECT count(p) FROM (SELECT array_agg(x ORDER BY id) AS xs FROM {ROWS} WHERE id <= {20 * _BATCH_ROWS}"
        f" GROUP BY (id - 1) / {_BATCH_ROWS}) AS b, madlib_mop.predict_rows('{MODELS}', 1, b.xs) AS p"
    )
    warm_s, view_s = seconds(warm) / _WARM_ROWS, seconds(through_view) / _WARM_ROWS
    n_batched = 20 * _BATCH_ROWS
    return ScalarCosts(cold_s, new_model_s, warm_s, view_s, seconds(by_rows) / n_batched, seconds(batches) / n_batched)


def _write_model(cursor, model, n_classes: int) -> None:
    """Write the output tables of a run."""
    import numpy as np

    weights = np.concatenate([array.ravel() for array in model.get_weights()]).astype(np.float32).tobytes()
    cursor.execute(
        f"CREATE TABLE {MODELS} AS SELECT mst_key, %s::bytea AS model_weights, %s::json AS model_arch"
        " FROM generate_series(1, 2) AS mst_key",
        [weights, model.to_json()],
    )
    cursor.execute(
        f"CREATE TABLE {MODELS}_info AS SELECT mst_key, %s::text AS compile_params, ''::text AS fit_params,"
        " NULL::text[] AS metrics_type, NULL::text AS loss_type FROM generate_series(1, 2) AS mst_key",
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
    cursor.execute(f"DROP VIEW IF EXISTS {VIEW}")
    cursor.execute(f"DROP TABLE IF EXISTS {ROWS}, {OUTPUT}, {COPY}, {MODELS}, {MODELS}_info, {MODELS}_summary")


def compare_predict(dsn: str) -> list[Ratio]:
    """Measure and print; return the ratios."""
    print()
    ratios = []
    for measurement in measure(dsn):
        print(measurement, flush=True)
        if isinstance(measurement, Measurement):
            ratios.append(Ratio(f"predict: {measurement.pred_type} / Keras", measurement.ratio, TARGET))
        else:
            ratios.append(Ratio("predict: a row through a view / by predict_rows", measurement.ratio))
    return ratios


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

"""The time of pack_columns, compared with a COPY of the same rows, and that of predictions of rows, compared with those
of the same numbers as arrays. Run by `make bench`, or alone:

    make/python.sh benchmarks/columns.py "$(make -s dsn)"

Targets: 1,000,000 rows of 20 mixed columns are packed in at most 4 times what ``COPY (SELECT ...) TO '/dev/null'
(FORMAT binary)`` takes. `predict_class` over 100,000 rows of a view takes at most 5 times what `madlib_keras_predict`
takes for arrays; and one row at most 3 times what an array takes, once the model is loaded.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg2
from ratios import Ratio

MIXED, NUMBERS, ARRAYS, VIEW = "bench_columns", "bench_columns_numbers", "bench_columns_arrays", "bench_columns_view"
PACKED, NETWORKS, CONFIGS = "bench_columns_packed", "bench_columns_networks", "bench_columns_configs"
MODELS, OUTPUT = "bench_columns_models", "bench_columns_output"
ARRAY_PACKED, ARRAY_MODELS = "bench_columns_array_packed", "bench_columns_array_models"
PACKING_TARGET, VIEW_TARGET, ROW_TARGET = 4.0, 5.0, 3.0
WIDTH = 20
_REPETITIONS, _WARM_CALLS = 3, 500
_PACKINGS = 6  # in turns with copies: other work on the machine slows some of them down
#: Numbers, some with NULL, booleans, categories, dates and timestamps: `WIDTH` columns, and the target.
_MIXED = """
SELECT i AS id, (random() * 100)::integer AS n1, random() AS n2, random()::real AS n3,
       round((random() * 1000)::numeric, 2) AS n4, CASE WHEN random() < 0.9 THEN random() * 50 END AS n5,
       (random() * 1e6)::bigint AS n6, exp(random() * 10) AS n7,
       CASE WHEN random() < 0.95 THEN (random() * 10)::integer END AS n8, (random() * 5)::smallint AS n9,
       random() < 0.3 AS b1, random() < 0.5 AS b2, 'c' || (random() * 8)::integer AS c1,
       'city ' || (random() * 500)::integer AS c2,
       CASE WHEN random() < 0.9 THEN 'k' || (random() * 40)::integer END AS c3,
       (ARRAY['low', 'mid', 'high'])[1 + (random() * 2)::integer] AS c4,
       md5((random() * 3000)::integer::text) AS c5, date '2020-01-01' + (random() * 1500)::integer AS d1,
       timestamp '2020-01-01' + random() * interval '1000 days' AS d2,
       timestamptz '2020-01-01' + random() * interval '1000 days' AS d3,
       CASE WHEN random() < 0.4 THEN 'yes' ELSE 'no' END AS y
FROM generate_series(1, %s) AS i
"""


def compare_columns(dsn: str, n_packed: int = 1_000_000, n_predicted: int = 100_000) -> list[Ratio]:
    """Measure and print; return the ratios.

    Parameters
    ----------
    dsn : str
        Of a superuser of a local server with the extension.
    n_packed, n_predicted : int
        Rows that are packed, and rows that are predicted.
    """
    print()
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        _drop(cursor)
        try:
            ratios = [_packing(cursor, n_packed), *_predicting(cursor, n_predicted)]
        finally:
            _drop(cursor)
    return ratios


def _packing(cursor, n_rows: int) -> Ratio:
    cursor.execute(f"CREATE TABLE {MIXED} AS {_MIXED}", [n_rows])
    cursor.execute(f"VACUUM ANALYZE {MIXED}")
    copy = f"COPY (SELECT * FROM {MIXED}) TO '/dev/null' (FORMAT binary)"
    pack = f"SELECT madlib_mop.pack_columns('{MIXED}', '{PACKED}', 'y', validation => 0.2, seed => 1)"
    copy_s = pack_s = float("inf")
    for _ in range(_PACKINGS):
        copy_s = min(copy_s, _seconds(cursor, copy))
        cursor.execute(_dropped(PACKED))
        cursor.execute("CHECKPOINT")
        pack_s = min(pack_s, _seconds(cursor, pack))
    print(f"{n_rows:,} rows of {WIDTH} mixed columns: packed in {pack_s:.2f} s, copied in {copy_s:.2f} s")
    return Ratio("columns: pack_columns / COPY", pack_s / copy_s, PACKING_TARGET)


def _predicting(cursor, n_rows: int) -> Iterator[Ratio]:
    """Train a proposed network on rows of numbers, and predict them as rows and as arrays."""
    numbers = [f"x{i}" for i in range(WIDTH)]
    made = ", ".join(f"random() * {i + 1} AS {name}" for i, name in enumerate(numbers))
    cursor.execute(
        f"CREATE TABLE {NUMBERS} AS SELECT i AS id, {made}, CASE WHEN random() < 0.4 THEN 'yes' ELSE 'no' END AS y"
        " FROM generate_series(1, %s) AS i",
        [n_rows],
    )
    array = ", ".join(f"{name}::real" for name in numbers)
    cursor.execute(f"CREATE TABLE {ARRAYS} AS SELECT id, ARRAY[{array}] AS numbers, y FROM {NUMBERS}")
    cursor.execute(f"VACUUM ANALYZE {NUMBERS}, {ARRAYS}")
    cursor.execute(_dropped(PACKED))
    cursor.execute(f"SELECT madlib_mop.pack_columns('{NUMBERS}', '{PACKED}', 'y', exclude => ARRAY['id'], seed => 1)")
    cursor.execute(f"SELECT madlib_mop.propose_networks('{PACKED}', '{NETWORKS}', '{CONFIGS}', n_configs => 1)")
    cursor.execute(f"SELECT madlib.madlib_keras_fit_multiple_model('{PACKED}', '{MODELS}', '{CONFIGS}', 1)")
    cursor.execute(f"SELECT madlib.training_preprocessor_dl('{ARRAYS}', '{ARRAY_PACKED}', 'y', 'numbers', seed => 1)")
    cursor.execute(f"SELECT madlib.madlib_keras_fit_multiple_model('{ARRAY_PACKED}', '{ARRAY_MODELS}', '{CONFIGS}', 1)")
    cursor.execute(f"CREATE VIEW {VIEW} AS SELECT id, madlib_mop.predict_class('{MODELS}', 1, t) AS y FROM {NUMBERS} t")
    view_s = _seconds(cursor, f"SELECT count(y) FROM {VIEW}")
    arrays_s = float("inf")
    for _ in range(_REPETITIONS):
        cursor.execute(f"DROP TABLE IF EXISTS {OUTPUT}")
        arrays_s = min(arrays_s, _seconds(cursor, _KERAS_PREDICT))
    print(f"{n_rows:,} rows of {WIDTH} numbers: predict_class {view_s:.2f} s, madlib_keras_predict {arrays_s:.2f} s")
    yield Ratio("columns: predict_class of a view / arrays", view_s / arrays_s, VIEW_TARGET)
    row_s = _call_seconds(cursor, f"SELECT madlib_mop.predict_class('{MODELS}', 1, t) FROM {NUMBERS} t LIMIT 1")
    array_s = _call_seconds(
        cursor, f"SELECT madlib_mop.predict_class('{ARRAY_MODELS}', 1, numbers) FROM {ARRAYS} LIMIT 1"
    )
    print(f"one row: {row_s * 1e3:.2f} ms, as an array {array_s * 1e3:.2f} ms")
    yield Ratio("columns: predict_class of one row / an array", row_s / array_s, ROW_TARGET)


_KERAS_PREDICT = (
    f"SELECT madlib.madlib_keras_predict('{ARRAY_MODELS}', '{ARRAYS}', 'id', 'numbers', '{OUTPUT}', 'response', false,"
    " 1)"
)


def _call_seconds(cursor, query: str) -> float:
    """Return the seconds of a warm statement, the mean of `_WARM_CALLS`."""
    cursor.execute(query)
    return sum(_seconds(cursor, query) for _ in range(_WARM_CALLS)) / _WARM_CALLS


def _seconds(cursor, query: str) -> float:
    started = time.monotonic()
    cursor.execute(query)
    return time.monotonic() - started


def _dropped(packed: str) -> str:
    """Return the statement that drops a packed table, its validation table and their summaries."""
    names = [packed + suffix for suffix in ("", "_summary", "_validation", "_validation_summary")]
    return f"DROP TABLE IF EXISTS {', '.join(names)}"


def _drop(cursor) -> None:
    cursor.execute(f"DROP VIEW IF EXISTS {VIEW}")
    cursor.execute(_dropped(PACKED))
    tables = (MIXED, NUMBERS, ARRAYS, NETWORKS, CONFIGS, f"{CONFIGS}_summary", OUTPUT)
    tables += tuple(models + suffix for models in (MODELS, ARRAY_MODELS) for suffix in ("", "_info", "_summary"))
    tables += (ARRAY_PACKED, f"{ARRAY_PACKED}_summary")
    cursor.execute(f"DROP TABLE IF EXISTS {', '.join(tables)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn", help="URI of a superuser of a local server with the extension")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows that are packed")
    parser.add_argument("--predicted", type=int, default=100_000, help="rows that are predicted")
    arguments = parser.parse_args()
    compare_columns(arguments.dsn, arguments.rows, arguments.predicted)


if __name__ == "__main__":
    main()

"""How long an analyst waits for eight proposed networks: until all can be compared, and until the last iteration.

Measured where models stay with the trainer that has their graph, and where each shard has its own trainer, in turns.
The cache of trainers makes the difference: both times, the rows of a segment fit into it. Then with trainers that have
waited since the same call. Run by `make bench`, or
alone:

    make/python.sh benchmarks/proposed.py "$(make -s dsn)"
"""

import argparse
from contextlib import closing

import psycopg2
from ratios import Ratio

ROWS, PACKED, NETWORKS, CONFIGS, MODELS = (f"bench_proposed{name}" for name in ("", "_packed", "_nets", "_mst", "_out"))
N_ROWS, N_CONFIGS, N_ITERATIONS, N_TURNS = 12_000, 8, 10, 3
#: Has room for the rows of one of two segments, and not of both.
SMALL_CACHE = "SET madlib_mop.shard_cache_mb = 1"
LARGE_CACHE = "RESET madlib_mop.shard_cache_mb"
NEW_TRAINERS, WAITING_TRAINERS = (f"SET madlib_mop.trainer_idle_s = {seconds}" for seconds in (0, 60))
FIRST_TARGET, ALL_TARGET = 0.85, 1.0
AGAIN_FIRST_TARGET, AGAIN_ALL_TARGET = 0.4, 0.7
#: 17 columns: ten numbers, two categories, two counts, a timestamp, a boolean and the target.
_ROWS = """
SELECT random() * 10 AS a1, random() AS a2, random() - 0.5 AS a3, random() AS a4, random() AS a5, random() AS a6,
       random() * 100 AS a7, random() AS a8, random() AS a9, random() AS a10,
       (ARRAY['red', 'green', 'blue', 'grey'])[1 + floor(random() * 4)::integer] AS c1,
       (ARRAY['x', 'y', 'z'])[1 + floor(random() * 3)::integer] AS c2, floor(random() * 20)::integer AS i1,
       floor(random() * 5)::integer AS i2, timestamp '2026-01-01' - random() * interval '400 days' AS d1,
       random() < 0.3 AS b1
FROM generate_series(1, %s)
"""
_TIMES = """
SELECT (SELECT max(m.elapsed_s) FROM madlib_mop.metric m WHERE m.run_id = r.run_id AND m.epoch = 1)::float8,
       r.makespan_s::float8, r.plan ? 'any_trainer',
       (SELECT sum(n_bytes) FROM madlib_mop.segment s WHERE s.run_id = r.run_id)::float8
FROM madlib_mop.run r WHERE r.model_output_table = %s ORDER BY run_id DESC LIMIT 1
"""


def compare_proposed(dsn: str, n_rows: int = N_ROWS) -> list[Ratio]:
    """Measure and print; return the ratios of the time with models that stay to the time without."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        _drop(cursor)
        try:
            cursor.execute(NEW_TRAINERS)
            _prepare(cursor, n_rows)
            stays, moves = [], []
            for _ in range(N_TURNS):
                stays.append(_fit(cursor, LARGE_CACHE))
                moves.append(_fit(cursor, SMALL_CACHE))
            cursor.execute(WAITING_TRAINERS)
            _fit(cursor, LARGE_CACHE)
            again = [_fit(cursor, LARGE_CACHE) for _ in range(N_TURNS)]
        finally:
            _drop(cursor)
    print(f"\nproposed: {N_CONFIGS} networks, {n_rows} rows of 17 columns, {N_ITERATIONS} iterations, 2 segments")
    ratios = []
    targets = ((FIRST_TARGET, AGAIN_FIRST_TARGET), (ALL_TARGET, AGAIN_ALL_TARGET))
    for place, what in enumerate(("all can be compared", "the last iteration")):
        with_s, without_s, again_s = (min(run[place] for run in runs) for runs in (stays, moves, again))
        target, again_target = targets[place]
        print(
            f"  until {what:22} {with_s:6.1f} s; with each shard in its own trainer {without_s:6.1f} s;"
            f" with trainers that have waited {again_s:6.1f} s"
        )
        ratios.append(Ratio(f"proposed: until {what} / own trainers", with_s / without_s, target))
        ratios.append(Ratio(f"proposed: until {what}, again / first", again_s / with_s, again_target))
    print(*ratios, sep="\n", flush=True)
    return ratios


def _prepare(cursor, n_rows: int) -> None:
    cursor.execute("SELECT setseed(0.5)")
    cursor.execute(f"CREATE TABLE {ROWS} AS {_ROWS}", [n_rows])
    cursor.execute(f"ALTER TABLE {ROWS} ADD y integer")
    cursor.execute(f"UPDATE {ROWS} SET y = (a1 + 5 * a2 + (c1 = 'red')::integer * 3 + random() * 4 > 10)::integer")
    cursor.execute("SET madlib_mop.segments = 2")
    cursor.execute(f"SELECT madlib_mop.pack_columns('{ROWS}', '{PACKED}', 'y', validation => 0.2, seed => 1)")
    proposed = f"'{PACKED}', '{NETWORKS}', '{CONFIGS}', n_configs => {N_CONFIGS}"
    cursor.execute(f"SELECT madlib_mop.propose_networks({proposed})")
    _fit(cursor, LARGE_CACHE, n_iterations=1)  # starts the fork servers


def _fit(cursor, setting: str, n_iterations: int = N_ITERATIONS) -> tuple[float, float]:
    """Train; return the seconds until the first metrics of all models, and until the end."""
    cursor.execute(setting)
    cursor.execute(
        f"SELECT madlib.madlib_keras_fit_multiple_model('{PACKED}', '{MODELS}', '{CONFIGS}', %s,"
        f" validation_table => '{PACKED}_validation', metrics_compute_frequency => 1, seed => 3, replace => true)",
        [n_iterations],
    )
    cursor.execute(_TIMES, [f"public.{MODELS}"])
    first_s, all_s, stays, n_bytes = cursor.fetchone()
    if stays != (setting == LARGE_CACHE) or n_bytes > 2 << 20:
        what = "stay" if stays else "do not stay"
        raise RuntimeError(f"models {what} with {setting}; there are {n_bytes / 2**20:.2f} MiB of rows")
    return first_s, all_s


def _drop(cursor) -> None:
    summaries = [f"{name}_summary" for name in (PACKED, f"{PACKED}_validation", CONFIGS, MODELS)]
    tables = [ROWS, PACKED, f"{PACKED}_validation", NETWORKS, CONFIGS, MODELS, f"{MODELS}_info", *summaries]
    cursor.execute(f"DROP TABLE IF EXISTS {', '.join(tables)}")


def main() -> None:
    """Measure at the server of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn")
    parser.add_argument("--rows", type=int, default=N_ROWS)
    arguments = parser.parse_args()
    compare_proposed(arguments.dsn, arguments.rows)


if __name__ == "__main__":
    main()

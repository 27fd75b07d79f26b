"""A grid of 12 fast and 4 slow configurations: the makespan, compared with the lower bound and other schedules.

Called by run.py. Schedules with barriers and with shuffled orders are simulated with the run's visit times.
"""

import psycopg2
from breakdown import IDLE, breakdown
from hopper import N_SEGMENTS, SCHEMA
from ratios import Ratio
from tables import make_table
from workloads import WORKLOADS, rows_of

from madlib_mop.schedule.bounds import efficiency
from madlib_mop.schedule.forecast.comparisons import barrier_rounds, shuffled

_SLOWNESS = 8
_N_FAST, _N_SLOW = 12, 4
_COMPILE_PARAMS = "loss='categorical_crossentropy', optimizer='Adam(learning_rate=0.001)', metrics=['accuracy']"
_VISITS = """
SELECT mst_key, segment_id, epoch, extract(epoch FROM ended_at - started_at)::float8
FROM madlib_mop.visit WHERE run_id = %s
"""


def compare_schedules(dsn: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Train the grid; print the ratio of makespan to lower bound of the run and of the simulated schedules."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        _prepare(cursor, n_rows)
        cursor.execute(
            "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', %s, seed := 1)", [n_epochs]
        )
        cursor.execute("SELECT max(run_id) FROM madlib_mop.run")
        (run_id,) = cursor.fetchone()
        cursor.execute("SELECT makespan_s, lower_bound_s FROM madlib_mop.run WHERE run_id = %s", [run_id])
        makespan_s, bound_s = cursor.fetchone()
        cursor.execute(_VISITS, [run_id])
        costs = {visit[:3]: visit[3] for visit in cursor.fetchall()}
        idle_s = breakdown(cursor, run_id, N_SEGMENTS).seconds[IDLE]
        cursor.execute(f"SELECT madlib_mop.drop_run({run_id:d}); DROP SCHEMA {SCHEMA} CASCADE")
    connection.close()

    def cost(model: int, segment: int, epoch: int) -> float:
        return costs[model, segment, epoch]

    keys, segments = (sorted({visit[i] for visit in costs}) for i in (0, 1))
    print(
        f"\nschedule: {_N_FAST} fast and {_N_SLOW} slow configurations ({_SLOWNESS}x), {n_rows} rows, {n_epochs} epochs"
    )
    print(f"  hopper, makespan / lower bound                     {makespan_s / bound_s:6.2f}   ({makespan_s:.1f} s;"
          f" segments idle for {idle_s:.1f} s)")  # fmt: skip
    rounds = _ratio(barrier_rounds(keys, segments, n_epochs, cost))
    orders = [_ratio(shuffled(keys, segments, n_epochs, cost, seed)) for seed in range(20)]
    print("  simulated with the same visits:")
    print(f"    rounds with barriers (as MADlib)                 {rounds:6.2f}")
    print(f"    shuffled order (as Cerebro), 20 draws            {min(orders):6.2f} to {max(orders):.2f}", flush=True)
    return [Ratio("schedule: makespan / lower bound, 12 fast and 4 slow", makespan_s / bound_s, 1.05)]


def _ratio(spans: list) -> float:
    return efficiency(spans, N_SEGMENTS).ratio


def _prepare(cursor, n_rows: int) -> None:
    """Pack rows; write the grid, with slow configurations, whose visits make more passes, among the fast ones."""
    rows = rows_of("tabular", n_rows, 1)
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
    cursor.execute(f"SET client_min_messages = warning; SET madlib_mop.segments = {N_SEGMENTS}")
    make_table(cursor, "train_rows", rows.x, rows.y.argmax(1))
    cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
    cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", [WORKLOADS["tabular"].build(1, 1e-4).to_json()])
    cursor.execute("CREATE TABLE mst (mst_key integer, model_id integer, compile_params varchar, fit_params varchar)")
    cursor.execute("CREATE TABLE mst_summary (model_arch_table varchar, object_table varchar)")
    cursor.execute("INSERT INTO mst_summary VALUES ('arch')")
    for mst_key in range(1, _N_FAST + _N_SLOW + 1):
        n_passes = 1 if mst_key % (_N_FAST // _N_SLOW + 1) else _SLOWNESS
        row = [mst_key, _COMPILE_PARAMS, f"batch_size=32, epochs={n_passes}"]
        cursor.execute("INSERT INTO mst VALUES (%s, 1, %s, %s)", row)

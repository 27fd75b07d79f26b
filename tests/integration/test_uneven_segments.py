"""Runs with uneven segments, more or fewer segments than models, or added segments; and the simulation of a run."""

import pytest
from typer.testing import CliRunner

from madlib_mop.cli import simulate as simulate_command
from madlib_mop.cli.app import app
from madlib_mop.cli.queries import query
from madlib_mop.schedule import ModelWork, make_scheduler
from madlib_mop.schedule.forecast.simulator import simulate
from tests.helpers.faults import BackgroundFit, newest_run, visits, wait_for
from tests.helpers.training import (
    ALIKE,
    MIXED,
    Fitted,
    digests,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    script,
    select_configurations,
)

pytestmark = [pytest.mark.one_session, pytest.mark.slow]

SLOW = [(1, params, fit_params.replace("batch_size=18", "batch_size=3")) for _, params, fit_params in ALIKE]
UNEVEN = {0: 38, 1: 21, 3: 1}  # rows by segment; 2 has a partition without rows


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db, 600, 20)
    load_architectures(db)
    pack(db, 2)
    script(
        db,
        "CREATE TABLE few AS SELECT * FROM train_rows WHERE id < 60",
        "SET madlib_mop.segments = 4",
        "SELECT madlib.training_preprocessor_dl('few', 'uneven', 'y', 'x', 1, 16.0, num_classes := '{10}', seed := 5)",
        "UPDATE uneven SET __dist_key__ = CASE WHEN buffer_id = 59 THEN 3 WHEN buffer_id < 38 THEN 0 ELSE 1 END",
    )
    for table, configurations in (("2", ALIKE[:2]), ("6", MIXED[:6]), ("4", SLOW), ("slow", SLOW[:2])):
        select_configurations(db, f"mst_{table}", configurations)
    return db


@pytest.fixture(scope="module", params=[(2, "rotation"), (6, "longest_first")], ids=["fewer", "more"])
def skewed(request, bench) -> tuple[Fitted, int]:
    n_models, schedule = request.param
    options = {"source_table": "uneven", "seed": 4, "schedule": schedule}
    return fit(bench, f"skewed_{n_models}", f"mst_{n_models}", 2, **options), n_models


def test_every_model_visits_every_segment_that_has_rows_once_an_epoch(skewed, bench):
    run, n_models = skewed
    rows = bench.rows(
        "SELECT mst_key, epoch, segment_id, n_rows, digest_in, digest_out FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY mst_key, epoch, position",
        [run.run_id],
    )
    everything = [(key, epoch, segment) for key in range(1, n_models + 1) for epoch in (1, 2) for segment in UNEVEN]
    assert sorted(row[:3] for row in rows) == everything
    assert all(n_rows == UNEVEN[segment] for _, _, segment, n_rows, _, _ in rows)
    assert all(before[5] == after[4] for before, after in zip(rows, rows[1:], strict=False) if before[0] == after[0])


def test_its_models_are_trained_and_have_metrics(skewed, bench):
    run, n_models = skewed
    assert bench.value(f"SELECT count(*) FROM {run.table}_info WHERE status = 'trained'") == n_models
    bad = "SELECT count(*) FROM madlib_mop.metric WHERE run_id = %s AND (value IS NULL OR value = 'NaN')"
    assert bench.value(bad, [run.run_id]) == 0


def test_its_visits_made_again_give_its_bits(skewed, bench):
    run, _ = skewed
    script(bench, f"SELECT madlib_mop.replay({run.run_id}, 'again_{run.table}')")
    assert digests(bench, newest_run(bench)) == digests(bench, run.run_id)


def test_a_segment_added_while_a_run_is_stopped_waits_for_a_warm_start(bench):
    """The resumed run has the bits of an uninterrupted one; a later warm start uses all segments."""
    options = {"source_table": "train", "seed": 6, "schedule": "rotation"}
    undisturbed = fit(bench, "undisturbed", "mst_slow", 8, **options)
    call = BackgroundFit(
        bench,
        "SELECT madlib.madlib_keras_fit_multiple_model('train', 'grown', 'mst_slow', 8, seed := 6,"
        " schedule := 'rotation')",
    )
    run_id = wait_for(lambda: max(newest_run(bench), undisturbed.run_id + 1) == newest_run(bench) and newest_run(bench))
    wait_for(lambda: visits(bench, run_id) >= 3)
    assert bench.value("SELECT madlib_mop.cancel(%s)", [run_id])
    call.join()
    assert 3 <= visits(bench, run_id) < 2 * 2 * 8
    script(
        bench,
        "CREATE TABLE train_2 PARTITION OF train FOR VALUES IN (2)",
        "INSERT INTO train SELECT 2, x, y, x_shape, y_shape, buffer_id + 1000 FROM train WHERE buffer_id < 3",
    )
    connection = bench.connect()
    connection.cursor().execute("SELECT madlib_mop.resume(%s)", [run_id])
    notices = "".join(connection.notices)
    connection.close()
    assert "got segment 2 after the start of the run" in notices and "warm start uses all" in notices
    assert digests(bench, run_id) == digests(bench, undisturbed.run_id)
    assert bench.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s AND segment_id = 2", [run_id]) == 0
    grown = fit(bench, "grown", "mst_slow", 1, warm_start=True, **options)
    visited = "SELECT segment_id, count(*) FROM madlib_mop.visit WHERE run_id = %s GROUP BY 1 ORDER BY 1"
    assert bench.rows(visited, [grown.run_id]) == [(0, 2), (1, 2), (2, 2)]
    script(bench, "DROP TABLE train_2")


@pytest.mark.alone
def test_the_simulator_fed_with_a_runs_visits_comes_to_its_makespan(bench):
    run = fit(bench, "timed", "mst_4", 2, source_table="train", seed=1, schedule="longest_first")
    rows = bench.rows(
        "SELECT mst_key, segment_id, epoch, start_s, end_s FROM madlib_mop.timeline WHERE run_id = %s", [run.run_id]
    )
    seconds = {(key, segment, epoch): float(end - start) for key, segment, epoch, start, end in rows}
    recorded = float(max(row[4] for row in rows) - min(row[3] for row in rows))
    works = [ModelWork((key,), key - 1, 2) for key in range(1, 5)]
    simulation = simulate(
        make_scheduler("longest_first", works, {0: 300, 1: 300}), lambda *visit: seconds[visit]
    )  # fmt: skip
    assert len(rows) == 16 and recorded > 1.0
    assert simulation.efficiency.makespan_s == pytest.approx(recorded, rel=0.2)
    words = ["simulate", "--run", str(run.run_id), "--dsn", bench.dsn, "--segments", "2,8", "--models", "4"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    sizes = [line.split()[:3] for line in done.output.splitlines()[1:3]]
    assert done.exit_code == 0 and sizes == [["2", "4", "8"], ["8", "4", "32"]], done.output
    state = bench.value("SELECT avg(state_bytes) FROM madlib_mop.visit WHERE run_id = %s", [run.run_id])
    ((visit_s, _, state_bytes, rates),) = query(bench.dsn, simulate_command._MEASURED, run.run_id)
    assert state_bytes == pytest.approx(float(state), rel=0.2) and len(set(rates)) == 4
    assert 0 < visit_s <= max(seconds.values())

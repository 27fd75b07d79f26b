"""The default of metrics_compute_frequency: each iteration with a validation table; output tables stay as MADlib's."""

import pytest

from tests.helpers.training import ADAM, fit, load_digits, one_thread, pack, select_configurations, smallest

pytestmark = pytest.mark.one_session

EPOCHS = "SELECT array_agg(DISTINCT epoch ORDER BY epoch) FROM madlib_mop.metric WHERE run_id = %s"
SERIES = "SELECT training_loss, validation_loss, metrics_elapsed_time, validation_loss_final FROM {}"
ITERATIONS = "SELECT metrics_iters FROM {}_summary"
N = 3


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [smallest()])
    pack(db, 1)
    select_configurations(db, "mst", [(1, ADAM, "batch_size=32, epochs=1")])
    return db


def newest(db) -> int:
    return db.value("SELECT max(run_id) FROM madlib_mop.run")


def assert_last_only(db, table: str, run_id: int, metrics: str) -> None:
    """Assert that the record has each iteration, and the table what MADlib's has: the last one."""
    assert db.value(EPOCHS, [run_id]) == [1, 2, 3]
    training, validation, elapsed, final = db.rows(SERIES.format(metrics))[0]
    assert [len(values) for values in (training, validation, elapsed)] == [1, 1, 1]
    assert db.value(ITERATIONS.format(table)) == [N]
    last = "SELECT value FROM madlib_mop.metric WHERE (run_id, epoch, data_set, ordinal) = (%s, 3, 'validation', 0)"
    assert validation == [final] == [db.value(last, [run_id])]


def test_with_a_validation_table_metrics_are_computed_after_each_iteration(bench):
    run = fit(bench, "out", "mst", N, validation_table="valid", seed=1)
    assert_last_only(bench, "out", run.run_id, "out_info")
    assert bench.rows("SELECT metrics_compute_frequency, metrics_iters FROM out_summary") == [(N, [N])]
    assert all(f"iteration {epoch} of 3 done by 1 of 1 models, best validation" in run.notices for epoch in (1, 2, 3))
    bench.rows("SELECT madlib_mop.replay(%s, 'again')", [run.run_id])
    assert_last_only(bench, "again", newest(bench), "again_info")


def test_model_averaging_has_the_same_default(bench):
    bench.rows(
        "SELECT madlib.madlib_keras_fit('train', 'one', 'arch', 1, %s, 'batch_size=32', 3, validation_table => 'valid',"
        " seed => 1)",
        [ADAM],
    )
    assert_last_only(bench, "one", newest(bench), "one_summary")
    assert bench.value("SELECT metrics_compute_frequency FROM one_summary") == N


def test_without_one_they_are_computed_after_the_last_iteration(bench):
    run = fit(bench, "bare", "mst", N, seed=1)
    assert bench.value(EPOCHS, [run.run_id]) == [N]


def test_what_is_asked_for_is_what_the_tables_have(bench):
    run = fit(bench, "each", "mst", N, validation_table="valid", metrics_compute_frequency=1, seed=1)
    assert bench.value(EPOCHS, [run.run_id]) == [1, 2, 3]
    assert bench.value("SELECT array_length(validation_loss, 1) FROM each_info") == 3
    assert bench.value(ITERATIONS.format("each")) == [1, 2, 3]
    rare = fit(bench, "rare", "mst", N, validation_table="valid", metrics_compute_frequency=2, seed=1)
    assert bench.value(EPOCHS, [rare.run_id]) == [2, 3]
    assert bench.value(ITERATIONS.format("rare")) == [2, 3]

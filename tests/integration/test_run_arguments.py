"""The record has every argument of a call unchanged, for resume, replay and the output tables."""

import pytest

from madlib_mop.calls import FUNCTIONS
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.training import fit, weights

pytestmark = pytest.mark.one_session

FIT = "madlib_keras_fit_multiple_model"
GIVEN = {
    "source_table": "iris_train_packed", "validation_table": "iris_test_packed", "metrics_compute_frequency": 2,
    "name": "first", "description": "it's \"so\"", "seed": 3, "schedule": "Rotation ",
    "max_seconds": 86400.5, "copies": 3, "checkpoint_every": 4,
}  # fmt: skip
ARGUMENTS = "SELECT arguments FROM madlib_mop.run WHERE run_id = %s"
SUMMARY = "SELECT source_table, validation_table, model, model_selection_table, name, description FROM {}_summary"


@pytest.fixture(scope="module")
def bench(db):
    load_iris(db)
    pack_iris(db, 2)
    load_perceptrons(db, "arch")
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], %s, ARRAY['batch_size=20'])",
        [[ADAM.format(0.1)]],
    )
    return db


@pytest.fixture(scope="module")
def fitted(bench):
    return fit(bench, "models", "mst", 2, **GIVEN)


def test_a_run_keeps_every_argument_of_its_call(fitted, bench):
    kept = bench.value(ARGUMENTS, [fitted.run_id])
    defaults = {a.name: a.default for a in FUNCTIONS[FIT].arguments if not a.is_required}
    given = {**GIVEN, "schedule": "rotation"}
    named = {"model_output_table": "models", "model_selection_table": "mst", "num_iterations": 2}
    assert kept == {**defaults, **given, **named}
    row = bench.rows(SUMMARY.format("models"))
    assert row == [("iris_train_packed", "iris_test_packed", "models", "mst", "first", GIVEN["description"])]


def test_the_caller_is_told_that_states_which_stay_at_no_host_have_no_copies_there(fitted, bench):
    assert "copies, checkpoint_every: not used, because no state of this run stays at a host" in fitted.notices
    usual = {"source_table": "iris_train_packed", "copies": 2, "checkpoint_every": None}
    assert "not used" not in fit(bench, "usual", "mst", 1, **usual).notices


@pytest.mark.slow
def test_a_replay_has_the_arguments_of_the_run_that_it_repeats_and_its_own_output(fitted, bench):
    bench.rows("SELECT madlib_mop.replay(%s, 'again')", [fitted.run_id])
    run_id = bench.value("SELECT max(run_id) FROM madlib_mop.run")
    kept = bench.value(ARGUMENTS, [run_id])
    assert kept == {**bench.value(ARGUMENTS, [fitted.run_id]), "model_output_table": "public.again"}
    assert weights(bench, "again") == weights(bench, "models")
    row = bench.rows(SUMMARY.format("again"))
    assert row == [("iris_train_packed", "iris_test_packed", "public.again", "mst", "first", GIVEN["description"])]


@pytest.mark.slow
def test_replace_is_obeyed_by_the_run_and_not_by_its_replay(fitted, bench):
    replaced = fit(bench, "models", "mst", 1, replace=True, source_table="iris_train_packed", seed=4)
    assert bench.value(ARGUMENTS, [replaced.run_id])["replace"] is True
    bench.rows("SELECT madlib_mop.replay(%s, 'third')", [replaced.run_id])
    run_id = bench.value("SELECT max(run_id) FROM madlib_mop.run")
    assert bench.value(ARGUMENTS, [run_id])["replace"] is False
    assert weights(bench, "third") == weights(bench, "models")


@pytest.mark.slow
def test_model_averaging_keeps_its_call_too(bench):
    compile_params = ADAM.format(0.1)
    bench.rows(
        "SELECT madlib.madlib_keras_fit('iris_train_packed', 'one', 'arch', 1, %s, 'batch_size=20', 1, name => 'n')",
        [compile_params],
    )
    kept = bench.value("SELECT arguments FROM madlib_mop.run ORDER BY run_id DESC LIMIT 1")
    assert (kept["compile_params"], kept["model"], kept["name"]) == (compile_params, "one", "n")
    assert set(kept) == {a.name for a in FUNCTIONS["madlib_keras_fit"].arguments}
    columns = "source_table, model_arch_table, model_id, compile_params, fit_params, name"
    row = bench.rows(f"SELECT {columns} FROM one_summary")
    assert row == [("iris_train_packed", "arch", 1, compile_params, "batch_size=20", "n")]

"""MADlib's example of many models, on iris: a grid of 12 perceptrons, use of the best one, warm start, transfer."""

import pytest

from tests.helpers.iris import N_HELD_OUT, N_TRAIN, load_iris, load_perceptrons, pack_iris
from tests.helpers.training import weights

pytestmark = pytest.mark.slow

CLASSES = ["Iris-setosa", "Iris-versicolor", "Iris-virginica"]
GRID = """{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
           'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.01, 0.1]}]}"""
FIRST_LAYER_BYTES = 4 * (4 * 10 + 10)


@pytest.fixture(scope="module")
def grid(db):
    """The grid, trained by a call with positional arguments, as in scripts for MADlib, with a fixed order of visits."""
    load_iris(db)
    pack_iris(db, 2)
    load_perceptrons(db)
    db.rows(
        "SELECT madlib.generate_model_configs('model_arch_library', 'mst_table', ARRAY[1,2], %s,"
        " $$ {'batch_size': [4, 8], 'epochs': [1]} $$, 'grid')",
        [GRID],
    )
    db.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_multi_model', 'mst_table', 10, FALSE,"
        " 'iris_test_packed', 3, FALSE, 'Sophie', 'perceptrons on iris', TRUE, seed => 1, schedule => 'rotation')"
    )
    return db


@pytest.fixture(scope="module")
def best(grid):
    """Return the key of the model with the best accuracy on the validation rows."""
    return grid.value("SELECT mst_key FROM iris_multi_model_info ORDER BY validation_metrics_final DESC,"
                      " validation_loss_final LIMIT 1")  # fmt: skip


def test_the_packed_tables_are_those_of_the_example(grid):
    for table, n_rows in (("iris_train_packed", N_TRAIN), ("iris_test_packed", N_HELD_OUT)):
        shapes = grid.rows(f"SELECT attributes_shape, class_text_shape FROM {table}")
        assert sum(x[0] for x, _ in shapes) == n_rows
        assert {(x[1], y[1]) for x, y in shapes} == {(4, 3)}
        assert grid.rows(
            "SELECT dependent_varname, independent_varname, dependent_vartype, class_text_class_values, num_classes,"
            f" normalizing_const, distribution_rules FROM {table}_summary"
        ) == [(["class_text"], ["attributes"], ["character varying"], CLASSES, [3], 1.0, "all_segments")]


def test_the_grid_has_twelve_configurations_in_order(grid):
    rows = grid.rows("SELECT mst_key, model_id, compile_params, fit_params FROM mst_table ORDER BY mst_key")
    assert [row[0] for row in rows] == list(range(1, 13))
    assert [row[1] for row in rows] == [1] * 6 + [2] * 6
    for place, (rate, size) in enumerate((rate, size) for rate in ("0.001", "0.01", "0.1") for size in (4, 8)):
        for row in (rows[place], rows[place + 6]):
            assert f"optimizer='Adam(lr={rate})'" in row[2] and f"batch_size={size}" in row[3]


def test_the_best_of_the_grid_is_as_good_as_one_can_expect(grid):
    assert grid.value("SELECT max(validation_metrics_final) FROM iris_multi_model_info") >= 0.93
    good = (
        "SELECT count(*) FROM iris_multi_model_info WHERE training_metrics_final > 0.9 AND compile_params ~ '0.01\\)'"
    )
    assert grid.value(good) >= 3


def test_the_info_and_the_summary_tell_of_the_call(grid):
    assert grid.value("SELECT count(*) FROM iris_multi_model_info") == 12
    figures = ("training_metrics", "training_loss", "validation_metrics", "validation_loss", "metrics_elapsed_time")
    for name in figures:
        assert grid.rows(f"SELECT DISTINCT array_length({name}, 1) FROM iris_multi_model_info") == [(4,)]
    assert grid.rows("SELECT DISTINCT model_type, metrics_type, loss_type FROM iris_multi_model_info") == [
        ("madlib_keras", ["accuracy"], "categorical_crossentropy")
    ]
    sizes = dict(grid.rows("SELECT DISTINCT model_id, model_size FROM iris_multi_model_info"))
    assert sizes == {1: 193 * 4 / 1024, 2: 303 * 4 / 1024}
    assert grid.rows(
        "SELECT source_table, validation_table, model, model_info, model_arch_table, model_selection_table,"
        " object_table, num_iterations, metrics_compute_frequency, warm_start, name, description, num_classes,"
        " class_text_class_values, metrics_iters FROM iris_multi_model_summary"
    ) == [
        ("iris_train_packed", "iris_test_packed", "iris_multi_model", "iris_multi_model_info", "model_arch_library",
         "mst_table", None, 10, 3, False, "Sophie", "perceptrons on iris", [3], CLASSES, [3, 6, 9, 10])
    ]  # fmt: skip


def test_evaluating_the_best_gives_what_its_run_said(grid, best):
    grid.rows(
        "SELECT madlib.madlib_keras_evaluate('iris_multi_model', 'iris_test_packed', 'iris_validate', NULL, %s)", [best]
    )
    ((loss, metric, metrics_type, loss_type),) = grid.rows(
        "SELECT loss, metric, metrics_type, loss_type FROM iris_validate"
    )
    ((run_loss, run_metric),) = grid.rows(
        "SELECT validation_loss_final, validation_metrics_final FROM iris_multi_model_info WHERE mst_key = %s", [best]
    )
    assert (loss, metric) == (pytest.approx(run_loss, rel=1e-5), pytest.approx(run_metric, rel=1e-6))
    assert (metrics_type, loss_type) == (["accuracy"], "categorical_crossentropy")


def test_predictions_of_the_best_are_right_as_often_as_its_accuracy_says(grid, best):
    grid.rows(
        "SELECT madlib.madlib_keras_predict('iris_multi_model', 'iris_test', 'id', 'attributes', 'iris_predict',"
        " 'prob', FALSE, %s)",
        [best],
    )
    assert grid.value("SELECT count(*) FROM iris_predict") == 3 * N_HELD_OUT
    assert grid.rows("SELECT DISTINCT class_name FROM iris_predict") == [("class_text",)]
    totals = grid.rows("SELECT sum(prob), array_agg(rank ORDER BY prob DESC) FROM iris_predict GROUP BY id")
    assert all(total == pytest.approx(1, abs=1e-5) and ranks == [1, 2, 3] for total, ranks in totals)
    right = "SELECT avg((class_value = class_text)::int) FROM iris_predict JOIN iris_test USING (id) WHERE rank = 1"
    accuracy = grid.value("SELECT validation_metrics_final FROM iris_multi_model_info WHERE mst_key = %s", [best])
    assert float(grid.value(right)) == pytest.approx(accuracy)


def test_a_warm_start_goes_on_where_the_run_left_off_and_transfer_starts_from_its_weights(grid, best):
    """The last test, because it changes the output table."""
    before = dict(grid.rows("SELECT mst_key, training_loss_final FROM iris_multi_model_info"))
    ((model_id, start),) = grid.rows(
        "SELECT i.model_id, m.model_weights FROM iris_multi_model m JOIN iris_multi_model_info i USING (mst_key)"
        " WHERE mst_key = %s",
        [best],
    )
    grid.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_multi_model', 'mst_table', 3, FALSE,"
        " 'iris_test_packed', 1, TRUE, 'Sophie L.', 'goes on', TRUE)"
    )
    assert grid.rows(
        "SELECT warm_start, num_iterations, name, description, metrics_iters FROM iris_multi_model_summary"
    ) == [(True, 3, "Sophie L.", "goes on", [1, 2, 3])]
    kinds = "SELECT relpersistence::text FROM pg_class WHERE relname ~ '^iris_multi_model' AND relkind = 'r'"
    assert grid.rows(kinds) == [("p",)] * 3
    slow = grid.rows("SELECT mst_key, training_loss FROM iris_multi_model_info WHERE compile_params ~ '0.001\\)'")
    assert len(slow) == 4
    for mst_key, losses in slow:  # they learn slowly and steadily: the loss of a fresh model would be far higher
        assert len(losses) == 3 and losses[-1] < losses[0] < before[mst_key]

    # in the form that Keras 3 writes
    frozen = "jsonb_set(model_arch::jsonb, '{config,layers,1,config,trainable}', 'false')::json"
    grid.rows(
        f"SELECT madlib.load_keras_model('transfer_library', {frozen}, %s) FROM model_arch_library WHERE model_id = %s",
        [bytes(start), model_id],
    )
    grid.rows(
        "SELECT madlib.generate_model_configs('transfer_library', 'transfer_mst', ARRAY[1], %s,"
        " $$ {'batch_size': [4, 8], 'epochs': [1]} $$, 'random', 3, 42)",
        [GRID.replace("[0.001, 0.01, 0.1]", "[0.001, 0.01, 'log']")],
    )
    grid.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_transfer', 'transfer_mst', 2, FALSE,"
        " 'iris_test_packed', 1, seed => 1)"
    )
    for blob in weights(grid, "iris_transfer").values():
        assert blob[:FIRST_LAYER_BYTES] == bytes(start)[:FIRST_LAYER_BYTES] and blob != bytes(start)
    assert grid.value("SELECT max(validation_metrics_final) FROM iris_transfer_info") >= 0.93

"""Iris by model averaging, as in MADlib's scripts: 120 rows, 30 for validation, ten iterations, then a warm start.

Temporary output tables, one-hot labels, text classes, an architecture table with odd characters in its name.
"""

import json

import numpy as np
import pytest

from tests.helpers.iris import load_iris, pack_iris
from tests.helpers.training import script

pytestmark = [pytest.mark.one_session, pytest.mark.slow]

COMPILE = " optimizer='Adam(lr=0.01)', loss='categorical_crossentropy', metrics=['categorical_accuracy'] "


@pytest.fixture(scope="module")
def bench(db):
    load_iris(db)
    pack_iris(db, 2, "iris_packed", "iris_valid")
    layers = [{"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "flower"}}]
    for name, units, activation in (("a", 10, "relu"), ("b", 10, "relu"), ("c", 3, "softmax")):
        layers.append({"class_name": "Dense", "config": {"name": name, "units": units, "activation": activation}})
    network = {"class_name": "Sequential", "config": {"name": "iris", "layers": layers}}
    db.rows("SELECT madlib.load_keras_model('\"odd arch?\"', %s::json)", [json.dumps(network)])
    return db


def test_ten_iterations_a_warm_start_and_predictions_in_temporary_tables(bench):
    fit = (
        "SELECT madlib.madlib_keras_fit('iris_packed', 'pg_temp.iris_model', '\"odd arch?\"', 1, %s,"
        " 'batch_size=8, epochs=3', 10, FALSE, 'iris_valid', 5, %s, 'a name', NULL, NULL, 1)"
    )
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute(fit, [COMPILE, None])
        cursor.execute("SELECT training_loss_final, compile_params, metrics_iters FROM pg_temp.iris_model_summary")
        first_loss, compile_params, iterations = cursor.fetchone()
        assert compile_params == COMPILE and iterations == [5, 10]
        cursor.execute(fit, [COMPILE, True])
        cursor.execute(
            "SELECT training_loss_final, validation_metrics_final, class_text_class_values, dependent_vartype, model,"
            " model_arch_table, metrics_type, name FROM pg_temp.iris_model_summary"
        )
        loss, accuracy, *rest = cursor.fetchone()
        assert loss < first_loss and accuracy >= 0.93
        assert rest == [
            ["Iris-setosa", "Iris-versicolor", "Iris-virginica"], ["character varying"], "pg_temp.iris_model",
            '"odd arch?"', ["categorical_accuracy"], "a name",
        ]  # fmt: skip
        cursor.execute("SELECT madlib.madlib_keras_evaluate('pg_temp.iris_model', 'iris_valid', 'pg_temp.found')")
        cursor.execute("SELECT metric FROM pg_temp.found")
        assert cursor.fetchone()[0] == pytest.approx(accuracy)
        cursor.execute(
            "SELECT madlib.madlib_keras_predict('pg_temp.iris_model', 'iris_test', 'id', 'attributes', 'pg_temp.said',"
            " 'response')"
        )
        right = "SELECT avg((class_value = class_text)::int)::float8 FROM pg_temp.said JOIN iris_test USING (id)"
        cursor.execute(right)
        assert cursor.fetchone()[0] == pytest.approx(accuracy)
    connection.close()


def test_custom_functions_of_an_object_table(bench):
    """A warm start keeps the functions of the run that it continues."""
    source = "import keras\n\ndef certainty(y_true, y_pred):\n    return keras.ops.max(y_pred, axis=-1)\n"
    bench.rows("SELECT madlib.load_custom_function('functions', convert_to(%s, 'UTF8'), 'certainty')", [source])
    bench.rows("SELECT madlib.load_top_k_accuracy_function('functions', 2)")
    fit = (
        "SELECT madlib.madlib_keras_fit('iris_packed', 'custom_model', '\"odd arch?\"', 1,"
        " $$optimizer='sgd', loss='categorical_crossentropy', metrics=['certainty', 'top_2_accuracy']$$, NULL, 1,"
        " object_table := 'functions', warm_start := {})"
    )
    script(
        bench,
        fit.format("NULL"),
        "DROP TABLE madlib.functions",
        fit.format("true"),
        "SELECT madlib.madlib_keras_evaluate('custom_model', 'iris_packed', 'custom_found')",
    )
    (row,) = bench.rows("SELECT object_table, metrics_type, training_metrics_final FROM custom_model_summary")
    assert row[:2] == ("functions", ["certainty", "top_2_accuracy"]) and 1 / 3 < row[2] < 1
    assert bench.value("SELECT metric FROM custom_found") == pytest.approx(row[2])


def test_one_hot_labels_no_metrics_and_steps_a_pass(bench):
    script(
        bench,
        "CREATE TABLE hot AS SELECT id, attributes, ARRAY[(class_text = 'Iris-setosa')::int,"
        " (class_text = 'Iris-versicolor')::int, (class_text = 'Iris-virginica')::int] AS kind FROM iris",
        "SET madlib_mop.segments = 3",
        "SELECT madlib.training_preprocessor_dl('hot', 'hot_packed', 'kind', 'attributes')",
        "SELECT madlib.madlib_keras_fit('hot_packed', 'hot_model', '\"odd arch?\"', 1,"
        " $$optimizer=SGD(lr=0.01, decay=1e-6, nesterov=True), loss='categorical_crossentropy', metrics=[],"
        " loss_weights=[2]$$, $$epochs=10, verbose=0, shuffle=True, initial_epoch=1, steps_per_epoch=2$$, 2,"
        " seed := 1)",
    )
    assert bench.value("SELECT bool_and(kind[1] + kind[2] + kind[3] = 1) FROM hot"), "each row has its class"
    (row,) = bench.rows(
        "SELECT metrics_type, training_metrics, training_metrics_final, array_length(training_loss, 1),"
        " validation_loss, dependent_vartype, metrics_compute_frequency, training_loss_final FROM hot_model_summary"
    )
    assert row[:-1] == (None, None, None, 1, None, ["integer[]"], 2)
    assert 0 < row[-1] < 2 * np.log(3), "a loss, weighted with 2, below that of one who guesses"

"""Scripts for two inputs and two outputs: fit, warm start, evaluate, predict, BYOM, many models, transfer.

MADlib's own script of this kind only has to run; here its results must equal those of Keras.
"""

import numpy as np
import pytest

from tests.helpers.iris import load_iris
from tests.helpers.training import one_thread, quiet_keras, script

pytestmark = pytest.mark.slow

COMPILE = " loss='categorical_crossentropy', optimizer='adam', metrics=['categorical_accuracy'] "
FIT_PARAMS = " batch_size=5, epochs=3 "
KINDS, SIZES = ["Iris-setosa", "Iris-versicolor", "Iris-virginica"], ["false", "true"]
OWN = {
    "sure": """
import keras

def sure(y_true, y_pred):
    return keras.ops.max(y_pred, axis=-1)
""",
    "far": "def far(y_true, y_pred): return (y_true - y_pred) ** 2",
}


def fork(*frozen: str) -> str:
    """Return a network in tf.keras 2.2's format: two inputs of 4, a hidden layer each, outputs of 3 and 2 classes."""
    import json

    def node(name, kind, config, *sources):
        config = {"name": name, "dtype": "float32", "trainable": name not in frozen, **config}
        inbound = [[[source, 0, 0, {}] for source in sources]] if sources else []
        return {"class_name": kind, "name": name, "config": config, "inbound_nodes": inbound}

    scaled = {"class_name": "VarianceScaling", "config": {"dtype": "float32", "distribution": "uniform", "scale": 1.0,
              "seed": None, "mode": "fan_in"}}  # fmt: skip

    def dense(name, units, activation, source):
        return node(name, "Dense", {"units": units, "activation": activation, "kernel_initializer": scaled}, source)

    shape = {"batch_input_shape": [None, 4], "sparse": False}
    layers = [
        node("left", "InputLayer", shape), node("right", "InputLayer", shape), dense("h_left", 6, "relu", "left"),
        dense("h_right", 6, "relu", "right"), node("both", "Concatenate", {"axis": -1}, "h_left", "h_right"),
        dense("kind_of", 3, "softmax", "both"), dense("size_of", 2, "softmax", "h_right"),
    ]  # fmt: skip
    ends = {"input_layers": [["left", 0, 0], ["right", 0, 0]], "output_layers": [["kind_of", 0, 0], ["size_of", 0, 0]]}
    config = {"name": "fork", "layers": layers, **ends}
    document = {"class_name": "Model", "keras_version": "2.2.4-tf", "backend": "tensorflow", "config": config}
    return json.dumps(document)


FIT = (
    f"SELECT madlib.madlib_keras_fit('pairs_packed', 'pairs_model', 'forks', 1, $${COMPILE}$$, $${FIT_PARAMS}$$, 2,"
    " NULL, 'pairs_valid'{})"
)


@pytest.fixture(scope="module")
def first(db):
    """One model, fitted by a call with positional arguments; the value is its losses."""
    one_thread()
    load_iris(db)
    squares = "ARRAY(SELECT a * a FROM unnest(attributes) WITH ORDINALITY AS u (a, n) ORDER BY n) AS squares"
    for name in ("train", "test"):
        db.rows(
            f"CREATE TABLE pairs_{name} AS SELECT id, attributes, {squares}, class_text AS kind,"
            f" attributes[4] > 1.5 AS large FROM iris_{name}"
        )
    for frozen in ((), ("h_left", "h_right", "kind_of", "size_of")):
        db.rows("SELECT madlib.load_keras_model('forks', %s::json)", [fork(*frozen)])
    script(
        db,
        "SET madlib_mop.segments = 2",
        "SELECT madlib.training_preprocessor_dl('pairs_train', 'pairs_packed', 'kind, large', 'attributes, squares',"
        " NULL, 8, seed => 1)",
        "SELECT madlib.validation_preprocessor_dl('pairs_test', 'pairs_valid', 'kind, large', 'attributes, squares',"
        " 'pairs_packed')",
        FIT.format(", seed => 1"),
    )
    return db.rows("SELECT training_loss_final, validation_loss_final FROM pairs_model_summary")[0]


@pytest.fixture(scope="module")
def keras_model(db, first):
    """The fitted model in plain Keras."""
    keras = quiet_keras()
    size = keras.Input((4,)), keras.Input((4,))
    left, right = (keras.layers.Dense(6, "relu")(x) for x in size)
    both = keras.layers.Concatenate()([left, right])
    outputs = [keras.layers.Dense(3, "softmax", name="kind_of")(both), keras.layers.Dense(2, "softmax")(right)]
    model = keras.Model(size, outputs)
    flat = np.frombuffer(bytes(db.value("SELECT model_weights FROM pairs_model")), np.float32)
    arrays = []
    for array in model.get_weights():
        arrays.append(flat[: array.size].reshape(array.shape))
        flat = flat[array.size :]
    model.set_weights(arrays)
    model.compile("sgd", "categorical_crossentropy", metrics=[["categorical_accuracy"], ["categorical_accuracy"]])
    return model


def rows_of(db, table):
    """Return two inputs, float32 (n, 4) each, and the two outputs, one-hot."""
    rows = db.rows(f"SELECT attributes, squares, kind, large FROM {table} ORDER BY id")
    x = [np.array([row[i] for row in rows], np.float32) / np.float32(8) for i in (0, 1)]
    return x, [np.eye(3)[[KINDS.index(row[2]) for row in rows]], np.eye(2)[[int(row[3]) for row in rows]]]


def test_one_metric_is_computed_of_every_output_and_the_first_is_told(db, first, keras_model):
    """metrics=['categorical_accuracy'], not nested, which plain Keras 3 would reject."""
    for data_set, table in (("training", "train"), ("validation", "test")):
        x, y = rows_of(db, f"pairs_{table}")
        expected = keras_model.evaluate(x, y, verbose=0, return_dict=True)
        (found,) = db.rows(f"SELECT {data_set}_loss_final, {data_set}_metrics_final FROM pairs_model_summary")
        assert found == pytest.approx((expected["loss"], expected["kind_of_categorical_accuracy"]), rel=1e-4)
    assert db.rows(
        "SELECT kind_class_values, large_class_values, num_classes, dependent_vartype, metrics_type,"
        " metrics_compute_frequency, compile_params, fit_params FROM pairs_model_summary"
    ) == [
        (KINDS, [False, True], [3, 2], ["character varying", "boolean"], ["categorical_accuracy"], 2, COMPILE,
         FIT_PARAMS)
    ]  # fmt: skip
    db.rows("SELECT madlib.madlib_keras_evaluate('pairs_model', 'pairs_valid', 'pairs_found', FALSE)")
    ((loss, metric, metrics, names),) = db.rows("SELECT loss, metric, metrics, metrics_type FROM pairs_found")
    accuracies = [value for name, value in expected.items() if name.endswith("accuracy")]
    assert (loss, metric, names) == (pytest.approx(expected["loss"], rel=1e-4), metrics[0], ["categorical_accuracy"])
    assert sorted(metrics) == pytest.approx(sorted(accuracies), rel=1e-6) and len(metrics) == 2


def test_predictions_are_those_of_both_outputs(db, first, keras_model):
    """Classes with a probability above one half; all three classes may be below."""
    db.rows(
        "SELECT madlib.madlib_keras_predict('pairs_model', 'pairs_test', 'id', 'attributes, squares', 'pairs_above',"
        " 0.5, FALSE)"
    )
    rows = db.rows("SELECT id, class_name, class_value, prob, rank FROM pairs_above ORDER BY id, class_name")
    x, _ = rows_of(db, "pairs_test")
    kinds, sizes = keras_model.predict(x, verbose=0)
    ids = [row[0] for row in db.rows("SELECT id FROM pairs_test ORDER BY id")]
    expected = []
    for i, kind, size in zip(ids, kinds, sizes, strict=True):
        for name, values, scores in (("kind", KINDS, kind), ("large", SIZES, size)):
            expected += [(i, name, values[u], scores[u]) for u in np.flatnonzero(scores > 0.5)]
    assert [row[:3] for row in rows] == [row[:3] for row in expected]
    assert np.allclose([row[3] for row in rows], [row[3] for row in expected], atol=1e-5)
    assert {row[4] for row in rows} == {1}


def test_weights_that_were_fitted_here_predict_the_same_as_ones_own(db, first, keras_model):
    """Weights copied from the model table into one of architectures; with the data's normalizing constant."""
    db.rows("SELECT madlib.load_keras_model('fitted', model_arch, model_weights) FROM pairs_model")
    db.rows(
        "SELECT madlib.madlib_keras_predict_byom('fitted', 1, 'pairs_test', 'id', 'attributes, squares', 'pairs_byom',"
        " 'response', NULL, ARRAY[%s, ARRAY['false', 'true', NULL]], 8.0, 2)",
        [KINDS],
    )
    x, _ = rows_of(db, "pairs_test")
    kinds, sizes = (scores.argmax(axis=1) for scores in keras_model.predict(x, verbose=0))
    found = db.rows("SELECT class_name, class_value FROM pairs_byom ORDER BY id, class_name")
    assert found == [
        pair
        for kind, size in zip(kinds, sizes, strict=True)
        for pair in (("dependent_var_0", KINDS[kind]), ("dependent_var_1", SIZES[size]))
    ]


def test_many_models_take_such_scripts_too_with_functions_of_ones_own(db, first):
    """MADlib rejects several columns here; metrics default to the last iteration."""
    for name, source in OWN.items():
        db.rows("SELECT madlib.load_custom_function('pair_functions', convert_to(%s, 'UTF8'), %s)", [source, name])
    custom = COMPILE.replace("categorical_accuracy", "sure").replace("categorical_crossentropy", "far")
    script(
        db,
        f"SELECT madlib.load_model_selection_table('forks', 'pairs_mst', ARRAY[1], ARRAY[$${COMPILE}$$, $${custom}$$],"
        " ARRAY['batch_size=16, epochs=1'], 'pair_functions')",
        "SELECT madlib.madlib_keras_fit_multiple_model('pairs_packed', 'pairs_many', 'pairs_mst', 2, FALSE)",
    )
    rows = db.rows(
        "SELECT metrics_type, loss_type, array_length(training_loss, 1), training_metrics_final BETWEEN 0 AND 1,"
        " validation_loss, validation_metrics_final FROM pairs_many_info ORDER BY mst_key"
    )
    named = ("categorical_accuracy", "categorical_crossentropy"), ("sure", "far")
    assert rows == [([metric], loss, 1, True, None, None) for metric, loss in named]
    assert db.value("SELECT metrics_compute_frequency FROM pairs_many_summary") == 2
    names = db.rows("SELECT DISTINCT name FROM madlib_mop.metric JOIN madlib_mop.run USING (run_id)"
                    " WHERE model_output_table = 'public.pairs_many' AND ordinal > 0 ORDER BY 1")  # fmt: skip
    assert [name for (name,) in names] == [
        f"{output}_{name}" for output in ("kind_of", "size_of") for name in ("categorical_accuracy", "sure")
    ]


def test_a_warm_start_goes_on_then_one_with_another_architecture_takes_the_weights(db, first, keras_model):
    """The last test, because it changes the output table. In the other architecture all layers are frozen."""
    db.rows(FIT.format(", 1, TRUE"))
    ((losses, final, n_metrics),) = db.rows(
        "SELECT training_loss, training_loss_final, array_length(training_metrics, 1) FROM pairs_model_summary"
    )
    assert n_metrics == 2 and final == losses[1] < losses[0] < first[0]
    weights = bytes(db.value("SELECT model_weights FROM pairs_model"))
    db.rows("UPDATE forks SET model_weights = (SELECT model_weights FROM pairs_model) WHERE model_id = 2")
    frozen = FIT.replace("'forks', 1", "'forks', 2")
    db.rows(frozen.replace("pairs_model", "pairs_moved").format(", 1"))
    db.rows(frozen.format(", 1, TRUE"))
    for table in ("pairs_moved", "pairs_model"):
        assert bytes(db.value(f"SELECT model_weights FROM {table}")) == weights
        assert db.value(f"SELECT training_loss FROM {table}_summary") == pytest.approx([final] * 2, abs=1e-6)
    kinds = db.rows("SELECT relpersistence::text FROM pg_class WHERE relname ~ '^pairs_model' AND relkind = 'r'")
    assert kinds == [("p",)] * 2

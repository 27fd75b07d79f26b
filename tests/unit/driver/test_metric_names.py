"""Early stopping takes the names of metrics that Keras reports, and no others: compared with Keras itself."""

import keras
import numpy as np
import pytest

from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.planning.early_stopping import plan_early_stopping, reported_names
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.build import compile_model
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.early_stopping import EarlyStopping
from madlib_mop.models.parameters.parser import parse_compile_params


def one_output():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])


def two_outputs():
    x = keras.Input((4,))
    return keras.Model(x, [keras.layers.Dense(3, "softmax", name="kind")(x), keras.layers.Dense(2, name="size")(x)])


@pytest.mark.parametrize("make, text", [
    (one_output, "loss='mse', metrics=['accuracy', AUC(), AUC(), Precision(name='p')], weighted_metrics=['accuracy']"),
    (one_output, "loss='mse'"),
    (two_outputs, "loss='mse', metrics=['mae']"),
    (two_outputs, "loss='mse', metrics=[['mae', AUC(), AUC()], ['mse']], weighted_metrics=[['mae'], ['mae']]"),
    (two_outputs, "loss={'kind': 'mse', 'size': 'mae'}, metrics={'size': ['mae', RootMeanSquaredError()]}"),
])  # fmt: skip
def test_the_names_are_those_of_keras(make, text):
    model, params = make(), parse_compile_params(f"{text}, optimizer='sgd'")
    compile_model(model, params)
    ys = [np.ones((6, *output.shape[1:]), np.float32) for output in model.outputs]
    found = model.evaluate(np.ones((6, 4), np.float32), ys if len(ys) > 1 else ys[0], verbose=0, return_dict=True)
    losses = {f"{output}_loss" for output in model.output_names} if len(ys) > 1 else set()
    assert set(reported_names(params, check_architecture(model.to_json()))) == set(found) - losses


def plan(metric, make=one_output, has_validation=True):
    params = "loss='mse', optimizer='sgd', metrics=['accuracy']"
    arch = check_architecture(make().to_json())
    one = Configuration(1, params, "", arch)
    return plan_early_stopping(f"patience=2, metric={metric}", {7: one}, 9, 1, has_validation)[7]


def test_metrics_that_are_reported_are_planned():
    assert plan("val_loss")["metric"] == "val_loss" and plan("accuracy")["mode"] == "max"
    assert plan("val_kind_accuracy", two_outputs)["metric"] == "val_kind_accuracy"


@pytest.mark.parametrize("metric", ["foo_loss", "val_foo_loss", "x_accuracy", "kind_accuracy", "val_kind_loss"])
def test_a_name_that_only_ends_as_one_is_refused(metric):
    with pytest.raises(InvalidParameter, match=f"mst_key 7 has no such metric. Received: metric={metric}") as caught:
        plan(metric)
    assert caught.value.hint.startswith("Its metrics are loss, accuracy;")
    with pytest.raises(InvalidParameter, match="has no such metric"):
        plan("val_accuracy", two_outputs)


def test_a_rule_whose_metric_never_comes_ends_no_run():
    """An earlier version recorded such rules."""
    told = []
    stops = EarlyStops.__new__(EarlyStops)
    stops._rules = {1: EarlyStopping(patience=1, metric="val_foo_loss", mode="min")}
    stops._series = {1: []}
    stops._progress = type("Progress", (), {"tell": staticmethod(told.append)})
    assert not stops.measured(1, [])
    assert not stops.measured(1, []) and len(told) == 1 and "'val_foo_loss'" in told[0]

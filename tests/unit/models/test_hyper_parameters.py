"""A configuration in parts, for the record: names and values as Keras has them, flat, and good for jsonb."""

import json

import pytest

from madlib_mop.models.configuration import hyper_parameters
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params

LOSS = "loss='categorical_crossentropy'"


def parts(optimizer: str = "'adam'", fit: str = "", arch=None, loss: str = LOSS) -> dict:
    """Return the parts of a configuration of architecture 3."""
    compile_params = parse_compile_params(f"{loss}, optimizer={optimizer}", ["mine"])
    return hyper_parameters(3, compile_params, parse_fit_params(fit), arch or {})


def dense(regularizer=None) -> dict:
    return {"class_name": "Dense", "config": {"units": 2, "kernel_regularizer": regularizer}}


def of_layers(*layers) -> dict:
    return {"class_name": "Sequential", "config": {"layers": list(layers)}}


def l2(value: float) -> dict:
    return {"class_name": "L2", "config": {"l2": value}}


def test_every_argument_has_keras_name_and_its_value():
    found = parts("'SGD(lr=0.05, momentum=0.9, nesterov=True)'", "batch_size=16, epochs=2, shuffle=False")
    assert found == {
        "architecture": 3, "optimizer": "SGD", "learning_rate": 0.05, "momentum": 0.9, "nesterov": True,
        "loss": "categorical_crossentropy", "batch_size": 16, "epochs": 2, "shuffle": False,
    }  # fmt: skip


def test_what_is_not_given_has_the_default_that_it_is_trained_with():
    assert parts() == {
        "architecture": 3, "optimizer": "Adam", "learning_rate": 0.001, "loss": "categorical_crossentropy",
        "batch_size": 32, "epochs": 1,
    }  # fmt: skip


def test_equivalent_texts_have_the_same_parts():
    as_json = '{"class_name": "adam", "config": {"learning_rate": 0.01}}'
    assert parts(as_json) == parts("'Adam(lr=0.01)'") == parts("Adam(0.01)")


def test_a_schedule_has_its_first_rate_and_its_arguments():
    found = parts("Adam(ExponentialDecay(0.1, decay_steps=100, decay_rate=0.9))")
    assert found["learning_rate"] == 0.1 and found["learning_rate_schedule"] == "ExponentialDecay"
    assert (found["schedule_decay_steps"], found["schedule_decay_rate"]) == (100, 0.9)
    found = parts("SGD(PiecewiseConstantDecay([10, 20], [0.5, 0.1, 0.01]))")
    assert found["learning_rate"] == 0.5 and found["schedule_boundaries"] == "[10, 20]"


@pytest.mark.parametrize(
    "layers, expected",
    [
        ((dense(l2(0.01)), dense(l2(0.01)), dense()), {"l2": 0.01}),
        ((dense(l2(0.01)), dense(l2(0.02))), {}),
        ((dense({"class_name": "L1L2", "config": {"l1": 0.1, "l2": 0.0}}),), {"l1": 0.1}),
        (({"class_name": "Dropout", "config": {"rate": 0.3}}, dense()), {"dropout": 0.3}),
        ((dense(),), {}),
    ],
)
def test_regularization_is_known_if_all_layers_have_the_same(layers, expected):
    found = parts(arch=of_layers(*layers))
    assert {name: found[name] for name in ("l1", "l2", "dropout") if name in found} == expected


def test_losses_of_several_outputs_and_class_weights_are_texts():
    found = parts(loss="loss=['mse', 'mine']", fit="class_weight={0: 1.0, 1: 2.5}")
    assert (found["loss"], found["class_weight"]) == ("mse, mine", "{0: 1.0, 1: 2.5}")


@pytest.mark.parametrize("monitor", ["a\\x00b", "\\ud800"])
def test_every_value_is_one_that_jsonb_takes(monitor):
    """PostgreSQL refuses the character 0 and single surrogates in jsonb, and JSON has no infinity."""
    found = parts(fit=f"callbacks=[EarlyStopping(monitor='{monitor}')]")
    read = json.loads(json.dumps(found, allow_nan=False))
    assert read == found and "EarlyStopping" in found["callbacks"]
    assert all(value.isprintable() for value in read.values() if isinstance(value, str))

"""Python dictionaries as compile and fit parameters, and models as architectures."""

import json

import numpy as np
import pytest

from madlib_mop.client.calling.parameters import parameters_text
from madlib_mop.client.networks import architectures_of, texts_of
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params
from tests.helpers.unit.documents import dense, keras_3, layer


@pytest.mark.parametrize(
    "optimizer",
    [
        "Adam(learning_rate=0.01, beta_1=0.8)",
        {"name": "Adam", "learning_rate": 0.01, "beta_1": 0.8},
        {"name": "Adam", "learning_rate": np.float64(0.01), "beta_1": 0.8},
    ],
)
def test_an_optimizer_is_a_text_or_a_dict(optimizer):
    text = parameters_text({"optimizer": optimizer, "loss": "mse", "metrics": ["mae"]}, "compile")
    parsed = parse_compile_params(text)
    assert parsed.optimizer.name == "Adam" and parsed.optimizer.kwargs == {"learning_rate": 0.01, "beta_1": 0.8}
    assert parsed.loss == "mse"


def test_optimizers_of_keras_can_be_given(keras):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 200)
    for optimizer in (keras.optimizers.Adam(0.01), keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)):
        text = parameters_text({"optimizer": optimizer, "loss": "mse"}, "compile")
        parsed = parse_compile_params(text).optimizer
        assert parsed.name == type(optimizer).__name__
        if parsed.name == "Adam":
            assert parsed.kwargs["learning_rate"] == pytest.approx(0.01)
        else:
            assert parsed.kwargs["learning_rate"].name == "CosineDecay" and parsed.kwargs["nesterov"] is True


def test_fit_parameters_keep_their_values():
    text = parameters_text({"batch_size": np.int64(16), "epochs": 2, "class_weight": {0: 1.0, 1: 2.5}}, "fit")
    parsed = parse_fit_params(text)
    assert (parsed.batch_size, parsed.epochs, parsed.class_weight) == (16, 2, {0: 1.0, 1: 2.5})


@pytest.mark.parametrize(
    "params, what",
    [
        ({"optimizer": "Adam", "loss": print}, "compile"),
        ({"optimizer": {"learning_rate": 0.1}, "loss": "mse"}, "compile"),
        ({"optimizer": 3, "loss": "mse"}, "compile"),
        ({"optimizer": "Adam", "loss": "mse", "metrics": [float("nan")]}, "compile"),
        ({"batch size": 3}, "fit"),
        ({"batch_size": 0}, "fit"),
        ({"batch_sise": 3}, "fit"),
        ([], "fit"),
        (3, "fit"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused_at_once(params, what):
    with pytest.raises(MopError):
        texts_of(params, what)


def test_models_are_keras_models_texts_or_dicts():
    class Model:
        def to_json(self):
            return json.dumps(keras_3(dense()))

    document = keras_3(dense())
    assert len(architectures_of([Model(), document, json.dumps(document)])) == 3
    assert architectures_of(document) == [json.dumps(document)]


@pytest.mark.parametrize("model", [keras_3(layer("Lambda", function="x")), "{", 3, []])
def test_models_with_code_and_other_things_are_refused_at_once(model):
    with pytest.raises(MopError):
        architectures_of(model)


def test_a_bad_parameter_is_an_invalid_parameter_with_its_name():
    with pytest.raises(InvalidParameter, match="loss must be a text"):
        parameters_text({"loss": print}, "compile")

"""The tables of names and arguments agree with the installed Keras."""

import inspect
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
from keras import layers  # noqa: E402
from keras.src import activations, constraints, initializers, losses, metrics, regularizers  # noqa: E402
from keras.src.ops import nn, numpy  # noqa: E402
from keras.src.ops.operation import Operation  # noqa: E402

from madlib_mop.models import keras_layers  # noqa: E402
from madlib_mop.models.parameters import keras_names  # noqa: E402

TABLES = {
    "optimizers": (keras_names.OPTIMIZERS, keras.optimizers),
    "schedules": (keras_names.SCHEDULES, keras.optimizers.schedules),
    "losses": (keras_names.LOSSES, keras.losses),
    "metrics": (keras_names.METRICS, keras.metrics),
    "callbacks": (keras_names.CALLBACKS, keras.callbacks),
    "recorded callbacks": (keras_names.RECORDED_CALLBACKS, keras.callbacks),
}
CLASSES = [(kind, name) for kind, (table, _) in TABLES.items() for name in table]


def parameters(kind, name):
    found = inspect.signature(getattr(TABLES[kind][1], name)).parameters.values()
    return [item for item in found if item.kind is not item.VAR_KEYWORD]


@pytest.mark.parametrize("kind,name", CLASSES, ids=lambda value: value)
def test_arguments_are_those_of_keras_in_their_order(kind, name):
    found = parameters(kind, name)
    assert tuple(item.name for item in found) == TABLES[kind][0][name]
    required = tuple(item.name for item in found if item.default is item.empty)
    assert required == keras_names.REQUIRED.get(name, ())


@pytest.mark.parametrize("kind,name", CLASSES, ids=lambda value: value)
def test_defaults_of_keras_are_of_the_kinds_in_the_table(kind, name):
    from madlib_mop.models.parameters.calls import check_kind

    for item in parameters(kind, name):
        default = list(item.default) if isinstance(item.default, tuple) else item.default
        if default is not item.empty and not (default is None and item.name in ("name", "alpha")):
            check_kind(default, keras_names.ARGUMENT_KINDS.get(item.name), f"{name}.{item.name}")


def test_all_losses_of_keras_are_known():
    known = {*keras_names.LOSSES, *keras_names.LOSS_STRINGS, *keras_names.LOSS_BASES}
    extra = {"ce", "crossentropy", "CategoricalGeneralizedCrossEntropy"}  # accepted by compile(), or as a class only
    assert known - extra == set(losses.ALL_OBJECTS_DICT)


def test_all_metrics_of_keras_are_known():
    known = {*keras_names.METRICS, *keras_names.METRIC_STRINGS, *keras_names.METRIC_BASES}
    assert known - {"acc"} == set(metrics.ALL_OBJECTS_DICT)


def test_old_names_lead_to_names_of_keras_3():
    assert set(keras_names.OLD_LOSSES.values()) <= keras_names.LOSS_STRINGS
    assert set(keras_names.OLD_METRICS.values()) <= keras_names.METRIC_STRINGS


def test_default_learning_rates():
    for name, rate in keras_names.DEFAULT_LEARNING_RATES.items():
        assert inspect.signature(getattr(keras.optimizers, name)).parameters["learning_rate"].default == rate


@pytest.mark.parametrize("name", keras_names.METRICS)
def test_default_names_of_metrics(name):
    default = inspect.signature(getattr(keras.metrics, name)).parameters["name"].default
    ours = keras_names.METRIC_NAMES.get(name, keras_names.snake_case(name))
    assert default in (None, ours)
    assert keras_names.snake_case(name) == keras.src.utils.naming.to_snake_case(name)


def test_every_layer_of_keras_is_either_allowed_or_refused_with_a_reason():
    found = {name for name in dir(layers) if inspect.isclass(getattr(layers, name))}
    assert found - set(keras_layers.REFUSED_LAYERS) == keras_layers.LAYERS


def test_small_objects_are_all_those_of_keras_but_the_bases():
    for table, module, base in (
        (keras_layers.ACTIVATIONS, activations, ""),
        (keras_layers.INITIALIZERS, initializers, "initializer"),
        (keras_layers.REGULARIZERS, regularizers, "regularizer"),
        (keras_layers.CONSTRAINTS, constraints, "constraint"),
    ):
        found = set(module.ALL_OBJECTS_DICT) - {keras_layers.KERAS_2_HARD_SIGMOID}  # models/build.py adds it
        assert {name for name in found if name.lower() != base} == table


def test_operations_are_classes_of_their_modules():
    modules = {"keras.src.ops.numpy": numpy, "keras.src.ops.nn": nn}
    for name, module in keras_layers.OPERATIONS.items():
        assert issubclass(getattr(modules[module], name), Operation)

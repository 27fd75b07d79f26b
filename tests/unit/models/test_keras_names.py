"""The tables of names and arguments agree with the installed Keras."""

import inspect
import os
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
from keras import layers  # noqa: E402
from keras.src import activations, constraints, initializers, losses, metrics, regularizers  # noqa: E402
from keras.src.ops import nn, numpy  # noqa: E402
from keras.src.ops.operation import Operation  # noqa: E402
from keras.src.utils.naming import to_snake_case  # noqa: E402

from madlib_mop.errors import MopError  # noqa: E402
from madlib_mop.models import keras_layers  # noqa: E402
from madlib_mop.models.parameters import keras_names  # noqa: E402
from madlib_mop.models.parameters.calls import check_kind  # noqa: E402
from tests.helpers.unit.findings import assert_none, places_of  # noqa: E402

TABLES = {
    "optimizers": (keras_names.OPTIMIZERS, keras.optimizers),
    "schedules": (keras_names.SCHEDULES, keras.optimizers.schedules),
    "losses": (keras_names.LOSSES, keras.losses),
    "metrics": (keras_names.METRICS, keras.metrics),
    "callbacks": (keras_names.CALLBACKS, keras.callbacks),
    "recorded callbacks": (keras_names.RECORDED_CALLBACKS, keras.callbacks),
}
# Names in Keras' own dictionaries that compile() cannot use: base classes, wrappers, means of values.
LOSS_BASES = {"Loss", "LossFunctionWrapper"}
METRIC_BASES = set("Mean MeanMetricWrapper Metric Sum mean mean_metric_wrapper metric sum".split())
FILE = "madlib_mop/models/parameters/keras_names.py"
CLASSES = [(kind, name) for kind, (table, _) in TABLES.items() for name in table]


def place_of(key: tuple[str, str]) -> str:
    """Return where a class is in the tables, its kind and its name; losses and metrics share some names."""
    kind, name = key
    return f"{' or '.join(places_of(f'    {name}=', FILE)) or FILE}: {kind}: {name}"


def parameters(kind, name):
    found = inspect.signature(getattr(TABLES[kind][1], name)).parameters.values()
    return [item for item in found if item.kind is not item.VAR_KEYWORD]


def test_arguments_are_those_of_keras_in_their_order():
    found = {(kind, name): parameters(kind, name) for kind, name in CLASSES}
    ours = {(kind, name): (TABLES[kind][0][name], keras_names.REQUIRED.get(name, ())) for kind, name in CLASSES}
    theirs = {
        key: (tuple(item.name for item in items), tuple(item.name for item in items if item.default is item.empty))
        for key, items in found.items()
    }
    assert_none(f"{place_of(key)}: Keras {theirs[key]}, we {ours[key]}" for key in CLASSES if theirs[key] != ours[key])


def defaults_of_other_kinds(kind: str, name: str) -> Iterator[str]:
    """Yield the defaults of a class of Keras that its kind of argument would refuse."""
    for item in parameters(kind, name):
        default = list(item.default) if isinstance(item.default, tuple) else item.default
        if default is not item.empty and not (default is None and item.name in ("name", "alpha")):
            try:
                check_kind(default, keras_names.ARGUMENT_KINDS.get(item.name), f"{name}.{item.name}")
            except MopError as error:
                yield error.message


def test_defaults_of_keras_are_of_the_kinds_in_the_table():
    assert_none(f"{place_of(key)}: {found}" for key in CLASSES for found in defaults_of_other_kinds(*key))


def test_all_losses_of_keras_are_known():
    known = {*keras_names.LOSSES, *keras_names.LOSS_STRINGS, *LOSS_BASES}
    extra = {"ce", "crossentropy", "CategoricalGeneralizedCrossEntropy"}  # accepted by compile(), or as a class only
    assert known - extra == set(losses.ALL_OBJECTS_DICT)


def test_all_metrics_of_keras_are_known():
    known = {*keras_names.METRICS, *keras_names.METRIC_STRINGS, *METRIC_BASES}
    assert known - {"acc"} == set(metrics.ALL_OBJECTS_DICT)


def test_old_names_lead_to_names_of_keras_3():
    assert set(keras_names.OLD_LOSSES.values()) <= keras_names.LOSS_STRINGS
    assert set(keras_names.OLD_METRICS.values()) <= keras_names.METRIC_STRINGS


def test_default_learning_rates():
    for name, rate in keras_names.DEFAULT_LEARNING_RATES.items():
        assert inspect.signature(getattr(keras.optimizers, name)).parameters["learning_rate"].default == rate


def test_default_names_of_metrics():
    found = []
    for name in keras_names.METRICS:
        ours, default = keras_names.METRIC_NAMES.get(name, keras_names.snake_case(name)), default_name(name)
        if default not in (None, ours):
            found.append(f"{place_of(('metrics', name))}: the default name is {default!r}, we have {ours!r}")
        if keras_names.snake_case(name) != to_snake_case(name):
            found.append(f"{place_of(('metrics', name))}: Keras writes {to_snake_case(name)!r} in snake case")
    assert_none(found)


def default_name(name: str) -> str | None:
    """Return the default of a metric's argument ``name``."""
    return inspect.signature(getattr(keras.metrics, name)).parameters["name"].default


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

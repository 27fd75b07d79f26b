"""Models for the tests of the registry: networks whose answers tell the version, in tables as a run writes them."""

import numpy as np

from tests.helpers.inference import Dependent, ModelTable, User

WIDTH = 3
CLASSES = ["a", "b", "c"]
NUMBERS = ModelTable(
    compile_params="loss='mse', optimizer='sgd'", metrics_type=None, loss_type="mse",
    dependent=[Dependent("y", "real")],
)  # fmt: skip
X = "ARRAY[1, 0, 2]"


def number_net(keras, value: float):
    """Return a network that predicts this number for every row of three numbers."""
    net = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    net.set_weights([np.zeros((WIDTH, 1), np.float32), np.array([value], np.float32)])
    return net


def class_net(keras, quality: float):
    """Return a classifier of one-hot rows: with 1 it finds the class, with 0 it always answers the first, with -1 never
    the right one."""
    net = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, "softmax")])
    net.set_weights([np.eye(WIDTH, dtype=np.float32) * 4 * quality, np.array([0.1, 0, 0], np.float32)])
    return net


def write_numbers(user: User, keras, table: str, values: list[float]) -> None:
    """Write a table of models, by mst_key from 1, each of which predicts one number."""
    user.write_models(table, {i: number_net(keras, value) for i, value in enumerate(values, 1)}, NUMBERS)


def write_classifiers(user: User, keras, table: str, qualities: list[float]) -> None:
    """Write a table of classifiers, by mst_key from 1."""
    nets = {i: class_net(keras, quality) for i, quality in enumerate(qualities, 1)}
    user.write_models(table, nets, ModelTable(dependent=[Dependent(values=CLASSES)]))


def answer(user: User, model: str) -> float:
    """Return the number that a model of `number_net` predicts."""
    (value,) = user.value(f"SELECT madlib_mop.predict(%s, NULL, {X})", model)
    return value

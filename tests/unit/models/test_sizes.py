"""Sizes of networks by their JSON alone, compared with Keras."""

import json

import pytest

from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.sizes import NetworkSize, optimizer_slots, size_of
from tests.helpers.training import one_thread, quiet_keras


def networks():
    one_thread()
    keras = quiet_keras()
    layers = keras.layers
    inputs = keras.Input((12,))
    branch = layers.Dense(5, activation="relu")(inputs)
    joined = layers.Concatenate()([branch, layers.Dense(7)(inputs)])
    image = keras.Input((9, 9, 4))
    shortcut = layers.Conv2D(4, 3, padding="same", use_bias=False)(image)
    image_out = layers.GlobalAveragePooling2D()(layers.Add()([layers.BatchNormalization()(shortcut), image]))
    return {
        "perceptron": keras.Sequential([keras.Input((17,)), layers.Dense(64), layers.Dense(3, use_bias=False)]),
        "images": keras.Sequential(
            [
                keras.Input((11, 10, 3)), layers.Conv2D(8, 3, strides=2, padding="same"), layers.MaxPooling2D(2),
                layers.Conv2D(6, (2, 1)), layers.Flatten(), layers.Dropout(0.5), layers.Dense(10),
            ]
        ),  # fmt: skip
        "sequences": keras.Sequential(
            [
                keras.Input((20,)), layers.Embedding(50, 6), layers.LSTM(8, return_sequences=True), layers.GRU(5),
                layers.LayerNormalization(), layers.Dense(2),
            ]
        ),  # fmt: skip
        "both ways": keras.Sequential([keras.Input((7, 3)), layers.Bidirectional(layers.LSTM(4)), layers.Dense(2)]),
        "separable": keras.Sequential([keras.Input((8, 8, 3)), layers.SeparableConv2D(5, 3), layers.Flatten()]),
        "graph": keras.Model(inputs, layers.Dense(2)(joined)),
        "residual": keras.Model(image, layers.Dense(3)(image_out)),
        "inside": keras.Sequential([keras.Input((4,)), keras.Sequential([layers.Dense(6)]), layers.Dense(1)]),
    }  # fmt: skip


@pytest.mark.tensorflow
def test_numbers_of_weights_are_those_of_keras():
    for name, model in networks().items():
        found = size_of(check_architecture(json.loads(model.to_json())))
        assert found.n_weights == model.count_params(), name
        assert found.n_layers >= 1 and found.n_multiplications > 0, name


@pytest.mark.tensorflow
def test_multiplications_are_those_of_the_layers():
    found = size_of(check_architecture(json.loads(networks()["images"].to_json())))
    first, second, last = 6 * 5 * 8 * 3 * 9, 2 * 2 * 6 * 8 * 2, 24 * 10
    assert found.n_multiplications == first + second + last


def test_an_unknown_layer_counts_as_one_that_keeps_its_input():
    layer = {"class_name": "SomethingNew", "config": {"name": "new"}}
    document = {"class_name": "Sequential", "config": {"layers": [layer]}}
    assert size_of(document, [(3, 2)]) == NetworkSize(1, 0, 0, 6)


def test_optimizers_keep_numbers_for_each_weight():
    assert [optimizer_slots(*one) for one in (("Adam", {}), ("SGD", {}), ("SGD", {"momentum": 0.9}))] == [2, 0, 1]
    assert optimizer_slots("Adam", {"amsgrad": True}) == 3

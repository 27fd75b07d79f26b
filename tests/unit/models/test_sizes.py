"""Sizes of networks by their JSON alone, compared with Keras."""

import json

import pytest

from madlib_mop.errors import MopError
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.sizes import NetworkSize, optimizer_slots, size_of
from tests.helpers.training import one_thread, quiet_keras


def networks():
    one_thread()
    keras = quiet_keras()
    layers = keras.layers
    built = keras.Sequential([layers.Dense(6), layers.Dense(1)])
    built.build((None, 4))
    inputs = keras.Input((12,))
    branch = layers.Dense(5, activation="relu")(inputs)
    joined = layers.Concatenate()([branch, layers.Dense(7)(inputs)])
    image = keras.Input((9, 9, 4))
    terms, weights = keras.Input((6,)), keras.Input((6,))
    weighted = layers.Dot(axes=[1, 1])([weights, layers.Embedding(50, 5)(terms)])
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
        "terms": keras.Model([terms, weights], layers.Dense(3)(weighted)),
        "residual": keras.Model(image, layers.Dense(3)(image_out)),
        "no input layer": built,
        "transposed": keras.Sequential(
            [keras.Input((5, 4, 3)), layers.Conv2DTranspose(2, 3, strides=2), layers.Flatten(), layers.Dense(1)]
        ),
        "normalized": keras.Sequential(
            [keras.Input((4,)), layers.BatchNormalization(scale=False), layers.LayerNormalization(center=False)]
        ),
        "inside": keras.Sequential([keras.Input((4,)), keras.Sequential([layers.Dense(6)]), layers.Dense(1)]),
    }  # fmt: skip


@pytest.mark.tensorflow
def test_numbers_of_weights_are_those_of_keras():
    for name, model in networks().items():
        found = size_of(check_architecture(json.loads(model.to_json())))
        assert found.n_weights == model.count_params(), name
        assert found.n_layers >= 1 and found.n_multiplications > 0 and not found.not_counted, name


@pytest.mark.tensorflow
def test_multiplications_are_those_of_the_layers():
    found = size_of(check_architecture(json.loads(networks()["images"].to_json())))
    first, second, last = 6 * 5 * 8 * 3 * 9, 2 * 2 * 6 * 8 * 2, 24 * 10
    assert found.n_multiplications == first + second + last
    found = size_of(check_architecture(json.loads(networks()["terms"].to_json())))
    assert found.n_multiplications == 6 * 5 + 6 * 5 + 5 * 3, "a lookup counts as a product"


def test_an_unknown_layer_counts_as_one_that_keeps_its_input():
    layer = {"class_name": "SomethingNew", "config": {"name": "new"}}
    document = {"class_name": "Sequential", "config": {"layers": [layer]}}
    assert size_of(document, [(3, 2)]) == NetworkSize(1, 0, 0, 6)


def of_layers(*layers, shape=(None, 6, 4)):
    """Return a checked Sequential network: classes of its layers, each with its arguments."""
    start = {"class_name": "InputLayer", "config": {"batch_shape": list(shape), "name": "input"}}
    nodes = [{"class_name": name, "config": {"name": f"layer_{n}", **of}} for n, (name, of) in enumerate(layers)]
    return check_architecture({"class_name": "Sequential", "config": {"name": "net", "layers": [start, *nodes]}})


@pytest.mark.parametrize(
    "name, config",
    [
        ("TimeDistributed", {"layer": {"class_name": "Dense", "config": {"units": 3}}}),
        ("DepthwiseConv1D", {"kernel_size": 2}),
        ("Conv1D", {"filters": 4, "kernel_size": 2, "groups": 2}),
        ("Conv1D", {"filters": 4, "kernel_size": 2, "dilation_rate": [2]}),
        ("ZeroPadding1D", {"padding": 1}),
        ("Concatenate", {"axis": 1}),
        ("LayerNormalization", {"axis": [1, 2]}),
        ("Bidirectional", {"layer": {"class_name": "RNN", "config": {}}}),
    ],
)
def test_layers_that_are_not_counted_are_named(name, config):
    arch = of_layers((name, config))
    assert size_of(arch).not_counted == {name}
    assert Configuration(1, "", "", arch).multiplications is None


def test_a_network_is_not_counted_if_an_input_has_no_fixed_shape_or_a_layer_is_shared():
    assert size_of(of_layers(("Dense", {"units": 2}), shape=(None, None, 4))).not_counted == {"InputLayer"}
    keras = quiet_keras()
    inputs, shared = [keras.Input((3,)), keras.Input((3,))], keras.layers.Dense(2)
    network = keras.Model(inputs, keras.layers.Add()([shared(one) for one in inputs]))
    assert size_of(check_architecture(json.loads(network.to_json()))).not_counted == {"Dense"}


@pytest.mark.parametrize(
    "name, config, shape",
    [
        ("LSTM", {"units": 2}, (None,)),
        ("Conv2D", {"filters": 2, "kernel_size": [3, 3], "strides": [1, 1]}, (None,)),
        ("Bidirectional", {"layer": "LSTM"}, (None, 6, 4)),
        ("Bidirectional", {}, (None, 6, 4)),
        ("Dense", {"layers": [7], "units": 2}, (None, 6, 4)),
        ("Dense", {"units": 2}, (None, -6, 4)),
        ("Dense", {"units": 2}, (None, "6", 4)),
    ],
)
def test_a_malformed_layer_is_an_error_of_its_own_and_no_configuration_fails_by_it(name, config, shape):
    arch = of_layers((name, config), shape=shape)
    try:
        assert size_of(arch).not_counted
    except MopError as error:
        assert error.message == "model_arch: the size of the network cannot be computed: a layer is malformed"
    assert Configuration(1, "", "", arch).multiplications is None


def test_wrappers_in_wrappers_are_walked_once():
    """Two walks for each of them would be 2 ** 40."""
    inner = {"class_name": "LSTM", "config": {"units": 2}}
    for _ in range(40):
        inner = {"class_name": "Bidirectional", "config": {"layer": inner}}
    assert size_of(of_layers((inner["class_name"], inner["config"]))).not_counted == {"Bidirectional"}


def test_numbers_fit_into_the_record():
    found = size_of(of_layers(("Dense", {"units": 2**62}), ("Dense", {"units": 2**62})))
    assert found.n_multiplications == found.n_weights == 2**63 - 1 and not found.not_counted


def test_optimizers_keep_numbers_for_each_weight():
    assert [optimizer_slots(*one) for one in (("Adam", {}), ("SGD", {}), ("SGD", {"momentum": 0.9}))] == [2, 0, 1]
    assert optimizer_slots("Adam", {"amsgrad": True}) == 3

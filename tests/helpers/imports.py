"""Sixteen kinds of networks as Keras itself saves them, and files of weights in Keras' formats: imports read them."""

import io
import tempfile
from pathlib import Path

import h5py
import numpy as np

from tests.helpers.exports import N_ROWS, Network, draw, networks


def imported_networks(keras) -> dict[str, Network]:
    """Return the networks by name: those of exports, and what only files of Keras have."""
    made = networks(keras)
    layers, rng = keras.layers, np.random.default_rng(5)

    def numbers(*shape):
        return rng.normal(size=(N_ROWS, *shape)).astype(np.float32)

    more = {
        "shared_layers": (_shared(keras), [numbers(4), numbers(4)]),
        "nested_models": (_nested(keras), [numbers(6)]),
        "adapted_normalization": (_adapted(keras, numbers(3) * 7 + 2), [numbers(3)]),
        "time_distributed": (keras.Sequential([
            keras.Input((5, 4)), layers.TimeDistributed(keras.Sequential([layers.Dense(3), layers.PReLU()])),
            layers.SimpleRNN(4), layers.Dense(2),
        ]), [numbers(5, 4)]),
        "stacked_cells": (keras.Sequential([
            keras.Input((5, 3)), layers.RNN([layers.GRUCell(4), layers.LSTMCell(3)]), layers.UnitNormalization(),
            layers.SpectralNormalization(layers.Dense(2)),
        ]), [numbers(5, 3)]),
        "frozen_base": (_frozen(keras), [numbers(8, 8, 2)]),
    }  # fmt: skip
    for name, (model, xs) in more.items():
        draw(model, np.random.default_rng(len(name)))
        for layer in model._flatten_layers():
            if isinstance(layer, layers.Normalization):
                layer.finalize_state()  # set_weights does not; loading a file does
        made[name] = Network(model, xs)
    return made


def _shared(keras):
    layers = keras.layers
    one, other = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    tower = keras.Sequential([layers.Dense(5, "relu", name="first"), layers.BatchNormalization()], name="tower")
    head = layers.Dense(3, name="head")
    a, b = tower(one), tower(other)
    joined = layers.Concatenate()([head(a), head(b), layers.Multiply()([a, b])])
    return keras.Model([one, other], {"y": layers.Dense(2, name="y")(joined)})


def _nested(keras):
    layers = keras.layers
    deep = [layers.Dense(4, name="deep"), layers.Dropout(0.2)]
    innermost = keras.Sequential([keras.Input((5,)), *deep], name="innermost")
    x = keras.Input((6,))
    middle = keras.Model(x, innermost(layers.Dense(5, "tanh", name="entry")(x)), name="middle")
    ends = [layers.Dense(4, name="deep"), layers.Dense(2, "softmax")]
    return keras.Sequential([keras.Input((6,)), middle, *ends])


def _adapted(keras, rows):
    normalization = keras.layers.Normalization(name="scale")
    normalization.adapt(rows)
    inner = keras.Sequential([keras.Input((3,)), normalization, keras.layers.Dense(4)], name="inner")
    return keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(2, "softmax")])


def _frozen(keras):
    layers = keras.layers
    convolutions = [layers.SeparableConv2D(4, 3), layers.BatchNormalization(), layers.Conv2DTranspose(3, 2)]
    base = keras.Sequential([keras.Input((8, 8, 2)), *convolutions], name="base")
    base.trainable = False
    return keras.Sequential([keras.Input((8, 8, 2)), base, layers.GlobalMaxPooling2D(), layers.Dense(3)])


def saved(model, **arguments) -> bytes:
    """Return the .keras file that Keras writes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path, **arguments)
        return path.read_bytes()


def saved_weights(model, name: str = "model.weights.h5") -> bytes:
    """Return the file of weights that Keras writes: ``.weights.h5``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        model.save_weights(path)
        return path.read_bytes()


def legacy_weights(model, whole: bool = False) -> bytes:
    """Return the legacy HDF5 file of a model: as Keras 2's ``save_weights('x.h5')``, or of the whole model."""
    from keras.src.legacy.saving import legacy_h5_format

    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        group = file.create_group("model_weights") if whole else file
        legacy_h5_format.save_weights_to_hdf5_group(group, model)
    return out.getvalue()


def safetensors_of(model, **metadata: str) -> bytes:
    """Return a safetensors file with each weight under its path in Keras."""
    from safetensors.numpy import save

    return save({weight.path: np.ascontiguousarray(weight.numpy()) for weight in model.weights}, metadata or None)


def file_of_keras_3(arrays: dict[str, np.ndarray], **attributes: str) -> bytes:
    """Return an HDF5 file with arrays by path; an attribute ``a__b`` is the name of the layer at ``a/b``."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for path, array in arrays.items():
            file[path] = array
        for place, name in attributes.items():
            file.require_group(f"{place.replace('__', '/')}/vars").attrs["name"] = name
    return out.getvalue()

"""Models as users write them in plain Keras, and rows for them."""

import keras
import numpy as np
from keras import layers

from madlib_mop.models.build import build_architecture, compile_model

ROWS = 24


def build_model(config, compile_params, seed=None, custom=None):
    """Return the compiled model of a configuration, as a trainer makes it."""
    model = build_architecture(config, seed)
    compile_model(model, compile_params, custom)
    return model


def perceptron():
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, activation="relu", kernel_initializer="he_uniform", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(3, activation="softmax", bias_constraint=keras.constraints.MaxNorm(2.0)),
        ]
    )


def convolutional():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(1 / 16),
            layers.Conv2D(4, 3, padding="same", kernel_regularizer=keras.regularizers.L1L2(1e-4, 1e-4)),
            layers.LeakyReLU(negative_slope=0.1),
            layers.SeparableConv2D(4, 3, activation=keras.activations.gelu),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(3, activation=layers.Softmax(), kernel_initializer=keras.initializers.VarianceScaling(2.0)),
        ]
    )


def functional():
    one, other = keras.Input((4,), name="one"), keras.Input((4,), name="other")
    shared = layers.Dense(4, activation="tanh", name="shared")
    joined = layers.Concatenate()([shared(one), shared(other)]) + layers.Dense(8)(one)
    joined = keras.ops.relu(joined[:, 1:])
    kind = layers.Dense(3, activation="softmax", name="kind")(joined)
    return keras.Model([one, other], [kind, layers.Dense(1, name="amount")(joined)])


def recurrent():
    return keras.Sequential(
        [
            keras.Input((5, 4)),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True, dropout=0.1)),
            layers.TimeDistributed(layers.Dense(4, activation="relu")),
            layers.GRU(3),
            layers.Dense(3, activation="softmax"),
        ]
    )


def nested():
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu")], name="inner")
    inner.trainable = False
    x = keras.Input((4,))
    attended = layers.MultiHeadAttention(2, 2)(layers.Reshape((5, 1))(inner(x)), layers.Reshape((5, 1))(inner(x)))
    return keras.Model(x, layers.Dense(3, activation="softmax")(layers.Flatten()(attended)))


def data_for(model, seed=0):
    rng = np.random.default_rng(seed)
    xs = [rng.random((ROWS, *tensor.shape[1:]), np.float32) for tensor in model.inputs]
    if model.inputs[0].name.startswith("words"):
        xs[0] = np.floor(xs[0] * 20)
    ys = [
        np.eye(3, dtype=np.float32)[rng.integers(3, size=ROWS)] if tensor.shape[-1] == 3 else rng.random((ROWS, 1))
        for tensor in model.outputs
    ]
    return (xs[0] if len(xs) == 1 else xs), (ys[0] if len(ys) == 1 else ys)

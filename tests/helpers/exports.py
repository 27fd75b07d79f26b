"""Ten kinds of networks with inputs for them: what exports must express."""

from dataclasses import dataclass

import numpy as np

#: Dense kernels compute this number of rows without a rest, so plain Keras gives the same bits as a batch of any size.
N_ROWS = 48
#: Networks for which TensorFlow's arithmetic optimization changes one unit in the last place. Keras' own ``predict``
#: uses it, trainers do not.
LAST_BIT = {"attention": 6e-8}


@dataclass(frozen=True)
class Network:
    """A network with random weights, and rows for it: float32 (`N_ROWS`, ...) for each input."""

    model: object
    xs: list[np.ndarray]

    @property
    def n_outputs(self) -> int:
        return len(self.model.outputs)


def networks(keras) -> dict[str, Network]:
    """Return the networks by name; the same in each process."""
    keras.utils.set_random_seed(11)
    layers, rng = keras.layers, np.random.default_rng(7)

    def numbers(*shape):
        return rng.normal(size=(N_ROWS, *shape)).astype(np.float32)

    def codes(n, *shape):
        return rng.integers(0, n, (N_ROWS, *shape)).astype(np.float32)

    made = {
        "dense": (_dense(keras), [numbers(6)]),
        "one_unit": (keras.Sequential([
            keras.Input((5,)), layers.Dense(7, "gelu"), layers.Dropout(0.3), layers.Dense(1, "sigmoid"),
        ]), [numbers(5)]),
        "inputs_and_outputs": (_inputs_and_outputs(keras), [numbers(4), numbers(3, 2)]),
        "embedding": (_embedding(keras), [numbers(3), codes(9, 1)]),
        "lstm": (keras.Sequential([
            keras.Input((None, 3)), layers.LSTM(5, return_sequences=True), layers.LSTM(4), layers.Dense(3, "softmax"),
        ]), [numbers(6, 3)]),
        "bidirectional_gru": (keras.Sequential([
            keras.Input((7, 2)), layers.Bidirectional(layers.GRU(4)), layers.Dense(2, "softmax"),
        ]), [numbers(7, 2)]),
        "attention": (_attention(keras), [codes(20, 8)]),
        "convolution": (keras.Sequential([
            keras.Input((12, 12, 3)), layers.Rescaling(0.5), layers.Conv2D(6, 3, padding="same", activation="relu"),
            layers.BatchNormalization(), layers.MaxPooling2D(), layers.DepthwiseConv2D(3), layers.SeparableConv2D(4, 2),
            layers.GlobalAveragePooling2D(), layers.Dense(4, "softmax"),
        ]), [numbers(12, 12, 3)]),
        "convolution_of_sequences": (keras.Sequential([
            keras.Input((16, 2)), layers.Conv1D(5, 3, activation="tanh"), layers.GroupNormalization(5),
            layers.AveragePooling1D(2), layers.Flatten(), layers.Dense(3, "softmax"),
        ]), [numbers(16, 2)]),
        "normalization": (keras.Sequential([
            keras.Input((4,)), layers.Normalization(mean=[0.1, -0.2, 3.0, 0.0], variance=[1.0, 4.0, 0.25, 2.0]),
            layers.Dense(8, "swish"), layers.LayerNormalization(), layers.Dense(1),
        ]), [numbers(4)]),
    }  # fmt: skip
    for name, (model, _) in made.items():
        draw(model, np.random.default_rng(len(name)))
    return {name: Network(model, xs) for name, (model, xs) in made.items()}


def _dense(keras):
    return keras.Sequential([
        keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(),
        keras.layers.Dense(3, "softmax"),
    ])  # fmt: skip


def _inputs_and_outputs(keras):
    layers = keras.layers
    one, other = keras.Input((4,), name="first numbers"), keras.Input((3, 2), name="zz")
    x = layers.Concatenate()([layers.Dense(5, "relu")(one), layers.Flatten()(other)])
    kind = layers.Dense(3, "softmax", name="kind")(x)
    amount = layers.Dense(1, name="amount")(layers.Add()([layers.Dense(11)(x), x]))
    return keras.Model([one, other], [kind, amount])


def _embedding(keras):
    layers = keras.layers
    numbers, city = keras.Input((3,), name="numbers"), keras.Input((1,), dtype="int32", name="city")
    x = layers.Concatenate()([numbers, layers.Flatten()(layers.Embedding(9, 4)(city))])
    return keras.Model([numbers, city], layers.Dense(2, "softmax")(layers.Dense(6, "elu")(x)))


def _attention(keras):
    layers = keras.layers
    tokens = keras.Input((8,), dtype="int32")
    x = layers.Embedding(20, 8)(tokens)
    x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
    x = layers.Add()([x, layers.Dense(8)(layers.Dense(16, "gelu")(x))])
    x = layers.GlobalAveragePooling1D()(layers.RMSNormalization()(x))
    return keras.Model(tokens, layers.Dense(3, "softmax")(x))


def draw(model, rng) -> None:
    """Give each weight random values; variances are positive."""
    values = [rng.normal(0, 0.4, weight.shape) for weight in model.weights]
    values = [
        np.abs(value) + 0.5 if "variance" in w.path else value for w, value in zip(model.weights, values, strict=True)
    ]
    model.set_weights([value.astype(np.float32) for value in values])

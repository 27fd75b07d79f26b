"""Networks of the tests' configurations (`cases`): small, each with other kinds of layers."""

import keras
from keras import layers


def mlp():
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(17, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3, "softmax", kernel_regularizer=keras.regularizers.L2(1e-3)),
        ]
    )


def cnn():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(6, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)),
            layers.MaxPooling2D(),
            layers.SpatialDropout2D(0.2),
            layers.SeparableConv2D(5, 2, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )


def preprocessed():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(0.5, offset=0.1),
            layers.Normalization(mean=0.2, variance=1.7),
            layers.CenterCrop(6, 6),
            layers.Conv2D(6, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )


def moved_at_random():
    """Keras on JAX does not compile its step."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(0.2, 0.1),
            layers.Conv2D(4, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-2)),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )


def wide():
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(7, "tanh", dtype="float64", kernel_regularizer=keras.regularizers.L2(0.01)),
            layers.Dense(3, "softmax", dtype="float64"),
        ]
    )


def frozen():
    model = mlp()
    model.trainable = False
    return model


def after_frozen_images():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(6, 3, activation="relu", trainable=False),
            layers.LayerNormalization(),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )


def after_frozen_with_l2():
    l2 = keras.regularizers.L2
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(9, "relu", kernel_regularizer=l2(0.01), bias_regularizer=l2(0.3), trainable=False),
            layers.Dense(7, "relu", kernel_regularizer=l2(0.02)),
            layers.Dense(3, "softmax"),
        ]
    )


def after_more_frozen_layers():
    return keras.Sequential(
        [
            keras.Input((24, 24, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu", trainable=False),
            layers.BatchNormalization(trainable=False),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu", trainable=False),
            layers.Flatten(),
            layers.Dense(40, "relu", trainable=False),
            layers.LayerNormalization(),
            layers.Dense(16, "relu"),
            layers.Dense(10, "softmax"),
        ]
    )


def after_frozen_sequences():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Reshape((16, 4)),
            layers.Conv1D(5, 3, activation="relu", trainable=False),
            layers.LayerNormalization(),
            layers.GlobalAveragePooling1D(),
            layers.Dense(10, "softmax"),
        ]
    )


def recurrent():
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(20, 7),
            layers.LSTM(9, dropout=0.2, recurrent_dropout=0.1),
            layers.LayerNormalization(),
            layers.Dense(1, "sigmoid"),
        ]
    )


def masked():
    """Keras writes the masks as operations: NotEqual, Any, LogicalOr and ZerosLike."""
    words = keras.Input((6,))
    embedded = layers.Embedding(20, 7, mask_zero=True)(words)
    both = layers.Concatenate()([embedded, layers.Dense(5)(embedded)])
    numbers = layers.Masking(0.5)(layers.Reshape((3, 2))(words))
    x = layers.Concatenate()([layers.LSTM(9)(both), layers.GRU(4)(numbers)])
    return keras.Model(words, layers.Dense(1, "sigmoid")(x))


def regression():
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.GaussianNoise(0.1),
            layers.Dense(8, "tanh", bias_regularizer=keras.regularizers.L1(1e-3)),
            layers.GaussianDropout(0.1),
            layers.Dense(3),
        ]
    )


def with_embeddings():
    numbers = layers.Input((4,))
    categories = [layers.Input((1,), dtype="int32") for _ in range(2)]
    embedded = [layers.Embedding(size, 3)(x) for size, x in zip((7, 40), categories, strict=True)]
    x = layers.Concatenate()([numbers, *(layers.Flatten()(x) for x in embedded)])
    outputs = layers.Dense(3, activation="softmax")(layers.Dense(8, activation="relu")(x))
    return keras.Model([numbers, *categories], outputs)


def two_sided():
    a, b = keras.Input((4,), name="a"), keras.Input((5, 2), name="b")
    both = layers.Concatenate()([layers.Dense(5, "relu")(a), layers.GlobalAveragePooling1D()(b)])
    both = layers.Dropout(0.2)(both)
    return keras.Model(
        [a, b], [layers.Dense(3, "softmax", name="kind")(both), layers.Dense(1, name="size")(both)], name="two_sided"
    )

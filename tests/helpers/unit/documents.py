"""Architecture JSON for the tests: written by Keras 3 here, and by hand in the three dialects of Keras 2."""

import copy


def keras_3(*layers, input_shape=(4,), name="sequential"):
    """Return a Sequential of Keras 3 with an InputLayer and these layers."""
    entry = {
        "module": "keras.layers",
        "class_name": "InputLayer",
        "config": {"batch_shape": [None, *input_shape], "dtype": "float32", "sparse": False, "name": "input_layer"},
        "registered_name": None,
    }
    return {
        "module": "keras",
        "class_name": "Sequential",
        "config": {"name": name, "trainable": True, "layers": [entry, *copy.deepcopy(layers)]},
        "registered_name": None,
    }


def layer(class_name, module="keras.layers", **config):
    """Return one layer of Keras 3."""
    return {"module": module, "class_name": class_name, "config": config, "registered_name": None}


def dense(units=3, **config):
    """Return a Dense layer of Keras 3."""
    return layer("Dense", units=units, **config)


def _scaled(distribution, mode="fan_avg", scale=1.0):
    config = {"scale": scale, "mode": mode, "distribution": distribution, "seed": None}
    return {"class_name": "VarianceScaling", "config": config}


def _dense_2_1(name, units, activation, **others):
    config = {
        "name": name,
        "trainable": True,
        "units": units,
        "activation": activation,
        "use_bias": True,
        "kernel_initializer": _scaled("normal", mode="fan_in", scale=2.0),
        "bias_initializer": {"class_name": "Zeros", "config": {}},
        "kernel_regularizer": {"class_name": "L1L2", "config": {"l1": 0.0, "l2": 9.999999747378752e-05}},
        "bias_regularizer": None,
        "activity_regularizer": None,
        "kernel_constraint": {"class_name": "MaxNorm", "config": {"max_value": 3, "axis": 0}},
        "bias_constraint": None,
    }
    return {"class_name": "Dense", "config": {**config, **others}}


# Keras 2.1.6: the config of Sequential is the list of its layers.
KERAS_2_1 = {
    "class_name": "Sequential",
    "config": [
        _dense_2_1("dense_1", 10, "relu", batch_input_shape=[None, 4], dtype="float32"),
        {
            "class_name": "Dropout",
            "config": {"name": "dropout_1", "trainable": True, "rate": 0.5, "noise_shape": None, "seed": None},
        },
        _dense_2_1("dense_2", 3, "softmax"),
    ],
    "keras_version": "2.1.6",
    "backend": "tensorflow",
}

# tf.keras 2.2.4-tf (TensorFlow 1.14 to 2.1): a dict, dtypes in every initializer, batch normalisation with a list axis.
KERAS_2_2_4_TF = {
    "class_name": "Sequential",
    "config": {
        "name": "sequential",
        "layers": [
            {
                "class_name": "Conv2D",
                "config": {
                    "name": "conv2d",
                    "trainable": True,
                    "batch_input_shape": {"class_name": "__tuple__", "items": [None, 8, 8, 1]},
                    "dtype": "float32",
                    "filters": 4,
                    "kernel_size": {"class_name": "__tuple__", "items": [3, 3]},
                    "strides": [1, 1],
                    "padding": "same",
                    "data_format": "channels_last",
                    "dilation_rate": [1, 1],
                    "activation": "relu",
                    "use_bias": True,
                    "kernel_initializer": {"class_name": "GlorotUniform", "config": {"seed": None, "dtype": "float32"}},
                    "bias_initializer": {"class_name": "Zeros", "config": {"dtype": "float32"}},
                    "kernel_regularizer": {"class_name": "L2", "config": {"l2": 0.01}},
                    "bias_regularizer": None,
                    "activity_regularizer": None,
                    "kernel_constraint": None,
                    "bias_constraint": None,
                },
            },
            {
                "class_name": "BatchNormalizationV1",
                "config": {
                    "name": "batch_normalization",
                    "trainable": True,
                    "dtype": "float32",
                    "axis": [3],
                    "momentum": 0.99,
                    "epsilon": 0.001,
                    "center": True,
                    "scale": True,
                    "beta_initializer": {"class_name": "Zeros", "config": {"dtype": "float32"}},
                    "gamma_initializer": {"class_name": "Ones", "config": {"dtype": "float32"}},
                    "moving_mean_initializer": {"class_name": "Zeros", "config": {"dtype": "float32"}},
                    "moving_variance_initializer": {"class_name": "Ones", "config": {"dtype": "float32"}},
                    "beta_regularizer": None,
                    "gamma_regularizer": None,
                    "beta_constraint": None,
                    "gamma_constraint": None,
                },
            },
            {"class_name": "LeakyReLU", "config": {"name": "leaky_re_lu", "dtype": "float32", "alpha": 0.2}},
            {
                "class_name": "Flatten",
                "config": {"name": "flatten", "trainable": True, "dtype": "float32", "data_format": "channels_last"},
            },
            {
                "class_name": "Dense",
                "config": {
                    "name": "dense",
                    "trainable": True,
                    "dtype": "float32",
                    "units": 3,
                    "activation": "softmax",
                    "use_bias": True,
                    "kernel_initializer": {
                        "class_name": "RandomUniform",
                        "config": {"minval": -0.05, "maxval": 0.05, "seed": None, "dtype": "float32"},
                    },
                    "bias_initializer": {"class_name": "Zeros", "config": {"dtype": "float32"}},
                },
            },
        ],
    },
    "keras_version": "2.2.4-tf",
    "backend": "tensorflow",
}


def _keras_2_10(class_name, name, inbound, **config):
    base = {"name": name, "trainable": True, "dtype": "float32"}
    return {
        "class_name": class_name,
        "config": {**base, **config},
        "name": name,
        "inbound_nodes": [[[source, 0, 0, {}] for source in inbound]] if inbound else [],
    }


def _input_2_10(name, shape):
    node = _keras_2_10("InputLayer", name, [], batch_input_shape=[None, *shape], sparse=False, ragged=False)
    del node["config"]["trainable"]
    return node


# tf.keras 2.10: a functional model with two inputs and two outputs.
KERAS_2_10 = {
    "class_name": "Functional",
    "config": {
        "name": "model",
        "trainable": True,
        "layers": [
            _input_2_10("words", (6,)),
            _input_2_10("numbers", (4,)),
            _keras_2_10(
                "Embedding",
                "embedding",
                ["words"],
                batch_input_shape=[None, 6],
                input_dim=20,
                output_dim=5,
                embeddings_initializer={
                    "class_name": "RandomUniform",
                    "config": {"minval": -0.05, "maxval": 0.05, "seed": None},
                },
                embeddings_regularizer=None,
                activity_regularizer=None,
                embeddings_constraint=None,
                mask_zero=False,
                input_length=6,
            ),
            _keras_2_10(
                "GRU",
                "gru",
                ["embedding"],
                return_sequences=False,
                return_state=False,
                go_backwards=False,
                stateful=False,
                unroll=False,
                time_major=False,
                units=4,
                activation="tanh",
                recurrent_activation="sigmoid",
                use_bias=True,
                kernel_initializer={"class_name": "GlorotUniform", "config": {"seed": None}, "shared_object_id": 5},
                recurrent_initializer={"class_name": "Orthogonal", "config": {"gain": 1.0, "seed": None}},
                bias_initializer={"class_name": "Zeros", "config": {}},
                dropout=0.0,
                recurrent_dropout=0.0,
                implementation=2,
                reset_after=True,
            ),
            _keras_2_10(
                "Dense",
                "dense",
                ["numbers"],
                units=4,
                activation="relu",
                use_bias=True,
                kernel_initializer={"class_name": "HeNormal", "config": {"seed": None}},
                kernel_regularizer={"class_name": "L2", "config": {"l2": 0.0010000000474974513}},
            ),
            _keras_2_10("Concatenate", "concatenate", ["gru", "dense"], axis=-1),
            _keras_2_10("Dense", "kind", ["concatenate"], units=3, activation="softmax", use_bias=True),
            _keras_2_10("Dense", "amount", ["concatenate"], units=1, activation="linear", use_bias=True),
        ],
        "input_layers": [["words", 0, 0], ["numbers", 0, 0]],
        "output_layers": [["kind", 0, 0], ["amount", 0, 0]],
    },
    "keras_version": "2.10.0",
    "backend": "tensorflow",
}

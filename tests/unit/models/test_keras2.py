"""Architectures of Keras 2 compute the same as in Keras 2, even if Keras 3 has changed the meaning of a name."""

import json
import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from madlib_mop.models.architecture import check_architecture  # noqa: E402
from madlib_mop.models.build import build_architecture  # noqa: E402

X = np.linspace(-4, 4, 33, dtype=np.float32)[:, None]


def document(*layers, shape=(1,)):
    """Return a Sequential in Keras 2.1.6's format: a list of layers, the first with the shape."""
    made = [
        {"class_name": name, "config": {"name": f"layer_{number}", "trainable": True, **config}}
        for number, (name, config) in enumerate(layers)
    ]
    made[0]["config"]["batch_input_shape"] = [None, *shape]
    return json.dumps({"class_name": "Sequential", "config": made, "keras_version": "2.1.6", "backend": "tensorflow"})


def computed(*layers):
    return build_architecture(document(*layers)).predict(X, verbose=0)


def test_hard_sigmoid_is_keras_2s():
    """Its slope was 0.2; that of Keras 3 is 1/6."""
    wanted = np.clip(0.2 * X + 0.5, 0, 1)
    np.testing.assert_allclose(computed(("Activation", {"activation": "hard_sigmoid"})), wanted, atol=1e-7)
    dense = {"units": 1, "activation": "hard_sigmoid", "kernel_initializer": {"class_name": "Ones", "config": {}}}
    np.testing.assert_allclose(computed(("Dense", dense)), wanted, atol=1e-7)


def test_an_lstm_of_keras_2_opens_its_gates_by_hard_sigmoid():
    """The default of Keras 2.1; a Bidirectional writes its layer out and reads it again."""
    ones = {"class_name": "Ones", "config": {}}
    config = {"units": 1, "activation": "tanh", "recurrent_activation": "hard_sigmoid", "implementation": 1,
              "kernel_initializer": ones, "recurrent_initializer": ones, "unit_forget_bias": False}  # fmt: skip
    x = np.array([[[0.3]], [[-1.0]], [[9.0]]], np.float32)
    gate = np.clip(0.2 * x[:, 0] + 0.5, 0, 1)
    wanted = gate * np.tanh(gate * np.tanh(x[:, 0]))
    plain = build_architecture(document(("LSTM", config), shape=(1, 1)))
    np.testing.assert_allclose(plain.predict(x, verbose=0), wanted, atol=1e-6)
    inner = {"class_name": "LSTM", "config": {"name": "lstm", **config}}
    both = build_architecture(document(("Bidirectional", {"layer": inner, "merge_mode": "concat"}), shape=(1, 1)))
    np.testing.assert_allclose(both.predict(x, verbose=0), np.hstack([wanted, wanted]), atol=1e-6)


def test_thresholded_relu_is_a_relu_with_a_threshold():
    wanted = np.where(X > 0.6, X, 0)
    np.testing.assert_array_equal(computed(("ThresholdedReLU", {"theta": 0.6})), wanted)


def test_groups_of_a_transposed_convolution_are_left_out():
    config = {"filters": 2, "kernel_size": [3, 3], "groups": 1, "output_padding": None}
    model = build_architecture(document(("Conv2DTranspose", config), shape=(4, 4, 1)))
    assert model.output_shape == (None, 6, 6, 2)


@pytest.mark.parametrize("text", ["hard_sigmoid", "keras2_hard_sigmoid"])
def test_a_checked_architecture_stays_as_it_is(text):
    """Keras 3's own hard_sigmoid is unchanged; ours can be read back."""
    modern = {
        "module": "keras", "class_name": "Sequential", "registered_name": None,
        "config": {"name": "s", "layers": [
            {"module": "keras.layers", "class_name": "InputLayer", "registered_name": None,
             "config": {"batch_shape": [None, 1], "name": "in"}},
            {"module": "keras.layers", "class_name": "Activation", "registered_name": None,
             "config": {"name": "a", "activation": text}},
        ]},
    }  # fmt: skip
    checked = check_architecture(modern)
    assert check_architecture(checked) == checked
    slope = 0.2 if text.startswith("keras2") else 1 / 6
    wanted = np.clip(slope * X + 0.5, 0, 1)
    np.testing.assert_allclose(build_architecture(checked).predict(X, verbose=0), wanted, atol=1e-6)

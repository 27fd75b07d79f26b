"""Exported ``.keras`` files where the client's Keras runs on any backend (MOP_TEST_BACKEND)."""

import numpy as np
import pytest

from madlib_mop.imports.keras_files import read_keras_file
from madlib_mop.imports.loading import model_of
from madlib_mop.models.exported import KerasRunner
from tests.helpers.training import one_thread, quiet_keras

one_thread()
keras = quiet_keras()
from keras import layers  # noqa: E402

N_ROWS = 300  # more than a batch


def dense():
    return keras.Sequential([keras.Input((5,)), layers.Dense(4, "relu"), layers.Dropout(0.5), layers.Dense(2)])


def convolutions():
    return keras.Sequential([keras.Input((6, 6, 1)), layers.Conv2D(3, 3), layers.Flatten(), layers.Dense(2)])


def several():
    """Return a model with two inputs, one of indices, and two outputs."""
    numbers, words = keras.Input((3,), name="numbers"), keras.Input((4,), dtype="int32", name="words")
    joined = layers.concatenate([numbers, layers.Flatten()(layers.Embedding(9, 2)(words))])
    return keras.Model([numbers, words], [layers.Dense(1)(joined), layers.Dense(3, "softmax")(joined)])


@pytest.mark.parametrize("make", [dense, convolutions, several])
def test_a_file_predicts_what_keras_predicts(make, tmp_path):
    model, path = make(), tmp_path / "model.keras"
    model.save(path)
    rng = np.random.default_rng(5)
    xs = [rng.integers(0, 9, (N_ROWS, *one.shape[1:])).astype(one.dtype) for one in model.inputs]
    expected = keras.tree.flatten(model.predict(xs[0] if len(xs) == 1 else xs, verbose=0))
    runner = KerasRunner(model_of(read_keras_file(path.read_bytes())))
    for n_rows in (N_ROWS, 1):
        found = runner.run([x[:n_rows] for x in xs])
        assert [(one.shape, one.dtype) for one in found] == [((n_rows, *w.shape[1:]), np.float32) for w in expected]
        for one, wanted in zip(found, expected, strict=True):
            assert np.allclose(one, wanted[:n_rows], rtol=1e-5, atol=1e-6)

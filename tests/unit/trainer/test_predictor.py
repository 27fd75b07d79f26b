"""Predictions of a loaded model: a row of a dense network has the same bits alone and in every batch."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.trainer.graphs.predict import Predictor  # noqa: E402


def perceptron():
    hidden = [layers.Dense(64, "relu"), layers.Dense(33)]
    return keras.Sequential([keras.Input((20,)), *hidden, layers.Dense(3, "softmax")])


def residual():
    """Layer normalisation, periodic functions and an addition, as networks for ordinary tables have them."""
    x = keras.Input((20,))
    waves = keras.ops.cos(layers.EinsumDense("bn,nk->bnk", (20, 4), bias_axes="nk")(x))
    embedded = layers.Flatten()(layers.EinsumDense("bnk,nko->bno", (20, 3), bias_axes="no")(waves))
    hidden = layers.Dense(50, "gelu")(layers.LayerNormalization()(layers.Dense(50)(embedded)))
    return keras.Model(x, layers.Dense(1)(layers.Add()([hidden, layers.Dense(50)(x)])))


def nested():
    x = keras.Input((20,))
    return keras.Model(x, layers.Average()([perceptron()(x), perceptron()(x)]))


def operation():
    x = keras.Input((20,))
    return keras.Model(x, layers.Dense(3)(keras.ops.cumsum(x, axis=1)))


def convolutional():
    return keras.Sequential(
        [keras.Input((20,)), layers.Reshape((5, 4)), layers.Conv1D(8, 3), layers.Flatten(), layers.Dense(3)]
    )


@pytest.mark.parametrize("build", [perceptron, residual, nested])
def test_a_row_has_the_same_bits_alone_and_in_every_batch(build):
    keras.utils.set_random_seed(0)
    predictor = Predictor(build(), 1.0)
    rows = np.random.default_rng(0).normal(size=(2500, 20)).astype(np.float32)
    (whole,) = predictor.predict((rows,))
    for n_rows in (1, 2, 7, 16, 17, 33, 47, 48, 49, 100, 1008, 1009, 2499):
        (part,) = predictor.predict((rows[-n_rows:],))
        assert part.shape == (n_rows, whole.shape[1]) and np.array_equal(part, whole[-n_rows:]), n_rows
    for _ in range(2):  # the second time by the known function of its shape
        assert np.array_equal(predictor.values([rows[5]]).values[0], whole[5])
    many = predictor.values([rows[:5]])
    assert not many.single and np.array_equal(many.values, whole[:5])


@pytest.mark.parametrize("build", [convolutional, operation])
def test_other_networks_compute_no_more_rows_than_they_get(build):
    model = build()
    predictor = Predictor(model, 1.0)
    rows = np.random.default_rng(0).normal(size=(7, 20)).astype(np.float32)
    computed = []
    function = predictor._function
    predictor._function = lambda spec: lambda tensors: computed.append(len(tensors[0])) or function(spec)(tensors)
    (found,) = predictor.predict((rows,))
    n_rows = 8 if keras.config.backend() == "jax" else 7  # XLA compiles for a number of rows
    assert computed == [n_rows] and np.allclose(found, keras.ops.convert_to_numpy(model(rows)), rtol=1e-5, atol=1e-6)


def test_no_rows_give_no_outputs():
    assert Predictor(perceptron(), 1.0).predict((np.zeros((0, 20), np.float32),)) == []

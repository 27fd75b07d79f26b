"""Predictions of a loaded model: a row of a dense network has the same bits alone and in every batch."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.models.running import combines_rows, is_rowwise  # noqa: E402
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
    predictor._function = lambda xs: lambda *batch: computed.append(batch[2]) or function(xs)(*batch)
    (found,) = predictor.predict((rows,))
    n_rows = 8 if keras.config.backend() == "jax" else 7  # XLA compiles for a number of rows
    assert computed == [n_rows] and np.allclose(found, keras.ops.convert_to_numpy(model(rows)), rtol=1e-5, atol=1e-6)


def of_operation(compute):
    x = keras.Input((20,))
    return keras.Model(x, layers.Dense(3)(compute(layers.Dense(8)(x))))


ops = keras.ops
COMBINING = {
    "a softmax": layers.Softmax(axis=0),
    "a softmax with a negative axis": layers.Softmax(axis=-2),
    "unit vectors": layers.UnitNormalization(axis=0),
    "two batches": lambda x: layers.Concatenate(axis=0)([x, x]),
    "a mean of each column": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "a mean of all": lambda x: x - ops.mean(x),
    "average": lambda x: x - ops.average(x, axis=0),
    "a reversed batch": lambda x: ops.flip(x, axis=0),
    "a shifted batch": lambda x: ops.roll(x, 1, axis=0),
    "last row": lambda x: x - x[-1:, :],
    "similarities": lambda x: ops.matmul(ops.matmul(x, ops.transpose(x)), x),
    "products": lambda x: ops.einsum("ab,cb,cd->ad", x, x, x),
    "a form for other rows": lambda x: ops.reshape(ops.flip(ops.reshape(x, (-1,))), (-1, 8)),
}
SEPARATE = {
    "columns": lambda x: ops.concatenate([x[:, 2:5], x[..., :1], ops.flip(x[:, :4], axis=1)], axis=-1),
    "means of rows": lambda x: x - ops.mean(x, axis=-1, keepdims=True),
    "attention": lambda x: ops.reshape(
        ops.matmul(ops.transpose(ops.reshape(x, (-1, 4, 2)), (0, 2, 1)), ops.reshape(x, (-1, 4, 2))), (-1, 4)
    ),
    "stack": lambda x: layers.Flatten()(ops.stack([x, ops.relu(x)], axis=1)),
    # Predictions override `training`.
    "normalised": lambda x: layers.BatchNormalization()(layers.LayerNormalization()(x), training=True),
}


@pytest.mark.parametrize("name", COMBINING)
def test_models_that_combine_rows_get_no_other_rows(name):
    """A batch that is filled with copies of its last row would have other predictions."""
    keras.utils.set_random_seed(0)
    model = of_operation(COMBINING[name])
    assert combines_rows(model) and not is_rowwise(model)
    rows = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
    (found,) = Predictor(model, 1.0).predict((rows,))
    assert np.allclose(found, keras.ops.convert_to_numpy(model(rows, training=False))[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SEPARATE)
def test_models_that_compute_each_row_alone_are_known(name):
    assert not combines_rows(of_operation(SEPARATE[name]))


@pytest.mark.parametrize("build", [perceptron, convolutional])
def test_a_row_alone_has_its_own_outputs_whatever_came_before_it(build):
    model = build()
    rows = np.random.default_rng(0).normal(size=(9, 20)).astype(np.float32)
    predictor = Predictor(model, 1.0)
    found = [predictor.predict((rows[place : place + 1],))[0] for place in range(9)]
    for place, output in enumerate(found):
        (fresh,) = Predictor(model, 1.0).predict((rows[place : place + 1],))
        assert output.tobytes() == fresh.tobytes() and output.shape == fresh.shape


def test_an_output_that_is_an_input_is_not_that_of_the_next_row():
    x = keras.Input((20,))
    predictor = Predictor(keras.Model(x, x), 1.0)
    rows = np.random.default_rng(0).normal(size=(3, 20)).astype(np.float32)
    found = [predictor.predict((rows[place : place + 1],))[0] for place in range(3)]
    assert np.concatenate(found).tobytes() == rows.tobytes()


def test_no_rows_give_no_outputs():
    assert Predictor(perceptron(), 1.0).predict((np.zeros((0, 20), np.float32),)) == []

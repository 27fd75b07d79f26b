"""A perceptron with dropout, its rows, and its visits in plain Keras, for tests of states that move between models."""

import os

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402

from madlib_mop.trainer.seeds import model_seed, pass_permutation  # noqa: E402
from tests.helpers.training import beginning, one_thread  # noqa: E402

one_thread()
N_ROWS = 53
ROWS = np.random.default_rng(3).random((N_ROWS, 4), np.float32)
LABELS = np.eye(3, dtype=np.int16)[np.random.default_rng(4).integers(3, size=N_ROWS)]


def network() -> keras.Model:
    """Return a perceptron with dropout, whose seed generator is part of the state."""
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dropout(0.2), layers.Dense(3, "softmax")]
    )


ARCH = network().to_json()


def request(optimizer: str, mst_key: int) -> dict:
    """Return ``model`` of a request."""
    compile_params = f"loss='categorical_crossentropy', optimizer='{optimizer}'"
    return {"arch": ARCH, "compile_params": compile_params, "fit_params": "batch_size=10", "seed": 7,
            "mst_key": mst_key, "custom": None}  # fmt: skip


def plain(optimizer: keras.Optimizer, mst_key: int) -> keras.Model:
    """Return the plain Keras model."""
    keras.utils.set_random_seed(model_seed(7, mst_key))
    model = keras.models.model_from_json(ARCH)
    model.compile(loss="categorical_crossentropy", optimizer=optimizer)
    return model


def fit(model: keras.Model, epoch: int, mst_key: int) -> None:
    """Make one visit with plain Keras."""
    order = pass_permutation(7, mst_key, epoch, 0, 0, N_ROWS)
    callbacks = beginning(7, mst_key, epoch, 0, 0)
    labels = LABELS[order].astype(np.float32)
    model.fit(ROWS[order], labels, batch_size=10, shuffle=False, verbose=0, callbacks=callbacks)


def bits(model: keras.Model) -> bytes:
    """Return weights and optimizer variables."""
    return b"".join(v.numpy().tobytes() for v in (*model.weights, *model.optimizer.variables))

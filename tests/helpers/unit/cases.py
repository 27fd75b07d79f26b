"""Configurations that the tests train, each as a request and as plain Keras, and their data."""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np

from madlib_mop.trainer.seeds import model_seed, pass_permutation
from tests.helpers.training import beginning, one_thread
from tests.helpers.unit import networks

one_thread()  # plain Keras uses as many threads as a trainer


@functools.cache
def architecture_of(build: Callable[[], keras.Model]) -> str:
    """Return the JSON of a network; each time the same, which a trainer traces once: Keras numbers layers' names."""
    return build().to_json()


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration: ``compile_params`` and ``fit_params`` are texts; ``compiled`` returns the Keras equivalent."""

    name: str
    build: Callable[[], keras.Model]
    compile_params: str
    compiled: Callable[[], dict]
    data: Callable[[int], tuple[list[np.ndarray], list[np.ndarray]]]
    batch_size: int = 10
    passes: int = 1
    shuffle: bool = True
    class_weight: dict | None = None
    steps_per_epoch: int | None = None

    def request(self, seed=7, mst_key=3):
        """Return ``model`` of a request."""
        fit = f"batch_size={self.batch_size}, epochs={self.passes}, shuffle={self.shuffle}"
        if self.class_weight:
            fit += f", class_weight={self.class_weight}"
        if self.steps_per_epoch:
            fit += f", steps_per_epoch={self.steps_per_epoch}"
        return {
            "arch": architecture_of(self.build),
            "compile_params": self.compile_params,
            "fit_params": fit,
            "seed": seed,
            "mst_key": mst_key,
            "custom": None,
        }

    def model(self, seed=7, mst_key=3):
        """Return the compiled Keras model before its first visit."""
        arch = architecture_of(self.build)
        keras.utils.set_random_seed(model_seed(seed, mst_key))
        model = keras.models.model_from_json(arch)
        model.compile(**self.compiled())
        return model

    def fit(self, model, epoch, segment_id, xs, ys, seed=7, mst_key=3):
        """Make one visit with plain Keras; the trainer must have the same result, bit for bit."""
        for pass_ in range(self.passes):
            order = np.arange(len(xs[0]))
            if self.shuffle:
                order = pass_permutation(seed, mst_key, epoch, segment_id, pass_, len(xs[0]))
            model.fit(
                _one_or_list([x[order] for x in xs]),
                _one_or_list([y[order].astype(np.float32) for y in ys]),
                batch_size=self.batch_size,
                epochs=1,
                shuffle=False,
                class_weight=self.class_weight,
                steps_per_epoch=self.steps_per_epoch,
                verbose=0,
                callbacks=beginning(seed, mst_key, epoch, segment_id, pass_),
            )
            if keras.backend.backend() == "jax":
                _separate(model)


def weights_of(model):
    """Return a Keras model's weights in the form of ``model_weights``."""
    return b"".join(np.asarray(weight, np.float32).tobytes() for weight in model.get_weights())


def _separate(model):
    """Give each variable memory of its own.

    With use_ema, Keras 3.15 on JAX lets a weight and its average share theirs after a fit, and its next fit fails.
    """
    for variable in (*model.variables, *model.optimizer.variables):
        variable.assign(np.array(variable.value))


def _one_or_list(columns):
    return columns[0] if len(columns) == 1 else columns


def _classes(rng, n, k):
    return np.eye(k, dtype=np.int16)[rng.integers(0, k, n)]


def _vectors(n):
    rng = np.random.default_rng(n)
    return [rng.normal(size=(n, 12)).astype(np.float32)], [_classes(rng, n, 3)]


def _images(n):
    rng = np.random.default_rng(n)
    return [rng.normal(size=(n, 8, 8, 1)).astype(np.float32)], [_classes(rng, n, 10)]


def _larger_images(n):
    rng = np.random.default_rng(n)
    return [rng.normal(size=(n, 24, 24, 3)).astype(np.float32)], [_classes(rng, n, 10)]


def _words(n):
    rng = np.random.default_rng(n)
    return [rng.integers(0, 20, (n, 6)).astype(np.float32)], [rng.integers(0, 2, (n, 1)).astype(np.float32)]


def _targets(n):
    rng = np.random.default_rng(n)
    return [rng.normal(size=(n, 5)).astype(np.float32)], [rng.normal(size=(n, 3)).astype(np.float32)]


def _numbers_and_indices(n):
    rng = np.random.default_rng(n)
    indices = [rng.integers(0, size, (n, 1)).astype(np.int32) for size in (7, 40)]
    return [rng.normal(size=(n, 4)).astype(np.float32), *indices], [_classes(rng, n, 3)]


def _pairs(n):
    rng = np.random.default_rng(n)
    xs = [rng.normal(size=(n, 4)).astype(np.float32), rng.normal(size=(n, 5, 2)).astype(np.float32)]
    return xs, [_classes(rng, n, 3), rng.normal(size=(n, 1)).astype(np.float32)]


_CLASSES = "loss='categorical_crossentropy', metrics=['accuracy'], optimizer="
_decay = keras.optimizers.schedules.ExponentialDecay


def _classifier(optimizer):
    return lambda: {"loss": "categorical_crossentropy", "metrics": ["accuracy"], "optimizer": optimizer()}


CASES = [
    Case(
        "mlp, dropout, batch norm, Adam",
        networks.mlp,
        _CLASSES + "'Adam(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adam(0.01)),
        _vectors,
        passes=2,
    ),
    Case(
        "cnn, SGD with momentum, decaying rate",
        networks.cnn,
        _CLASSES + "'SGD(learning_rate=ExponentialDecay(0.05, decay_steps=3, decay_rate=0.9), momentum=0.9)'",
        _classifier(lambda: keras.optimizers.SGD(_decay(0.05, 3, 0.9), momentum=0.9)),
        _images,
        batch_size=16,
    ),
    Case(
        "recurrent, embedding, RMSprop, not shuffled",
        networks.recurrent,
        "loss='binary_crossentropy', optimizer='rmsprop', metrics=['accuracy', 'AUC']",
        lambda: {"loss": "binary_crossentropy", "optimizer": "rmsprop", "metrics": ["accuracy", "AUC"]},
        _words,
        shuffle=False,
    ),
    Case(
        "regression, noise, AdamW, clipped, moving average",
        networks.regression,
        "loss='mse', optimizer='AdamW(learning_rate=0.01, weight_decay=0.01, clipnorm=0.5, use_ema=True)', "
        "metrics=['mae', RootMeanSquaredError()]",
        lambda: {
            "loss": "mse",
            "optimizer": keras.optimizers.AdamW(0.01, weight_decay=0.01, clipnorm=0.5, use_ema=True),
            "metrics": ["mae", keras.metrics.RootMeanSquaredError()],
        },
        _targets,
    ),
    Case(
        "two inputs, two outputs, Nadam",
        networks.two_sided,
        "loss={'kind': 'categorical_crossentropy', 'size': 'mse'}, loss_weights={'kind': 1.0, 'size': 0.3}, "
        "optimizer='Nadam(lr=0.005)', metrics={'kind': ['accuracy'], 'size': ['mae', 'mse']}",
        lambda: {
            "loss": {"kind": "categorical_crossentropy", "size": "mse"},
            "loss_weights": {"kind": 1.0, "size": 0.3},
            "optimizer": keras.optimizers.Nadam(0.005),
            "metrics": {"kind": ["accuracy"], "size": ["mae", "mse"]},
        },
        _pairs,
    ),
    Case(
        "numbers and int32 indices, Adam",
        networks.with_embeddings,
        _CLASSES + "'Adam(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adam(0.01)),
        _numbers_and_indices,
    ),
    Case(
        "preprocessing layers, convolution, SGD clipped by the norm of all gradients",
        networks.preprocessed,
        _CLASSES + "'SGD(learning_rate=0.1, global_clipnorm=0.01)'",
        _classifier(lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.01)),
        _images,
    ),
    Case(
        "frozen convolution of images, Adam",
        networks.after_frozen_images,
        _CLASSES + "'Adam(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adam(0.01)),
        _images,
    ),
    Case(
        "several frozen layers, Adam",
        networks.after_more_frozen_layers,
        _CLASSES + "'Adam(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adam(0.01)),
        _larger_images,
        batch_size=32,
    ),
    Case(
        "frozen convolution of sequences, Adam",
        networks.after_frozen_sequences,
        _CLASSES + "'Adam(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adam(0.01)),
        _images,
    ),
    Case(
        "nothing to train, Adam",
        networks.frozen,
        _CLASSES + "'Adam(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adam(0.01)),
        _vectors,
    ),
    Case(
        "mlp, weighted classes, Adagrad",
        networks.mlp,
        _CLASSES + "'Adagrad(lr=0.05)', weighted_metrics=['accuracy']",
        lambda: {**_classifier(lambda: keras.optimizers.Adagrad(0.05))(), "weighted_metrics": ["accuracy"]},
        _vectors,
        class_weight={0: 0.5, 2: 3.0},
    ),
    Case(
        "mlp, steps_per_epoch, Adamax",
        networks.mlp,
        _CLASSES + "'Adamax(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adamax(0.01)),
        _vectors,
        passes=3,
        steps_per_epoch=2,
    ),
    Case(
        "frozen layer with L2, Adam",
        networks.after_frozen_with_l2,
        _CLASSES + "'Adam(lr=0.01)'",
        _classifier(lambda: keras.optimizers.Adam(0.01)),
        _vectors,
    ),
    Case(
        "images moved at random, SGD",
        networks.moved_at_random,
        _CLASSES + "'SGD(learning_rate=0.1)'",
        _classifier(lambda: keras.optimizers.SGD(0.1)),
        _images,
        batch_size=32,
    ),
    Case(
        "masked sequences, Adam",
        networks.masked,
        "loss='binary_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']",
        lambda: {"loss": "binary_crossentropy", "optimizer": keras.optimizers.Adam(0.01), "metrics": ["accuracy"]},
        _words,
    ),
]

# Plain Keras on TensorFlow does not add a strength of float64 to a loss of float32.
NOT_ON_TENSORFLOW = [
    Case(
        "a float64 layer with L2, SGD",
        networks.wide,
        _CLASSES + "'SGD(learning_rate=0.1)'",
        _classifier(lambda: keras.optimizers.SGD(0.1)),
        _vectors,
    ),
]

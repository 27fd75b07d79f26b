"""The two workloads of the comparison: images for small convolutional networks, a table of numbers for perceptrons.

Every way of training (`ways/`) gets the same rows, configurations, start weights and number of epochs from here.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from workload import N_FEATURES, SHAPE, Configuration, features, images

N_CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """Data and configurations to train.

    Attributes
    ----------
    name : str
    configurations : tuple of Configuration
        Configuration i has mst_key i + 1.
    build : callable
        (architecture, l2) -> Keras model, not compiled; imports Keras.
    what : str
        Description in one line.
    """

    name: str
    configurations: tuple[Configuration, ...]
    build: Callable
    what: str

    def compiled(self, mst_key: int, seed: int):
        """Return the model of one configuration, with the start weights that the hopper draws for it, compiled."""
        import keras

        from madlib_mop.trainer.seeds import model_seed

        c = self.configurations[mst_key - 1]
        keras.utils.set_random_seed(model_seed(seed, mst_key))
        model = self.build(c.architecture, c.l2)
        model.compile(keras.optimizers.Adam(c.learning_rate), "categorical_crossentropy", metrics=["accuracy"])
        return model


@dataclass(frozen=True)
class Rows:
    """The rows of a workload: x float32, y one-hot float32 ``(n, 10)``; for training, and for testing."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str

    def save(self, path: Path) -> None:
        """Write the rows as one .npz file."""
        np.savez(path, x=self.x, y=self.y, x_test=self.x_test, y_test=self.y_test, source=self.source)

    def save_training(self, path: Path) -> int:
        """Write a copy of the training rows as one .npz file; return its size in bytes."""
        np.savez(path, x=self.x, y=self.y)
        return path.stat().st_size

    @staticmethod
    def load(path: Path, training: Path | None = None) -> "Rows":
        """Read a file of `save`; read the training rows from a file of `save_training` if one is given."""
        with np.load(path) as data:
            x_test, y_test, source = data["x_test"], data["y_test"], str(data["source"])
        with np.load(training or path) as data:
            return Rows(data["x"], data["y"], x_test, y_test, source)


def _small_vgg(l2: float):
    import keras

    layers, penalty = keras.layers, keras.regularizers.L2(l2)
    model = [keras.Input(SHAPE)]
    for n in (8, 16):
        for _ in range(2):
            model.append(layers.Conv2D(n, 3, padding="same", activation="relu", kernel_regularizer=penalty))
        model.append(layers.MaxPooling2D(2))
    model += [layers.Flatten(), layers.Dense(64, activation="relu", kernel_regularizer=penalty)]
    return keras.Sequential([*model, layers.Dense(N_CLASSES, activation="softmax")])


def _small_resnet(l2: float):
    """A residual network after He et al. 2015 (section 4.2) with one block a stage, widths 8, 16 and 32."""
    import keras

    layers = keras.layers

    def convolution(x, n: int, kernel: int = 3, strides: int = 1):
        penalty = keras.regularizers.L2(l2)
        x = layers.Conv2D(n, kernel, strides, padding="same", use_bias=False, kernel_regularizer=penalty)(x)
        return layers.BatchNormalization()(x)

    image = keras.Input(SHAPE)
    x = layers.ReLU()(convolution(image, 8))
    for n, strides in ((8, 1), (16, 2), (32, 2)):
        shortcut = x if strides == 1 else convolution(x, n, 1, strides)
        inner = layers.ReLU()(convolution(x, n, strides=strides))
        x = layers.ReLU()(layers.Add()([convolution(inner, n), shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(N_CLASSES, activation="softmax")(x))


def _build_images(architecture: int, l2: float):
    return (_small_vgg, _small_resnet)[architecture](l2)


def _build_tabular(architecture: int, l2: float):
    import keras

    layers, penalty = keras.layers, keras.regularizers.L2(l2)
    hidden = [layers.Dense(n, activation="relu", kernel_regularizer=penalty) for n in ((64,), (64, 32))[architecture]]
    return keras.Sequential([keras.Input((N_FEATURES,)), *hidden, layers.Dense(N_CLASSES, activation="softmax")])


def _grid(l2s, rates, batch_sizes) -> tuple[Configuration, ...]:
    return tuple(itertools.starmap(Configuration, itertools.product((0, 1), l2s, rates, batch_sizes)))


WORKLOADS = {
    "images": Workload(
        "images",
        _grid((1e-4, 1e-6), (1e-3, 1e-4), (32, 256)),
        _build_images,
        "16 configurations: a small VGG and a small ResNet x batch {32, 256} x learning rate {1e-3, 1e-4}"
        " x L2 {1e-4, 1e-6}, Adam",
    ),
    "tabular": Workload(
        "tabular",
        _grid((1e-4, 1e-6), (1e-2, 3e-3, 1e-3, 3e-4), (32, 256)),
        _build_tabular,
        "32 configurations: perceptrons of one and two hidden layers x batch {32, 256}"
        " x learning rate {1e-2, 3e-3, 1e-3, 3e-4} x L2 {1e-4, 1e-6}, Adam",
    ),
}


def rows_of(workload: str, n_train: int, n_test: int) -> Rows:
    """Return a workload's rows: CIFAR-10's images if they are found, otherwise generated ones (`workload.images`)."""
    x, y, x_test, y_test, source = images(n_train, n_test)
    if workload == "tabular":
        x, x_test, source = features(x, x_test, source)
    one_hot = np.eye(N_CLASSES, dtype=np.float32)
    return Rows(x, one_hot[y], x_test, one_hot[y_test], source)

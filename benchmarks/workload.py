"""The benchmark's data and configurations: images of 32 x 32 x 3 in ten classes, grids of sixteen configurations.

Those of the grid "fused" train on a table of numbers computed from the images.
"""

import itertools
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CIFAR_ZIP = Path(os.environ.get("MOP_BENCH_DATA", Path(__file__).parents[2] / "shared" / "data" / "cifar10_24k.zip"))
LEARNING_RATES = (1e-3, 1e-4)
BATCH_SIZES = (32, 256)
L2_STRENGTHS = (1e-4, 1e-6)
SHAPE = (32, 32, 3)
_TILES = 4  # per side: each image is reduced to mean and deviation of 16 tiles, in three colours
N_FEATURES = 2 * 3 * _TILES**2


@dataclass(frozen=True)
class Configuration:
    """One configuration: which of the grid's two architectures, and its hyper-parameters."""

    architecture: int
    l2: float
    learning_rate: float
    batch_size: int


def configurations(grid: str) -> list[Configuration]:
    """Return the sixteen configurations of a grid; those of "fused" have one architecture."""
    one_shape = (0,), L2_STRENGTHS, (1e-2, 3e-3, *LEARNING_RATES), BATCH_SIZES
    two_shapes = (0, 1), L2_STRENGTHS, LEARNING_RATES, BATCH_SIZES
    return list(itertools.starmap(Configuration, itertools.product(*(one_shape if grid == "fused" else two_shapes))))


def build(grid: str, architecture: int, l2: float):
    """Return the Keras model of one architecture; imports Keras."""
    import keras

    layers, penalty = keras.layers, keras.regularizers.L2(l2)
    model = [keras.Input((N_FEATURES,) if grid == "fused" else SHAPE)]
    if grid == "conv":
        for n in ((8, 16), (16, 16, 32))[architecture]:
            model.append(layers.Conv2D(n, 3, activation="relu", padding="same", kernel_regularizer=penalty))
            model.append(layers.MaxPooling2D(2))
    if grid in ("conv", "mlp"):
        model.append(layers.Flatten())
    if grid != "conv":
        for n in ((64,), (128, 64))[architecture]:
            model.append(layers.Dense(n, activation="relu", kernel_regularizer=penalty))
    model.append(layers.Dense(10, activation="softmax"))
    return keras.Sequential(model)


def images(n_train: int, n_valid: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]:
    """Return x (n, 32, 32, 3) float32 in 0..1 and y (n,) for training and validation, and their source.

    They are from CIFAR-10 if its archive is found (MOP_BENCH_DATA is its path), otherwise noisy patterns of that shape.
    """
    if CIFAR_ZIP.exists():
        return (*_cifar("train", n_train), *_cifar("test", n_valid), source_of_images())
    chance = np.random.default_rng(0)
    patterns = chance.random((10, *SHAPE), np.float32)
    parts = []
    for n in (n_train, n_valid):
        y = chance.integers(0, 10, n)
        parts += [np.clip(patterns[y] * 0.5 + chance.random((n, *SHAPE), np.float32) * 0.5, 0, 1), y]
    return (*parts, source_of_images())


def source_of_images() -> str:
    """Return a description of what `images` returns."""
    return "CIFAR-10" if CIFAR_ZIP.exists() else "generated patterns"


def features(x: np.ndarray, x_test: np.ndarray, source: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Return a table made from images, (n, N_FEATURES) float32, standardised by training rows, and its description."""
    x, x_test = _tiles(x), _tiles(x_test)
    mean, deviation = x.mean(0), x.std(0)
    return (x - mean) / deviation, (x_test - mean) / deviation, f"means and deviations of 16 tiles of {source}"


def _tiles(x: np.ndarray) -> np.ndarray:
    side = SHAPE[0] // _TILES
    tiles = x.reshape(-1, _TILES, side, _TILES, side, 3)
    return np.concatenate([f(axis=(2, 4)).reshape(len(x), -1) for f in (tiles.mean, tiles.std)], axis=1)


def _cifar(part: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    with zipfile.ZipFile(CIFAR_ZIP) as archive:
        names = sorted(name for name in archive.namelist() if f"{part}/" in name and name.endswith(".jpg"))
        classes = sorted({name.split("/")[-2] for name in names})
        names = [names[i] for i in np.random.default_rng(1).permutation(len(names))[:n]]
        x = np.stack([np.asarray(Image.open(archive.open(name)), np.float32) / 255 for name in names])
    return x, np.array([classes.index(name.split("/")[-2]) for name in names])

"""The hopper's reference: plain Keras, one process of several, each of which trains its share of a grid.

``plain_keras.py GRID DATA.npz EPOCHS NUMBER OF [THREADS]``: every OF-th configuration, from NUMBER on: compile, fit,
evaluate. The environment variable ``KERAS_BACKEND`` chooses the backend.
"""

import os
import sys

import numpy as np


def main(grid: str, path: str, n_epochs: int, number: int, of: int, n_threads: int = 1) -> None:
    """Train and evaluate this process's share."""
    _set_threads(os.environ.get("KERAS_BACKEND", "tensorflow"), n_threads)
    import keras
    from workload import build, configurations

    data = np.load(path)
    for c in configurations(grid)[number::of]:
        keras.utils.set_random_seed(1)
        model = build(grid, c.architecture, c.l2)
        model.compile(keras.optimizers.Adam(c.learning_rate), "categorical_crossentropy", metrics=["accuracy"])
        model.fit(data["x"], data["y"], batch_size=c.batch_size, epochs=n_epochs, verbose=0)
        for part in ("", "_valid"):
            model.evaluate(data["x" + part], data["y" + part], batch_size=c.batch_size, verbose=0)


def _set_threads(backend: str, n_threads: int) -> None:
    if backend == "jax":
        os.environ["NPROC"] = str(n_threads)
        if n_threads == 1:
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        return
    if backend == "torch":
        import torch

        torch.set_num_threads(n_threads)
        torch.set_num_interop_threads(n_threads)
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(n_threads)
    tf.config.threading.set_inter_op_parallelism_threads(n_threads)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))

"""Fused perceptrons: eight configurations of one shape trained in one graph, compared with separate training.

It runs the trainers' code without a database: visits of 2,000 rows, with loading and saving of states, one thread.
The argument is a backend: tensorflow (the default) or jax.
"""

import itertools
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "plpython")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

N_ROWS, N_INPUTS, N_CLASSES, N_MEMBERS = 2000, 96, 10, 8
SHAPES = ((64, 32), (64,))
BATCHES = (32, 256)
_MIN_VISITS, _MIN_S = 5, 1.0


def compare_fusion(name: str = "tensorflow", n_members: int = N_MEMBERS) -> None:
    """Print the seconds of a visit per model for each shape and batch size, separate and fused."""
    from mop_backend.keras_backends import BackendName

    from madlib_mop.trainer.backends import choice

    os.environ.update(choice.environment_of(BackendName(name)))
    backend = choice.load()
    backend.set_threads(1)
    backend.start_threads()
    shard = _shard()
    size = f"{n_members} perceptrons of one shape, {N_ROWS:,} rows a visit"
    print(f"{size}, {backend.title}, one thread; seconds a model")
    for hidden in SHAPES:
        for batch_size in BATCHES:
            apart_s, fused_s = _measure([_recipe(hidden, batch_size, number) for number in range(n_members)], shard)
            name = "-".join(map(str, (N_INPUTS, *hidden, N_CLASSES)))
            print(
                f"  {name:12} batch {batch_size:3}: apart {apart_s:.4f}, fused {fused_s:.4f},"
                f" {apart_s / fused_s:.1f} times as fast",
                flush=True,
            )


def _measure(recipes: list, shard) -> tuple[float, float]:
    """Return the seconds of a visit per model: separate, and fused."""
    from madlib_mop.trainer import fused_visits
    from madlib_mop.trainer.visits import Start, Visitor

    visitor = Visitor()
    states = [visitor.train(recipe, Start(), shard, 1, 0).parts for recipe in recipes]
    numbers = itertools.cycle(range(len(recipes)))  # the models take turns in one compiled model, as in a run

    def apart():
        number = next(numbers)
        visitor.train(recipes[number], Start(parts=list(states[number])), shard, 1, 0)

    def fused():
        fused_visits.train_fused(visitor, recipes, [Start(parts=list(state)) for state in states], shard, 1, 0)

    fused()
    return _least(apart), _least(fused) / len(recipes)


def _least(visit) -> float:
    """Return the least processor time of several visits in seconds, which excludes other processes."""
    times, begun = [], time.monotonic()
    while len(times) < _MIN_VISITS or time.monotonic() - begun < _MIN_S:
        start = time.process_time()
        visit()
        times.append(time.process_time() - start)
    return min(times)


def _shard():
    import numpy as np

    from madlib_mop.trainer.data.shards import ShardBuilder

    chance = np.random.default_rng(0)
    x = chance.normal(size=(N_ROWS, N_INPUTS)).astype(np.float32)
    y = np.eye(N_CLASSES, dtype=np.int16)[chance.integers(0, N_CLASSES, N_ROWS)]
    builder = ShardBuilder(1, 1, 1.0)
    builder.add([x.shape, y.shape], [bytearray(x.tobytes()), bytearray(y.tobytes())])
    return builder.finish()


def _recipe(hidden: tuple[int, ...], batch_size: int, number: int):
    import keras
    from keras import layers

    from madlib_mop.trainer.recipe import Recipe

    penalty = keras.regularizers.L2(10.0 ** -(4 + number % 3))
    dense = [layers.Dense(units, activation="relu", kernel_regularizer=penalty) for units in hidden]
    model = keras.Sequential([keras.Input((N_INPUTS,)), *dense, layers.Dense(N_CLASSES, activation="softmax")])
    adam = f"Adam(learning_rate={0.001 * (1 + number)})"
    return Recipe.read(
        {
            "arch": model.to_json(),
            "compile_params": f"loss='categorical_crossentropy', optimizer='{adam}', metrics=['accuracy']",
            "fit_params": f"batch_size={batch_size}, epochs=1",
            "seed": 1,
            "mst_key": number,
        }
    )


if __name__ == "__main__":
    compare_fusion(*sys.argv[1:])

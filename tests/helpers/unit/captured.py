"""Training steps on PyTorch: which are captured as graphs, and whether graphs have the bits of Keras' own steps.

``python -m tests.helpers.unit.captured`` prints them as JSON: a process has one backend of Keras.
"""

import functools
import json
import os
import subprocess
import sys

from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.names import BackendName
from tests.helpers.unit.backends import captures

N_ROWS, BATCH_SIZE = 30, 8


@functools.cache
def results() -> dict[str, list[bool]]:
    """Return what `main` prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.helpers.unit.captured"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print for each case whether steps are captured, and whether all variables have the bits of Keras' steps."""
    os.environ.update(choice.environment_of(BackendName.TORCH))
    choice.load().set_threads(1)
    from keras import layers, optimizers

    decay = optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    cases = {
        "Adam": (optimizers.Adam(),),
        "AdamW, clipped": (optimizers.AdamW(global_clipnorm=0.1),),
        "SGD with momentum": (optimizers.SGD(momentum=0.9, nesterov=True),),
        "SGD, schedule": (optimizers.SGD(decay),),
        "Adam, schedule": (optimizers.Adam(decay),),
        "RMSprop, centered": (optimizers.RMSprop(centered=True, momentum=0.9),),
        "Adagrad": (optimizers.Adagrad(),),
        "Adadelta": (optimizers.Adadelta(),),
        "Adamax": (optimizers.Adamax(),),
        "Nadam": (optimizers.Nadam(),),
        "Ftrl": (optimizers.Ftrl(),),
        "Lion": (optimizers.Lion(),),
        "Lamb": (optimizers.Lamb(),),
        "Adafactor": (optimizers.Adafactor(),),
        "average weights": (optimizers.Adam(use_ema=True),),
        "average weights that replace the weights": (optimizers.Adam(use_ema=True, ema_overwrite_frequency=3),),
        "accumulated gradients": (optimizers.Adam(gradient_accumulation_steps=2),),
        "dropout": (optimizers.Adam(), layers.Dropout(0.3)),
        "dropout with a seed": (optimizers.Adam(), layers.Dropout(0.3, seed=1)),
        "noise with a seed": (optimizers.Adam(), layers.GaussianNoise(0.1, seed=1)),
        "batch normalization": (optimizers.Adam(), layers.BatchNormalization()),
        "layer normalization": (optimizers.Adam(), layers.LayerNormalization()),
    }
    print(json.dumps({title: _compared(*case) for title, case in cases.items()}))


def _compared(optimizer, *made) -> list[bool]:
    import torch

    with captures(BackendName.TORCH, steps_before=0) as captured:
        of_graphs = _trained(optimizer, made)
    with captures(BackendName.TORCH, steps_before=sys.maxsize):
        of_keras = _trained(optimizer, made)
    return [bool(captured), all(torch.equal(one, other) for one, other in zip(of_graphs, of_keras, strict=True))]


def _trained(optimizer, made) -> list:
    """Train a new model in three passes with a short last batch; return the values of its variables."""
    import keras
    import numpy as np
    import torch

    from madlib_mop.trainer.backends.base.columns import DataSpec

    backend = choice.current()
    keras.utils.set_random_seed(3)
    hidden = [type(layer).from_config(layer.get_config()) for layer in made]
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(8), *hidden, keras.layers.Dense(3, activation="softmax")]
    )
    optimizer = type(optimizer).from_config(optimizer.get_config())
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
    generator = np.random.default_rng(1)
    x = generator.normal(size=(N_ROWS, 5)).astype(np.float32)
    y = np.eye(3, dtype=np.int16)[generator.integers(0, 3, N_ROWS)]
    model._symbolic_build(data_batch=(x[:2], y[:2].astype(np.float32)))
    train = backend.train_pass(model, DataSpec.of((x,), (y,)), weighted=False, static_batch=0)
    columns = backend.columns([x], [y], 1.0)
    for seed in range(3):
        backend.begin_pass(seed)
        train(columns, generator.permutation(N_ROWS), BATCH_SIZE, -(-N_ROWS // BATCH_SIZE))
    return [torch.clone(variable._value.detach()) for variable in (*model.variables, *optimizer.variables)]


if __name__ == "__main__":
    main()

"""Training steps on PyTorch: which are captured as graphs, and whether graphs have the bits of Keras' own steps.

``python -m tests.helpers.unit.captured`` prints them as JSON: a process has one backend of Keras.
"""

import functools
import json
import os
import subprocess
import sys

from mop_backend.keras_backends import BackendName

from madlib_mop.trainer.backends import choice
from tests.helpers.unit.backends import captures

N_ROWS, BATCH_SIZE = 30, 8


@functools.cache
def results() -> dict[str, dict[str, list[bool]]]:
    """Return what `main` prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.helpers.unit.captured"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print for each case whether steps are captured, and whether all variables have the bits of Keras' steps.

    Then the same for small steps, which are recorded.
    """
    os.environ.update(choice.environment_of(BackendName.TORCH))
    choice.load().set_threads(1)
    from keras import layers, optimizers

    schedules = optimizers.schedules
    decay = schedules.ExponentialDecay(0.1, 10, 0.5)
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
        "noise": (optimizers.Adam(), layers.GaussianNoise(0.1)),
        "a rate that restarts": (optimizers.SGD(schedules.CosineDecayRestarts(0.1, 5)),),
        "a rate with a warm-up": (optimizers.SGD(schedules.CosineDecay(0.0, 20, warmup_target=0.1, warmup_steps=5)),),
        "a rate that decays": (optimizers.SGD(schedules.CosineDecay(0.1, 20)),),
        "batch normalization": (optimizers.Adam(), layers.BatchNormalization()),
        "layer normalization": (optimizers.Adam(), layers.LayerNormalization()),
        "weights with one path": (optimizers.SGD(0.1), _nested(), _nested()),
    }
    print(json.dumps({"steps": {title: _compared(*case) for title, case in cases.items()}, "recorded": _recorded()}))


def _nested():
    """Return a model whose layer has the path that the layer of any other such model has."""
    import keras

    x = keras.Input((8,))
    return keras.Model(x, keras.layers.Dense(8, name="inner")(x))


def _recorded() -> dict[str, list[bool]]:
    """Return for small steps whether they have a graph, and whether it does with other values what the step does."""
    import numpy as np
    import torch

    kept, drawn = torch.ones(3), torch.Generator()
    steps = {
        "a rate that is a tensor": lambda v, x: torch._foreach_add([x], [x], alpha=v.sum())[0],
        "changes in place": lambda v, x: v.mul_(2).add_(x).clone(),
        "a tensor from numbers, changed": lambda v, x: torch.tensor([1.0, 2.0, 3.0]).add_(x),
        "two results, one of them unused": lambda v, x: torch.max(x.reshape(1, 3), 1)[0] + v,
        "lists of tensors": lambda v, x: torch.stack(torch._foreach_mul(list(torch.unbind(x)), 2.0)),
        "a view that is changed": lambda v, x: (x.clone()[:2].zero_(), x * v)[1],
        "random numbers": lambda v, x: torch.rand(3) * 0 + x,
        "random numbers with a generator": lambda v, x: torch.rand(3, generator=drawn) * 0 + x,
        "item": lambda v, x: x * x.sum().item(),
        "float": lambda v, x: x * float(x.sum()),
        "int": lambda v, x: x * int(x.sum()),
        "bool": lambda v, x: x if x.sum() > 6 else -x,
        "tolist": lambda v, x: x * x.tolist()[0],
        "numpy": lambda v, x: x * x.numpy().sum().item(),
        "an array": lambda v, x: x * float(np.asarray(x).sum()),
        "an array of a tensor with gradients": lambda v, x: x * float(np.asarray(x.detach())[0]),
        "dlpack": lambda v, x: x * float(np.from_dlpack(x)[0]),
        "the number of other rows": lambda v, x: x * len(torch.nonzero(x > 2)),
        "a rate that is read before": lambda v, x: torch._foreach_add([x], [x], alpha=float(v.sum()))[0],
        "a tensor from elsewhere, changed": lambda v, x: kept.add_(x) * 0 + x,
        "a result that is a constant": lambda v, x: kept,
    }
    return {**{title: _repeated(step) for title, step in steps.items()}, "an error": _failed()}


def _failed() -> list[bool]:
    """Return whether a step has a graph, and whether both fail with the same text for an index that is too large."""
    import torch

    from madlib_mop.trainer.backends.torch.graphs import recorded

    def step(index: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(index, torch.ones(3, 2))

    _, graph = recorded(step, [], [torch.tensor([1])])
    texts = []
    for call in (step, graph):
        try:
            call(torch.tensor([7]))
        except (RuntimeError, IndexError) as error:
            texts.append(str(error))
    return [graph is not None, len(texts) == 2 and texts[0] == texts[1]]


def _repeated(step) -> list[bool]:
    import torch

    from madlib_mop.trainer.backends.torch.graphs import recorded

    def made(call, first: float) -> list[torch.Tensor]:
        value, given = torch.tensor([first, 2.0, 3.0]), torch.tensor([1.0, first, 4.0])
        return [call(value, given).clone(), value, given]

    value, given = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])
    _, graph = recorded(lambda given: step(value, given), [value], [given])
    if graph is None:
        return [False, True]
    same = [all(map(torch.equal, made(graph, first), made(step, first))) for first in (7.0, 1.0, 0.5)]
    return [True, all(same)]


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

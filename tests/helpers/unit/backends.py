"""Visits in a process of each backend of Keras that is installed, compared there with plain Keras on that backend.

``python -m tests.helpers.unit.backends NAME`` prints the results as JSON: a process has one backend.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from unittest import mock

from mop_backend.keras_backends import BackendName

from madlib_mop.trainer.backends import choice

#: Rows of the shards: with a short last batch, a multiple of the batch size, and fewer than a batch.
SHARDS = (53, 80, 7)


@dataclasses.dataclass(frozen=True)
class Words:
    """What trainers say with a backend.

    Attributes
    ----------
    gpus : tuple of str
        Of GPUs that cannot be used: the message (a regular expression), its SQLSTATE, and a part of its hint.
    index : str
        Of an index beyond an embedding's rows.
    module : str
        A module without which the backend cannot be imported.
    """

    gpus: tuple[str, str, str]
    index: str
    module: str


WORDS = {
    BackendName.TENSORFLOW: Words(
        ("the host has a GPU, but TensorFlow .* cannot use it", "55000", "tensorflow[and-cuda]"),
        "indices",
        "tensorflow.python",
    ),
    BackendName.JAX: Words(("JAX uses no GPUs here", "0A000", "'torch'"), "loss became nan", "jaxlib.xla_client"),
    BackendName.TORCH: Words(
        ("the host has a GPU, but PyTorch .* cannot use it", "55000", "a build of torch for CUDA"),
        "index out of range",
        "torch._C",
    ),
}
INSTALLED = [name for name in BackendName if importlib.util.find_spec(name)]


@functools.cache
def results_of(name: BackendName) -> dict:
    """Return what `main` prints for a backend."""
    command = [sys.executable, "-m", "tests.helpers.unit.backends", name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(name: str) -> None:
    """Train, evaluate and predict all cases with the backend; print the differences from plain Keras."""
    os.environ.update(choice.environment_of(BackendName(name)))
    backend = choice.load()
    backend.set_threads(1)
    backend.start_threads()
    import keras

    from tests.helpers.unit.cases import CASES, NOT_ON_TENSORFLOW

    others = [] if name == BackendName.TENSORFLOW else NOT_ON_TENSORFLOW
    cases = {case.name: case for case in [*CASES, *others]}
    with captures(name, steps_before=0) as captured:
        visits = {title: _visits(case) for title, case in cases.items()}
    # Keras makes the five full batches of the first pass, and a graph those that follow.
    with captures(name, steps_before=6) as captured_later:
        turns = _turns(CASES[0])
    results = {
        "names": [name, str(backend.name), keras.backend.backend()],
        "loaded": [one for one in ("tensorflow", "jax", "torch") if sys.modules.get(one)],
        "visits": visits,
        "turns": turns,
        "captures": [len(captured), captured_later],
        "compilations": _compilations(*CASES[:2]) if name == BackendName.JAX else {},
    }
    print(json.dumps(results))


@contextlib.contextmanager
def captures(name: str, steps_before: int):
    """Let PyTorch's passes capture a step after this many; yield a list that grows with each."""
    made: list[int] = []
    if name != BackendName.TORCH:
        yield made
        return
    from madlib_mop.trainer.backends.torch import loop

    original = loop.recorded

    def counted(step, values, batch):
        result, graph = original(step, values, batch)
        if graph is not None:
            made.append(len(batch[0]))
        return result, graph

    with mock.patch.multiple(loop, STEPS_BEFORE_CAPTURE=steps_before, recorded=counted):
        yield made


def _visits(case) -> dict:
    """Make visits that alternate between two trainers, which share only the state; evaluate and predict with it."""
    from madlib_mop.trainer.data import state
    from tests.helpers.unit.cases import weights_of

    visitors, model, parts = (_visitor(), _visitor()), case.model(), None
    for segment_id, n_rows in enumerate(SHARDS):
        trained = _train(visitors[segment_id % 2], case, n_rows, segment_id, parts)
        parts = trained.parts
        case.fit(model, 1, segment_id, *case.data(n_rows))
    return {
        "weights": state.weights_of(parts) == weights_of(model),
        "optimizer": _same_optimizer(parts, model),
        "evaluation": _evaluation(visitors[0], case, model, parts),
        "prediction": _prediction(visitors[0], case, model, parts),
    }


def _turns(case) -> list[bool]:
    """Let configurations that differ in learning rate and L2 strength take turns in one compiled model."""
    import keras

    from madlib_mop.trainer.data import state
    from tests.helpers.unit.cases import weights_of

    def configuration(rate: float, strength: str):
        arch = case.build().to_json().replace('"l2": 0.001', f'"l2": {strength}')
        return dataclasses.replace(
            case,
            build=lambda: keras.models.model_from_json(arch),
            compile_params=case.compile_params.replace("0.01", str(rate)),
            compiled=lambda: {**case.compiled(), "optimizer": keras.optimizers.Adam(rate)},
        )

    pairs = [(rate, strength) for rate in (0.01, 0.2) for strength in ("0.001", "0.7")]
    members = [configuration(*pair) for pair in pairs]
    visitor, states, models = _visitor(), [None] * len(members), [member.model() for member in members]
    for segment_id, n_rows in enumerate(SHARDS[:2]):
        for number, member in enumerate(members):
            states[number] = _train(visitor, member, n_rows, segment_id, states[number]).parts
            member.fit(models[number], 1, segment_id, *member.data(n_rows))
    same = [state.weights_of(parts) == weights_of(model) for parts, model in zip(states, models, strict=True)]
    return [*same, len(visitor.models) == 1]


@contextlib.contextmanager
def _compiled():
    """Yield a counter of the functions that JAX compiles, by name."""
    import logging

    import jax

    found: collections.Counter[str] = collections.Counter()

    class Counting(logging.Handler):
        def emit(self, record):
            compiled = re.match(r"Compiling (?:jit\()?(\w+)", record.getMessage())
            if compiled:
                found[compiled[1]] += 1

    handler = Counting()
    logging.getLogger("jax").addHandler(handler)
    jax.config.update("jax_log_compiles", True)
    yield found
    jax.config.update("jax_log_compiles", False)
    logging.getLogger("jax").removeHandler(handler)


def _compilations(case, predicted) -> dict[str, int]:
    """Return how often JAX compiles each function while two models make visits and are evaluated in turn.

    ``predicted`` counts the functions while a model of the second case predicts 1 to 40 rows.
    """
    from madlib_mop.trainer.visits import Start

    with _compiled() as found:
        visitor, states = _visitor(), [None, None]
        for segment_id in range(3):
            for number in range(2):
                states[number] = _train(visitor, case, SHARDS[0], segment_id, states[number]).parts
                _evaluate(visitor, case, states[number])
    parts = _train(visitor, predicted, SHARDS[0], 0, None).parts
    visitor.load_predictor(_recipe(predicted), Start(parts=list(parts)), 1.0, "")
    (x,), _ = predicted.data(40)
    with _compiled() as of_predictions:
        for n_rows in range(1, 41):
            visitor.predict((x[:n_rows],), "")
    return {**found, "predicted": of_predictions["run"]}


def _evaluate(visitor, case, parts):
    from madlib_mop.trainer.visits import Start

    return visitor.evaluate(_recipe(case), Start(parts=list(parts)), _shard(case, SHARDS[0]))


def _evaluation(visitor, case, model, parts) -> float:
    """Return the largest relative difference of loss and metrics from Keras' ``evaluate``."""
    n_rows = SHARDS[0]
    found = _evaluate(visitor, case, parts)
    xs, ys = (columns if len(columns) > 1 else columns[0] for columns in case.data(n_rows))
    expected = model.evaluate(xs, ys, batch_size=n_rows, verbose=0, return_dict=True)
    pairs = [(found.loss, expected["loss"]), *((value, expected[n]) for n, value in found.metrics.items())]
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)


def _prediction(visitor, case, model, parts) -> float:
    """Return the largest difference of predictions from Keras' ``predict``."""
    import numpy as np

    from madlib_mop.trainer.visits import Start

    visitor.load_predictor(_recipe(case), Start(parts=list(parts)), 1.0, "")
    xs = case.data(SHARDS[0])[0]
    expected = model.predict(xs if len(xs) > 1 else xs[0], verbose=0)
    expected = expected if isinstance(expected, list) else [expected]
    return max(float(np.abs(a - b).max()) for a, b in zip(visitor.predict(xs, ""), expected, strict=True))


def _visitor():
    from madlib_mop.trainer.visits import Visitor

    return Visitor(features_room=lambda: 1 << 28)


def _train(visitor, case, n_rows: int, segment_id: int, parts):
    from madlib_mop.trainer.visits import Start

    start = Start() if parts is None else Start(parts=list(parts))
    return visitor.train(_recipe(case), start, _shard(case, n_rows), 1, segment_id)


def _recipe(case):
    from madlib_mop.trainer.recipe import Recipe

    return Recipe.read(case.request())


def _shard(case, n_rows: int):
    import numpy as np

    from madlib_mop.trainer.data.shards import ShardBuilder

    xs, ys = case.data(n_rows)
    indices = [number for number, x in enumerate(xs) if x.dtype == np.int32]
    builder = ShardBuilder(len(xs), len(ys), 1.0, index_inputs=indices)
    columns = [np.ascontiguousarray(column) for column in (*xs, *ys)]
    builder.add([column.shape for column in columns], [bytearray(column.tobytes()) for column in columns])
    return builder.finish()


def _same_optimizer(parts, model) -> bool:
    import keras
    import numpy as np

    from madlib_mop.trainer.data import state

    convert = keras.ops.convert_to_numpy
    decoded = state.decode_state(parts)
    variables = enumerate(model.optimizer.variables)
    return all(np.array_equal(decoded.read("optimizer", index), convert(v.value)) for index, v in variables)


if __name__ == "__main__":
    main(sys.argv[1])

"""The compiled loops over mini-batches on JAX: one pass of training, one of evaluation, one batch of prediction.

Called by ``backend.py``. A training step is Keras' own ``train_step``, which takes and returns the values of variables.
XLA compiles it alone, as it does for Keras' ``fit``. In a larger function, such as a loop over all batches, XLA
combines operations in other groups and rounds differently (on x86-64 with AVX-512, convolutions do). So each batch is
a call of the compiled step, and NumPy selects its rows. XLA compiles for shapes, so a step is compiled once for each
number of rows in a batch.

Keras does not compile models with some layers, such as `RandomZoom` (`Model.jit_compile` is false): JAX then computes
one operation after the other, and rounds as it does in Keras' ``fit``. This is slow.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from madlib_mop.trainer.backends.base.columns import Columns, structure
from madlib_mop.trainer.backends.base.interface import EvaluatePass, PredictBatch, TrainPass
from madlib_mop.trainer.backends.base.metric_sums import MetricAccumulator, scalar
from madlib_mop.trainer.data.shard_file import ReadAhead

Values = list[jax.Array]
State = tuple[Values, ...]
#: The rows of a mini-batch in the structure that a model takes: x, y and, if there are any, row weights.
Batch = tuple[Any, ...]


class Strength:
    """The strength of an L2 regularizer, an argument of compiled passes.

    Attributes
    ----------
    value : float
    traced : jax.Array or None
        What stands for it while a pass is traced.
    """

    def __init__(self, value: float):
        self.value = value
        self.traced: jax.Array | None = None

    def assign(self, value: float) -> None:
        """Set the value."""
        self.value = value

    def __jax_array__(self) -> jax.Array:
        """Return what `jnp.asarray` makes of it."""
        return jnp.float32(self.value) if self.traced is None else self.traced


def train_pass(model: keras.Model) -> TrainPass:
    """Return the training pass of a compiled model whose metrics' variables are made."""
    strengths = _strengths_of(model)

    def step(state: State, batch: Batch, strong: Sequence[jax.Array]) -> State:
        with traced(strengths, strong):
            _, after = model.train_step(state, batch)
        found: State = after
        return found

    of_batch = _compiled(model, step, donate_argnums=0)

    def train(
        columns: Columns, order: np.ndarray, batch_size: int, n_batches: int, ahead: ReadAhead | None = None
    ) -> dict[str, float]:
        own = model.trainable_variables, model.non_trainable_variables
        groups = *own, model.optimizer.variables, model.metrics_variables
        state, strong = _distinct(committed(_values(groups))), _numbers(strengths)
        for number, start in enumerate(range(0, n_batches * batch_size, batch_size)):
            if ahead is not None:
                ahead.reach(number)
            state = of_batch(state, batch_of(columns, order[start : start + batch_size]), strong)
        for variables, values in zip(groups, state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        return {name: scalar(value) for name, value in model.get_metrics_result().items()}

    return train


def evaluate_pass(model: keras.Model) -> EvaluatePass:
    """Return the evaluation pass of a compiled model whose metrics' variables are made."""
    strengths, sums = _strengths_of(model), MetricAccumulator(model)
    place = {id(variable): number for number, variable in enumerate(model.metrics_variables)}
    taken = [place[id(variable)] for metric in sums.metrics for variable in metric.variables]

    def run(state: State, batch: Batch, strong: Sequence[jax.Array]) -> jax.Array:
        with traced(strengths, strong):
            _, (_, _, metrics) = model.test_step(state, batch)
        return jnp.concatenate([jnp.ravel(metrics[number]).astype(jnp.float32) for number in taken])

    of_batch = _compiled(model, run)

    def evaluate(columns: Columns, batch_size: int) -> np.ndarray:
        state = committed(_values((model.trainable_variables, model.non_trainable_variables, model.metrics_variables)))
        strong = _numbers(strengths)
        batches = (batch_of(columns, rows) for rows in evaluated_rows(len(columns.xs[0]), batch_size))
        found = [np.asarray(of_batch(state, batch, strong)) for batch in batches]
        total: np.ndarray = np.stack(found).sum(0, dtype=np.float64)
        return total

    return evaluate


def _compiled(model: keras.Model, step: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return ``f(state, batch, strengths)``: a step of a model, compiled where Keras compiles the model's steps."""
    if model.jit_compile:
        compiled: Callable[..., Any] = jax.jit(step, **options)
        return compiled

    def eager(state: State, batch: Batch, strong: Sequence[jax.Array]) -> Any:
        return step(state, keras.tree.map_structure(jnp.asarray, batch), strong)

    return eager


def predict_batch(model: keras.Model, normalizing_const: float) -> PredictBatch:
    """Return the function that predicts a batch."""
    forward, constant = _forward(model), np.float32(normalizing_const)

    def predict(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = forward(_of(model), [normalized(x, constant) for x in xs])
        return [np.asarray(output) for output in outputs]

    return predict


def _forward(model: keras.Model) -> Callable[..., Values]:
    """Return ``f(values, xs) -> [float32 outputs]``, compiled."""

    def run(values: State, xs: Values) -> Values:
        outputs, _ = model.stateless_call(*values, structure(xs), training=False)
        return [output.astype(jnp.float32) for output in keras.tree.flatten(outputs)]

    compiled: Callable[..., Values] = jax.jit(run)
    return compiled


def batch_of(columns: Columns, rows: np.ndarray) -> Batch:
    """Return rows of columns, float32 (x that are indices: int32); rows of any shape take the place of the first."""
    x = structure([normalized(x.take(rows, 0), columns.constant) for x in columns.xs])
    y = structure([y.take(rows, 0).astype(np.float32) for y in columns.ys])
    return x, y, *(weights.take(rows, 0) for weights in columns.row_weights)


def normalized(x: np.ndarray, constant: np.float32) -> np.ndarray:
    """Return x with uint8 divided by the constant, float32."""
    return x.astype(np.float32) / constant if x.dtype == np.uint8 else x


def evaluated_rows(n_rows: int, most: int) -> list[np.ndarray]:
    """Return the numbers of the rows of each batch of an evaluation, ``most`` or fewer rows.

    All batches have as many rows if that is possible with half of ``most`` or more: a last batch with fewer would need
    a function of its own, and compiling it takes longer than many batches.
    """
    even = (size for size in range(min(most, n_rows), most // 2, -1) if n_rows % size == 0)
    size = next(even, most)
    return [np.arange(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def _values(groups: Sequence[Sequence[keras.Variable]]) -> State:
    return tuple([variable.value for variable in group] for group in groups)


def committed(state: State) -> State:
    """Commit arrays to this process's device: JAX compiles again for arrays that are not, as new variables are not."""
    found: State = jax.device_put(state, jax.devices()[0])
    return found


def _distinct(state: State) -> State:
    """Copy what shares its memory with another value: weights, after Keras has replaced them by their averages.

    A compiled pass takes over the memory of its state, and each part of it can be taken over once.
    """
    seen: set[int] = set()
    found: list[Values] = []
    for values in state:
        found.append([])
        for value in values:
            place = value.unsafe_buffer_pointer()
            found[-1].append(jnp.copy(value) if place in seen else value)
            seen.add(place)
    return tuple(found)


def _of(model: keras.Model) -> State:
    return committed(_values((model.trainable_variables, model.non_trainable_variables)))


def _strengths_of(model: keras.Model) -> list[Strength]:
    """Return the strengths of the model's regularizers that are `Strength`, each once."""
    regularizers = [getattr(variable, "regularizer", None) for variable in model.trainable_variables]
    found = [getattr(regularizer, "l2", None) for regularizer in regularizers]
    return list({id(one): one for one in found if isinstance(one, Strength)}.values())


def _numbers(strengths: Sequence[Strength]) -> list[jax.Array]:
    return [jnp.float32(strength.value) for strength in strengths]


@contextlib.contextmanager
def traced(strengths: Sequence[Strength], values: Sequence[jax.Array]) -> Iterator[None]:
    """Let arguments of a compiled pass stand for strengths while it is traced."""
    for strength, value in zip(strengths, values, strict=True):
        strength.traced = value
    try:
        yield
    finally:
        for strength in strengths:
            strength.traced = None

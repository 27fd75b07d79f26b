"""The compiled loops over mini-batches on JAX: one pass of training, one of evaluation, one batch of prediction.

Called by ``backend.py``. A training step is Keras' own ``train_step``, which takes and returns the values of variables.
XLA compiles it alone, as it does for Keras' ``fit``. In a larger function, such as a loop over all batches, XLA
combines operations in other groups and rounds differently (on x86-64 with AVX-512, convolutions do). So each batch is
two calls of compiled functions: one selects its rows, one makes the step. XLA compiles for shapes, so a step is
compiled once for each number of rows in a batch.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from madlib_mop.models.prefix import Split
from madlib_mop.trainer.backends.base.columns import Columns, structure
from madlib_mop.trainer.backends.base.interface import EvaluatePass, PredictBatch, PrefixBatch, TrainPass
from madlib_mop.trainer.backends.base.metric_sums import MetricSums, scalar

Values = list[jax.Array]
State = tuple[Values, ...]
#: Columns, or the rows of a mini-batch: x, y and row weights.
Batch = Any


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

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State, batch: Any, strong: Sequence[jax.Array]) -> State:
        with traced(strengths, strong):
            _, after = model.train_step(state, batch)
        found: State = after
        return found

    @functools.partial(jax.jit, static_argnums=3)
    def select(data: Any, order: jax.Array, start: int, n: int, constant: jax.Array) -> Any:
        x, y, weights = batch_of(data, jax.lax.dynamic_slice_in_dim(order, start, n), constant)
        return x, y, *weights

    def train(columns: Columns, order: np.ndarray, batch_size: int, n_batches: int) -> dict[str, float]:
        own = model.trainable_variables, model.non_trainable_variables
        groups = *own, model.optimizer.variables, model.metrics_variables
        state, data = _distinct(committed(_values(groups))), (columns.xs, columns.ys, columns.row_weights)
        rows, strong = indices_of(order), _numbers(strengths)
        for start in range(0, n_batches * batch_size, batch_size):
            n = min(batch_size, len(order) - start)
            state = step(state, select(data, rows, start, n, columns.constant), strong)
        for variables, values in zip(groups, state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        return {name: scalar(value) for name, value in model.get_metrics_result().items()}

    return train


def evaluate_pass(model: keras.Model) -> EvaluatePass:
    """Return the evaluation pass of a compiled model whose metrics' variables are made."""
    strengths, sums = _strengths_of(model), MetricSums(model)
    place = {id(variable): number for number, variable in enumerate(model.metrics_variables)}
    taken = [place[id(variable)] for metric in sums.metrics for variable in metric.variables]

    def run(state: State, batch: Batch, strong: Sequence[jax.Array]) -> jax.Array:
        with traced(strengths, strong):
            _, (_, _, metrics) = model.test_step(state, batch)
        return jnp.concatenate([jnp.ravel(metrics[number]).astype(jnp.float32) for number in taken])

    of_batch: Callable[..., jax.Array] = jax.jit(run)

    @functools.partial(jax.jit, static_argnums=2)
    def rows_of(data: Any, start: int, n: int, constant: jax.Array) -> Any:
        x, y, _ = batch_of(data, start + jnp.arange(n, dtype=jnp.int32), constant)
        return x, y

    def evaluate(columns: Columns, batch_size: int) -> np.ndarray:
        state = committed(_values((model.trainable_variables, model.non_trainable_variables, model.metrics_variables)))
        data, strong, n_rows = (columns.xs, columns.ys, ()), _numbers(strengths), len(columns.xs[0])
        size = even_size(n_rows, batch_size)
        found: list[np.ndarray] = []
        for start in range(0, n_rows, size):
            batch = rows_of(data, start, min(size, n_rows - start), columns.constant)
            found.append(np.asarray(of_batch(state, batch, strong)))
        total: np.ndarray = np.stack(found).sum(0, dtype=np.float64)
        return total

    return evaluate


def prefix_batch(split: Split) -> PrefixBatch:
    """Return the function that computes a batch of features."""
    forward = _forward(split.prefix, training=True)

    def compute(columns: Columns, rows: np.ndarray) -> list[np.ndarray]:
        xs = [columns.xs[number] for number in split.sources]
        return [np.asarray(made) for made in forward(_of(split.prefix), xs, indices_of(rows), columns.constant)]

    return compute


def predict_batch(model: keras.Model, normalizing_const: float) -> PredictBatch:
    """Return the function that predicts a batch."""
    forward, constant, divisor = _forward(model, training=False), jnp.float32(1), np.float32(normalizing_const)

    def predict(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        xs = [x.astype(np.float32) / divisor if x.dtype == np.uint8 else x for x in xs]
        outputs = forward(_of(model), [jnp.asarray(x) for x in xs], None, constant)
        return [np.asarray(output) for output in outputs]

    return predict


def _forward(model: keras.Model, training: bool) -> Callable[..., Values]:
    """Return ``f(values, xs, rows, constant) -> [float32 outputs]``; without rows (None) for all of xs."""

    def run(values: State, xs: Values, rows: jax.Array | None, constant: jax.Array) -> Values:
        batch = [_normalized(x if rows is None else jnp.take(x, rows, 0), constant) for x in xs]
        outputs, _ = model.stateless_call(*values, jax.lax.optimization_barrier(structure(batch)), training=training)
        return [output.astype(jnp.float32) for output in keras.tree.flatten(outputs)]

    compiled: Callable[..., Values] = jax.jit(run)
    return compiled


def batch_of(data: Batch, rows: jax.Array, constant: jax.Array) -> tuple[Any, Any, list[jax.Array]]:
    """Return rows of columns in the structure that a model takes: x, y and row weights, float32."""
    xs, ys, weights = data
    x = structure([_normalized(jnp.take(x, rows, 0), constant) for x in xs])
    y = structure([jnp.take(y, rows, 0).astype(jnp.float32) for y in ys])
    return x, y, [jnp.take(one, rows, 0) for one in weights]


def _normalized(x: jax.Array, constant: jax.Array) -> jax.Array:
    """Divide uint8 x; the divisor is an argument, because XLA would multiply by a constant's reciprocal."""
    return x.astype(jnp.float32) / constant if x.dtype == jnp.uint8 else x


def even_size(n_rows: int, most: int) -> int:
    """Return the size of batches, from half of ``most`` to ``most``, of which all have as many rows; else ``most``.

    A last batch with fewer rows would need a function of its own, and compiling it takes longer than many batches.
    """
    even = (size for size in range(min(most, n_rows), most // 2, -1) if n_rows % size == 0)
    return next(even, most)


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


def indices_of(order: np.ndarray) -> jax.Array:
    """Return numbers of rows as int32, JAX's integers."""
    return jnp.asarray(order, jnp.int32)


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

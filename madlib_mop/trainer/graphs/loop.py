"""The compiled loops over mini-batches: one pass of training, one of evaluation, one batch of prediction.

Called by ``compiled.py``. Each function ``make_...`` returns a ``tf.function`` around Keras' own ``train_step`` or
``test_step``; rows, order and batch size are arguments, so one trace serves every shard, permutation and batch size.

There are two kinds of traces for training, because ``model.fit`` and this loop give the same bits only if both compile
the step for the same kind of batch. If a shard's rows are a multiple of the batch size, tf.data knows the size of every
batch, Keras compiles its step for exactly that size, and Grappler folds constants that depend on it: the gradient of a
mean is multiplied by 1/n instead of divided by n, and the last bit differs (examples: batches of 10 with MSE, batches
of 16 with batch normalisation). A Keras model caches its compiled steps. It compiles the special step only if its first
fit had such batches (``reduce_retracing``: once there is a general step, it serves all sizes), and uses it later for
batches of that size whenever the rows are a multiple of it. ``static_batch_of`` follows the same rule, and
``State.static_batch`` passes the size from visit to visit (tests/unit/trainer/test_exact.py).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from madlib_mop.models.prefix import Split
from madlib_mop.trainer.data.shards import Shard
from madlib_mop.trainer.graphs.metric_sums import MetricSums, scalar


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The properties of data that a trace depends on: dtype and row shape of each column."""

    xs: tuple[tuple[str, tuple[int, ...]], ...]
    ys: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, xs: tuple[np.ndarray, ...], ys: tuple[np.ndarray, ...] = ()) -> "DataSpec":
        """Describe columns; rows are their first dimension."""
        return cls(*(tuple((str(a.dtype), a.shape[1:]) for a in columns) for columns in (xs, ys)))

    def signature(self, which: str) -> list[tf.TensorSpec]:
        """Return TensorFlow's description of the columns ``xs`` or ``ys``, for any number of rows."""
        return [tf.TensorSpec((None, *shape), dtype) for dtype, shape in getattr(self, which)]

    def batch(self) -> tuple[Any, ...]:
        """Return two rows of zeros, in the structure in which Keras gets a batch."""
        rows = [
            [np.zeros((2, *shape), np.int32 if dtype == "int32" else np.float32) for dtype, shape in columns]
            for columns in (self.xs, self.ys)
        ]
        return tuple(_structure(columns) for columns in rows)


Traceable: TypeAlias = tf.types.experimental.PolymorphicFunction
Traced = Callable[..., Any]  # traced for one kind of arguments: TensorFlow's ConcreteFunction
Tensors = Sequence[tf.Tensor]

_INT = tf.TensorSpec((), tf.int64)
_FLOAT = tf.TensorSpec((), tf.float32)
_FLOATS = tf.TensorSpec((None,), tf.float32)


def static_batch_of(n_rows: int, batch_size: int, inherited: int | None) -> tuple[int, int]:
    """Return whether a visit's training step is compiled for one batch size.

    Parameters
    ----------
    n_rows, batch_size : int
        Of the visit.
    inherited : int or None
        ``State.static_batch`` of the state that the visit starts from; None at a model's first visit, and for an
        average of states, because a Keras model with these weights would be a new one.

    Returns
    -------
    tuple of int
        The static batch size of this visit (0: the general step), and ``static_batch`` of the resulting state.
    """
    fits = batch_size if n_rows % batch_size == 0 else 0
    carried = fits if inherited is None else inherited
    return (fits if fits == carried else 0), carried


def make_train_pass(model: keras.Model, spec: DataSpec, weighted: bool, static_batch: int) -> Traceable:
    """Return ``f(xs, ys, row_weights, order, batch_size, n_batches, constant) -> {metric: float32}``.

    ``row_weights`` is a list, of one ``(n_rows,)`` tensor if ``weighted``; ``order`` is int64 ``(n_rows,)``;
    ``constant`` divides uint8 x. The last batch has the remaining rows. The metrics are those that ``fit`` logs.
    """

    def run(
        xs: Tensors,
        ys: Tensors,
        row_weights: Tensors,
        order: tf.Tensor,
        batch_size: tf.Tensor,
        n_batches: tf.Tensor,
        constant: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        n_rows = tf.size(order, out_type=tf.int64)

        def body(i: tf.Tensor) -> tf.Tensor:
            rows = order[i * batch_size : tf.minimum((i + 1) * batch_size, n_rows)]
            if static_batch:
                rows = tf.ensure_shape(rows, (static_batch,))
            x = _structure([normalized(tf.gather(x, rows), constant) for x in xs])
            y = _structure([as_float(tf.gather(y, rows)) for y in ys])
            model.train_step((x, y, *(tf.gather(w, rows) for w in row_weights)))
            return i + 1

        tf.while_loop(lambda i: i < n_batches, body, [tf.constant(0, tf.int64)], parallel_iterations=1)
        logs: dict[str, tf.Tensor] = model.get_metrics_result()
        return logs

    return tf.function(
        run,
        autograph=False,
        input_signature=[
            spec.signature("xs"),
            spec.signature("ys"),
            [_FLOATS] if weighted else [],
            tf.TensorSpec((None,), tf.int64),
            _INT,
            _INT,
            _FLOAT,
        ],
    )


def make_evaluate_pass(model: keras.Model, spec: DataSpec) -> Traceable:
    """Return ``f(xs, ys, batch_size, constant) -> sums`` over all rows: the float64 values of `MetricSums`."""
    metrics = MetricSums(model)

    def run(xs: Tensors, ys: Tensors, batch_size: tf.Tensor, constant: tf.Tensor) -> tf.Tensor:
        n_rows = tf.shape(xs[0], tf.int64)[0]

        def body(start: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            stop = tf.minimum(start + batch_size, n_rows)
            x = _structure([normalized(x[start:stop], constant) for x in xs])
            y = _structure([as_float(y[start:stop]) for y in ys])
            model.test_step((x, y))
            return stop, sums + metrics.take()

        zeros = tf.zeros(metrics.n_values, tf.float64)
        _, sums = tf.while_loop(
            lambda start, _: start < n_rows, body, [tf.constant(0, tf.int64), zeros], parallel_iterations=1
        )
        return sums

    signature = [spec.signature("xs"), spec.signature("ys"), _INT, _FLOAT]
    return tf.function(run, autograph=False, input_signature=signature)


def make_prefix_batch(split: Split, spec: DataSpec, static_batch: int) -> Traceable:
    """Return ``f(xs, rows, constant) -> [float32 features]`` for rows (int64) of x, as in a training step."""

    def run(xs: Tensors, rows: tf.Tensor, constant: tf.Tensor) -> list[tf.Tensor]:
        if static_batch:
            rows = tf.ensure_shape(rows, (static_batch,))
        batch = [normalized(tf.gather(xs[number], rows), constant) for number in split.sources]
        features: list[tf.Tensor] = keras.tree.flatten(split.prefix(_structure(batch), training=True))
        return features

    signature = [spec.signature("xs"), tf.TensorSpec((None,), tf.int64), _FLOAT]
    return tf.function(run, autograph=False, input_signature=signature)


def tail_spec(split: Split, spec: DataSpec) -> DataSpec:
    """Return the columns that a split model's tail takes, if the model takes those of ``spec``."""
    features = [("float32", tuple(tensor.shape[1:])) for tensor in split.prefix.outputs]
    return DataSpec(tuple(features[n] if made else spec.xs[n] for made, n in split.tail_inputs), spec.ys)


def make_predict_batch(model: keras.Model, spec: DataSpec) -> Traceable:
    """Return ``f(xs, constant) -> [float32 outputs]`` for the rows of one batch, of any number."""

    def run(xs: Tensors, constant: tf.Tensor) -> list[tf.Tensor]:
        x = _structure([normalized(x, constant) for x in xs])
        return [tf.cast(output, tf.float32) for output in keras.tree.flatten(model(x, training=False))]

    return tf.function(run, autograph=False, input_signature=[spec.signature("xs"), _FLOAT])


class Batch:
    """A traced function with float32 outputs, called as one op, which avoids the overhead of its Python arguments."""

    def __init__(self, function: Traceable):
        self._function = function.get_concrete_function()
        self._captured = list(self._function.captured_inputs)
        self._types = [output.dtype for output in self._function.outputs]

    def __call__(self, tensors: list[tf.Tensor]) -> list[np.ndarray]:
        """Compute for tensors in the order of the function's arguments."""
        outputs = tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *self._captured], Tout=self._types, f=self._function
        )
        return [output.numpy() for output in outputs]


def flat_logs(logs: dict[str, tf.Tensor]) -> dict[str, float]:
    """Convert the results of the training loop to numbers."""
    return {name: scalar(value) for name, value in logs.items()}


def tensors_of(arrays: tuple[np.ndarray, ...]) -> list[tf.Tensor]:
    """Convert arrays to tensors, without a copy if they are aligned."""
    return [tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in arrays]


def row_weights_of(shard: Shard, class_weight: dict[int, float]) -> tf.Tensor:
    """Return each row's class weight, as Keras' ``class_weight_to_sample_weights`` does; float32 ``(n_rows,)``."""
    y = shard.ys[0]
    if y.ndim > 1:
        y = np.argmax(y, axis=-1) if y.shape[-1] != 1 else np.squeeze(y, axis=-1)
    classes, positions = np.unique(np.round(y).astype(np.int32), return_inverse=True)
    weights = np.array([class_weight.get(int(c), 1.0) for c in classes], np.float32)
    return tf.constant(weights[positions])


def _structure(columns: list[tf.Tensor]) -> object:
    """Return a single column unchanged and several as a tuple, as Keras' data adapters do."""
    return columns[0] if len(columns) == 1 else tuple(columns)


def normalized(x: tf.Tensor, constant: tf.Tensor) -> tf.Tensor:
    """Divide uint8 x; the divisor is an argument, because Grappler would replace a constant by its reciprocal."""
    return tf.cast(x, tf.float32) / constant if x.dtype == tf.uint8 else x


def as_float(y: tf.Tensor) -> tf.Tensor:
    """Return y as float32, the form that Keras gets."""
    return y if y.dtype == tf.float32 else tf.cast(y, tf.float32)

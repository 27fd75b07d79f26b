"""The compiled loops over mini-batches: one pass of training, one of evaluation, one batch of prediction.

Called by ``backend.py``. Each function ``make_...`` returns a ``tf.function`` around Keras' own ``train_step`` or
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

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from madlib_mop.models.prefix import Split
from madlib_mop.trainer.backends.base.columns import DataSpec, structure
from madlib_mop.trainer.backends.base.metric_sums import MetricAccumulator
from madlib_mop.trainer.data.shard_file import ReadAhead

Traceable: TypeAlias = tf.types.experimental.PolymorphicFunction
Tensors = Sequence[tf.Tensor]

_INT = tf.TensorSpec((), tf.int64)
_FLOAT = tf.TensorSpec((), tf.float32)
_FLOATS = tf.TensorSpec((None,), tf.float32)
#: Bytes of arrays whose tensors are kept.
_MOST_KEPT_BYTES = 1 << 16


def signature(columns: Sequence[tuple[str, tuple[int, ...]]]) -> list[tf.TensorSpec]:
    """Return TensorFlow's description of the columns ``xs`` or ``ys`` of a `DataSpec`, for any number of rows."""
    return [tf.TensorSpec((None, *shape), dtype) for dtype, shape in columns]


def static_batch_of(n_rows: int, batch_size: int, inherited: int | None) -> tuple[int, int]:
    """Return whether a visit's training step is compiled for one batch size; see `Backend.static_batch_of`."""
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
            x = structure([normalized(tf.gather(x, rows), constant) for x in xs])
            y = structure([as_float(tf.gather(y, rows)) for y in ys])
            model.train_step((x, y, *(tf.gather(w, rows) for w in row_weights)))
            return i + 1

        tf.while_loop(lambda i: i < n_batches, body, [tf.constant(0, tf.int64)], parallel_iterations=1)
        logs: dict[str, tf.Tensor] = model.get_metrics_result()
        return logs

    return tf.function(
        run,
        autograph=False,
        input_signature=[
            signature(spec.xs),
            signature(spec.ys),
            [_FLOATS] if weighted else [],
            tf.TensorSpec((None,), tf.int64),
            _INT,
            _INT,
            _FLOAT,
        ],
    )


def stretches(
    order: np.ndarray, batch_size: int, n_batches: int, ahead: ReadAhead | None = None
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the order of the rows of some batches, and their number, for successive calls that make one pass.

    With ``ahead``, its stretches; without, all of them. ``order`` may have a first dimension of places.
    """
    at_once = n_batches if ahead is None else ahead.n_batches
    for first in range(0, n_batches, at_once):
        if ahead is not None:
            ahead.reach(first)
        last = min(first + at_once, n_batches)
        end = order.shape[-1] if ahead is None else last * batch_size
        yield order[..., first * batch_size : end], last - first


def make_evaluate_pass(model: keras.Model, spec: DataSpec) -> Traceable:
    """Return ``f(xs, ys, batch_size, constant) -> sums`` over all rows: the float64 values of `MetricAccumulator`."""
    metrics = MetricAccumulator(model)

    def run(xs: Tensors, ys: Tensors, batch_size: tf.Tensor, constant: tf.Tensor) -> tf.Tensor:
        n_rows = tf.shape(xs[0], tf.int64)[0]

        def body(start: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            stop = tf.minimum(start + batch_size, n_rows)
            x = structure([normalized(x[start:stop], constant) for x in xs])
            y = structure([as_float(y[start:stop]) for y in ys])
            model.test_step((x, y))
            return stop, sums + _taken(metrics)

        zeros = tf.zeros(metrics.n_values, tf.float64)
        _, sums = tf.while_loop(
            lambda start, _: start < n_rows, body, [tf.constant(0, tf.int64), zeros], parallel_iterations=1
        )
        return sums

    specs = [signature(spec.xs), signature(spec.ys), _INT, _FLOAT]
    return tf.function(run, autograph=False, input_signature=specs)


def _taken(metrics: MetricAccumulator) -> tf.Tensor:
    """Return the newest sums as float64 ``(n_values,)``, and reset Keras' to 0.

    Keras adds in float32 and loses digits in large shards. Read after each batch, the sums are added in float64.
    """
    values = [tf.reshape(tf.cast(v.value, tf.float64), [-1]) for m in metrics.metrics for v in m.variables]
    taken = tf.concat(values, 0)
    with tf.control_dependencies([taken]):
        for metric in metrics.metrics:
            metric.reset_state()
    return taken


def make_prefix_batch(split: Split, spec: DataSpec, static_batch: int) -> Traceable:
    """Return ``f(xs, rows, constant) -> [float32 features]`` for rows (int64) of x, as in a training step."""

    def run(xs: Tensors, rows: tf.Tensor, constant: tf.Tensor) -> list[tf.Tensor]:
        if static_batch:
            rows = tf.ensure_shape(rows, (static_batch,))
        batch = [normalized(tf.gather(xs[number], rows), constant) for number in split.sources]
        features: list[tf.Tensor] = keras.tree.flatten(split.prefix(structure(batch), training=True))
        return features

    specs = [signature(spec.xs), tf.TensorSpec((None,), tf.int64), _FLOAT]
    return tf.function(run, autograph=False, input_signature=specs)


def make_predict_batch(model: keras.Model, spec: DataSpec) -> Traceable:
    """Return ``f(xs, constant) -> [float32 outputs]`` for the rows of one batch, of any number."""

    def run(xs: Tensors, constant: tf.Tensor) -> list[tf.Tensor]:
        x = structure([normalized(x, constant) for x in xs])
        return [tf.cast(output, tf.float32) for output in keras.tree.flatten(model(x, training=False))]

    return tf.function(run, autograph=False, input_signature=[signature(spec.xs), _FLOAT])


class TracedCall:
    """A traced function with float32 outputs, called as one op, which avoids the overhead of its Python arguments."""

    def __init__(self, function: Traceable, constant: tf.Tensor):
        self._function = function.get_concrete_function()
        self._rest = [constant, *self._function.captured_inputs]
        self._types = [output.dtype for output in self._function.outputs]
        self._kept: Sequence[np.ndarray] | None = None
        self._args: list[tf.Tensor] = []

    def __call__(self, xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute for arrays in the order of the function's arguments.

        The tensors of a few small arrays are kept for a call with the same list; they share its arrays' memory.
        """
        args = self._args
        if xs is not self._kept:
            args = [*map(tensor_of, xs), *self._rest]
            if sum(x.nbytes for x in xs) <= _MOST_KEPT_BYTES:
                self._kept, self._args = xs, args
        outputs = tf.raw_ops.StatefulPartitionedCall(args=args, Tout=self._types, f=self._function)
        return [output.numpy() for output in outputs]


def tensor_of(array: np.ndarray) -> tf.Tensor:
    """Convert an array to a tensor without a copy; TensorFlow aborts the process if it is not aligned."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def normalized(x: tf.Tensor, constant: tf.Tensor) -> tf.Tensor:
    """Divide uint8 x; the divisor is an argument, because Grappler would replace a constant by its reciprocal."""
    return tf.cast(x, tf.float32) / constant if x.dtype == tf.uint8 else x


def as_float(y: tf.Tensor) -> tf.Tensor:
    """Return y as float32, the form that Keras gets."""
    return y if y.dtype == tf.float32 else tf.cast(y, tf.float32)

"""Several configurations of one shape in one graph: the weights of k members have a first dimension of members.

Small networks spend most of a step on starting operations, and a batch of k matrix products is started once. Members
share only the shard's rows: each has its own order of them, mini-batches, learning rate, regularization strengths and
optimizer state. The operations that `models/fusion.py` allows never mix members, so a member's bits do not depend on
the other members. They do depend on its place and on the number of places: the last elements of an array are computed
one by one, those before them in vector registers, and the two round differently.

Called by ``backend.py``; built from a compiled model, which defines the graph of a member.
"""

from collections.abc import Sequence
from functools import cached_property

import keras
import numpy as np
import tensorflow as tf
from mop_backend.keras_backends import BackendName

from madlib_mop.models.sharing import Strengths
from madlib_mop.trainer.backends.base.columns import Columns
from madlib_mop.trainer.backends.base.interface import (
    FusedEvaluatePass,
    FusedModel,
    FusedTrainPass,
    MemberModel,
    VariableSource,
)
from madlib_mop.trainer.backends.tensorflow import loop
from madlib_mop.trainer.data.parts import GROUPS
from madlib_mop.trainer.data.readable import ReadArrays
from madlib_mop.trainer.data.shard_file import ReadAhead
from madlib_mop.trainer.process.failures import model_failed

_INT = tf.TensorSpec((), tf.int64)
_FLOAT = tf.TensorSpec((), tf.float32)


class StackedModel(FusedModel):
    """The variables, and loops in graphs; parameters as of `FusedModel`, and a new optimizer of its kind, not built."""

    def __init__(self, compiled: MemberModel, optimizer: keras.Optimizer, n_places: int):
        super().__init__(compiled, n_places)
        self._compiled = compiled
        self._optimizer = optimizer
        forms = compiled.groups
        self._weights = {id(form): self._fused(form) for form in forms["weights"]}
        self._others = {id(form): self._fused(form) for form in forms["variables"]}
        optimizer.build([self._weights[id(form)] for form in self._model.trainable_variables])
        self._rates = tf.Variable(tf.zeros(n_places), trainable=False)
        self._groups: dict[str, list[tf.Variable]] = {
            "weights": [self._weights[id(form)].value for form in forms["weights"]],
            "variables": [self._others[id(form)].value for form in forms["variables"]],
            "optimizer": [self._rates if v is optimizer._learning_rate else v.value for v in optimizer.variables],
        }
        self._strengths = {place: tf.Variable(tf.zeros(n_places), trainable=False) for place in compiled.strengths}

    @property
    def n_bytes(self) -> int:
        return sum(v.dtype.size * v.shape.num_elements() for group in self._groups.values() for v in group)

    def load(
        self, sources: Sequence[VariableSource], strengths: Sequence[Strengths], groups: Sequence[str] = GROUPS
    ) -> None:
        for group in groups:
            for index, variable in enumerate(self._groups[group]):
                values = [source.read(group, index) for source in sources]
                if self._is_shared(group, index):
                    if any(not np.array_equal(value, values[0]) for value in values[1:]):
                        raise model_failed("they have made different numbers of steps, which an optimizer counts once")
                    variable.assign(values[0])
                else:
                    variable.assign(np.stack(values))
        for place, variable in self._strengths.items():
            variable.assign([member[place] for member in strengths])

    def members(self) -> list[ReadArrays]:
        groups = {group: [np.asarray(v.read_value()) for v in variables] for group, variables in self._groups.items()}
        of_places = [
            {group: self._values_of(group, values, place) for group, values in groups.items()}
            for place in range(self.n_places)
        ]
        return [ReadArrays(BackendName.TENSORFLOW, self.specs, values) for values in of_places]

    @cached_property
    def train_pass(self) -> FusedTrainPass:
        columns = [loop.signature(self._spec.xs), loop.signature(self._spec.ys)]
        sums = tf.TensorSpec((1 + len(self._metrics), self.n_places), tf.float32), _FLOAT
        specs = [*columns, tf.TensorSpec((self.n_places, None), tf.int64), _INT, _INT, _FLOAT, *sums]
        run = tf.function(self._pass, autograph=False, input_signature=specs).get_concrete_function()

        def train(
            columns: Columns, orders: np.ndarray, batch_size: int, n_batches: int, ahead: ReadAhead | None = None
        ) -> np.ndarray:
            totals, n_seen = tf.zeros((1 + len(self._metrics), self.n_places)), tf.constant(0.0)
            for part, n_of_part in loop.stretches(orders, batch_size, n_batches, ahead):
                sizes = tf.constant(batch_size, tf.int64), tf.constant(n_of_part, tf.int64)
                data = columns.xs, columns.ys, tf.constant(part, tf.int64)
                totals, n_seen = run(*data, *sizes, columns.constant, totals, n_seen)
            figures: np.ndarray = (totals / n_seen).numpy()
            return figures

        return train

    @cached_property
    def evaluate_pass(self) -> FusedEvaluatePass:
        specs = [loop.signature(self._spec.xs), loop.signature(self._spec.ys), _INT, _FLOAT]
        run = tf.function(self._evaluation, autograph=False, input_signature=specs).get_concrete_function()

        def evaluate(columns: Columns, batch_size: int) -> np.ndarray:
            size = tf.constant(batch_size, tf.int64)
            totals: np.ndarray = run(columns.xs, columns.ys, size, columns.constant).numpy()
            return totals

        return evaluate

    def _evaluation(self, xs: loop.Tensors, ys: loop.Tensors, batch_size: tf.Tensor, constant: tf.Tensor) -> tf.Tensor:
        n_rows = tf.shape(xs[0], tf.int64)[0]
        values, still_forms, still, strengths = self._variables()

        def body(start: tf.Tensor, totals: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            stop = tf.minimum(start + batch_size, n_rows)
            x, y = loop.normalized(xs[0][start:stop], constant), loop.as_float(ys[0][start:stop])
            losses, outputs, _ = tf.vectorized_map(
                lambda member: self._forward(False, still_forms, member[0], member[1], member[2], x, y),
                (values, still, strengths),
            )
            of_all = tf.broadcast_to(y, tf.concat([[self.n_places], tf.shape(y)], 0))
            y = tf.ensure_shape(of_all, (self.n_places, *y.shape))
            return stop, totals + tf.cast(self._sums(losses, outputs, y), tf.float64)

        zeros = tf.zeros((1 + len(self._metrics), self.n_places), tf.float64)
        _, totals = tf.while_loop(
            lambda start, _: start < n_rows, body, [tf.constant(0, tf.int64), zeros], parallel_iterations=1
        )
        return totals

    def _pass(
        self,
        xs: loop.Tensors,
        ys: loop.Tensors,
        orders: tf.Tensor,
        batch_size: tf.Tensor,
        n_batches: tf.Tensor,
        constant: tf.Tensor,
        totals: tf.Tensor,
        n_seen: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Train these batches; return the sums of the metrics and of the rows, with those of the batches before."""
        n_rows = tf.shape(orders, tf.int64)[1]

        def body(i: tf.Tensor, totals: tf.Tensor, n_seen: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            rows = orders[:, i * batch_size : tf.minimum((i + 1) * batch_size, n_rows)]
            x = loop.normalized(tf.gather(xs[0], rows), constant)
            y = loop.as_float(tf.gather(ys[0], rows))
            return i + 1, totals + self._step(x, y), n_seen + tf.cast(tf.shape(rows)[1], tf.float32)

        _, totals, n_seen = tf.while_loop(
            lambda i, *_: i < n_batches,
            body,
            [tf.constant(0, tf.int64), totals, n_seen],
            parallel_iterations=1,
        )
        return totals, n_seen

    def _step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Make one step of every member, as Keras' ``train_step`` does; return the sums of its loss and metrics."""
        values, still_forms, still, strengths = self._variables()
        with tf.GradientTape() as tape:
            tape.watch(values)
            losses, outputs, moved = tf.vectorized_map(
                lambda member: self._forward(True, still_forms, *member), (values, still, strengths, x, y)
            )
        gradients = tape.gradient(losses, values)
        for form, value in zip(still_forms, moved, strict=True):
            self._place_of(form).assign(value)
        trained = [self._place_of(form) for form in self._model.trainable_variables]
        self._apply([(g, v) for g, v in zip(gradients, trained, strict=True) if g is not None])
        return self._sums(losses, outputs, y)

    def _variables(
        self,
    ) -> tuple[list[tf.Tensor], list[keras.Variable], list[tf.Tensor], dict[tuple[int, str], tf.Tensor]]:
        """Return all members' trained variables, other variables by model variable, and regularization strengths."""
        forms = self._model.trainable_variables
        trained = {id(form) for form in forms}
        still = [form for form in self._compiled.groups["weights"] if id(form) not in trained]
        still += self._compiled.groups["variables"]
        values, others = ([self._place_of(form).read_value() for form in part] for part in (forms, still))
        return values, still, others, {place: variable.read_value() for place, variable in self._strengths.items()}

    def _place_of(self, form: keras.Variable) -> tf.Variable:
        return (self._weights | self._others)[id(form)].value

    def _sums(self, losses: tf.Tensor, outputs: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Return the sums over a batch's rows of each member's loss and metrics, ``(metrics, places)``."""
        n = tf.cast(tf.shape(y)[1], tf.float32)
        sums = [metric._fn(y, outputs, **metric._fn_kwargs) for metric in self._metrics]
        return tf.stack([losses * n, *(_sum_of_rows(tf.cast(values, tf.float32)) for values in sums)])

    def _forward(
        self,
        training: bool,
        still_forms: Sequence[keras.Variable],
        values: loop.Tensors,
        still: loop.Tensors,
        strengths: dict[tuple[int, str], tf.Tensor],
        x: tf.Tensor,
        y: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return one member's loss, its outputs, and its untrained variables; traced once for all members."""
        mapping = [*zip(self._model.trainable_variables, values, strict=True), *zip(still_forms, still, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope, self._compiled.traced_strengths(strengths):
            outputs = self._model(x, training=training)
            loss = self._model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=None, training=training)
        return loss, outputs, [tf.convert_to_tensor(scope.get_current_value(form)) for form in still_forms]

    def _apply(self, gradients_and_variables: list[tuple[tf.Tensor, tf.Variable]]) -> None:
        """Apply gradients as ``Optimizer.apply`` does, but with each member's own learning rate."""
        optimizer = self._optimizer
        gradients = optimizer._clip_gradients([gradient for gradient, _ in gradients_and_variables])
        for gradient, (_, variable) in zip(gradients, gradients_and_variables, strict=True):
            rates = tf.reshape(self._rates, (self.n_places, *(1,) * (len(variable.shape) - 1)))
            if optimizer.weight_decay is not None:
                variable.assign_sub(variable * tf.cast(optimizer.weight_decay, variable.dtype) * rates)
            optimizer.update_step(gradient, variable, rates)
        optimizer.iterations.assign_add(1)

    def _fused(self, form: keras.Variable) -> keras.Variable:
        zeros = np.zeros((self.n_places, *form.shape), keras.backend.standardize_dtype(form.dtype))
        return keras.Variable(zeros, dtype=form.dtype, trainable=form.trainable, name=form.name)

    def _values_of(self, group: str, values: list[np.ndarray], place: int) -> list[np.ndarray]:
        return [value if self._is_shared(group, index) else value[place] for index, value in enumerate(values)]

    def _is_shared(self, group: str, index: int) -> bool:
        """Return whether a variable of the optimizer is one for all members, such as the number of steps."""
        return bool(self._groups[group][index].shape == self._compiled.groups[group][index].shape)


def _sum_of_rows(values: tf.Tensor) -> tf.Tensor:
    """Sum a metric's values ``(places, rows, ...)`` over rows, after a mean over other dimensions, as Keras does."""
    rank = len(values.shape)
    if rank > 2:
        values = tf.reduce_mean(values, list(range(2, rank)))
    return tf.reduce_sum(values, 1)

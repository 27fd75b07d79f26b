"""Several configurations of one shape in one compiled function: `jax.vmap` of Keras' own training step over them.

Called by ``backend.py``; built from a compiled model, whose step it maps. Each variable has a first dimension of
places. Members share only the shard's rows, so a member's bits do not depend on the other members; they depend on the
number of places and on the member's place, because XLA computes the last elements of an array otherwise than the first.
"""

from collections.abc import Sequence
from functools import cached_property

import jax
import keras
import numpy as np
from jax import numpy as jnp
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
from madlib_mop.trainer.backends.jax import loop
from madlib_mop.trainer.data.parts import GROUPS
from madlib_mop.trainer.data.readable import ReadArrays
from madlib_mop.trainer.data.shard_file import ReadAhead

Values = list[jax.Array]


class MappedModel(FusedModel):
    """The variables, and loops over compiled steps; parameters as of `FusedModel`."""

    def __init__(self, compiled: MemberModel, n_places: int):
        super().__init__(compiled, n_places)
        self._values: dict[str, Values] = {
            group: [jnp.zeros((n_places, *spec.shape), spec.dtype) for spec in specs]
            for group, specs in self.specs.items()
        }
        self._where = {
            id(variable): (group, index)
            for group, variables in compiled.groups.items()
            for index, variable in enumerate(variables)
        }
        self._strengths: dict[tuple[int, str], loop.Strength] = compiled.strengths
        self._strong: Values = [jnp.zeros(n_places)] * len(self._strengths)

    @property
    def n_bytes(self) -> int:
        return sum(value.nbytes for values in self._values.values() for value in values)

    def load(
        self, sources: Sequence[VariableSource], strengths: Sequence[Strengths], groups: Sequence[str] = GROUPS
    ) -> None:
        for group in groups:
            for index in range(len(self._values[group])):
                stacked = np.stack([np.asarray(source.read(group, index)) for source in sources])
                self._values[group][index] = jnp.asarray(stacked)
        self._strong = [jnp.asarray([member[place] for member in strengths], jnp.float32) for place in self._strengths]

    def members(self) -> list[ReadArrays]:
        groups = {group: [np.asarray(value) for value in values] for group, values in self._values.items()}
        of_places = [
            {group: [value[place] for value in values] for group, values in groups.items()}
            for place in range(self.n_places)
        ]
        return [ReadArrays(BackendName.JAX, self.specs, values) for values in of_places]

    @cached_property
    def train_pass(self) -> FusedTrainPass:
        model, strengths, names = self._model, list(self._strengths.values()), self.metric_names

        def step(state: loop.State, batch: loop.Batch, strong: Values) -> loop.State:
            with loop.traced(strengths, strong):
                _, after = model.train_step(state, batch)
            found: loop.State = after
            return found

        def results(metrics: Values) -> Values:
            with keras.StatelessScope(state_mapping=list(zip(model.metrics_variables, metrics, strict=True))):
                found = model.get_metrics_result()
            return [jnp.asarray(found[name], jnp.float32) for name in names]

        steps, of_places = jax.jit(jax.vmap(step), donate_argnums=0), jax.jit(jax.vmap(results))

        def train(
            columns: Columns, orders: np.ndarray, batch_size: int, n_batches: int, ahead: ReadAhead | None = None
        ) -> np.ndarray:
            groups = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables
            model.reset_metrics()
            metrics = [jnp.stack([variable.value] * self.n_places) for variable in model.metrics_variables]
            state = loop.committed((*([self._value_of(variable) for variable in group] for group in groups), metrics))
            for number, start in enumerate(range(0, n_batches * batch_size, batch_size)):
                if ahead is not None:
                    ahead.reach(number)
                state = steps(state, loop.batch_of(columns, orders[:, start : start + batch_size]), self._strong)
            for variables, values in zip(groups, state, strict=False):  # the metrics are not kept
                for variable, value in zip(variables, values, strict=True):
                    group, index = self._where[id(variable)]
                    self._values[group][index] = value
            figures: np.ndarray = np.stack([np.asarray(values) for values in of_places(state[3])])
            return figures

        return train

    @cached_property
    def evaluate_pass(self) -> FusedEvaluatePass:
        model, strengths = self._model, list(self._strengths.values())
        variables = [*model.trainable_variables, *model.non_trainable_variables]

        def sums(values: Values, strong: Values, x: jax.Array, y: jax.Array) -> jax.Array:
            """Return the sums over a batch's rows of a member's loss and metrics: float32 ``(metrics,)``."""
            mapping = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping), loop.traced(strengths, strong):
                outputs = model(x, training=False)
                loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=None, training=False)
            of_rows = [metric._fn(y, outputs, **metric._fn_kwargs) for metric in self._metrics]
            return jnp.stack([loss * len(y), *(_sum_of_rows(values) for values in of_rows)])

        of_places = jax.jit(jax.vmap(sums, (0, 0, None, None)))

        def evaluate(columns: Columns, batch_size: int) -> np.ndarray:
            (values,) = loop.committed(([self._value_of(variable) for variable in variables],))
            total = np.zeros((self.n_places, 1 + len(self._metrics)))
            for rows in loop.evaluated_rows(len(columns.xs[0]), batch_size):
                batch = loop.batch_of(columns, rows)
                total += np.asarray(of_places(values, self._strong, *batch), np.float64)
            return total.T

        return evaluate

    def _value_of(self, variable: keras.Variable) -> jax.Array:
        group, index = self._where[id(variable)]
        return self._values[group][index]


def _sum_of_rows(values: jax.Array) -> jax.Array:
    """Sum a metric's values ``(rows, ...)`` over rows, after a mean over other dimensions, as Keras does."""
    values = values.astype(jnp.float32)
    return jnp.sum(jnp.mean(values, tuple(range(1, values.ndim))) if values.ndim > 1 else values)

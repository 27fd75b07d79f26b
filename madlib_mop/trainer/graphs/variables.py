"""The variables of a Keras model as a training state: read, replaced, compared."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from mop_backend.frames import Blob

from madlib_mop.models.flat_weights import arrays_of
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.interface import Tensor
from madlib_mop.trainer.data.parts import GROUPS, TensorSpec
from madlib_mop.trainer.data.readable import Readable
from madlib_mop.trainer.data.shards import aligned_empty
from madlib_mop.trainer.data.state import FORWARD_GROUPS, State
from madlib_mop.trainer.process.failures import RequestFailure, model_failed

_WORTH_ALIGNING_BYTES = 1 << 20


class ModelVariables(Readable):
    """The training state in the variables of a built and compiled model.

    Attributes
    ----------
    model : keras.Model
    holds : str or None
        Digest of the training state that the variables of `held_groups` have now; None if unknown.
    held_groups : sequence of str
    groups : dict of str to list
        Keras' variables, by group, in the state's order.
    """

    def __init__(self, model: keras.Model, *, with_optimizer: bool = True):
        self.model = model
        self.backend = choice.current().name
        self.holds: str | None = None
        self.held_groups: Sequence[str] = GROUPS
        if with_optimizer and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self.groups = _groups_of(model, with_optimizer)
        self._specs = {  # cached, because each visit needs the specs several times and shapes do not change
            group: [TensorSpec(tuple(v.shape), keras.backend.standardize_dtype(v.value.dtype)) for v in variables]
            for group, variables in self.groups.items()
        }

    @property
    def state_bytes(self) -> int:
        """Size of all variables of the training state."""
        return sum(spec.n_bytes for specs in self.specs().values() for spec in specs)

    def specs(self) -> Mapping[str, list[TensorSpec]]:
        return self._specs

    def read(self, group: str, index: int) -> np.ndarray:
        return choice.current().value_of(self.groups[group][index])

    def load(self, state: State, groups: Sequence[str] = GROUPS) -> None:
        """Load a training state, or some groups of it. Raises RequestFailure (model) if they do not fit."""
        self.check_fits(state, groups)
        self.holds = None
        for group in groups:
            for index, variable in enumerate(self.groups[group]):
                variable.assign(_tensor_of(state, group, index))

    def check_fits(self, state: State, groups: Sequence[str] = GROUPS) -> None:
        """Raise RequestFailure (model) unless these groups of a training state have the model's shapes."""
        for group in groups:
            if state.specs(group) != self.specs()[group]:
                raise self._unfit(group, state.specs(group))

    def _unfit(self, group: str, found: list[TensorSpec]) -> RequestFailure:
        return model_failed(
            f"the stored training state does not fit the model: its {group} are {_size(found)}, "
            f"the model's are {_size(self.specs()[group])}",
            hint="The architecture or the optimizer was changed after the state was stored; start without warm_start.",
        )

    def load_to_predict(self, state: State) -> None:
        """Load what a forward pass needs of a state of any backend. Raises RequestFailure (model)."""
        if state.backend == self.backend:
            self.load(state, FORWARD_GROUPS)
        else:
            self.move_in(state, ("weights",))

    def move_in(self, state: State, groups: Sequence[str] = ("weights", "optimizer")) -> None:
        """Load groups of a state of another backend; numbers are converted within their kind.

        Raises RequestFailure (model).

        The other groups stay as they are: backends have random numbers of their own.
        """
        for group in groups:
            if not self.may_move_in(state, group):
                raise self._unfit(group, state.specs(group))
        self.holds = None
        for group in groups:
            for index, variable in enumerate(self.groups[group]):
                variable.assign(keras.ops.cast(state.read(group, index), variable.dtype))

    def may_move_in(self, state: State, group: str) -> bool:
        """Return whether a group of a state of another backend has the shapes and kinds of numbers of this one."""
        theirs, ours = state.specs(group), self.specs()[group]
        return [(spec.shape, _kind(spec)) for spec in theirs] == [(spec.shape, _kind(spec)) for spec in ours]

    def load_weights(self, weights: Sequence[Blob]) -> None:
        """Load weights only: float32, flattened, in ``get_weights()`` order, in one buffer or several.

        Raises RequestFailure (model).
        """
        n_bytes = sum(map(len, weights))
        if n_bytes != self.weights_bytes:
            raise model_failed(
                f"the stored model_weights have {n_bytes} bytes, the architecture needs {self.weights_bytes}",
                hint="model_weights are float32 values, flattened, in the order of Keras' get_weights().",
            )
        self.holds = None
        variables = self.groups["weights"]
        for variable, array in zip(variables, arrays_of(weights, [v.shape for v in variables]), strict=True):
            variable.assign(keras.ops.cast(keras.ops.convert_to_tensor(array), variable.dtype))

    def copy_from(self, other: "ModelVariables") -> None:
        """Copy the variables of a model with the same compile signature."""
        self.holds = None
        for group, variables in self.groups.items():
            for mine, theirs in zip(variables, other.groups[group], strict=True):
                mine.assign(theirs.value)

    def optimizer_is_empty(self) -> bool:
        """Return whether all of the optimizer's variables but its learning rate are 0: weights play no role in them."""
        rate = _learning_rate(self.model)
        others = [index for index, variable in enumerate(self.groups["optimizer"]) if variable is not rate]
        return not any(np.any(self.read("optimizer", index)) for index in others)

    def begin_like(self, drawn: keras.Model, optimizer: keras.Optimizer) -> None:
        """Load the weights of a model that is not compiled, and empty the optimizer.

        Parameters
        ----------
        drawn : keras.Model
            A model with the same compile signature.
        optimizer : keras.Optimizer
            Its optimizer, not built: its learning rate is used. All else in an optimizer that `optimizer_is_empty`
            was empty after it was built is 0.
        """
        self.holds = None
        groups = _groups_of(drawn, with_optimizer=False)
        for group in FORWARD_GROUPS:
            for mine, theirs in zip(self.groups[group], groups[group], strict=True):
                mine.assign(theirs.value)
        rate = _learning_rate(self.model)
        for variable in self.groups["optimizer"]:
            begin = _rate_of(optimizer).value if variable is rate else keras.ops.zeros(variable.shape, variable.dtype)
            variable.assign(begin)

    def take_over(self, state: State, fresh: "ModelVariables", keep_optimizer: bool) -> None:
        """Load the state of a model with other parameters, except its learning rate.

        Parameters
        ----------
        state : State
            Raises RequestFailure (model) if its weights or variables do not fit.
        fresh : ModelVariables
            A model with the same compile signature, before its first visit.
        keep_optimizer : bool
            Whether to load the optimizer's variables too. If they do not fit, or are left out, they stay fresh.
        """
        rate = _learning_rate(fresh.model)
        self.copy_from(fresh)
        keeps = keep_optimizer and state.has("optimizer") and state.specs("optimizer") == self.specs()["optimizer"]
        self.load(state, GROUPS if keeps else FORWARD_GROUPS)
        if isinstance(rate, keras.Variable):  # otherwise it is a schedule, which depends on the number of steps
            _learning_rate(self.model).assign(rate.value)


def _groups_of(model: keras.Model, with_optimizer: bool) -> dict[str, list[keras.Variable]]:
    weights = list(model.weights)
    known = {id(variable) for variable in weights}
    others = [variable for variable in model.variables if id(variable) not in known]
    return {
        "weights": weights,
        "variables": others,
        "optimizer": list(model.optimizer.variables) if with_optimizer else [],
    }


def _learning_rate(model: keras.Model) -> Any:
    """Return a model's learning rate, a variable or a schedule; with loss scaling, that of the inner optimizer."""
    return _rate_of(model.optimizer)


def _rate_of(optimizer: keras.Optimizer) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)._learning_rate


def _tensor_of(state: State, group: str, index: int) -> np.ndarray | Tensor:
    """Return one tensor of a state; a large one in aligned memory, which a backend uses without copying it again."""
    spec = state.specs(group)[index]
    if spec.n_bytes < _WORTH_ALIGNING_BYTES or spec.dtype not in ("float32", "float64"):
        return state.read(group, index)
    aligned = aligned_empty(spec.shape, np.dtype(spec.dtype))
    state.copy_to(group, index, aligned)
    return choice.current().tensor_of(aligned)


#: JAX has no numbers of 64 bits here.
_KINDS = {"int32": "integer", "int64": "integer", "float32": "float", "float64": "float"}


def _kind(spec: TensorSpec) -> str:
    """Return what two dtypes share if one backend uses the one where another backend uses the other."""
    return _KINDS.get(spec.dtype, spec.dtype)


def _size(specs: list[TensorSpec]) -> str:
    return f"{len(specs)} tensors of {sum(spec.n_elements for spec in specs)} elements"

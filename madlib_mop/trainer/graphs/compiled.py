"""Compiled models and their cache: a configuration's state is loaded into a model that was traced before.

Models with the same compile signature differ only in variables (the learning rate is one of
them), so they take turns in one Keras model, whose passes the backend compiles once.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from madlib_mop.models.keras_layers import Node
from madlib_mop.models.prefix import Split, split
from madlib_mop.models.shapes import shapes_fit
from madlib_mop.models.sharing import Strengths, layer_of, strengths_of
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.columns import DataSpec, tail_spec
from madlib_mop.trainer.backends.base.interface import EvaluatePass, FusedModel, PrefixBatch, Tensor, TrainPass
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.process.failures import model_failed

#: Training passes that one compiled model caches; each batch size that divides a shard may need its own.
_MAX_TRACES = 6


class CompiledModel(ModelVariables):
    """A built and compiled Keras model with its compiled passes for data of one kind.

    Raises RequestFailure (model) if the data does not fit the model.

    Attributes
    ----------
    drawn_for : tuple or None
        ``Recipe.chance`` of the configuration whose initial state the variables have now; None for any other state.
    has_empty_optimizer : bool
        Whether the optimizer of a new model is empty (`begin_like`).

    Parameters
    ----------
    compile_tail : callable or None
        Compiles a model with this model's parameters; None if visits always run the whole model.
    """

    def __init__(
        self,
        model: keras.Model,
        spec: DataSpec,
        config: Node | None = None,
        compile_tail: Callable[[keras.Model], None] | None = None,
    ):
        super().__init__(model)
        self._compile_tail = compile_tail
        self._regularizers = _regularizers(model, config or {})
        self.strengths = _variable_strengths(self._regularizers, config or {})
        check_columns(model, spec)
        self.spec = spec
        self.drawn_for: tuple[int, int, float | None] | None = None
        self.has_empty_optimizer = self.optimizer_is_empty()
        self._train_passes: collections.OrderedDict[tuple[bool, int, bool], TrainPass] = collections.OrderedDict()
        self._evaluate_passes: dict[bool, EvaluatePass] = {}
        self._prefix_batches: dict[int, PrefixBatch] = {}
        #: Fused models built from this one, by number of places.
        self.fused: dict[int, FusedModel] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the variables, including those of its fused models."""
        n_bytes: int = self.state_bytes + sum(fused.n_bytes for fused in self.fused.values())
        return n_bytes

    def set_strengths(self, strengths: Strengths) -> None:
        """Assign the strengths of the configuration that trains next to the L2 regularizers."""
        for place, variable in self.strengths.items():
            variable.assign(strengths[place])

    @contextlib.contextmanager
    def traced_strengths(self, strengths: dict[tuple[int, str], Tensor]) -> Iterator[None]:
        """Trace the model with other tensors for the strengths of its L2 regularizers."""
        for place, strength in strengths.items():
            self._regularizers[place].l2 = strength
        try:
            yield
        finally:
            for place, variable in self.strengths.items():
                self._regularizers[place].l2 = variable

    @functools.cached_property
    def split(self) -> Split | None:
        """The frozen prefix and the rest, which shares layers and optimizer with the model and is compiled alike."""
        if self._compile_tail is None:
            return None
        # Keras writes layers down with numbers only, and a strength plays no role in features.
        with self.traced_strengths(dict.fromkeys(self.strengths, 0.0)):
            parts = split(self.model)
        if parts is not None:
            self._compile_tail(parts.tail)
            parts.tail.optimizer = self.model.optimizer
        return parts

    @property
    def parted(self) -> Split:
        """The split of a model that is known to have one."""
        assert self.split is not None, "only a model with a frozen prefix has features"
        return self.split

    def part(self, on_features: bool) -> tuple[keras.Model, DataSpec]:
        """Return what is trained and the columns that it takes: the whole model, or the rest behind its prefix."""
        return (self.parted.tail, tail_spec(self.parted, self.spec)) if on_features else (self.model, self.spec)

    def train_pass(self, weighted: bool, static_batch: int, on_features: bool = False) -> TrainPass:
        """Return the training pass."""
        key = (weighted, static_batch, on_features)
        if key not in self._train_passes:
            while len(self._train_passes) >= _MAX_TRACES:
                self._train_passes.popitem(last=False)
            part = self.measured(on_features)
            self._train_passes[key] = choice.current().train_pass(*part, weighted, static_batch)
        self._train_passes.move_to_end(key)
        return self._train_passes[key]

    def evaluate_pass(self, on_features: bool = False) -> EvaluatePass:
        """Return the evaluation pass."""
        if on_features not in self._evaluate_passes:
            part = self.measured(on_features)
            self._evaluate_passes[on_features] = choice.current().evaluate_pass(*part)
        return self._evaluate_passes[on_features]

    def prefix_batch(self, static_batch: int) -> PrefixBatch:
        """Return the function that computes a batch of features."""
        if static_batch not in self._prefix_batches:
            while len(self._prefix_batches) >= _MAX_TRACES:
                del self._prefix_batches[next(iter(self._prefix_batches))]
            made = choice.current().prefix_batch(self.parted, self.spec, static_batch)
            self._prefix_batches[static_batch] = made
        return self._prefix_batches[static_batch]

    def measured(self, on_features: bool = False) -> tuple[keras.Model, DataSpec]:
        """Return ``part`` with the metrics' variables made, as Keras' ``fit`` does; inside of a loop it could not."""
        model, spec = self.part(on_features)
        model._symbolic_build(data_batch=spec.batch())
        return model, spec


def _regularizers(model: keras.Model, config: Node) -> dict[tuple[int, str], keras.regularizers.L2]:
    return {(number, slot): getattr(layer_of(model, config, number), slot) for number, slot in strengths_of(config)}


def _variable_strengths(
    regularizers: dict[tuple[int, str], keras.regularizers.L2], config: Node
) -> dict[tuple[int, str], Any]:
    """Replace L2 strengths, constants in a trace, by variables; results keep their bits (test_sharing.py)."""
    variables = {}
    for place, strength in strengths_of(config).items():
        variables[place] = choice.current().strength_variable(strength)
        regularizers[place].l2 = variables[place]
    return variables


class CompiledCache:
    """Compiled models by signature; the least recently used ones are dropped beyond a number and a sum of bytes."""

    def __init__(self, max_models: int = 32, max_bytes: int = 1 << 30):
        self._max_models = max_models
        self._max_bytes = max_bytes
        self._models: collections.OrderedDict[tuple[Any, ...], CompiledModel] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    @property
    def n_bytes(self) -> int:
        """Bytes of the variables of all models held."""
        return sum(compiled.held_bytes for compiled in self._models.values())

    def get(self, key: tuple[Any, ...]) -> CompiledModel | None:
        """Return the cached model of a signature, or None."""
        if key in self._models:
            self._models.move_to_end(key)
        return self._models.get(key)

    def add(self, key: tuple[Any, ...], compiled: CompiledModel) -> None:
        """Keep a model; it is never dropped to make room for itself."""
        self._models[key] = compiled
        while len(self._models) > 1 and (len(self._models) > self._max_models or self.n_bytes > self._max_bytes):
            self._models.popitem(last=False)

    def shrink(self, max_bytes: int) -> None:
        """Drop the least recently used models until the others have so many bytes at most."""
        while self.n_bytes > max_bytes:
            self._models.popitem(last=False)

    def drop(self, key: tuple[Any, ...]) -> None:
        """Drop a model, if it is cached."""
        self._models.pop(key, None)


def check_columns(model: keras.Model, spec: DataSpec) -> None:
    """Compare the packed columns with the model's inputs and outputs, which Keras does late or, broadcasting, never."""
    sides = (("input", "x", model.inputs, spec.xs), ("output", "y", model.outputs, spec.ys))
    takes_indices = _takes_indices(model) if spec.ys else []
    for side, letter, tensors, columns in sides[: 2 if spec.ys else 1]:
        if len(tensors) != len(columns):
            raise model_failed(
                f"the model has {len(tensors)} {side}(s), the packed table has {len(columns)} {letter} column(s)",
                hint="Name one column for each of them when you pack the table.",
            )
        for number, (tensor, (_, row)) in enumerate(zip(tensors, columns, strict=True), 1):
            wanted = tuple(tensor.shape[1:])
            if side == "output" and takes_indices[number - 1]:
                wanted = (*wanted[:-1], 1)
            if not shapes_fit(wanted, row):
                raise model_failed(
                    f"{side} {number} of the model has shape {_text(wanted)} a row, "
                    f"the packed column {letter}{number} has {_text(row)}",
                    hint="Change the architecture, or pack the table with arrays of the shape that the model takes."
                    if side == "input"
                    else "The last layer must have as many units as the packed y has values (num_classes).",
                )


def _takes_indices(model: keras.Model) -> list[bool]:
    """Return for each output whether its loss takes class indices instead of a value a class."""
    losses = getattr(model, "loss", None)
    if isinstance(losses, dict):
        losses = [losses.get(name) for name in model.output_names]
    if not isinstance(losses, list | tuple):
        losses = [losses] * len(model.outputs)
    return ["sparse" in (loss if isinstance(loss, str) else type(loss).__name__).lower() for loss in losses]


def _text(shape: tuple[Any, ...]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"

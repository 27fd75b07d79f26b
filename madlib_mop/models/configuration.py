"""A configuration: what a model is built from, and how it is trained; and its hyper-parameters as one flat dict, by
Keras' names, for the record of runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Self

from madlib_mop.errors import MopError
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.custom import possible_names
from madlib_mop.models.parameters.keras_names import DEFAULT_LEARNING_RATES
from madlib_mop.models.parameters.literals import CallSpec, canonical
from madlib_mop.models.parameters.parser import (
    CompileParams,
    FitParams,
    flat_names,
    parse_compile_params,
    parse_fit_params,
)
from madlib_mop.models.shapes import ModelShape, describe
from madlib_mop.models.sizes import size_of

_ALWAYS = ("batch_size", "epochs")
_IF_GIVEN = ("initial_epoch", "shuffle", "class_weight", "steps_per_epoch", "early_stopping")


def hyper_parameters(model_id: int, compile_params: CompileParams, fit_params: FitParams, arch: Any) -> dict[str, Any]:
    """Return what distinguishes a configuration from others, as one JSON object without nested ones.

    Parameters
    ----------
    model_id : int
        The architecture's number, ``architecture`` in the result.
    compile_params : CompileParams
        ``optimizer`` and each of its arguments; ``learning_rate`` also if it is Keras' default. Of a schedule, this is
        the first rate; ``learning_rate_schedule`` is its name, and its other arguments begin with ``schedule_``.
        ``loss`` has the names of all losses.
    fit_params : FitParams
        ``batch_size`` and ``epochs``, and others that are not Keras' defaults.
    arch : dict
        The architecture, JSON. ``l1``, ``l2`` and ``dropout`` are its regularization, where all layers that have one
        have the same.

    Returns
    -------
    dict of str to (int, float, bool or str)
        Lists and the like are texts.
    """
    optimizer = compile_params.optimizer
    found = {
        "architecture": model_id,
        "optimizer": optimizer.name,
        **_rate(optimizer),
        **{name: value for name, value in optimizer.kwargs.items() if name not in ("learning_rate", "name")},
        "loss": ", ".join(flat_names(compile_params.loss)),
        "loss_weights": compile_params.loss_weights,
    }
    found |= {name: getattr(fit_params, name) for name in _ALWAYS}
    default = FitParams()
    found |= {n: getattr(fit_params, n) for n in _IF_GIVEN if getattr(fit_params, n) != getattr(default, n)}
    found["callbacks"] = ", ".join(map(canonical, fit_params.callbacks)) or None
    found |= _regularization(arch)
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _rate(optimizer: CallSpec) -> dict[str, Any]:
    """Return the learning rate; of a schedule, its parts."""
    rate = optimizer.kwargs.get("learning_rate", DEFAULT_LEARNING_RATES.get(optimizer.name))
    if not isinstance(rate, CallSpec):
        return {"learning_rate": rate}
    values = rate.kwargs.get("values") or [None]  # those of PiecewiseConstantDecay
    parts = {"learning_rate": rate.kwargs.get("initial_learning_rate", values[0]), "learning_rate_schedule": rate.name}
    others = {name: value for name, value in rate.kwargs.items() if name not in ("initial_learning_rate", "name")}
    return parts | {f"schedule_{name}": value for name, value in others.items()}


def _regularization(arch: Any) -> dict[str, float]:
    values: dict[str, set[float]] = {}
    for name, value in _strengths(arch):
        values.setdefault(name, set()).add(value)
    return {name: min(of) for name, of in values.items() if len(of) == 1}


def _strengths(node: Any) -> Iterator[tuple[str, float]]:
    """Yield the strengths of the regularizers of kernels and the rates of dropout in a part of an architecture."""
    if isinstance(node, list):
        for item in node:
            yield from _strengths(item)
    if not isinstance(node, dict):
        return
    config = node.get("config")
    if node.get("class_name") == "Dropout" and isinstance(config, dict):
        yield "dropout", config.get("rate", 0.0)
    for key, value in node.items():
        if key == "kernel_regularizer" and isinstance(value, dict):
            of = value.get("config") or {}
            yield from ((name, of[name]) for name in ("l1", "l2") if isinstance(of.get(name), int | float) and of[name])
        else:
            yield from _strengths(value)


def _plain(value: Any) -> int | float | bool | str:
    """Return a value that a column of type jsonb takes: others than finite numbers and printable texts are written."""
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and value.isprintable():
        return value
    return canonical(value)


#: Texts whose results a process keeps. A grid has few texts and many combinations of them.
_N_CACHED = 4096
#: Architectures, of which a run has fewer than configurations, and which can be long.
_N_NETWORKS_CACHED = 64


@lru_cache(_N_CACHED)
def compile_params_of(text: str | None, allowed_names: frozenset[str]) -> CompileParams:
    """Return parsed compile parameters, which may name these custom functions. Raises MopError."""
    return parse_compile_params(text, allowed_names)


@lru_cache(_N_CACHED)
def fit_params_of(text: str | None) -> FitParams:
    """Return parsed fit parameters. Raises MopError."""
    return parse_fit_params(text)


@lru_cache(_N_NETWORKS_CACHED)
def _multiplications(arch: str) -> int | None:
    """Return those of an architecture; None too if it is one of the record that does not pass its check any more."""
    try:
        size = size_of(check_architecture(arch))
    except MopError:
        return None
    return None if size.not_counted else size.n_multiplications


@dataclass(frozen=True)
class Configuration:
    """An architecture, compile parameters and fit parameters; the texts are parsed once, when they are needed first.

    Attributes
    ----------
    model_id : int
        The architecture in its table; 0 for a model of which nobody uses the number.
    compile_params, fit_params : str
        As given. Without compile parameters (''), a model can only predict.
    arch : dict
        The architecture's JSON, in a form that Keras reads; {} where only the parameters are used.
    allowed_names : frozenset of str
        The custom functions that compile parameters may name.
    """

    model_id: int
    compile_params: str
    fit_params: str
    arch: Node = field(repr=False)
    allowed_names: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def checked(
        cls,
        model_id: int,
        compile_params: str | None,
        fit_params: str | None,
        arch: Node,
        allowed_names: Iterable[str] = (),
    ) -> Self:
        """Return a configuration whose texts can be parsed. Raises MopError."""
        found = cls(model_id, compile_params or "", fit_params or "", arch, frozenset(allowed_names))
        _ = found.compiled, found.fit
        return found

    @classmethod
    def recorded(
        cls, model_id: int, compile_params: str | None, fit_params: str | None, model_arch: Node, **_others: Any
    ) -> Self:
        """Return a configuration that was checked before; a custom function may have any name.

        The arguments are its `columns`: of a row of the record, or of a recorded command.
        """
        return cls(model_id, compile_params or "", fit_params or "", model_arch, possible_names(compile_params))

    def of_architecture(self, model_id: int, arch: Node) -> Self:
        """Return the same parameters for another architecture."""
        return replace(self, model_id=model_id, arch=arch)

    @property
    def compiled(self) -> CompileParams:
        """The compile parameters, parsed. Raises MopError."""
        return compile_params_of(self.compile_params, self.allowed_names)

    @property
    def fit(self) -> FitParams:
        """The fit parameters, parsed. Raises MopError."""
        return fit_params_of(self.fit_params)

    @cached_property
    def architecture(self) -> Node:
        """The architecture as its check returns it. Raises MopError if it does not pass."""
        return check_architecture(self.arch)

    @cached_property
    def shape(self) -> ModelShape:
        """The inputs and outputs of the architecture. Raises MopError if it does not pass its check."""
        return describe(self.architecture)

    @property
    def key(self) -> tuple[int, str, str]:
        """Equal for configurations of one table of architectures that train the same model."""
        return self.model_id, self.compiled.key, self.fit.key

    @property
    def custom_names(self) -> tuple[str, ...]:
        """The custom functions that it uses."""
        return self.compiled.custom_names

    @property
    def loss_type(self) -> str:
        """The names of all losses."""
        return ", ".join(flat_names(self.compiled.loss))

    @property
    def metrics_type(self) -> list[str] | None:
        """The names of the metrics."""
        return list(self.compiled.metric_names) or None

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """Its hyper-parameters by name, without nested ones."""
        return hyper_parameters(self.model_id, self.compiled, self.fit, self.arch)

    @property
    def multiplications(self) -> int | None:
        """Of a prediction of one row; None if the JSON does not say: see `sizes.NetworkSize.not_counted`."""
        return _multiplications(json.dumps(self.arch))

    def columns(self) -> dict[str, Any]:
        """Return the columns of `madlib_mop.model` that hold it, by their names; also the JSON of a command."""
        return {
            "model_id": self.model_id,
            "compile_params": self.compile_params,
            "fit_params": self.fit_params,
            "model_arch": self.arch,
            "loss_type": self.loss_type,
            "metrics_type": self.metrics_type,
            "hyper_parameters": self.hyper_parameters,
            "multiplications": self.multiplications,
        }

    def equals(self, other: Configuration) -> bool:
        """Return whether another one trains the same model: by the meaning of the parameters, not by their text."""
        if self.arch != other.arch:
            return False
        if (self.compile_params, self.fit_params) == (other.compile_params, other.fit_params):
            return True
        return self.compiled.key == other.compiled.key and self.fit == other.fit

    def has_optimizer_of(self, other: Configuration) -> bool:
        """Return whether the optimizers are of the same class, with any arguments."""
        return self.compiled.optimizer.name == other.compiled.optimizer.name

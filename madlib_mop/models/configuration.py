"""A configuration: what a model is built from, and how it is trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self

from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.custom import possible_names
from madlib_mop.models.parameters.functions import flat_names
from madlib_mop.models.parameters.hyper_parameters import hyper_parameters
from madlib_mop.models.parameters.parser import CompileParams, FitParams, parse_compile_params, parse_fit_params
from madlib_mop.models.shapes import ModelShape, describe


class _Recorded(Protocol):
    """What a row of the record has of a configuration."""

    @property
    def model_id(self) -> int: ...
    @property
    def compile_params(self) -> str: ...
    @property
    def fit_params(self) -> str: ...
    @property
    def model_arch(self) -> Node: ...


@dataclass(frozen=True)
class Configuration:
    """An architecture, compile parameters and fit parameters; the texts are parsed once, when they are needed first.

    Attributes
    ----------
    model_id : int
        The architecture in its table.
    compile_params, fit_params : str
        As given.
    arch : dict
        The architecture's JSON, in a form that Keras reads.
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
    def recorded(cls, row: _Recorded) -> Self:
        """Return the configuration of a row, which was checked before; a custom function may have any name."""
        return cls(
            row.model_id, row.compile_params, row.fit_params, row.model_arch, possible_names(row.compile_params)
        )

    @classmethod
    def from_json(cls, columns: dict[str, Any]) -> Self:
        """Return a configuration from its `columns`, as they are in a recorded command."""
        compile_params = columns["compile_params"]
        return cls(
            columns["model_id"], compile_params, columns["fit_params"], columns["model_arch"],
            possible_names(compile_params),
        )  # fmt: skip

    def of_architecture(self, model_id: int, arch: Node) -> Self:
        """Return the same parameters for another architecture; what was parsed is not parsed again."""
        other = replace(self, model_id=model_id, arch=arch)
        parsed = {name: value for name, value in vars(self).items() if name in ("compiled", "fit")}
        vars(other).update(parsed)  # where `cached_property` keeps them
        return other

    @cached_property
    def compiled(self) -> CompileParams:
        """The compile parameters, parsed. Raises MopError."""
        return parse_compile_params(self.compile_params, self.allowed_names)

    @cached_property
    def fit(self) -> FitParams:
        """The fit parameters, parsed. Raises MopError."""
        return parse_fit_params(self.fit_params)

    @cached_property
    def shape(self) -> ModelShape:
        """The inputs and outputs of the architecture. Raises MopError if it does not pass its check."""
        return describe(check_architecture(self.arch))

    @property
    def custom_names(self) -> tuple[str, ...]:
        """The custom functions that it uses."""
        return self.compiled.custom_names

    def columns(self) -> dict[str, Any]:
        """Return the columns of `madlib_mop.model` that hold it, by their names; also the JSON of a command."""
        return {
            "model_id": self.model_id,
            "compile_params": self.compile_params,
            "fit_params": self.fit_params,
            "model_arch": self.arch,
            "loss_type": ", ".join(flat_names(self.compiled.loss)),
            "metrics_type": list(self.compiled.metric_names) or None,
            "hyper_parameters": hyper_parameters(self.model_id, self.compiled, self.fit, self.arch),
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

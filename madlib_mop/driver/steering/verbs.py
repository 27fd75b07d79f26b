"""The commands that steer a run, as dataclasses, and their form in the record (`steering_command.work`)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from madlib_mop.catalog.rows.base import Json
from madlib_mop.driver.planning.added_models import AddedModel
from madlib_mop.models.configuration import Configuration


@dataclass(frozen=True)
class Verb:
    """A command; a subclass has the arguments that the driver applies."""

    def as_json(self) -> Json:
        """Return the arguments for the record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, work: Mapping[str, Any]) -> Self:
        """Return the command from the record."""
        return cls(**work)


@dataclass(frozen=True)
class StopModel(Verb):
    """Start no further visit of a model; its state is kept."""

    mst_key: int
    reason: str | None = None


@dataclass(frozen=True)
class ResumeModel(Verb):
    """Let a stopped model continue."""

    mst_key: int


@dataclass(frozen=True)
class CloneModel(Verb):
    """Add a model that continues from the state of another one.

    Attributes
    ----------
    mst_key : int
        The original.
    configuration : Configuration or None
        That of the clone if it differs from the original's.
    from_state : bool
        Whether it continues from the original's newest state; if not, it begins like the original.
    keep_optimizer : bool
        Whether the optimizer's variables are copied too.
    num_iterations : int or None
        How many iterations it makes; None: as many as the original has left.
    """

    mst_key: int
    configuration: Configuration | None = None
    from_state: bool = True
    keep_optimizer: bool = True
    num_iterations: int | None = None

    @classmethod
    def from_json(cls, work: Mapping[str, Any]) -> Self:
        columns = work["parameters"]
        others = {name: value for name, value in work.items() if name != "parameters"}
        return cls(configuration=None if columns is None else Configuration.recorded(**columns), **others)

    def as_json(self) -> Json:
        columns = None if self.configuration is None else self.configuration.columns()
        others = {name: value for name, value in vars(self).items() if name != "configuration"}
        return {**others, "parameters": columns}


@dataclass(frozen=True)
class ExtendModels(Verb):
    """Let a model, or all models that are alive, make more iterations."""

    num_iterations: int
    mst_key: int | None = None


@dataclass(frozen=True)
class AddModels(Verb):
    """Add models that begin with their first iteration."""

    models: list[AddedModel] = field(default_factory=list)

    @classmethod
    def from_json(cls, work: Mapping[str, Any]) -> Self:
        return cls([AddedModel.from_json(model) for model in work["models"]])

    def as_json(self) -> Json:
        return {"models": [model.as_json() for model in self.models]}


@dataclass(frozen=True)
class Pause(Verb):
    """End the visits in flight and the trainers, and start no others until `Unpause`."""


@dataclass(frozen=True)
class Unpause(Verb):
    """Continue a paused run."""


@dataclass(frozen=True)
class PinModel(Verb):
    """Let no search and no policy stop a model; with ``pinned`` false, let them again."""

    mst_key: int
    pinned: bool = True


#: The commands by the names of their SQL functions.
VERBS: dict[str, type[Verb]] = {
    "stop_model": StopModel,
    "resume_model": ResumeModel,
    "clone_model": CloneModel,
    "extend": ExtendModels,
    "add_models": AddModels,
    "pause": Pause,
    "unpause": Unpause,
    "pin_model": PinModel,
}


def read_verb(command: str, work: Mapping[str, Any]) -> Verb:
    """Return a recorded command."""
    return VERBS[command].from_json(work)

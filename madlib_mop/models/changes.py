"""The changes of a run's models: what people, policies, searches, early stopping and replays decide on.

Each change is one class, with its form in the record. `search` proposes some of them; `driver.changes` checks, writes
and applies all but those of early stopping. A new change is a class here, and what it does in `driver.changes.changes`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from madlib_mop.models.configuration import Configuration


@dataclass(frozen=True)
class Change:
    """A change; a subclass has its arguments. In the record, arguments that have their defaults are omitted."""

    #: Its word in the record.
    word: ClassVar[str]
    #: The SQL function by which people ask for it; None if they cannot.
    function: ClassVar[str | None] = None
    #: Whether a policy can ask for it.
    by_policy: ClassVar[bool] = False

    def as_json(self) -> dict[str, Any]:
        """Return its arguments for the record."""
        return {f.name: value for f in dataclasses.fields(self) if (value := getattr(self, f.name)) != f.default}

    @classmethod
    def from_json(cls, work: Mapping[str, Any]) -> Self:
        """Return the change from the record."""
        return cls(**work)

    @classmethod
    def of_call(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the change that a call of its SQL function asks for; `driver.changes.checks` reads some calls."""
        given = {f.name: arguments.get(f.name) for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration that a search proposes; the run's plan has its architecture.

    Attributes
    ----------
    mst_key : int
        1, 2, ... in the order of proposals; never used twice in a run.
    compile_params, fit_params : str
        Texts in the form of generate_model_configs.
    last_epoch : int
        Train until the end of this epoch (1-based, counted from the model's first), then evaluate.
    s, i : int or None
        Hyperband's bracket, and the round that the proposal begins with.
    """

    mst_key: int
    model_id: int
    compile_params: str
    fit_params: str
    last_epoch: int
    s: int | None = None
    i: int | None = None


_OF_PROPOSAL = tuple(f.name for f in dataclasses.fields(Proposal))


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model that a command adds; it makes the iterations of its run.

    Attributes
    ----------
    configuration : Configuration
    start_weights : str or None
        Origin of its start weights, without the number of the command; see `RunChanges.issue`.
    early_stopping : dict or None
        As in `ModelRow`.
    """

    configuration: Configuration
    start_weights: str | None
    early_stopping: dict[str, Any] | None

    @classmethod
    def from_json(cls, work: Mapping[str, Any]) -> Self:
        """Return a model of a recorded command."""
        return cls(Configuration.recorded(**work["parameters"]), work["start_weights"], work["early_stopping"])

    def as_json(self) -> dict[str, Any]:
        """Return it for the record."""
        columns = self.configuration.columns()
        return {"parameters": columns, "start_weights": self.start_weights, "early_stopping": self.early_stopping}


@dataclass(frozen=True)
class Stop(Change):
    """Train a model no further; its state is kept.

    Attributes
    ----------
    mst_key : int
    reason : str or None
    at_once : bool
        Whether no further visit of it starts. If not, it ends with its current epoch, so that it has metrics; it is
        stopped at once too if its first epoch is not complete.
    """

    word = "stop"
    function = "stop_model"
    by_policy = True

    mst_key: int
    reason: str | None = None
    at_once: bool = False

    @classmethod
    def of_call(cls, arguments: Mapping[str, Any]) -> Self:
        return cls(arguments["mst_key"], arguments["reason"], at_once=True)


@dataclass(frozen=True)
class Resume(Change):
    """Let a stopped model continue."""

    word = "resume"
    function = "resume_model"
    by_policy = True

    mst_key: int


@dataclass(frozen=True)
class Clone(Change):
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
    repeated : int or None
        In a replay: the clone in the repeated run, which is made again with all that the record says of it.
    """

    word = "clone"
    function = "clone_model"
    by_policy = True

    mst_key: int
    configuration: Configuration | None = None
    from_state: bool = True
    keep_optimizer: bool = True
    num_iterations: int | None = None
    repeated: int | None = None

    @classmethod
    def from_json(cls, work: Mapping[str, Any]) -> Self:
        others = {name: value for name, value in work.items() if name != "parameters"}
        columns = work.get("parameters")
        return cls(configuration=None if columns is None else Configuration.recorded(**columns), **others)

    def as_json(self) -> dict[str, Any]:
        others = super().as_json()
        configuration = others.pop("configuration", None)
        return others if configuration is None else {**others, "parameters": configuration.columns()}


@dataclass(frozen=True)
class Extend(Change):
    """Train a model further: a search says until which epoch, a command how many more iterations.

    Attributes
    ----------
    mst_key : int or None
        None: all models that are alive.
    last_epoch : int or None
    i : int or None
        Hyperband's new round of the model.
    num_iterations : int or None
    """

    word = "extend"
    function = "extend"
    by_policy = True

    mst_key: int | None = None
    last_epoch: int | None = None
    i: int | None = None
    num_iterations: int | None = None


@dataclass(frozen=True)
class Add(Change):
    """Train new models: one that a search proposes, or those of a command."""

    word = "add"
    function = "add_models"

    models: tuple[Proposal | NewModel, ...]

    @property
    def proposal(self) -> Proposal:
        """The model of a search."""
        (model,) = self.models
        assert isinstance(model, Proposal), "commands propose nothing"
        return model

    @classmethod
    def from_json(cls, work: Mapping[str, Any]) -> Self:
        if "models" in work:
            return cls(tuple(NewModel.from_json(model) for model in work["models"]))
        return cls((Proposal(**work),))

    def as_json(self) -> dict[str, Any]:
        new = [model.as_json() for model in self.models if isinstance(model, NewModel)]
        if new:
            return {"models": new}
        return {name: value for name in _OF_PROPOSAL if (value := getattr(self.proposal, name)) is not None}


@dataclass(frozen=True)
class Pause(Change):
    """End the visits in flight and the trainers, and start no others until `Unpause`."""

    word = "pause"
    function = "pause"


@dataclass(frozen=True)
class Unpause(Change):
    """Continue a paused run."""

    word = "unpause"
    function = "unpause"


@dataclass(frozen=True)
class Pin(Change):
    """Let no search and no policy stop a model; with ``pinned`` false, let them again."""

    word = "pin"
    function = "pin_model"
    by_policy = True

    mst_key: int
    pinned: bool = True


@dataclass(frozen=True)
class Exploit(Change):
    """A model copies another's newest state and architecture, and continues with these parameters.

    The state is weights and optimizer's variables after as many epochs as the model has made itself. ``source`` is
    told to go on by a later one of the same actions: its state is to be copied before. ``model_id`` is the source's.
    """

    word = "exploit"

    mst_key: int
    source: int
    compile_params: str
    fit_params: str
    last_epoch: int
    model_id: int


@dataclass(frozen=True)
class Finish(Change):
    """A search or the time of a run is over; models in training end with their current epoch, as with `Stop`.

    Attributes
    ----------
    reason : str
    limit_s : float or None
        The limit of the time that was over, in seconds of training; None: of a search, by an older version.
    """

    word = "finish"

    reason: str
    limit_s: float | None = None


@dataclass(frozen=True)
class EndAlike(Change):
    """In a replay: a model ends as in the repeated run, whatever its own result is."""

    word = "end"

    mst_key: int


CHANGES: dict[str, type[Change]] = {change.word: change for change in Change.__subclasses__()}
#: The changes that people can ask for, by the names of the SQL functions.
BY_FUNCTION = {change.function: change for change in CHANGES.values() if change.function is not None}


def read_change(word: str, work: Mapping[str, Any]) -> Change:
    """Return a recorded change."""
    return CHANGES[word].from_json(work)

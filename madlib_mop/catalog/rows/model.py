"""The row of a model: one configuration of a run and its progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from madlib_mop.catalog.rows.base import Document, Json, Row, column
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.models.configuration import Configuration

#: Columns that describe a state, without its location.
STATE_COLUMNS = ("state_bytes", "model_bytes", "forward_parts", "digest", "weights_digest")


@dataclass(frozen=True, slots=True)
class TakenOver(Document):
    """The copy of another model's state that a search made.

    Attributes
    ----------
    mst_key, epoch : int
        The other model, and the epoch of its state.
    version : int
        The version of the copy.
    optimizer : bool
        Whether the optimizer's variables are used too.
    """

    mst_key: int
    epoch: int
    version: int
    optimizer: bool


@dataclass(frozen=True, slots=True)
class ClonedFrom(Document):
    """The origin of a clone.

    Attributes
    ----------
    mst_key : int
        The original.
    epoch, position : int
        Of the newest visit that the copied state contains.
    segments : tuple of int
        The segments visited in that epoch, in order, if it is not complete.
    turn : int
        The original's number in the rotation; the clone visits the segments in the same order.
    is_best : bool
        Whether the copied state is that of the original's best epoch, restored at its end.
    version : int or None
        The original's state_version, which also counts copies of other models' states; None in records of 1.0.0.
    """

    mst_key: int
    epoch: int
    position: int
    segments: tuple[int, ...]
    turn: int
    is_best: bool = False
    version: int | None = None

    def is_state_of(self, model: "ModelRow") -> bool:
        """Return whether the copied state is the newest state of a model, the original."""
        visit = (model.epoch, model.position)
        return visit == (self.epoch, self.position) and self.version in (None, model.state_version)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the value from the record."""
        return cls(**{**found, "segments": tuple(found["segments"])})


@dataclass(frozen=True, slots=True)
class BestState(Document):
    """The state of a model's best epoch, stored in addition to its newest one; it replaces the newest one at the
    model's end.

    Attributes
    ----------
    epoch : int
    slot, version : int
        Where its parts are; the version is below 0.
    state_bytes, model_bytes : int
    forward_parts : int
    digest, weights_digest : str
        As of a `ModelRow`.
    """

    epoch: int
    slot: int
    version: int
    state_bytes: int
    model_bytes: int
    forward_parts: int
    digest: str
    weights_digest: str


@dataclass(frozen=True, slots=True)
class HomeState(Document):
    """An older state of a model in a slot: the newest one before the model began to hop from host to host.

    Attributes
    ----------
    epoch, position : int
        Of the newest visit that it contains.
    slot, version, state_bytes, model_bytes, forward_parts : int
    digest, weights_digest : str
        As of a `ModelRow`.
    """

    epoch: int
    position: int
    slot: int
    version: int
    state_bytes: int
    model_bytes: int
    forward_parts: int
    digest: str
    weights_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopyRow(Row):
    """A state that a host holds for a model: a row of `madlib_mop.state_copy`; see there."""

    run_id: int
    mst_key: int
    version: int
    server: str
    epoch: int
    position: int
    segment_id: int
    state_bytes: int
    forward_parts: int
    digest: str
    weights_digest: str
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow(Row):
    """One configuration of a run and its progress: a row of `madlib_mop.model`.

    Attributes
    ----------
    run_id : int
        0 in a plan.
    mst_key, ordinal : int
        Its key in the model selection table, and its place among the run's models, from 0.
    model_id, compile_params, fit_params, model_arch, loss_type, metrics_type, hyper_parameters, multiplications
        Its `Configuration`, see there.
    start_weights : str or None
        Origin of its start weights in `madlib_mop.start_weights`; None if they are drawn.
    state : ModelState
    state_detail : str or None
        Why it failed, was stopped or ended early.
    first_epoch, last_epoch : int
        Those that it makes in this run; the first is above 1 where a warm start goes on with its state.
    epoch, position : int
        Of its newest kept visit; a position counts from 1.
    state_version : int
        Of its newest state; each kept visit adds 1. Below 0 where that is a `BestState`.
    state_slot, state_bytes : int or None
        Where that state is, and its size; `StateSlots` moves it while a run goes on. The slot is None while a host
        holds the state.
    state_server : str or None
        The foreign server of that host.
    home_state : HomeState or None
        An older state that is in a slot, while the newest one is at a host.
    model_bytes : int or None
        Size of its weights.
    forward_parts : int or None
        How many of the state's parts, from the first, an evaluation needs.
    digest, weights_digest : str or None
        SHA-256 of the state's parts in order, and of its weights.
    taken_over : TakenOver or None
    early_stopping : dict or None
        When it stops early, as `EarlyStopping.as_json` writes it.
    best_state : BestState or None
    seed_key : int or None
        The key that its seeds are computed from, if that is not its own.
    pinned : bool
        Whether no search or policy may stop it.
    cloned_from : ClonedFrom or None
    command_id : int or None
        The command that added it.
    """

    run_id: int = 0
    mst_key: int
    ordinal: int
    model_id: int
    compile_params: str
    fit_params: str
    model_arch: Json = field(repr=False)
    start_weights: str | None = None
    state: ModelState = column(ModelState, default=ModelState.WAITING)
    state_detail: str | None = None
    first_epoch: int = 1
    last_epoch: int
    epoch: int = 0
    position: int = 0
    state_version: int = 0
    state_slot: int | None = None
    state_bytes: int | None = None
    model_bytes: int | None = None
    forward_parts: int | None = None
    digest: str | None = None
    weights_digest: str | None = None
    loss_type: str | None = None
    metrics_type: list[str] | None = None
    taken_over: TakenOver | None = column(TakenOver.from_json, default=None)
    early_stopping: Json | None = None
    best_state: BestState | None = column(BestState.from_json, default=None)
    seed_key: int | None = None
    pinned: bool = False
    cloned_from: ClonedFrom | None = column(ClonedFrom.from_json, default=None)
    command_id: int | None = None
    hyper_parameters: Json = field(default_factory=dict, repr=False)
    multiplications: int | None = None
    state_server: str | None = None
    home_state: HomeState | None = column(HomeState.from_json, default=None)

    @property
    def configuration(self) -> Configuration:
        """Its architecture and parameters."""
        return Configuration.recorded(self.model_id, self.compile_params, self.fit_params, self.model_arch)

    @property
    def is_alive(self) -> bool:
        """Whether it is trained, or was trained to its end."""
        return self.state.is_alive

    @property
    def is_restored(self) -> bool:
        """Whether its state is that of its best epoch."""
        return self.best_state is not None and self.best_state.version == self.state_version

    @property
    def best_epoch(self) -> int | None:
        """The epoch of its state, if that is not the newest epoch."""
        return self.best_state.epoch if self.best_state is not None and self.is_restored else None

    @property
    def is_just_taken_over(self) -> bool:
        """Whether its newest state was copied from another model and not trained since; its metrics are older."""
        return self.taken_over is not None and self.taken_over.version == self.state_version

    @property
    def has_new_optimizer(self) -> bool:
        """Whether its next visit begins with a new optimizer, although its newest state has another model's."""
        return self.taken_over is not None and self.is_just_taken_over and not self.taken_over.optimizer

    @property
    def has_own_visits(self) -> bool:
        """Whether it was trained in this run; the state of a clone or of a warm start is version 0 before."""
        return self.state_version != 0

    def visited(self, position: int) -> tuple[int, ...]:
        """Return the segments that a clone's original has visited in the epoch that the clone is in."""
        came = self.cloned_from
        return came.segments if came is not None and came.epoch == self.epoch and position else ()

    def iteration(self, epoch: int) -> int:
        """Return the number of an epoch among those that it makes in this run, from 1."""
        return epoch - self.first_epoch + 1

"""The models of a run, where their weights came from, and why some failed; made by `reading`."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from madlib_mop.catalog.rows.states import ModelState

#: What models are ranked by, unless all have the same first metric.
LOSS = "loss"

#: The value of one hyper-parameter; texts stand for everything that is not a number or a boolean.
Value = float | int | bool | str
#: Hyper-parameters by name, such as ``learning_rate``.
HyperParameters = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One network of the run: its number in the table of architectures, and its layers in words."""

    model_id: int
    layers: str
    n_models: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a model's weights came from, if not from random numbers.

    Attributes
    ----------
    kind : str
        ``clone``, ``exploit`` (population based training), ``warm start`` or ``start weights``.
    mst_key : int
        The model.
    from_key : int or None
        The other model of this run.
    epoch, position : int or None
        Of the newest visit that the copied state contains.
    origin : str or None
        The run, table or architecture that the weights are from.
    at_s : float or None
        When, if that is recorded.
    """

    kind: str
    mst_key: int
    from_key: int | None = None
    epoch: int | None = None
    position: int | None = None
    origin: str | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One configuration, with its place and its figures in view ``leaderboard``.

    Attributes
    ----------
    rank, mst_key, model_id : int
    state : str
        ``waiting``, ``training``, ``trained``, ``stopped`` or ``failed``.
    detail : str or None
        Why it failed, was stopped or ended early.
    epoch, position : int
        Of its newest visit.
    last_epoch : int
    pinned : bool
    metric_epoch : int or None
        The iteration of the figures.
    comparable : bool
    metric_name : str or None
        Its first metric.
    validation_metric, validation_loss, training_metric, training_loss : float or None
        As they were recorded: NaN and infinite values too.
    compile_params, fit_params : str
    ranked_by : str
        What the models of the run are ranked by: their first metric if all have the same one, else ``loss``.
    """

    rank: int
    mst_key: int
    model_id: int
    state: str
    detail: str | None
    epoch: int
    position: int
    last_epoch: int
    pinned: bool
    metric_epoch: int | None
    comparable: bool
    metric_name: str | None
    validation_metric: float | None
    validation_loss: float | None
    training_metric: float | None
    training_loss: float | None
    compile_params: str
    fit_params: str
    ranked_by: str = LOSS

    @property
    def figures(self) -> tuple[tuple[str, float | None], ...]:
        """Its figures with their names, those on validation data first."""
        metric = self.metric_name or "metric"
        return (
            (f"validation {metric}", self.validation_metric), ("validation loss", self.validation_loss),
            (f"training {metric}", self.training_metric), ("training loss", self.training_loss),
        )  # fmt: skip

    @property
    def is_validated(self) -> bool:
        """Whether the figures on validation data count; otherwise those on training data."""
        return self.validation_loss is not None

    @property
    def score(self) -> float | None:
        """The figure that ranks it; None if there is none, or it is NaN or infinite."""
        if self.ranked_by == LOSS:
            found = self.validation_loss if self.is_validated else self.training_loss
        else:
            found = self.validation_metric if self.is_validated else self.training_metric
        return found if found is not None and math.isfinite(found) else None

    @property
    def is_scored(self) -> bool:
        """Whether it can be compared with other models of its run: it has a figure, and has not failed."""
        return self.state != ModelState.FAILED and self.score is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(ModelLine):
    """One configuration with its hyper-parameters and its work, which takes reading all visits.

    Attributes
    ----------
    ordinal : int
        Its place in the order in which the run got its models.
    first_epoch : int
    hyper_parameters : dict
        As the record has them, by Keras' names, with ``architecture``; of version 1.0.0, parsed from the parameters.
    state_bytes : int or None
    weights_digest : str or None
        SHA-256 of its weights, in hexadecimal.
    started_at, ended_at : float or None
        Of its first and its last visit, in seconds since 1970.
    seconds : float
        Of its visits; those of models that trained together are divided among them.
    """

    ordinal: int = 0
    first_epoch: int
    hyper_parameters: HyperParameters
    state_bytes: int | None
    weights_digest: str | None
    started_at: float | None = None
    ended_at: float | None = None
    seconds: float


_M = TypeVar("_M", bound=ModelLine)


def best_model(models: Iterable[_M]) -> _M | None:
    """Return the best model with a figure, in the order of the leaderboard; None before there are figures."""
    return next((model for model in in_order(models) if model.is_scored), None)


def in_order(models: Iterable[_M]) -> list[_M]:
    """Return models in the order of the leaderboard."""
    return sorted(models, key=lambda model: (model.rank, model.mst_key))


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Models that failed or were stopped for the same reason; ``mst_keys`` has the first ones of ``n_models``."""

    state: str
    reason: str
    n_models: int
    mst_keys: tuple[int, ...]

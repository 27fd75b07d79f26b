"""The models of a run, where their weights came from, and why some failed; made by `reading`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
class ModelFacts:
    """One configuration, with its place in the leaderboard.

    Attributes
    ----------
    mst_key, model_id : int
    rank : int or None
    state : str
        ``waiting``, ``training``, ``trained``, ``stopped`` or ``failed``.
    reason : str or None
        Why it failed or was stopped.
    epoch, position, first_epoch, last_epoch : int
    metric_epoch : int or None
        The iteration of the figures.
    metric_name : str or None
    validation_metric, validation_loss, training_metric, training_loss : float or None
        NaN and infinite values are None.
    comparable : bool
    compile_params, fit_params : str
    hyper_parameters : dict
        As the record has them, by Keras' names, with ``network``; of version 1.0.0, parsed from these texts.
    state_bytes : int or None
    weights_digest : str or None
    seconds : float
        Of its visits.
    pinned : bool
    """

    mst_key: int
    model_id: int
    rank: int | None
    state: str
    reason: str | None
    epoch: int
    position: int
    first_epoch: int
    last_epoch: int
    metric_epoch: int | None
    metric_name: str | None
    validation_metric: float | None
    validation_loss: float | None
    training_metric: float | None
    training_loss: float | None
    comparable: bool
    compile_params: str
    fit_params: str
    hyper_parameters: HyperParameters = field(default_factory=dict)
    state_bytes: int | None = None
    weights_digest: str | None = None
    seconds: float = 0.0
    pinned: bool = False

    @property
    def loss(self) -> float | None:
        """The loss that ranks it: on validation data if there are some."""
        return self.training_loss if self.validation_loss is None else self.validation_loss

    @property
    def metric(self) -> float | None:
        """The first metric, on the same data as `loss`."""
        return self.training_metric if self.validation_loss is None else self.validation_metric


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Models that failed or were stopped for the same reason; ``mst_keys`` has the first ones of ``n_models``."""

    state: str
    reason: str
    n_models: int
    mst_keys: tuple[int, ...]

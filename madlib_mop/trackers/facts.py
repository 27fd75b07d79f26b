"""What trackers get to know of a run, as frozen dataclasses; `reading` makes them.

Times are seconds since 1970 (``_at``). Durations are seconds (``_s``).
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from madlib_mop.catalog.live.facts import ENDED
from madlib_mop.catalog.rows.states import ModelState

#: The value of one hyper-parameter.
Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Which run it is, among the runs of all databases of all servers.

    Attributes
    ----------
    system_identifier : str
        The server's, given by initdb. A standby and a copy of the data directory have the same one.
    database : str
    run_id : int
    created_at : float
        Distinguishes the run from one of the same number in a database that was created again.
    """

    system_identifier: str
    database: str
    run_id: int
    created_at: float

    @property
    def key(self) -> str:
        """A short text of hexadecimal digits that no other run has; trackers find their own work by it."""
        began = datetime.fromtimestamp(self.created_at, UTC).isoformat()
        return hashlib.sha256(f"{self.system_identifier}\0{self.database}\0{self.run_id}\0{began}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """One run.

    Attributes
    ----------
    origin : RunOrigin
    kind, state, owner, schedule, source_table, output_table, architecture_table : str
    state_detail, name, description, validation_table, selection_table : str or None
        ``name`` and ``description`` are arguments of the call.
    num_iterations, seed, n_segments : int
    versions : dict of str to str
        Of the libraries, by name.
    ended_at : float or None
    metric_name : str or None
        The metric that the models are ranked by; None: the loss.
    higher_is_better : bool
    may_own : bool
        Whether the login is a member of the role that owns the run, and so may read training states.
    is_lost : bool
        Whether its state is one of a run at work, but its session has ended and nothing continues it.
    """

    origin: RunOrigin
    kind: str
    state: str
    state_detail: str | None
    owner: str
    name: str | None
    description: str | None
    schedule: str
    source_table: str
    validation_table: str | None
    output_table: str
    selection_table: str | None
    architecture_table: str
    num_iterations: int
    seed: int
    n_segments: int
    versions: Mapping[str, str]
    ended_at: float | None
    metric_name: str | None
    higher_is_better: bool
    may_own: bool
    is_lost: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether no process trains it."""
        return self.state in ENDED

    @property
    def score_name(self) -> str:
        """The metric that the models are ranked by."""
        return self.metric_name or "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedModel:
    """One model of a run.

    Attributes
    ----------
    mst_key, model_id : int
    state : str
        ``waiting``, ``training``, ``trained``, ``stopped`` or ``failed``.
    reason : str or None
        Why it failed or was stopped.
    hyper_parameters : dict of str to (bool, int, float or str)
        By Keras' names; ``architecture`` is `model_id`.
    compile_params, fit_params : str
    epoch : int
        Of its newest visit.
    weights_digest : str or None
        SHA-256 of its weights, in hexadecimal.
    rank : int or None
    metric_epoch : int or None
        The epoch of the figures.
    validation_metric, validation_loss, training_metric, training_loss : float or None
    started_at, ended_at : float or None
        Of its first and its last visit.
    visits_s : float
        Of its visits.
    """

    mst_key: int
    model_id: int
    state: str
    reason: str | None
    hyper_parameters: Mapping[str, Value]
    compile_params: str
    fit_params: str
    epoch: int
    weights_digest: str | None
    rank: int | None
    metric_epoch: int | None
    validation_metric: float | None
    validation_loss: float | None
    training_metric: float | None
    training_loss: float | None
    started_at: float | None
    ended_at: float | None
    visits_s: float

    def has_ended(self, run: TrackedRun) -> bool:
        """Return whether it does not train any more; a trained model can be extended as long as its run trains."""
        return self.state == ModelState.FAILED or run.has_ended

    def score(self, run: TrackedRun) -> float | None:
        """Return the figure that ranks it: on validation data if there is one; not NaN."""
        is_validated = self.validation_loss is not None
        if run.metric_name is None:
            found = self.validation_loss if is_validated else self.training_loss
        else:
            found = self.validation_metric if is_validated else self.training_metric
        return None if found is None or math.isnan(found) else found


@dataclass(frozen=True, slots=True)
class TrackedMetric:
    """One metric of one model on one data set.

    Attributes
    ----------
    mst_key : int
    at : float
        When it was known.
    data_set : str
        ``training`` or ``validation``.
    name : str
        By Keras' name; ``loss`` is the loss.
    value : float
        Can be NaN or infinite.
    epoch : int
    visits : int
        Number of visits that the model had made.
    is_sample : bool
        Whether it was computed on the sample of metrics_every, after a visit; otherwise on all rows, after an epoch.
    """

    mst_key: int
    at: float
    data_set: str
    name: str
    value: float
    epoch: int
    visits: int
    is_sample: bool

    @property
    def step(self) -> int:
        """Where it stands on the horizontal axis: the epoch, or for a sample the number of visits."""
        return self.visits if self.is_sample else self.epoch


@dataclass(frozen=True, slots=True)
class TrackedState:
    """One state of a run: all its models, and metrics that have become known since the state before.

    Attributes
    ----------
    run : TrackedRun
    models : tuple of TrackedModel
        In the order in which the run got them.
    points : tuple of TrackedMetric
        The earliest first.
    """

    run: TrackedRun
    models: tuple[TrackedModel, ...]
    points: tuple[TrackedMetric, ...]

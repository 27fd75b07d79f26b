"""A run for trackers, with the metrics that have become known since they read it last; made by `reading`."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.run import RunHead
from madlib_mop.catalog.rows.states import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun(RunHead):
    """One run among those of all databases of all servers.

    Attributes
    ----------
    system_identifier : str
        The server's, given by initdb. A standby and a copy of the data directory have the same one.
    is_lost : bool
        Whether its state is one of a run at work, but its session has ended and nothing continues it.
    """

    system_identifier: str
    is_lost: bool = False

    @property
    def key(self) -> str:
        """A short text of hexadecimal digits that no other run has; trackers find their own work by it.

        Its start distinguishes the run from one of the same number in a database that was created again.
        """
        began = datetime.fromtimestamp(self.created_at, UTC).isoformat()
        return hashlib.sha256(f"{self.system_identifier}\0{self.database}\0{self.run_id}\0{began}".encode()).hexdigest()

    def is_over(self, model: ModelFacts) -> bool:
        """Return whether a model does not train any more; a trained one can be extended as long as the run trains."""
        return model.state == ModelState.FAILED or self.has_ended


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
    models : tuple of ModelFacts
        In the order in which the run got them.
    points : tuple of TrackedMetric
        The earliest first.
    """

    run: TrackedRun
    models: tuple[ModelFacts, ...]
    points: tuple[TrackedMetric, ...]

"""A run for trackers, with the metrics that have become known since they read it last; made by `reading`."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.run import RunHead
from madlib_mop.catalog.facts.training import MetricPoint
from madlib_mop.catalog.rows.states import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun(RunHead):
    """One run among those of all databases of all servers.

    Attributes
    ----------
    system_identifier : str
        The server's, given by initdb. A standby and a copy of the data directory have the same one.
    """

    system_identifier: str

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
class TrackedState:
    """One state of a run: all its models, and metrics that have become known since the state before.

    Attributes
    ----------
    run : TrackedRun
    models : tuple of ModelFacts
        In the order in which the run got them.
    points : tuple of MetricPoint
        The earliest first.
    """

    run: TrackedRun
    models: tuple[ModelFacts, ...]
    points: tuple[MetricPoint, ...]

"""The controller of a run: notified of each model that is done or has failed, it can change the run's models.

The hopper calls it. A run whose set of models is fixed has the no-op controller of this module.
"""

from collections.abc import Sequence

from madlib_mop.catalog.rows.of_run import Metric
from madlib_mop.driver.steering.model_changes import ModelChanges


class RunController:
    """No-op controller: the set of models is fixed."""

    def begin(self, model_changes: ModelChanges) -> None:
        """Called once, while the workers are opened; a resumed run has recorded decisions."""

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> None:
        """Called when a model's last epoch is complete, with its metrics if they were due."""

    def failed(self, mst_key: int) -> None:
        """Called when a model has failed."""

    def tick(self) -> None:
        """Called after every event, and at least once a second."""

    def ended(self) -> None:
        """Called when no task is left."""

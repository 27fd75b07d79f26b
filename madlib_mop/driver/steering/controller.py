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

    def visited(self, mst_key: int) -> None:
        """Called when a visit of a model was committed, before its next one starts."""

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> None:
        """Called when a model's last epoch is complete, with its metrics if they were due."""

    def failed(self, mst_key: int) -> None:
        """Called when a model has failed, or a command has stopped it."""

    @property
    def decides(self) -> bool:
        """Whether it will still change models; commands must not extend or resume models then."""
        return False

    def tick(self) -> None:
        """Called after every event, and at least once a second."""

    def ended(self) -> None:
        """Called when no task is left."""


class Controllers(RunController):
    """Several controllers of one run, such as a search and the replay of commands."""

    def __init__(self, *controllers: RunController):
        self._all = controllers

    def begin(self, model_changes: ModelChanges) -> None:
        for each in self._all:
            each.begin(model_changes)

    def visited(self, mst_key: int) -> None:
        for each in self._all:
            each.visited(mst_key)

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> None:
        for each in self._all:
            each.reached(mst_key, epoch, metrics)

    def failed(self, mst_key: int) -> None:
        for each in self._all:
            each.failed(mst_key)

    @property
    def decides(self) -> bool:
        return any(each.decides for each in self._all)

    def tick(self) -> None:
        for each in self._all:
            each.tick()

    def ended(self) -> None:
        for each in self._all:
            each.ended()

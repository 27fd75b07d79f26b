"""The commands of a run in its replay: clones are made again after the same visits, models that were stopped or have
failed end alike.

The rest of what commands did is in the plan of the replay: added models begin with the others, extended ones have
their last iteration from the start, and each model repeats its recorded visits only.
"""

from collections.abc import Sequence

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.of_run import Metric
from madlib_mop.driver.planning.replay import untrained
from madlib_mop.driver.steering.controller import RunController
from madlib_mop.driver.steering.model_changes import ClonedModel, ModelChanges


class RepeatedCommands(RunController):
    """Repeats commands.

    Parameters
    ----------
    models : sequence of ModelRow
        Those of the repeated run, at its end.
    """

    def __init__(self, models: Sequence[ModelRow]):
        self._clones = [model for model in models if model.cloned_from is not None]
        self._ended = [model for model in models if not model.is_alive]
        self._model_changes: ModelChanges  # set by `begin`

    def begin(self, model_changes: ModelChanges) -> None:
        """Make the clones that a dead driver did not make; their originals had not started another visit."""
        self._model_changes = model_changes
        for mst_key in list(model_changes.models):
            self.visited(mst_key)

    def visited(self, mst_key: int) -> None:
        """Clone a model that has reached the visit after which it was cloned; a clone may be cloned at once."""
        models = self._model_changes.models
        original = models[mst_key]
        for clone in self._clones:
            came_from = clone.cloned_from
            if came_from is None or came_from.mst_key != mst_key or clone.mst_key in models:
                continue
            reached = original.is_restored if came_from.is_best else came_from.is_state_of(original)
            if reached:
                takes = clone.taken_over
                keep = takes.optimizer if takes is not None and takes.mst_key == mst_key else None
                self._model_changes.change([ClonedModel(untrained(clone), came_from, keep)])
                self.visited(clone.mst_key)

    def tick(self) -> None:
        """Clone models that continue with another model's state: their originals have made no visit with it."""
        models = self._model_changes.models
        for mst_key in {clone.cloned_from.mst_key for clone in self._clones if clone.cloned_from is not None}:
            if mst_key in models and models[mst_key].is_just_taken_over:
                self.visited(mst_key)

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> None:
        """Clone a model from its best state, which it has at its end."""
        self.visited(mst_key)

    def ended(self) -> None:
        """Mark models that were stopped, or have failed, in the repeated run."""
        for model in self._ended:
            if model.mst_key in self._model_changes.models:
                self._model_changes.models.ended_as(model.mst_key, model.state, model.state_detail)


"""The recorded states of runs and models, and the allowed transitions."""

from enum import StrEnum


class RunState(StrEnum):
    """State of a run: column ``state`` of `madlib_mop.run`."""

    #: A driver trains its models, or was killed while it did. Any of the others may follow but FINISHED.
    RUNNING = "running"
    #: The caller's session ended, or its driver failed. RUNNING follows when it is resumed.
    INTERRUPTED = "interrupted"
    #: Somebody cancelled it by madlib_mop.cancel(). RUNNING follows when it is resumed.
    CANCELLED = "cancelled"
    #: All its models are done; its output tables are not written yet. FINISHED follows, or FAILED if no model is left.
    TRAINED = "trained"
    #: Its output tables were written, by a transaction of the caller's that may have been rolled back. The last state.
    FINISHED = "finished"
    #: An error ended it. RUNNING follows when it is resumed.
    FAILED = "failed"

    @property
    def is_trained(self) -> bool:
        """Whether training is complete."""
        return self in (RunState.TRAINED, RunState.FINISHED)


class ModelState(StrEnum):
    """State of a model: column ``state`` of `madlib_mop.model`."""

    #: No visit of it was kept yet. TRAINING follows, FAILED, or STOPPED.
    WAITING = "waiting"
    #: A visit was committed, or a search extended it. TRAINED follows, FAILED, or STOPPED.
    TRAINING = "training"
    #: Its last epoch and the metrics of that are complete. TRAINING follows if a search extends it.
    TRAINED = "trained"
    #: A search ended it before it had anything to show. FAILED may follow, by the visit that it was in.
    STOPPED = "stopped"
    #: It cannot be trained; ``state_detail`` has the reason. The last state.
    FAILED = "failed"

    @property
    def is_alive(self) -> bool:
        """Whether the model is trained, or was trained to its end."""
        return self not in (ModelState.FAILED, ModelState.STOPPED)

    def may_become(self, state: "ModelState") -> bool:
        """Return whether a state can follow this one; each can follow itself."""
        return state is self or state in _AFTER[self]


_AFTER = {
    ModelState.WAITING: (ModelState.TRAINING, ModelState.STOPPED, ModelState.FAILED),
    ModelState.TRAINING: (ModelState.TRAINED, ModelState.STOPPED, ModelState.FAILED),
    ModelState.TRAINED: (ModelState.TRAINING,),
    ModelState.STOPPED: (ModelState.FAILED,),
    ModelState.FAILED: (),
}

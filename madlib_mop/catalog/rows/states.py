"""The recorded states of runs and models, and the allowed transitions."""

from enum import StrEnum


class RunState(StrEnum):
    """State of a run: column ``state`` of `madlib_mop.run`."""

    #: A driver trains its models, or was killed while it did. Every state but FINISHED may follow.
    RUNNING = "running"
    #: The caller's session ended, or its driver failed. RUNNING follows when it is resumed.
    INTERRUPTED = "interrupted"
    #: A user cancelled it with madlib_mop.cancel(). RUNNING follows when it is resumed.
    CANCELLED = "cancelled"
    #: Its models are complete; its output tables are not written yet. FINISHED follows, or FAILED if all models failed.
    TRAINED = "trained"
    #: Its output tables were written, in a transaction of the caller that may have been rolled back. The last state.
    FINISHED = "finished"
    #: An error ended it. RUNNING follows when it is resumed.
    FAILED = "failed"

    @property
    def is_trained(self) -> bool:
        """Whether training is complete."""
        return self in (RunState.TRAINED, RunState.FINISHED)


class ModelState(StrEnum):
    """State of a model: column ``state`` of `madlib_mop.model`."""

    #: None of its visits was committed yet. TRAINING, FAILED or STOPPED follows.
    WAITING = "waiting"
    #: A visit was committed, or a search extended it. TRAINED, FAILED or STOPPED follows.
    TRAINING = "training"
    #: Its last epoch and the metrics of that epoch are complete. TRAINING follows if a search extends it.
    TRAINED = "trained"
    #: A search ended it before it had a metric. FAILED may follow, by the visit that was in flight.
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

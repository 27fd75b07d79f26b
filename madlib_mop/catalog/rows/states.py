"""The recorded states of runs, models, commands and jobs, the allowed transitions, and the advisory lock that a run's
driver holds, by which others see that the run is at work.
"""

from enum import StrEnum


class RunState(StrEnum):
    """State of a run: column ``state`` of `madlib_mop.run`."""

    #: A driver trains its models, or was killed while it did. Every state but FINISHED may follow.
    RUNNING = "running"
    #: The caller's session ended, or its driver failed. RUNNING follows when it is resumed.
    INTERRUPTED = "interrupted"
    #: A user cancelled it with madlib_mop.cancel(). RUNNING follows when it is resumed.
    CANCELLED = "cancelled"
    #: Its models are complete; its output tables are not written yet. FINISHED follows, or FAILED if all models failed;
    #: INTERRUPTED if a command gives it more to train.
    TRAINED = "trained"
    #: Its output tables were written, in a transaction of the caller that may have been rolled back.
    #: INTERRUPTED follows if a command gives it more to train.
    FINISHED = "finished"
    #: An error ended it. RUNNING follows when it is resumed.
    FAILED = "failed"

    @property
    def is_trained(self) -> bool:
        """Whether training is complete."""
        return self in (RunState.TRAINED, RunState.FINISHED)


#: States of a run in which it has ended; `resume` can continue all but finished ones.
ENDED = frozenset((RunState.FINISHED, RunState.FAILED, RunState.CANCELLED, RunState.INTERRUPTED))


class ModelState(StrEnum):
    """State of a model: column ``state`` of `madlib_mop.model`."""

    #: None of its visits was committed yet. TRAINING, FAILED or STOPPED follows.
    WAITING = "waiting"
    #: A visit was committed, or a search extended it. TRAINED, FAILED or STOPPED follows.
    TRAINING = "training"
    #: Its last epoch and the metrics of that epoch are complete. TRAINING follows if a search or a command extends it,
    #: FAILED follows if its stored state is damaged when the run's output tables are written.
    TRAINED = "trained"
    #: A command stopped it, or a search or the limit of the run's time before its first epoch was complete.
    #: FAILED may follow, by the visit that was in flight; WAITING or TRAINING if a command resumes it.
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


class ChangeState(StrEnum):
    """State of a change: column ``state`` of `madlib_mop.change`. Only a command can be other than obeyed."""

    #: It was checked and recorded; the run's driver has not applied it yet. Any other state may follow.
    PENDING = "pending"
    #: It was applied. The last state.
    OBEYED = "obeyed"
    #: It was not applied; ``detail`` has the reason. The last state.
    REFUSED = "refused"
    #: Its call ended before it was applied. The last state.
    WITHDRAWN = "withdrawn"


class ChangeSource(StrEnum):
    """Who decided on a change of a run's models: column ``source`` of `madlib_mop.change`."""

    PERSON = "person"
    #: The query that the run's owner gave with its call.
    POLICY = "policy"
    SEARCH = "search"
    #: The early stopping of a model, by its rule.
    EARLY_STOPPING = "early stopping"
    #: The argument max_seconds of a run; the time budget of a search is an event of the search.
    TIME_LIMIT = "time limit"
    #: The replay of a run, where commands had changed it.
    REPLAY = "replay"


class JobState(StrEnum):
    """State of a job: column ``state`` of `madlib_mop.job_record`."""

    #: It is not due yet, or no worker is free. RUNNING, CANCELLED, SKIPPED or FAILED follows.
    WAITING = "waiting"
    #: A worker runs it. WAITING follows if the worker or the server ends, otherwise FINISHED, FAILED or CANCELLED.
    RUNNING = "running"
    #: Its transaction was committed. The last state.
    FINISHED = "finished"
    #: Its statement failed, or it could not be started; ``detail`` has the reason. The last state.
    FAILED = "failed"
    #: A user cancelled it with madlib_mop.cancel_job(). The last state.
    CANCELLED = "cancelled"
    #: When it was due, a job of the same name was running. The last state.
    SKIPPED = "skipped"


_AFTER = {
    ModelState.WAITING: (ModelState.TRAINING, ModelState.STOPPED, ModelState.FAILED),
    ModelState.TRAINING: (ModelState.TRAINED, ModelState.STOPPED, ModelState.FAILED),
    ModelState.TRAINED: (ModelState.TRAINING,),  # FAILED only after the run, when its output tables are written
    ModelState.STOPPED: (ModelState.FAILED, ModelState.WAITING, ModelState.TRAINING),
    ModelState.FAILED: (),
}


#: "mop": the class of the lock.
LOCK_CLASS = 0x6D6F70


def lock_number(run_id: int) -> int:
    """Return a run's number in its driver's advisory lock: ``objid`` in pg_locks, which has 32 bits and is never 0.

    Runs whose numbers differ by a multiple of 4,294,967,295 share a lock.
    """
    return (run_id - 1) % 0xFFFFFFFF + 1

"""One state of a run, and lines of the lists of runs and jobs, as frozen dataclasses; `reading` makes them.

Times of day are aware datetimes. Durations are seconds (``_s``).
"""

from dataclasses import dataclass
from datetime import datetime

from madlib_mop.catalog.facts.data import SegmentFacts
from madlib_mop.catalog.facts.history import CommandFacts
from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.rows.states import ENDED, RunState


def percent_done(state: str, visits_done: int, visits_total: int) -> float:
    """Return which part of a run's visits is done, in percent.

    A run whose training is complete is done, also if its last models failed or were stopped.
    """
    if RunState(state).is_trained:
        return 100.0
    return min(100.0, round(100.0 * visits_done / max(1, visits_total), 1))


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in the list.

    Attributes
    ----------
    run_id : int
    kind, state, owner, output_table, source_table : str
    paused : bool
    n_models, n_failed : int
    percent_done : float
    created_at : datetime
    elapsed_s : float
    """

    run_id: int
    kind: str
    state: str
    owner: str
    output_table: str
    source_table: str
    paused: bool
    n_models: int
    n_failed: int
    percent_done: float
    created_at: datetime
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job in the list; `detail` is its error, or what it waits for."""

    job_id: int
    name: str | None
    function: str
    owner: str
    state: str
    run_id: int | None
    due_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far a run is.

    Attributes
    ----------
    run_id : int
    kind, state, owner, source_table, output_table, schedule : str
    detail : str or None
        Why it is in that state.
    validation_table : str or None
    paused_by : str or None
    waits : bool
        Whether it waits for its turn to train.
    may_steer : bool
        Whether the reading role owns it and may call the functions that steer.
    seed : int
    num_iterations, n_segments, n_models : int
    n_waiting, n_training, n_trained, n_stopped, n_failed : int
        Numbers of models by state.
    visits_done, visits_total : int
    created_at : datetime
    ended_at : datetime or None
    elapsed_s : float
    time_left_s : float or None
        Estimate; None without visits, and when it does not train.
    is_lost : bool
        Whether its state is one of a run at work, but its session has ended and nothing continues it.
    """

    run_id: int
    kind: str
    state: str
    detail: str | None
    owner: str
    source_table: str
    validation_table: str | None
    output_table: str
    schedule: str
    paused_by: str | None
    waits: bool
    may_steer: bool
    seed: int
    num_iterations: int
    n_segments: int
    n_models: int
    n_waiting: int
    n_training: int
    n_trained: int
    n_stopped: int
    n_failed: int
    visits_done: int
    visits_total: int
    created_at: datetime
    ended_at: datetime | None
    elapsed_s: float
    time_left_s: float | None
    is_lost: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether no process trains it."""
        return self.state in ENDED or self.is_lost

    @property
    def percent_done(self) -> float:
        """Which part of its visits is done."""
        return percent_done(self.state, self.visits_done, self.visits_total)


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """One model that has failed, and why."""

    mst_key: int
    epoch: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class RunNow:
    """One state of a run: its progress, a page of its leaderboard, its segments, failures and commands.

    Attributes
    ----------
    status : RunStatus
    models : tuple of ModelLine
        Best first.
    segments : tuple of SegmentFacts
        Of the training data.
    failures : tuple of ModelFailure
        Newest first.
    commands : tuple of CommandFacts
        Newest first.
    """

    status: RunStatus
    models: tuple[ModelLine, ...]
    segments: tuple[SegmentFacts, ...]
    failures: tuple[ModelFailure, ...]
    commands: tuple[CommandFacts, ...]

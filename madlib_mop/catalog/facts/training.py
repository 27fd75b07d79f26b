"""Learning curves and the schedule of a run; made by `reading`."""

from dataclasses import dataclass
from math import nan


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One metric of one model on one data set, at one point of its training.

    Attributes
    ----------
    mst_key : int
    at : float
        When it was known, in seconds since 1970.
    data_set : str
        ``training`` or ``validation``.
    name : str
        By Keras' name; ``loss`` is the loss.
    value : float
        Can be NaN or infinite, except in curves.
    epoch : int
    visits : int
        Number of visits that the model had made.
    is_sample : bool
        Whether it was computed on the sample of metrics_every, after a visit; otherwise on all rows, after an epoch.
    elapsed_s, rows : float
        Of curves only: seconds since the start of the run, and rows that the model had been trained on in this run.
    """

    mst_key: int
    at: float
    data_set: str
    name: str
    value: float
    epoch: int
    visits: int
    is_sample: bool
    elapsed_s: float = nan
    rows: float = nan

    @property
    def step(self) -> int:
        """Where it stands on the axis of a tracker: the epoch, or for a sample the number of visits."""
        return self.visits if self.is_sample else self.epoch

    def iteration(self, n_segments: int) -> float:
        """Return the iterations that the model had made; of a sample, with parts of an iteration."""
        return self.epoch - 1 + ((self.visits - 1) % n_segments + 1) / n_segments if self.is_sample else self.epoch


@dataclass(frozen=True, slots=True)
class Band:
    """The spread of one metric over all models at one iteration: quantiles 0.1, 0.5 and 0.9 of ``n_models`` models."""

    data_set: str
    name: str
    iteration: int
    low: float
    median: float
    high: float
    n_models: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One visit or evaluation at a segment.

    Attributes
    ----------
    kind : str
        ``visit`` or ``evaluation``.
    segment_id, mst_key, epoch : int
    position : int or None
        Of a visit.
    start_s, end_s : float
    n_rows : int
    attempt : int
    data_set : str or None
        Of an evaluation.
    """

    kind: str
    segment_id: int
    mst_key: int
    epoch: int
    position: int | None
    start_s: float
    end_s: float
    n_rows: int
    attempt: int = 1
    data_set: str | None = None


@dataclass(frozen=True, slots=True)
class BusyBin:
    """The share of a span of time in which a segment worked, from 0 to 1; in place of too many bars."""

    segment_id: int
    start_s: float
    end_s: float
    share: float


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """What one segment did.

    Attributes
    ----------
    segment_id, n_visits, n_evaluations : int
    visit_s, evaluation_s, idle_s : float
        Together the span from the run's first visit or evaluation to its last one. Idle time includes interruptions.
    """

    segment_id: int
    n_visits: int
    n_evaluations: int
    visit_s: float
    evaluation_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds of one part of all visits, or of all evaluations.

    Attributes
    ----------
    kind : str
        ``visit`` or ``evaluation``.
    part : str
        A name of column ``timing``, such as ``compute_s``; ``other_s`` is the rest.
    seconds : float
    """

    kind: str
    part: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the segments worked: all visits and evaluations as bars, or if there are too many, the shares of bins."""

    bars: tuple[Bar, ...] = ()
    bins: tuple[BusyBin, ...] = ()
    loads: tuple[SegmentLoad, ...] = ()
    time_spent: tuple[TimeSpent, ...] = ()
    n_visits: int = 0
    n_evaluations: int = 0

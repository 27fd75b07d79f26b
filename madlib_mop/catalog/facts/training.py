"""Learning curves and the schedule of a run; made by `reading`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One metric of one model at one point of its training.

    Attributes
    ----------
    mst_key : int
    data_set, name : str
        ``training`` or ``validation``; ``loss`` or the first metric.
    iteration : float
        Iterations of this model; with metrics_every, parts of an iteration.
    elapsed_s : float
        Since the start of the run.
    rows : float
        Rows that the model had been trained on in this run.
    value : float
        Finite.
    is_sample : bool
        Whether it was computed on the sample of metrics_every.
    """

    mst_key: int
    data_set: str
    name: str
    iteration: float
    elapsed_s: float
    rows: float
    value: float
    is_sample: bool = False


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

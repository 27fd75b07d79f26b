"""What a report says about one run, as frozen dataclasses; `reading` makes them, figures and pages show them.

Times of day are aware datetimes in UTC. Durations and offsets are seconds (``_s``); offsets count from the run's start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

#: The value of one hyper-parameter; texts stand for everything that is not a number or a boolean.
Value = float | int | bool | str
#: Hyper-parameters by name, such as ``learning_rate``.
HyperParameters = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One shard of the run's data.

    Attributes
    ----------
    data_set : str
        ``training``, ``validation`` or ``sample``.
    segment_id : int
    place : str or None
        The foreign server that stores it; None for this server.
    n_rows, n_bytes : int or None
    fingerprint : str or None
        SHA-256 of its rows; None until a trainer has loaded them.
    """

    data_set: str
    segment_id: int
    place: str | None
    n_rows: int | None
    n_bytes: int | None
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class ClassCount:
    """One class of an output; ``n_rows`` is None if the packed table does not say how many rows it has."""

    name: str
    n_rows: int | None


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One output column: its classes, in the order of the units.

    Attributes
    ----------
    name : str
    classes : tuple of ClassCount
        Empty for a number.
    n_classes : int or None
        How many classes there are; ``classes`` may have only the first ones.
    why_no_counts : str or None
        Why their rows are unknown: a sentence.
    """

    name: str
    classes: tuple[ClassCount, ...]
    n_classes: int | None
    why_no_counts: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column of the ordinary table that the packed tables were made from: how it is encoded."""

    name: str
    sql_type: str
    role: str
    kind: str
    encoding: str


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What the run was trained on.

    Attributes
    ----------
    source_table, validation_table : str or None
    inputs : tuple of str
    outputs : tuple of OutputFacts
    segments : tuple of SegmentFacts
    columns : tuple of ColumnFacts
        Empty if pack_columns did not make the packed tables, or the viewer may not see their preprocessor.
    preprocessor_digest : str or None
    """

    source_table: str
    validation_table: str | None
    inputs: tuple[str, ...]
    outputs: tuple[OutputFacts, ...]
    segments: tuple[SegmentFacts, ...]
    columns: tuple[ColumnFacts, ...] = ()
    preprocessor_digest: str | None = None

    def n_rows(self, data_set: str) -> int | None:
        """Return the rows of a data set; None if they are not known."""
        counts = [s.n_rows for s in self.segments if s.data_set == data_set]
        return sum(n for n in counts if n is not None) if counts and None not in counts else None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One network of the run: its number in the table of architectures, and its layers in words."""

    model_id: int
    layers: str
    n_models: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a model's weights came from, if not from random numbers.

    Attributes
    ----------
    kind : str
        ``clone``, ``exploit`` (population based training), ``warm start`` or ``start weights``.
    mst_key : int
        The model.
    from_key : int or None
        The other model of this run.
    epoch, position : int or None
        Of the newest visit that the copied state contains.
    origin : str or None
        The run, table or architecture that the weights are from.
    at_s : float or None
        When, if that is recorded.
    """

    kind: str
    mst_key: int
    from_key: int | None = None
    epoch: int | None = None
    position: int | None = None
    origin: str | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One configuration, with its place in the leaderboard.

    Attributes
    ----------
    mst_key, model_id : int
    rank : int or None
    state : str
        ``waiting``, ``training``, ``trained``, ``stopped`` or ``failed``.
    reason : str or None
        Why it failed or was stopped.
    epoch, position, first_epoch, last_epoch : int
    metric_epoch : int or None
        The iteration of the figures.
    metric_name : str or None
    validation_metric, validation_loss, training_metric, training_loss : float or None
        NaN and infinite values are None.
    comparable : bool
    compile_params, fit_params : str
    hyper_parameters : dict
        Parsed from these; with ``network``.
    state_bytes : int or None
    weights_digest : str or None
    seconds : float
        Of its visits.
    pinned : bool
    """

    mst_key: int
    model_id: int
    rank: int | None
    state: str
    reason: str | None
    epoch: int
    position: int
    first_epoch: int
    last_epoch: int
    metric_epoch: int | None
    metric_name: str | None
    validation_metric: float | None
    validation_loss: float | None
    training_metric: float | None
    training_loss: float | None
    comparable: bool
    compile_params: str
    fit_params: str
    hyper_parameters: HyperParameters = field(default_factory=dict)
    state_bytes: int | None = None
    weights_digest: str | None = None
    seconds: float = 0.0
    pinned: bool = False

    @property
    def loss(self) -> float | None:
        """The loss that ranks it: on validation data if there are some."""
        return self.training_loss if self.validation_loss is None else self.validation_loss

    @property
    def metric(self) -> float | None:
        """The first metric, on the same data as `loss`."""
        return self.training_metric if self.validation_loss is None else self.validation_metric


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


@dataclass(frozen=True, slots=True)
class SearchEventFacts:
    """One decision of a search, or an event without one.

    Attributes
    ----------
    ordinal : int
    at_s : float
    event : str
    mst_key, epoch : int or None
        Of the event.
    loss : float or None
    action : str or None
        ``add``, ``extend``, ``stop``, ``exploit`` or ``finish``.
    action_key, until_epoch, source_key : int or None
    reason : str or None
    """

    ordinal: int
    at_s: float
    event: str
    mst_key: int | None
    epoch: int | None
    loss: float | None
    action: str | None
    action_key: int | None
    until_epoch: int | None
    source_key: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """One command to the run, and what became of it.

    Attributes
    ----------
    command_id : int
    command : str
    arguments : str
        JSON.
    source : str
        ``person`` or ``policy``.
    issued_by : str
    at_s : float
    state : str
    detail : str or None
    mst_keys : tuple of int
    """

    command_id: int
    command: str
    arguments: str
    source: str
    issued_by: str
    at_s: float
    state: str
    detail: str | None
    mst_keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Models that failed or were stopped for the same reason; ``mst_keys`` has the first ones of ``n_models``."""

    state: str
    reason: str
    n_models: int
    mst_keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many there are, where the facts have only some of them.

    Attributes
    ----------
    models : int
    states : dict of str to int
        Models by state.
    metrics, search_decisions, commands, lineage : int
    """

    models: int
    states: Mapping[str, int]
    metrics: int = 0
    search_decisions: int = 0
    commands: int = 0
    lineage: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """The call that began the run.

    Attributes
    ----------
    function : str or None
        SQL name without schema; None if the record has no arguments.
    arguments : dict
        JSON values by name, defaults included.
    """

    function: str | None
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that a report says about one run.

    Attributes
    ----------
    run_id : int
    kind : str
        ``fit_multiple_model``, ``fit``, ``automl`` or ``replay``.
    state : str
    state_detail : str or None
    owner, viewer, database : str
    call : Call
    model_output_table : str
    model_selection_table, model_arch_table : str or None
    num_iterations, seed, n_segments, n_threads : int
    schedule : str
    warm_start : bool
    parent_run_id : int or None
    versions : dict of str to str
    created_at, read_at : datetime
        Start of the run; when the facts were read.
    ended_at : datetime or None
    makespan_s, lower_bound_s, idle_share : float or None
    counts : Counts
    data : DataFacts
    architectures : tuple of Architecture
    models : tuple of ModelFacts
        Best first: all, or the first ones.
    sample : tuple of ModelFacts
        Of the ranked models all, or an even choice, for figures of hyper-parameters.
    metric_name : str or None
        The metric that the models are ranked by; None: the loss.
    higher_is_better : bool
    curves : tuple of MetricPoint
        Of the best models.
    bands : tuple of Band
        Of all models, if ``curves`` has only some.
    timeline : Schedule
    lineage : tuple of Lineage
    failures : tuple of Failure
    commands : tuple of CommandFacts
    search : tuple of SearchEventFacts
    policy : str or None
        The query of the run's policy.
    """

    run_id: int
    kind: str
    state: str
    state_detail: str | None
    owner: str
    viewer: str
    database: str
    call: Call
    model_output_table: str
    model_selection_table: str | None
    model_arch_table: str | None
    num_iterations: int
    seed: int
    schedule: str
    n_segments: int
    n_threads: int
    warm_start: bool
    parent_run_id: int | None
    versions: Mapping[str, str]
    created_at: datetime
    ended_at: datetime | None
    read_at: datetime
    makespan_s: float | None
    lower_bound_s: float | None
    idle_share: float | None
    counts: Counts
    data: DataFacts
    architectures: tuple[Architecture, ...] = ()
    models: tuple[ModelFacts, ...] = ()
    sample: tuple[ModelFacts, ...] = ()
    metric_name: str | None = None
    higher_is_better: bool = False
    curves: tuple[MetricPoint, ...] = ()
    bands: tuple[Band, ...] = ()
    timeline: Schedule = Schedule()
    lineage: tuple[Lineage, ...] = ()
    failures: tuple[Failure, ...] = ()
    commands: tuple[CommandFacts, ...] = ()
    search: tuple[SearchEventFacts, ...] = ()
    policy: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether it trains, or a driver writes its tables."""
        return self.state in ("running", "trained")

    def score(self, model: ModelFacts) -> float | None:
        """Return the figure that ranks a model: the first metric if all have the same one, otherwise the loss."""
        return model.loss if self.metric_name is None else model.metric

    @property
    def score_name(self) -> str:
        """The name of `score`."""
        return self.metric_name or "loss"

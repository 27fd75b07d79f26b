"""All facts of one run; made by `reading`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from madlib_mop.reports.facts.data import DataFacts
from madlib_mop.reports.facts.history import CommandFacts, SearchEventFacts
from madlib_mop.reports.facts.models import Architecture, FailureGroup, Lineage, ModelFacts
from madlib_mop.reports.facts.training import Band, MetricPoint, Schedule


@dataclass(frozen=True, slots=True)
class Counts:
    """How many there are, where the facts have only some of them.

    Attributes
    ----------
    models : int
    states : dict of str to int
        Models by state.
    search_decisions, search_results, commands, lineage : int
    """

    models: int
    states: Mapping[str, int]
    search_decisions: int = 0
    search_results: int = 0
    commands: int = 0
    lineage: int = 0


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The call that began the run.

    Attributes
    ----------
    function : str or None
        SQL name without schema; None if the record has no arguments.
    arguments : dict
        JSON values by name, defaults included.
    tables : dict of str to str
        The tables that arguments name, with their schemas, quoted for SQL, by argument; not all are recorded.
    """

    function: str | None
    arguments: Mapping[str, object]
    tables: Mapping[str, str] = field(default_factory=dict)


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
    call : CallFacts
    model_output_table : str
    model_selection_table, model_arch_table : str or None
    num_iterations, seed, n_segments, n_threads : int
    schedule : str
    depends_on_timing : bool
        Whether the order of visits can depend on timing.
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
    failures : tuple of FailureGroup
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
    call: CallFacts
    model_output_table: str
    model_selection_table: str | None
    model_arch_table: str | None
    num_iterations: int
    seed: int
    schedule: str
    depends_on_timing: bool
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
    failures: tuple[FailureGroup, ...] = ()
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

"""One run, and all facts of it; made by `reading`. Times of day are seconds since 1970."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from madlib_mop.catalog.facts.data import DataFacts
from madlib_mop.catalog.facts.findings import VersionFindings
from madlib_mop.catalog.facts.history import CommandFacts, SearchEventFacts
from madlib_mop.catalog.facts.models import LOSS, Architecture, FailureGroup, Lineage, ModelFacts
from madlib_mop.catalog.facts.now import RunStatus
from madlib_mop.catalog.facts.training import Band, MetricPoint, Schedule
from madlib_mop.catalog.rows.states import ENDED

#: How a run trains, and the SQL function that begins it, by its kind.
KINDS = {"fit_multiple_model": "model hopping", "fit": "model averaging", "automl": "search", "replay": "replay"}
FUNCTIONS = {
    "fit_multiple_model": "madlib_keras_fit_multiple_model", "fit": "madlib_keras_fit",
    "automl": "madlib_keras_automl", "replay": "replay",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """How many there are, where the facts have only some of them."""

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
class RunHead:
    """One run, without what it consists of.

    Attributes
    ----------
    run_id : int
    kind : str
        ``fit_multiple_model``, ``fit``, ``automl`` or ``replay``.
    state : str
    state_detail : str or None
    paused_by : str or None
    waits : bool
        Whether it waits for its turn to train.
    is_lost : bool
        Whether its state is one of a run at work, but its session has ended and nothing continues it.
    owner, viewer, database : str
    may_own : bool
        Whether the viewer is a member of the role that owns the run, and so may read training states.
    name, description : str or None
        Arguments of the call.
    source_table, model_output_table : str
    validation_table, model_selection_table, model_arch_table : str or None
    num_iterations, seed, n_segments : int
    schedule : str
    versions : dict of str to str
        Of the libraries, by name.
    created_at : float
        Start of the run.
    ended_at : float or None
    metric_name : str or None
        The metric that the models are ranked by; None: the loss.
    higher_is_better : bool
    """

    run_id: int
    kind: str
    state: str
    state_detail: str | None
    owner: str
    viewer: str
    database: str
    paused_by: str | None = None
    waits: bool = False
    is_lost: bool = False
    may_own: bool = False
    name: str | None = None
    description: str | None = None
    source_table: str
    validation_table: str | None
    model_output_table: str
    model_selection_table: str | None
    model_arch_table: str | None
    num_iterations: int
    seed: int
    n_segments: int
    schedule: str
    versions: Mapping[str, str]
    created_at: float
    ended_at: float | None
    metric_name: str | None = None
    higher_is_better: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether no process trains it; `resume` can continue it unless it is finished."""
        return self.state in ENDED or self.is_lost

    @property
    def score_name(self) -> str:
        """What the models are ranked by."""
        return self.metric_name or LOSS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(RunHead):
    """Everything that a report says about one run.

    Attributes
    ----------
    call : CallFacts
    status : RunStatus
        How far it is.
    n_threads : int
    depends_on_timing : bool
        Whether the order of visits can depend on timing.
    warm_start : bool
    parent_run_id : int or None
    read_at : float
        When the facts were read.
    makespan_s, lower_bound_s, idle_share : float or None
    counts : Counts
    data : DataFacts
    architectures : tuple of Architecture
    models : tuple of ModelFacts
        Best first: all, or the first ones.
    sample : tuple of ModelFacts
        Of the ranked models all, or an even choice, for figures of hyper-parameters.
    curves : tuple of MetricPoint
        Of the best models.
    bands : tuple of Band
        Of all models, if ``curves`` has only some.
    timeline : Schedule
    lineage : tuple of Lineage
    failures : tuple of FailureGroup
    commands : tuple of CommandFacts
        The newest ones, the oldest of them first.
    search : tuple of SearchEventFacts
    policy : str or None
        The query of the run's policy.
    findings : tuple of VersionFindings
        What register found about models of the run, as far as the viewer may see it.
    has_registry : bool
        Whether models can be registered on this server.
    """

    call: CallFacts
    status: RunStatus
    n_threads: int
    depends_on_timing: bool
    warm_start: bool
    parent_run_id: int | None
    read_at: float
    makespan_s: float | None
    lower_bound_s: float | None
    idle_share: float | None
    counts: Counts
    data: DataFacts
    architectures: tuple[Architecture, ...] = ()
    models: tuple[ModelFacts, ...] = ()
    sample: tuple[ModelFacts, ...] = ()
    curves: tuple[MetricPoint, ...] = ()
    bands: tuple[Band, ...] = ()
    timeline: Schedule = Schedule()
    lineage: tuple[Lineage, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    commands: tuple[CommandFacts, ...] = ()
    search: tuple[SearchEventFacts, ...] = ()
    policy: str | None = None
    findings: tuple[VersionFindings, ...] = ()
    has_registry: bool = True

    @property
    def of_held_out(self) -> VersionFindings | None:
        """The newest registered model with held-out rows."""
        return next((one for one in self.findings if one.findings.held_out), None)

    @property
    def of_columns(self) -> VersionFindings | None:
        """The newest registered model with the importance of its columns."""
        return next((one for one in self.findings if one.findings.importances), None)

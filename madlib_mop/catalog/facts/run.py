"""All facts of a run: the row of the run is read first, then its parts. Times of day are seconds since 1970."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from madlib_mop.catalog.facts.curves import MAX_MODELS, Band, MetricPoint, read_bands, read_curves
from madlib_mop.catalog.facts.data import DataFacts, read_data
from madlib_mop.catalog.facts.findings import VersionFindings, has_registry, read_findings
from madlib_mop.catalog.facts.head import FUNCTIONS, RunHead, head_of, read_head
from madlib_mop.catalog.facts.history import MAX_COMMANDS, CommandFacts, SearchEventFacts, read_commands, read_search
from madlib_mop.catalog.facts.models import (
    Architecture,
    FailureGroup,
    Lineage,
    ModelFacts,
    read_architectures,
    read_failures,
    read_lineage,
    read_models,
)
from madlib_mop.catalog.facts.now import DATA_SETS, RunStatus, read_baselines, read_segments, read_status
from madlib_mop.catalog.facts.schedule import Schedule, read_schedule
from madlib_mop.catalog.facts.shared import FactsReader
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.errors import not_your_run
from madlib_mop.schedule import SCHEDULES


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
    baselines : tuple of Baseline
        Figures to compare the models with, of what is no model.
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
    baselines: tuple[Baseline, ...] = ()

    @property
    def of_held_out(self) -> VersionFindings | None:
        """The newest registered model with held-out rows."""
        return next((one for one in self.findings if one.findings.held_out), None)

    @property
    def of_columns(self) -> VersionFindings | None:
        """The newest registered model with the importance of its columns."""
        return next((one for one in self.findings if one.findings.importances), None)


def read_run(reader: FactsReader, run_id: int) -> RunFacts:
    """Return the facts of a run.

    Raises
    ------
    InvalidParameter
        If the viewer may see no run of this number.
    """
    row = read_head(reader, run_id)
    status = read_status(reader.fetch, run_id, reader.lost) if row is not None else None
    if row is None or status is None:
        raise not_your_run(run_id)
    head, n_models = head_of(row), status.n_models
    models, sample = read_models(reader, run_id, n_models)
    commands, n_commands = read_commands(reader.fetch, run_id, MAX_COMMANDS)
    search, n_decisions, n_results = read_search(reader, run_id)
    lineage, n_lineage = read_lineage(reader, run_id)
    return RunFacts(
        **head,
        **{name: row[name] for name in _AS_THEY_ARE},
        call=CallFacts(FUNCTIONS.get(row["kind"]), json.loads(row["arguments"]), _names(row)),
        status=status,
        depends_on_timing=depends_on_timing(row["schedule"], n_models, row["n_segments"]),
        counts=Counts(n_decisions, n_results, n_commands, n_lineage),
        data=read_data(reader, run_id, read_segments(reader.fetch, status, DATA_SETS)),
        architectures=read_architectures(reader, run_id),
        models=models,
        sample=sample,
        curves=read_curves(reader, run_id, [m.mst_key for m in models]),
        bands=read_bands(reader, run_id) if n_models > MAX_MODELS else (),
        timeline=read_schedule(reader, run_id),
        lineage=lineage,
        failures=read_failures(reader, run_id),
        commands=commands[::-1],
        search=search,
        findings=read_findings(reader, run_id),
        has_registry=has_registry(reader.fetch),
        baselines=read_baselines(reader.fetch, run_id),
    )


_AS_THEY_ARE = (
    "n_threads", "warm_start", "parent_run_id", "read_at", "makespan_s", "lower_bound_s", "idle_share", "policy",
)  # fmt: skip


def depends_on_timing(schedule: str, n_models: int, n_segments: int) -> bool:
    """Return whether the order of visits of a recorded run can depend on timing.

    ``schedule`` is that of the record: of model averaging and of replays too, which have a fixed order.
    """
    return schedule in SCHEDULES and SCHEDULES[schedule].depends_on_timing(n_models, n_segments)


def _names(run: dict[str, Any]) -> dict[str, str]:
    """Return the names of the call's tables with their schemas, quoted, by the arguments that named them."""
    qualified = json.loads(run["qualified"] or "{}")
    names = {name: text for name, text in json.loads(run["names"]).items() if text}
    return {**names, **qualified}

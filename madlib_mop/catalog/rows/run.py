"""The row of a run, one call that trains, and what belongs to it besides its models: segments, visits, metrics,
evaluations, events of a search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from madlib_mop.catalog.rows.base import Json, Row, column
from madlib_mop.catalog.rows.plan import Plan, SearchPlan, query_of_policy
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.models.changes import Change

#: The column of a query of runs that has the text of the policy (table run_policy).
POLICY_COLUMN = "given_policy"
#: What everybody who may see the run sees in its place.
HIDDEN_POLICY = "(shown to the owner of the run)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow(Row):
    """One call that trains: a row of `madlib_mop.run`.

    Attributes
    ----------
    run_id : int
        0 in a plan.
    kind : str
        ``fit_multiple_model``, ``fit``, ``automl`` or ``replay``.
    state : RunState
    state_detail : str or None
    owner_oid : int
        The calling role; roles are compared by oid.
    owner : str
        Its name.
    source_table, validation_table, model_output_table, model_selection_table, model_arch_table : str or None
    num_iterations : int
    metrics_compute_frequency : int or None
    warm_start, use_caching : bool
    seed : int
    schedule : str
    n_models, n_segments, n_threads : int
    parent_run_id : int or None
        The run that a warm start continues, or that a replay repeats.
    arguments : dict
        Of the call that began it, JSON, by name; see `calls.recorded_arguments`.
    plan : Plan
    versions : dict of str to str
        Of the libraries that it is trained with, by name.
    created_at, ended_at : datetime or None
    training_s, makespan_s, lower_bound_s : float or None
        Seconds.
    idle_share : float or None
    driver_pid, caller_pid : int or None
    login_role, cancelled_by : str or None
    faults : dict
        Tasks that have failed and are to be tried again, JSON; see `Attempts`.
    paused_by : str or None
        The role that has paused it.
    asked_at, admitted_at : datetime or None
        When it began to wait for its turn, and when it was admitted.
    reopened : bool
        Whether a command gave it more to train after its output tables were written.
    baselines : list of dict
        What its models are compared with, JSON; see `Baseline`.
    """

    run_id: int = 0
    kind: str
    state: RunState = column(RunState, default=RunState.RUNNING)
    state_detail: str | None = None
    owner_oid: int
    owner: str
    source_table: str
    validation_table: str | None = None
    model_output_table: str
    model_selection_table: str | None = None
    model_arch_table: str
    num_iterations: int
    metrics_compute_frequency: int | None = None
    warm_start: bool = False
    use_caching: bool = False
    seed: int
    schedule: str
    n_models: int
    n_segments: int
    n_threads: int = 1
    parent_run_id: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    plan: Plan = column(Plan.from_json, repr=False)
    versions: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime | None = None
    ended_at: datetime | None = None
    training_s: float = 0.0
    makespan_s: float | None = None
    lower_bound_s: float | None = None
    idle_share: float | None = None
    driver_pid: int | None = None
    caller_pid: int | None = None
    login_role: str | None = None
    cancelled_by: str | None = None
    faults: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    paused_by: str | None = None
    reopened: bool = False
    asked_at: datetime | None = None
    admitted_at: datetime | None = None
    baselines: Sequence[Json] = field(default_factory=list)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the run of a query's result, with the text of its policy from column `POLICY_COLUMN`."""
        given = row.get(POLICY_COLUMN)
        if given is not None:
            row = {**row, "arguments": {**row["arguments"], "policy": given}}
            if row["plan"].get("policy"):
                policy = {**row["plan"]["policy"], "query": query_of_policy(given)}
                row["plan"] = {**row["plan"], "policy": policy}
        return super(RunRow, cls).from_row(row)

    def as_row(self) -> dict[str, Any]:
        """Return the columns of a new row; the server assigns its number and columns that are None."""
        columns = Row.as_row(self) | {"owner": self.owner_oid}
        del columns["run_id"], columns["owner_oid"]
        return {name: value for name, value in columns.items() if value is not None}

    @property
    def search_plan(self) -> SearchPlan:
        """The plan of its search, or of the search that it repeats; only for a run that `is_search`."""
        assert self.plan.search is not None, "it is asked of searches only"
        return self.plan.search

    @property
    def replaces_rows(self) -> bool:
        """Whether its output tables may exist, and keep their rights and views while their rows are replaced."""
        return self.reopened or (self.warm_start and self.kind != "replay")

    @property
    def is_search(self) -> bool:
        """Whether its models come from a search or repeat those of a search."""
        return self.plan.search is not None


def hide_policy(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns of a run, in the form for a statement, without the text of its policy.

    Roles that may see the run see its row; only its owner and members of the owner's role see table run_policy.
    """
    hidden = dict(columns)
    if (hidden.get("arguments") or {}).get("policy"):
        hidden["arguments"] = {**hidden["arguments"], "policy": HIDDEN_POLICY}
    if (hidden.get("plan") or {}).get("policy"):
        hidden["plan"] = {**hidden["plan"], "policy": {**hidden["plan"]["policy"], "query": ""}}
    return hidden


#: The data set of a run's sample, which is part of a shard of another data set.
SAMPLE = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow(Row):
    """One shard of a run's data: a row of `madlib_mop.segment`.

    Attributes
    ----------
    run_id : int
        0 in a plan.
    data_set : str
        ``training``, ``validation`` or ``sample``.
    segment_id : int
    engine : str
    place : str or None
        The foreign server that stores it; None for this server.
    n_rows, n_bytes : int
    fingerprint : str or None
        SHA-256 of its rows, once a trainer has loaded them.
    """

    run_id: int = 0
    data_set: str
    segment_id: int
    engine: str
    place: str | None
    n_rows: int | None
    n_bytes: int | None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitRow(Row):
    """One committed visit of a model to a segment: a row of `madlib_mop.visit`.

    Attributes
    ----------
    visit_id, run_id, mst_key, epoch, position, segment_id : int
        Epochs and positions count from 1.
    started_at, ended_at : datetime
    n_rows, state_bytes : int
    digest_in, digest_out : str
        SHA-256 of the state before and after it.
    attempt : int
        The number of attempts.
    loss : float or None
    timing : dict
        Seconds of its parts, by name.
    """

    visit_id: int
    run_id: int
    mst_key: int
    epoch: int
    position: int
    segment_id: int
    started_at: datetime
    ended_at: datetime
    n_rows: int
    state_bytes: int
    digest_in: str
    digest_out: str
    attempt: int
    loss: float
    timing: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """How long it took; 0 if the server's clock was set back meanwhile."""
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Row):
    """One metric of one model after one epoch on one data set: a row of `madlib_mop.metric`.

    Attributes
    ----------
    run_id, mst_key, epoch : int
    data_set : str
        ``training`` or ``validation``.
    ordinal : int
        0 is the loss.
    name : str
    value : float
    elapsed_s : float
        Seconds of training from the start of the run to its computation.
    work_s : float
        Seconds of the trainers' work for the evaluations.
    """

    run_id: int
    mst_key: int
    epoch: int
    data_set: str
    ordinal: int
    name: str
    value: float
    elapsed_s: float
    work_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow(Row):
    """One model's evaluation on one shard after one epoch: a row of `madlib_mop.evaluation`.

    Attributes
    ----------
    run_id, mst_key, epoch : int
    data_set : str
    shard, segment_id : int
        Its rows, and the segment whose trainer evaluated them.
    started_at, ended_at : datetime
    n_rows : int
    loss : float
    timing : dict
        Seconds of its parts, by name.
    """

    run_id: int
    mst_key: int
    epoch: int
    data_set: str
    shard: int
    segment_id: int
    started_at: datetime
    ended_at: datetime
    n_rows: int
    loss: float
    timing: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEvent(Row):
    """One event of a run's search, a row of `madlib_mop.search_event`, with the decisions on it.

    Attributes
    ----------
    run_id, ordinal : int
    event : str
        ``start``, ``result``, ``failed`` or ``budget``.
    mst_key, epoch : int or None
        The model and its epoch. ``budget`` has no model; its epoch is the number of iterations that a new model can
        make before the budget ends, None at the end.
    loss : float or None
    changes : sequence of Change
        What the search decided: rows of `madlib_mop.change`.
    """

    run_id: int
    ordinal: int
    event: str
    mst_key: int | None = None
    epoch: int | None = None
    loss: float | None = None
    changes: Sequence[Change] = ()

    def as_row(self) -> dict[str, Any]:
        """Return the columns in the form for a statement."""
        columns = Row.as_row(self)
        del columns["changes"]
        return columns

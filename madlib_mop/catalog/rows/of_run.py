"""Rows that belong to a run, besides its models: segments, visits, metrics, evaluations, events of a search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from madlib_mop.catalog.rows.base import Row
from madlib_mop.models.changes import Change

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

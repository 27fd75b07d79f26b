"""The row of a run, which decides whether the viewer may see anything of it; it is read before the other facts.

Times of day are seconds since 1970.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.facts.models import LOSS
from madlib_mop.catalog.facts.shared import WAITS, FactsReader
from madlib_mop.catalog.rows.states import ENDED

#: How a run trains, and the SQL function that begins it, by its kind.
KINDS = {"fit_multiple_model": "model hopping", "fit": "model averaging", "automl": "search", "replay": "replay"}
FUNCTIONS = {
    "fit_multiple_model": "madlib_keras_fit_multiple_model", "fit": "madlib_keras_fit",
    "automl": "madlib_keras_automl", "replay": "replay",
}  # fmt: skip


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


_RUN = f"""
SELECT r.run_id, r.kind, r.state, r.state_detail, r.paused_by, {WAITS} AS waits,
       pg_get_userbyid(r.owner)::pg_catalog.text AS owner,
       current_user::pg_catalog.text AS viewer,
       current_database()::pg_catalog.text AS database, madlib_mop_calls.may_own(r.owner) AS may_own,
       r.arguments ->> 'name' AS name, r.arguments ->> 'description' AS description, r.source_table, r.validation_table,
       r.model_output_table, r.model_selection_table, r.model_arch_table, r.num_iterations, r.seed, r.schedule,
       r.n_segments, r.n_threads, r.warm_start, r.parent_run_id,
       (CASE WHEN p.policy IS NULL THEN r.arguments ELSE r.arguments || jsonb_build_object('policy', p.policy) END
       )::pg_catalog.text AS arguments, r.versions::pg_catalog.text AS versions,
       EXTRACT(epoch FROM r.created_at)::pg_catalog.float8 AS created_at,
       EXTRACT(epoch FROM r.ended_at)::pg_catalog.float8 AS ended_at,
       EXTRACT(epoch FROM clock_timestamp())::pg_catalog.float8 AS read_at, r.makespan_s, r.lower_bound_s, r.idle_share,
       jsonb_build_object('source_table', r.plan -> 'training' -> 'sql_name',
                          'validation_table', r.plan -> 'validation' -> 'sql_name')::pg_catalog.text AS names,
       (r.plan -> 'summary' -> 'qualified_names')::pg_catalog.text AS qualified,
       CASE WHEN r.plan ? 'policy' THEN coalesce(p.policy, r.arguments ->> 'policy') END AS policy,
       x.ranked_by, madlib_mop.higher_is_better(nullif(x.ranked_by, 'loss')) AS higher_is_better
FROM madlib_mop.run r LEFT JOIN madlib_mop.run_policy p ON p.run_id = r.run_id
CROSS JOIN (SELECT min(l.ranked_by) AS ranked_by FROM madlib_mop.leaderboard l WHERE l.run_id = $1::pg_catalog.int8) x
WHERE r.run_id = $1::pg_catalog.int8
"""
_OF_HEAD = RunHead.__dataclass_fields__.keys()


def read_head(reader: FactsReader, run_id: int) -> dict[str, Any] | None:
    """Return the columns of a run, with ``is_lost``; None if the viewer may see no run of this number."""
    is_lost = run_id in reader.lost  # before its row: it may have ended since
    rows = reader.rows(_RUN, run_id)
    return {**rows[0], "is_lost": is_lost and rows[0]["state"] not in ENDED} if rows else None


def head_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `RunHead` in the columns of a run."""
    ranked_by = row["ranked_by"] or LOSS
    read = {
        "metric_name": None if ranked_by == LOSS else ranked_by,
        "higher_is_better": bool(row["higher_is_better"]),
        "versions": {str(name): str(version) for name, version in json.loads(row["versions"]).items()},
    }
    return {name: row[name] for name in _OF_HEAD if name not in read} | read

"""Reads a whole run: the row of the run first, which decides whether the viewer may see anything, then its parts."""

import json
from datetime import UTC, datetime
from typing import Any

from madlib_mop.calls.shared import depends_on_timing
from madlib_mop.errors import not_your_run
from madlib_mop.reports.facts import CallFacts, Counts, RunFacts
from madlib_mop.reports.reader import ReportReader
from madlib_mop.reports.reading.curves import MAX_MODELS, read_bands, read_curves
from madlib_mop.reports.reading.data import read_data
from madlib_mop.reports.reading.history import read_commands, read_search
from madlib_mop.reports.reading.models import read_architectures, read_failures, read_lineage, read_models
from madlib_mop.reports.reading.schedule import read_schedule

_RUN = """
SELECT r.run_id, r.kind, r.state, r.state_detail, pg_get_userbyid(r.owner)::text AS owner, current_user::text AS viewer,
       current_database()::text AS database, r.source_table, r.validation_table, r.model_output_table,
       r.model_selection_table, r.model_arch_table, r.num_iterations, r.seed, r.schedule, r.n_segments, r.n_threads,
       r.warm_start, r.parent_run_id, 
       (CASE WHEN p.policy IS NULL THEN r.arguments ELSE r.arguments || jsonb_build_object('policy', p.policy) END
       )::text AS arguments, r.versions::text AS versions,
       EXTRACT(epoch FROM r.created_at)::float8 AS created, EXTRACT(epoch FROM r.ended_at)::float8 AS ended,
       EXTRACT(epoch FROM clock_timestamp())::float8 AS now,
       r.makespan_s, r.lower_bound_s, r.idle_share,
       jsonb_build_object('source_table', r.plan -> 'training' -> 'sql_name',
                          'validation_table', r.plan -> 'validation' -> 'sql_name')::text AS names,
       (r.plan -> 'summary' -> 'qualified_names')::text AS qualified, 
       CASE WHEN r.plan ? 'policy' THEN coalesce(p.policy, r.arguments ->> 'policy') END AS policy
FROM madlib_mop.run r LEFT JOIN madlib_mop.run_policy p ON p.run_id = r.run_id WHERE r.run_id = $1::bigint
"""
_STATES = "SELECT state, count(*) AS n FROM madlib_mop.model WHERE run_id = $1::bigint GROUP BY state ORDER BY state"
_METRIC = """
SELECT x.name, madlib_mop.higher_is_better(x.name) AS higher
FROM (SELECT nullif(min(l.ranked_by), 'loss') AS name FROM madlib_mop.leaderboard l WHERE l.run_id = $1::bigint) x
"""
_FUNCTIONS = {
    "fit_multiple_model": "madlib_keras_fit_multiple_model",
    "fit": "madlib_keras_fit",
    "automl": "madlib_keras_automl",
    "replay": "replay",
}


def read_run(reader: ReportReader, run_id: int) -> RunFacts:
    """Return the facts of a run.

    Raises
    ------
    InvalidParameter
        If the viewer may see no run of this number.
    """
    run = find_run(reader, run_id)
    (metric,) = reader.rows(_METRIC, run_id)
    name = metric["name"]
    states = {row["state"]: int(row["n"]) for row in reader.rows(_STATES, run_id)}
    n_models = sum(states.values())
    models, sample = read_models(reader, run_id, n_models)
    commands, n_commands = read_commands(reader, run_id)
    search, n_decisions, n_results = read_search(reader, run_id)
    lineage, n_lineage = read_lineage(reader, run_id)
    return RunFacts(
        **{name: run[name] for name in _AS_THEY_ARE},
        call=CallFacts(_FUNCTIONS.get(run["kind"]), json.loads(run["arguments"]), _names(run)),
        depends_on_timing=depends_on_timing(run["schedule"], n_models, run["n_segments"]),
        versions=json.loads(run["versions"]),
        created_at=_moment(run["created"]),
        ended_at=_moment(run["ended"]) if run["ended"] is not None else None,
        read_at=_moment(run["now"]),
        counts=Counts(
            n_models, states, search_decisions=n_decisions, search_results=n_results, commands=n_commands,
            lineage=n_lineage,
        ),
        data=read_data(reader, run_id, run["source_table"], run["validation_table"]),
        architectures=read_architectures(reader, run_id),
        models=models,
        sample=sample,
        metric_name=name,
        higher_is_better=bool(name is not None and metric["higher"]),
        curves=read_curves(reader, run_id, [m.mst_key for m in models]),
        bands=read_bands(reader, run_id) if n_models > MAX_MODELS else (),
        timeline=read_schedule(reader, run_id),
        lineage=lineage,
        failures=read_failures(reader, run_id),
        commands=commands,
        search=search,
        policy=run["policy"],
    )


_AS_THEY_ARE = (
    "run_id", "kind", "state", "state_detail", "owner", "viewer", "database", "model_output_table",
    "model_selection_table", "model_arch_table", "num_iterations", "seed", "schedule", "n_segments", "n_threads",
    "warm_start", "parent_run_id", "makespan_s", "lower_bound_s", "idle_share",
)  # fmt: skip


def find_run(reader: ReportReader, run_id: int) -> dict[str, Any]:
    """Return the columns of a run.

    Raises
    ------
    InvalidParameter
        If the viewer may see no run of this number: a run of others is like one that does not exist.
    """
    rows = reader.rows(_RUN, run_id)
    if not rows:
        raise not_your_run(run_id)
    return rows[0]


def _names(run: dict[str, Any]) -> dict[str, str]:
    """Return the names of the call's tables with their schemas, quoted, by the arguments that named them."""
    qualified = json.loads(run["qualified"] or "{}")
    names = {name: text for name, text in json.loads(run["names"]).items() if text}
    return {**names, **qualified}


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

"""Reads what trackers get to know of a run, with the rights of the role that logs in; called by `following`.

Row-level security decides what there is: a run that the role may not see is like one that does not exist.
"""

import json
from typing import Any

from madlib_mop.errors import no_run
from madlib_mop.reports.hyper_parameters import hyper_parameters
from madlib_mop.reports.reader import ReportReader
from madlib_mop.trackers.facts import RunOrigin, TrackedMetric, TrackedModel, TrackedRun, Value

_RUN = """
SELECT r.kind, r.state, r.state_detail, pg_catalog.pg_get_userbyid(r.owner)::pg_catalog.text AS owner,
       r.arguments ->> 'name' AS name, r.arguments ->> 'description' AS description, r.schedule, r.source_table,
       r.validation_table, r.model_output_table AS output_table, r.model_selection_table AS selection_table,
       r.model_arch_table AS architecture_table, r.num_iterations, r.seed, r.n_segments,
       r.versions::pg_catalog.text AS versions, EXTRACT(epoch FROM r.ended_at)::pg_catalog.float8 AS ended_at,
       EXTRACT(epoch FROM r.created_at)::pg_catalog.float8 AS created_at,
       madlib_mop_calls.may_own(r.owner) AS may_own, pg_catalog.current_database()::pg_catalog.text AS database,
       (SELECT c.system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system() AS c) AS system_identifier
FROM madlib_mop.run AS r WHERE r.run_id = $1::pg_catalog.int8
"""
# what the leaderboard ranks by
_SCORE = """
SELECT x.name, madlib_mop.higher_is_better(x.name) AS higher
FROM (SELECT nullif(pg_catalog.min(l.ranked_by), 'loss') AS name
      FROM madlib_mop.leaderboard AS l WHERE l.run_id = $1::pg_catalog.int8) AS x
"""
_MODELS = """
SELECT m.mst_key, m.model_id, m.state, m.state_detail AS reason, m.hyper_parameters::pg_catalog.text, m.compile_params,
       m.fit_params, m.epoch, m.weights_digest, l.rank, l.metric_epoch, l.validation_metric, l.validation_loss,
       l.training_metric, l.training_loss, v.started_at, v.ended_at, coalesce(v.visits_s, 0) AS visits_s
FROM madlib_mop.model AS m
LEFT JOIN madlib_mop.leaderboard AS l ON l.run_id = m.run_id AND l.mst_key = m.mst_key
LEFT JOIN (
    SELECT g.mst_key, EXTRACT(epoch FROM pg_catalog.min(g.started_at))::pg_catalog.float8 AS started_at,
           EXTRACT(epoch FROM pg_catalog.max(g.ended_at))::pg_catalog.float8 AS ended_at,
           pg_catalog.sum(g.seconds) AS visits_s
    FROM madlib_mop.visit_gantt AS g WHERE g.run_id = $1::pg_catalog.int8 AND g.kind = 'visit'
    GROUP BY g.mst_key) AS v ON v.mst_key = m.mst_key
WHERE m.run_id = $1::pg_catalog.int8 ORDER BY m.ordinal, m.mst_key
"""
_POINTS = """
SELECT s.mst_key, EXTRACT(epoch FROM s."time")::pg_catalog.float8 AS at, s.data_set, s.name, s.value, s.epoch, s.visits,
       s.sample_rows IS NOT NULL AS is_sample
FROM madlib_mop.metric_series AS s
WHERE s.run_id = $1::pg_catalog.int8 AND s.value IS NOT NULL
      AND ($2::pg_catalog.float8 IS NULL OR s."time" >= pg_catalog.to_timestamp($2::pg_catalog.float8))
ORDER BY s."time", s.mst_key, s.data_set, s.name
"""


def read_run(reader: ReportReader, run_id: int) -> TrackedRun:
    """Return a run.

    Raises
    ------
    InvalidParameter
        If the role may see no run of this number: a run of others is like one that does not exist.
    """
    rows = reader.rows(_RUN, run_id)
    if not rows:
        raise no_run(run_id, "madlib-mop runs lists the runs that it may see.")
    row = rows[0]
    (score,) = reader.rows(_SCORE, run_id)
    origin = RunOrigin(row.pop("system_identifier"), row.pop("database"), run_id, row.pop("created_at"))
    versions = {str(name): str(version) for name, version in json.loads(row.pop("versions")).items()}
    return TrackedRun(
        **row,
        origin=origin,
        versions=versions,
        metric_name=score["name"],
        higher_is_better=score["name"] is not None and bool(score["higher"]),
    )


def read_models(reader: ReportReader, run_id: int) -> tuple[TrackedModel, ...]:
    """Return all models of a run, in the order in which the run got them."""
    return tuple(_model(row) for row in reader.rows(_MODELS, run_id))


def read_points(reader: ReportReader, run_id: int, since: float | None = None) -> tuple[TrackedMetric, ...]:
    """Return the metrics of a run, the earliest first.

    Parameters
    ----------
    since : float or None
        Only those that have become known at this time or later, in seconds since 1970.
    """
    return tuple(TrackedMetric(**row) for row in reader.rows(_POINTS, run_id, since))


def _model(row: dict[str, Any]) -> TrackedModel:
    recorded = json.loads(row.pop("hyper_parameters"))
    if not recorded:  # a model of version 1.0.0
        found = hyper_parameters({}, row["model_id"], row["compile_params"], row["fit_params"])
        recorded = {"architecture": row["model_id"], **{n: v for n, v in found.items() if n != "network"}}
    return TrackedModel(**row, hyper_parameters={str(name): _plain(value) for name, value in recorded.items()})


def _plain(value: Any) -> Value:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)

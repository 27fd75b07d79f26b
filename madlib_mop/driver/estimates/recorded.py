"""Reads from the record what the tasks of the caller's earlier runs have cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from mop_backend.keras_backends import USUAL
from mop_backend.machine import processors

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.estimates.costs import Measured, Work, rough_costs
from madlib_mop.driver.estimates.works import work_of
from madlib_mop.errors import MopError
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.sharing import Architectures
from madlib_mop.schedule.forecast.one_server import UnitCosts

_MOST_RUNS, _MOST_MODELS = 20, 32
#: A visit with less tracing than that, in seconds, has found its graph traced.
_TRACED_S = 0.03
_LEAST_S = 1e-9
_LAPS = "coalesce((t.timing ->> '{0}_s')::pg_catalog.float8, 0)"


def _laps(*names: str) -> str:
    return "(" + " + ".join(_LAPS.format(name) for name in names) + ")"


_MIDDLE = "pg_catalog.percentile_cont(0.5) WITHIN GROUP (ORDER BY {0})"
_NO_GPUS = "pg_catalog.jsonb_build_object()"
# The times are those of a trainer, so they may be any numbers; they are checked here.
_QUERY = f"""
WITH runs AS (
    SELECT r.run_id, r.n_segments, r.n_models FROM madlib_mop.run r
    WHERE r.owner = %(role)s::pg_catalog.oid AND r.plan -> 'trainer' ->> 'backend' = %(backend)s
      AND r.n_threads = %(threads)s
      AND (coalesce(r.plan -> 'gpus', {_NO_GPUS}) = {_NO_GPUS}) = %(on_cpus)s
    ORDER BY r.run_id DESC LIMIT {_MOST_RUNS}
)
SELECT r.run_id, least(r.n_segments, r.n_models) AS n_at_once, m.model_arch, m.compile_params, m.fit_params,
       m.state_bytes, v.*, e.*
FROM runs r
JOIN LATERAL (
    SELECT m.* FROM madlib_mop.model m WHERE m.run_id = r.run_id AND m.state_bytes IS NOT NULL
    ORDER BY m.ordinal LIMIT {_MOST_MODELS}) m ON true
JOIN LATERAL (
    SELECT {_MIDDLE.format(_laps("compute") + " / t.n_rows")} FILTER (WHERE NOT t.is_first) AS row_s,
           {_MIDDLE.format(_laps("state_in", "state_out"))} FILTER (WHERE NOT t.is_first) AS visit_s,
           pg_catalog.max({_laps("state_in")}) AS begin_s,
           pg_catalog.max({_laps("build", "trace", "compute")}) FILTER (WHERE t.is_first) AS first_s,
           pg_catalog.avg(t.n_rows)::pg_catalog.float8 AS n_rows,
           {_MIDDLE.format("t.seconds - " + _laps("build", "state_in", "trace", "compute", "state_out"))} AS other_s
    FROM (SELECT t.timing, t.n_rows, pg_catalog.date_part('epoch', t.ended_at - t.started_at) AS seconds,
                 {_laps("trace")} >= {_TRACED_S} AS is_first
          FROM madlib_mop.visit t
          WHERE t.run_id = r.run_id AND t.mst_key = m.mst_key AND t.n_rows > 0 AND NOT t.timing ? 'fused') t) v ON true
JOIN LATERAL (
    SELECT {_MIDDLE.format(_laps("compute") + " / t.n_rows")} FILTER (WHERE NOT t.is_first) AS evaluation_row_s,
           {_MIDDLE.format(_laps("state_in", "build"))} FILTER (WHERE NOT t.is_first) AS evaluation_s,
           pg_catalog.max({_laps("trace", "compute")}) FILTER (WHERE t.is_first) AS evaluation_first_s,
           pg_catalog.avg(t.n_rows)::pg_catalog.float8 AS n_evaluated
    FROM (SELECT t.timing, t.n_rows, {_laps("trace")} >= {_TRACED_S} AS is_first FROM madlib_mop.evaluation t
          WHERE t.run_id = r.run_id AND t.mst_key = m.mst_key AND t.n_rows > 0 AND NOT t.timing ? 'fused') t) e ON true
WHERE v.row_s IS NOT NULL
"""


@dataclass(frozen=True)
class RecordedCosts:
    """What the caller's earlier runs have cost.

    Attributes
    ----------
    measured : list of Measured
    task_s : float or None
        What a task costs besides the trainer's work; None without runs.
    """

    measured: list[Measured]
    task_s: float | None = None


def read_recorded(record: Record, run: RunRow) -> RecordedCosts:
    """Read the costs of the newest runs of the role that owns a planned run, with trainers like its own."""
    trainer = run.plan.trainer
    values = {
        "role": run.owner_oid, "backend": str(trainer.get("backend", USUAL)), "threads": run.n_threads,
        "on_cpus": not run.plan.gpus,
    }  # fmt: skip
    by_work: dict[tuple[int, Work], list[Mapping[str, Any]]] = defaultdict(list)
    others, architectures, at_once = [], Architectures(), processors()
    names = (
        "run_id", "n_at_once", "model_arch", "compile_params", "fit_params", "state_bytes", "row_s", "visit_s",
        "begin_s", "first_s", "n_rows", "other_s", "evaluation_row_s", "evaluation_s", "evaluation_first_s",
        "n_evaluated",
    )  # fmt: skip
    for cells in record.execute(_QUERY, values):
        row = dict(zip(names, cells, strict=True))
        others.append(row["other_s"])
        try:
            c = Configuration.recorded(0, row["compile_params"], row["fit_params"], row["model_arch"])
            by_work[row["run_id"], work_of(c, architectures)].append(row)
        except MopError:  # of an earlier version, with what this one does not read
            continue
    measured = [_measured(run_id, work, rows, at_once) for (run_id, work), rows in by_work.items()]
    return RecordedCosts(measured, max(0.0, median(others)) if others else None)


def _measured(run_id: int, work: Work, rows: list[Mapping[str, Any]], n_processors: int) -> Measured:
    """Return the costs of the models of a run that have the same costs."""
    rough = rough_costs(work)
    # trainers that share processors take longer
    share = min(1.0, n_processors / max(1, rows[0]["n_at_once"]))

    def middle(name: str, default: float) -> float:
        found = [row[name] for row in rows if row[name] is not None]
        return max(_LEAST_S, median(found) * share) if found else default

    row_s = middle("row_s", rough.row_s)
    visit_s = middle("visit_s", rough.visit_s)
    n_rows = rows[0]["n_rows"]
    first_s = middle("first_s", 0.0)
    each_s = middle("evaluation_row_s", 0.0)
    has_evaluation = each_s > 0
    evaluation_first_s = middle("evaluation_first_s", 0.0)
    costs = UnitCosts(
        graph=rough.graph,
        trace_s=max(_LEAST_S, first_s - n_rows * row_s) if first_s else rough.trace_s,
        begin_s=max(_LEAST_S, middle("begin_s", rough.begin_s) - visit_s / 2),
        visit_s=visit_s,
        row_s=row_s,
        evaluation_trace_s=max(_LEAST_S, evaluation_first_s - rows[0]["n_evaluated"] * each_s)
        if evaluation_first_s and has_evaluation
        else rough.evaluation_trace_s,
        evaluation_s=middle("evaluation_s", rough.evaluation_s),
        evaluation_row_s=each_s or rough.evaluation_row_s,
        most_rows=work.most_rows,
    )
    state_bytes = round(median(row["state_bytes"] for row in rows))
    return Measured(work, costs, state_bytes, run_id, has_evaluation)

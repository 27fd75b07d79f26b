"""What the tasks of a configuration cost: measured ones, by a probe or in the record of the caller's earlier runs, and
guesses for others by the sizes of the networks.

A configuration that was measured costs what it did. Another one costs what its rough costs are, corrected by the
nearest measured configuration: measured / rough.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log
from statistics import median, median_low
from typing import Any

from mop_backend.keras_backends import USUAL
from mop_backend.machine import processors

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.errors import MopError
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.sharing import known_architecture
from madlib_mop.models.sizes import NetworkSize, optimizer_slots
from madlib_mop.schedule.forecast.one_server import UnitCosts


def work_of(
    c: Configuration,
    n_places: int = 1,
    row_shapes: Sequence[Sequence[int]] = (),
    functions: CustomFunctions | None = None,
) -> Work:
    """Return what decides the costs of a configuration. Raises MopError."""
    compiled, fit, architecture = c.compiled, c.fit, known_architecture(c)
    extra = "" if functions is None else functions.digest(compiled.custom_names)
    return Work(
        graph=architecture.signature(compiled, extra),
        size=architecture.size(row_shapes),
        n_slots=optimizer_slots(compiled.optimizer.name, dict(compiled.optimizer.kwargs)),
        batch_size=fit.batch_size,
        n_passes=max(1, fit.epochs - fit.initial_epoch),
        most_rows=None if fit.steps_per_epoch is None else fit.steps_per_epoch * fit.batch_size,
        n_places=n_places,
        is_frozen=architecture.is_frozen,
    )


# Rough costs, in seconds, of TensorFlow on one core of a server of 2024; `make bench ARGS="--grid explain"` compares
# estimates with runs. They are used as they are only if nothing was measured.
_TRACE_S, _TRACE_LAYER_S = 0.3, 0.09
_EVALUATION_TRACE_S, _EVALUATION_TRACE_LAYER_S = 0.12, 0.03
_BEGIN_S, _BEGIN_LAYER_S = 0.02, 0.008
_VISIT_S, _EVALUATION_S = 0.005, 0.003
_STATE_BYTES_PER_S = 400e6
#: Bytes of a state a second: a visit reads and stores it, an evaluation reads its weights.
_STORED_BYTES_PER_S, _READ_BYTES_PER_S = 70e6, 300e6
_BATCH_S, _BATCH_LAYER_S = 1e-4, 5e-5
_EVALUATION_BATCH_S, _EVALUATION_BATCH_LAYER_S = 5e-5, 1.5e-5
_MULTIPLICATIONS_PER_S = 8e9
#: Multiplications of a training step for one of the forward pass.
_TRAINING_FACTOR = 3
#: Models of a fused graph share the overhead of its operations.
_FUSED_TRACE = 1.3
# How far an estimate may be off, as a share of it.
_ERROR_RECORDED, _ERROR_PROBED, _ERROR_SCALED, _ERROR_ROUGH = 0.15, 0.2, 0.35, 0.7


@dataclass(frozen=True, slots=True)
class Work:
    """What decides what a unit costs.

    Attributes
    ----------
    graph : str
        The signature of its compiled graph (`models.sharing`).
    size : NetworkSize
    n_slots : int
        Numbers that the optimizer keeps for each weight.
    batch_size, n_passes : int
        Rows of a batch, and passes of a visit.
    most_rows : int or None
        The rows of a pass, if `steps_per_epoch` limits them.
    n_places : int
        How many models are trained together in a graph.
    is_frozen : bool
        Whether some layers are not trained.
    """

    graph: str
    size: NetworkSize
    n_slots: int
    batch_size: int
    n_passes: int = 1
    most_rows: int | None = None
    n_places: int = 1
    is_frozen: bool = False

    @property
    def state_bytes(self) -> int:
        """The bytes of the training states of all its places, about."""
        return self.n_places * (self.size.weight_bytes * (1 + self.n_slots) + 4096)


@dataclass(frozen=True, slots=True)
class Measured:
    """Costs that were measured.

    Attributes
    ----------
    work : Work
    costs : UnitCosts
    state_bytes : int
        Of all its places.
    run_id : int or None
        The run; None: a probe.
    has_evaluation : bool
        Whether evaluations were measured too.
    """

    work: Work
    costs: UnitCosts
    state_bytes: int
    run_id: int | None = None
    has_evaluation: bool = True


@dataclass(frozen=True, slots=True)
class Guess:
    """The costs of a unit.

    Attributes
    ----------
    costs : UnitCosts
        With what the server needs to read and to store states.
    state_bytes : int
        Of the states of all places of its graph.
    n_places : int
    error : float
        How far the costs may be off, as a share of them.
    """

    costs: UnitCosts
    state_bytes: int
    n_places: int
    error: float


def rough_costs(work: Work) -> UnitCosts:
    """Return the costs of a unit by the size of its network alone."""
    n_layers, places = max(1, work.size.n_layers), work.n_places
    ops = _FUSED_TRACE if places > 1 else 1.0
    multiply_s = work.size.n_multiplications * places / _MULTIPLICATIONS_PER_S
    batch_s = ops * (_BATCH_S + _BATCH_LAYER_S * n_layers) / work.batch_size
    evaluation_batch_s = ops * (_EVALUATION_BATCH_S + _EVALUATION_BATCH_LAYER_S * n_layers) / work.batch_size
    state_s = work.state_bytes / _STATE_BYTES_PER_S
    return UnitCosts(
        graph=(work.graph, work.n_places),
        trace_s=ops * (_TRACE_S + _TRACE_LAYER_S * n_layers),
        begin_s=places * (_BEGIN_S + _BEGIN_LAYER_S * n_layers),
        visit_s=places * _VISIT_S + state_s,
        row_s=work.n_passes * (batch_s + _TRAINING_FACTOR * multiply_s),
        evaluation_trace_s=ops * (_EVALUATION_TRACE_S + _EVALUATION_TRACE_LAYER_S * n_layers),
        evaluation_s=places * _EVALUATION_S + state_s / (1 + work.n_slots),
        evaluation_row_s=evaluation_batch_s + multiply_s,
        most_rows=work.most_rows,
    )


#: Of one run alone, nobody knows whether the server had other work meanwhile.
_FEWEST_RUNS = 2


def undisturbed(values: Iterable[tuple[int | None, float]]) -> float:
    """Return the median over runs of times, each with the run's ID, or None of a probe; of two runs the shorter time.

    Other work of the server only makes times longer. Each run counts once, however many times it has.
    """
    by_run: dict[int | None, list[float]] = defaultdict(list)
    for run_id, value in values:
        by_run[run_id].append(value)
    return median_low(map(median, by_run.values()))


_FIELDS = ("trace_s", "begin_s", "visit_s", "row_s")
_OF_EVALUATIONS = ("evaluation_trace_s", "evaluation_s", "evaluation_row_s")


class CostModel:
    """The costs of units, by what was measured.

    Parameters
    ----------
    measured : iterable of Measured
        Of one backend, and as at one processor.
    """

    def __init__(self, measured: Iterable[Measured] = ()):
        self._measured = list(measured)

    @property
    def run_ids(self) -> list[int]:
        """The runs that costs come from."""
        return sorted({one.run_id for one in self._measured if one.run_id is not None})

    def has(self, work: Work) -> bool:
        """Return whether the graph of a unit was measured by a probe, or in enough runs."""
        run_ids = {one.run_id for one in self._measured if _is_alike(one.work, work)}
        return None in run_ids or len(run_ids) >= _FEWEST_RUNS

    def guess(self, work: Work) -> Guess:
        """Return the costs of a unit."""
        rough = rough_costs(work)
        found = [one for one in self._measured if _is_alike(one.work, work)]
        own = [one for one in found if one.work.batch_size == work.batch_size] or found
        error = _ERROR_SCALED
        if own:
            error = _ERROR_PROBED if any(one.run_id is None for one in own) else _ERROR_RECORDED
        else:
            own = self._nearest(work)
        if not own:
            return _with_storing(rough, work.state_bytes, work, _ERROR_ROUGH)
        middle: dict[str, Any] = {name: _corrected(rough, own, name) for name in _FIELDS}
        evaluated = [one for one in own if one.has_evaluation]
        if evaluated:
            middle |= {name: _corrected(rough, evaluated, name) for name in _OF_EVALUATIONS}
        else:  # as much faster or slower than the rough costs as training
            factors = {"evaluation_trace_s": "trace_s", "evaluation_s": "visit_s", "evaluation_row_s": "row_s"}
            middle |= {
                name: getattr(rough, name) * middle[like] / getattr(rough, like) for name, like in factors.items()
            }
        if found:
            state_bytes = round(median(one.state_bytes for one in found))
            middle["features_row_s"] = undisturbed((one.run_id, one.costs.features_row_s) for one in found)
        else:
            state_bytes = work.state_bytes
        return _with_storing(replace(rough, **middle), state_bytes, work, error)

    def _nearest(self, work: Work) -> list[Measured]:
        """Return what was measured of the network whose rough costs are nearest."""
        rough = rough_costs(work)

        def distance(one: Measured) -> tuple[float, bool]:
            other = rough_costs(one.work)
            parts = (abs(log(getattr(rough, name) / getattr(other, name))) for name in ("trace_s", "row_s"))
            return sum(parts), one.run_id is not None

        nearest = min(self._measured, key=distance, default=None)
        return [] if nearest is None else [one for one in self._measured if one.work == nearest.work]


def _with_storing(costs: UnitCosts, state_bytes: int, work: Work, error: float) -> Guess:
    """Return costs that a trainer has measured, or would, with those of the server's side of a visit."""
    visit_s = costs.visit_s + state_bytes / _STORED_BYTES_PER_S
    evaluation_s = costs.evaluation_s + work.n_places * work.size.weight_bytes / _READ_BYTES_PER_S
    return Guess(replace(costs, visit_s=visit_s, evaluation_s=evaluation_s), state_bytes, work.n_places, error)


def _is_alike(one: Work, other: Work) -> bool:
    return (one.graph, one.n_places) == (other.graph, other.n_places)


def _corrected(rough: UnitCosts, measured: Iterable[Measured], name: str) -> float:
    """Return one of the rough costs, corrected by what was measured of configurations."""
    factors = ((one.run_id, getattr(one.costs, name) / getattr(rough_costs(one.work), name)) for one in measured)
    return float(getattr(rough, name) * undisturbed(factors))


#: So many are read, the newest runs and the first tasks of each model: a run does not wait for a long record. Networks
#: other than its own only say how fast the server is.
_MOST_RUNS, _MOST_MODELS, _MOST_TASKS, _MOST_OTHER_NETWORKS = 10, 32, 16, 6
#: A visit with less tracing than that, in seconds, has found its graph traced.
_TRACED_S = 0.03
_LEAST_S = 1e-9
_LAPS = "coalesce((t.timing ->> '{0}_s')::pg_catalog.float8, 0)"


def _laps(*names: str) -> str:
    return "(" + " + ".join(_LAPS.format(name) for name in names) + ")"


_ALL_LAPS = ("build", "state_in", "features", "trace", "compute", "state_out", "sample")
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
SELECT r.run_id, least(r.n_segments, r.n_models) AS n_at_once, m.model_arch::pg_catalog.text, m.compile_params,
       m.fit_params, m.state_bytes, v.*, e.*
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
           pg_catalog.max({_laps("features")} / t.n_rows) AS features_row_s,
           {_MIDDLE.format(f"t.seconds - {_laps(*_ALL_LAPS)}")} AS other_s
    FROM (SELECT t.timing, t.n_rows, pg_catalog.date_part('epoch', t.ended_at - t.started_at) AS seconds,
                 {_laps("trace")} >= {_TRACED_S} AS is_first
          FROM madlib_mop.visit t
          WHERE t.run_id = r.run_id AND t.mst_key = m.mst_key AND t.n_rows > 0 AND NOT t.timing ? 'fused'
          ORDER BY t.epoch, t.position LIMIT {_MOST_TASKS}) t) v ON true
JOIN LATERAL (
    SELECT {_MIDDLE.format(_laps("compute") + " / t.n_rows")} FILTER (WHERE NOT t.is_first) AS evaluation_row_s,
           {_MIDDLE.format(_laps("state_in", "build"))} FILTER (WHERE NOT t.is_first) AS evaluation_s,
           pg_catalog.max({_laps("trace", "compute")}) FILTER (WHERE t.is_first) AS evaluation_first_s,
           pg_catalog.avg(t.n_rows)::pg_catalog.float8 AS n_evaluated
    FROM (SELECT t.timing, t.n_rows, {_laps("trace")} >= {_TRACED_S} AS is_first FROM madlib_mop.evaluation t
          WHERE t.run_id = r.run_id AND t.mst_key = m.mst_key AND t.n_rows > 0 AND NOT t.timing ? 'fused'
          ORDER BY t.epoch LIMIT {_MOST_TASKS}) t) e ON true
WHERE v.row_s IS NOT NULL
ORDER BY r.run_id DESC
"""
_COLUMNS = (
    "run_id", "n_at_once", "model_arch", "compile_params", "fit_params", "state_bytes", "row_s", "visit_s", "begin_s",
    "first_s", "n_rows", "features_row_s", "other_s", "evaluation_row_s", "evaluation_s", "evaluation_first_s",
    "n_evaluated",
)  # fmt: skip


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


def read_recorded(record: Record, run: RunRow, configurations: Iterable[Configuration] = ()) -> RecordedCosts:
    """Read the costs of the newest runs of the role that owns a planned run, with trainers like its own.

    Parameters
    ----------
    record : Record
    run : RunRow
    configurations : iterable of Configuration
        Those of the run.
    """
    trainer = run.plan.trainer
    values = {
        "role": run.owner_oid, "backend": str(trainer.get("backend", USUAL)), "threads": run.n_threads,
        "on_cpus": not run.plan.gpus,
    }  # fmt: skip
    by_work: dict[tuple[int, Work], list[Mapping[str, Any]]] = defaultdict(list)
    others: list[tuple[int, float]] = []
    at_once = processors()
    own = {json.dumps(c.arch) for c in configurations}
    other: set[str] = set()

    @cache  # most runs repeat the texts of earlier ones
    def work(compile_params: str, fit_params: str, arch: str) -> Work | None:
        try:
            return work_of(Configuration.recorded(0, compile_params, fit_params, json.loads(arch)))
        except MopError:  # of an earlier version, with what this one does not read
            return None

    for cells in record.execute(_QUERY, values):
        row = dict(zip(_COLUMNS, cells, strict=True))
        others.append((row["run_id"], row["other_s"]))
        if (arch := row["model_arch"]) not in own:
            if arch not in other and len(other) == _MOST_OTHER_NETWORKS:
                continue
            other.add(arch)
        found = work(row["compile_params"], row["fit_params"], arch)
        if found is not None:
            by_work[row["run_id"], found].append(row)
    measured = [_measured(run_id, work, rows, at_once) for (run_id, work), rows in by_work.items()]
    return RecordedCosts(measured, max(0.0, undisturbed(others)) if others else None)


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
        features_row_s=max(0.0, *(row["features_row_s"] for row in rows)) * share,
    )
    state_bytes = round(median(row["state_bytes"] for row in rows))
    return Measured(work, costs, state_bytes, run_id, has_evaluation)

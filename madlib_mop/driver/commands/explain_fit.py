"""The command explain_fit: what a call that trains would cost; it plans the run and records nothing."""

import json
import time
from collections.abc import Iterator
from typing import Any

from madlib_mop.calls import find_function
from madlib_mop.driver.data.custom_functions import pickles_on
from madlib_mop.driver.data.packed import read_packed_table
from madlib_mop.driver.estimates.costs import CostModel, read_recorded
from madlib_mop.driver.estimates.estimate import Bounds, Estimate, Estimator
from madlib_mop.driver.estimates.memory import is_dispatched
from madlib_mop.driver.estimates.probe import probe
from madlib_mop.driver.planning.plan import RunPlan, plan_fit, plan_fit_multiple
from madlib_mop.driver.planning.search import plan_search
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import open_record
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.custom import CustomFunctions

_PLANS = {
    "madlib_keras_fit_multiple_model": plan_fit_multiple,
    "madlib_keras_fit": plan_fit,
    "madlib_keras_automl": plan_search,
}
#: How long a probe may begin to measure another network.
_PROBE_S = 2.0
_MB = 1e6


def explain_fit(call: Call) -> list[dict[str, Any]]:
    """Plan a run as its function does, and estimate it; return the rows of the result.

    Raises
    ------
    MopError
        What the function would raise before it begins.
    """
    began = time.monotonic()
    function = _function_of(call)
    given = _json(call.arguments["arguments"])
    specification = find_function(function)
    specification.check_known(given)
    specification.check_complete({name for name, value in given.items() if value is not None})
    planned = Call.read(function, given, call.session)
    record = open_record(call.info)
    plan = _PLANS[function](planned, record)
    planning_s = time.monotonic() - began
    recorded = read_recorded(record, plan.run, (model.configuration for model in plan.models))
    packed = read_packed_table(call.session, planned.arguments["source_table"], "source_table")
    functions = CustomFunctions(plan.functions, pickles_on(record.settings()))
    estimator = Estimator(plan.run, plan.models, functions, packed.shapes[: len(packed.independent)])
    costs = CostModel(recorded.measured)
    unknown = [unit for unit in estimator.units() if not costs.has(unit.work)]
    probed = []
    if unknown and not plan.run.plan.gpus:
        n_rows = max(shard.n_rows for shard in packed.shards)
        start, n_trainers = plan.run.plan.trainer, estimator.n_at_once
        probed = probe(call.session, packed, start, unknown, n_rows, n_trainers, _PROBE_S)
        costs = CostModel([*recorded.measured, *probed])
    found = estimator.estimate(costs, recorded.task_s)
    return list(_rows(plan, found, planning_s, costs, len(unknown), len(probed)))


def _function_of(call: Call) -> str:
    given: str = call.arguments["function_name"]
    name = given.strip().lower().removeprefix("madlib.").strip()
    if name not in _PLANS:
        raise InvalidParameter(
            f"function_name must be the name of a function that trains. Received: {given!r:.100}",
            hint=f"One of {', '.join(_PLANS)}.",
        )
    return name


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidParameter(
            f"arguments must be a JSON object of the function's arguments by name. Received: {text:.100}",
            hint="""For example '{"source_table": "packed", "num_iterations": 10, ...}'.""",
        )
    return found


def _rows(
    plan: RunPlan, found: Estimate, planning_s: float, costs: CostModel, n_unknown: int, n_probed: int
) -> Iterator[dict[str, Any]]:
    run = plan.run
    yield _row("visits", found.visits, None, f"of models to {run.n_segments} segments, {run.num_iterations} iterations")
    yield _row("evaluations", found.evaluations, None, "of a model on a shard, for metrics")
    yield _row("time", found.seconds.plus(planning_s), "s", _evidence(costs, n_unknown, n_probed))
    memory = found.memory
    where = "at the coordinator and the segments" if is_dispatched(run.plan) else "on this server"
    yield _row("memory", _size(memory.n_bytes, 0.15), "MB", f"private memory of all processes of the run {where}")
    of_largest = f"of it; the largest {memory.trainer_bytes / _MB:.0f} MB"
    yield _row("trainers", _size(memory.trainers_bytes, 0.15), "MB", of_largest)
    yield _row("server processes", _size(memory.server_bytes, 0.15), "MB", "of it: sessions and the driver")
    states, output = found.states_bytes, found.output_bytes
    disk = Bounds(*((each + output) / _MB for each in (states.value, states.low, states.high)))
    yield _row("disk", disk, "MB", "that stays; the upper bound is the most at once while it trains")
    yield _row("states", Bounds(*(each / _MB for each in (states.value, states.low, states.high))), "MB", "of it")
    yield _row("output tables", _size(output, 0.0), "MB", "of it")
    if memory.files_bytes:
        of_trainers = "in the trainers' files while it trains: rows that do not fit into shard_cache_mb"
        yield _row("rows on disk", _size(memory.files_bytes, 0.0), "MB", of_trainers)
    yield _row("packed rows", _size(found.packed_bytes, 0.0), "MB", "there already")
    for number, text in enumerate(found.binds, 1):
        yield {"item": f"limit {number}", "value": None, "low": None, "high": None, "unit": None, "note": text}


def _evidence(costs: CostModel, n_unknown: int, n_probed: int) -> str:
    """Return what the time rests on."""
    parts = []
    if costs.run_ids:
        numbers = costs.run_ids[-3:]
        parts.append(f"{'run' if len(numbers) == 1 else 'runs'} {', '.join(map(str, numbers))}")
    if n_probed:
        parts.append(f"a probe of {n_probed} of {n_unknown} networks" if n_unknown > 1 else "a probe")
    return f"by {' and '.join(parts)}" if parts else "rough: nothing like it was measured here"


def _row(item: str, value: Bounds, unit: str | None, note: str) -> dict[str, Any]:
    digits = 0 if unit is None else 2 if unit == "MB" and value.value < 1 else 1
    low, middle, high = (round(each, digits) for each in (value.low, value.value, value.high))
    return {"item": item, "value": middle, "low": low, "high": high, "unit": unit, "note": note}


def _size(n_bytes: float, error: float) -> Bounds:
    return Bounds.within(n_bytes / _MB, error)

"""Replay: plans a run that makes the visits of an earlier one again, from the same start, in the same order."""

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.driver.planning.hopper import RunPlan
from madlib_mop.driver.planning.warm_start import WarmModel, WarmStart
from madlib_mop.errors import NotReady
from madlib_mop.schedule.bulk import AVERAGING

_COPIED_RUN = (
    "source_table", "validation_table", "model_selection_table", "model_arch_table", "num_iterations",
    "metrics_compute_frequency", "warm_start", "use_caching", "seed", "n_models", "n_segments", "n_threads",
)  # fmt: skip
_OUTPUT = ("model_output_table", "model")  # what the fit functions call it
_COPIED_MODEL = (
    "mst_key", "ordinal", "model_id", "compile_params", "fit_params", "model_arch", "start_weights", "first_epoch",
    "last_epoch", "loss_type", "metrics_type", "early_stopping",
)  # fmt: skip
_COPIED_SEGMENT = ("data_set", "segment_id", "engine", "place", "n_rows", "n_bytes", "fingerprint")


def plan_replay(record: Record, run: dict, output: Relation, owner: int) -> RunPlan:
    """Plan the replay of a run.

    Parameters
    ----------
    record : Record
    run : dict
        The run to repeat; a replay of a replay repeats the first.
    output : Relation
        The output table to make.
    owner : int
        Whose run the replay is: the role's oid.

    Raises
    ------
    NotReady
        If the run has not ended, or the states that it went on from are gone.
    """
    while run["kind"] == "replay":
        parent = record.run(run["parent_run_id"])
        if parent is None:
            raise NotReady(
                f"run {run['run_id']} repeats run {run['parent_run_id']}, whose record was dropped",
                hint="A run can be replayed while it is recorded.",
            )
        run = parent
    if run["state"] not in ("trained", "finished"):
        raise NotReady(
            f"run {run['run_id']} has not ended: it is {run['state']}",
            hint=f"SELECT madlib_mop.resume({run['run_id']}); ends it; then it can be replayed.",
        )
    is_search = "search" in run["plan"]  # its models are added anew, in the order of the record
    models = [] if is_search else record.models(run["run_id"])
    place = {"schema": output.schema, "name": output.name, "is_temp": output.is_temp}
    plan = {**run["plan"], "output": place}
    plan["summary"] = {**plan["summary"], "model": str(output)}
    made = {name: str(output) for name in _OUTPUT if name in run["arguments"]}
    row = {name: run[name] for name in _COPIED_RUN} | {
        "kind": "replay", "state": "running", "owner": owner, "model_output_table": str(output),
        "schedule": AVERAGING if run["schedule"] == AVERAGING else "recorded", "parent_run_id": run["run_id"],
        "plan": plan, "arguments": {**run["arguments"], **made, "replace": False},
    }  # fmt: skip
    if is_search:
        row["n_models"] = 0
    return RunPlan(
        row,
        [{**{name: m[name] for name in _COPIED_MODEL}, "epoch": m["first_epoch"] - 1} for m in models],
        [{name: s[name] for name in _COPIED_SEGMENT} for s in record.segments(run["run_id"])],
        record.start_weights(run["run_id"]),
        _states(record, run, models),
        record.custom_functions(run["run_id"]),
        record.caller_settings(run["run_id"]),
    )


def _states(record: Record, run: dict, models: list[dict]) -> WarmStart | None:
    """Find the states that a warm start went on from: those at the end of its parent."""
    first = {}
    for visit in record.visits(run["run_id"]):
        first.setdefault(visit["mst_key"], visit)
    taken_over = [m for m in models if m["first_epoch"] > 1 and m["start_weights"] is None]
    if not taken_over:
        return None
    parents = {m["mst_key"]: m for m in record.models(run["parent_run_id"] or 0)}
    found = {}
    for m in taken_over:
        parent, visit = parents.get(m["mst_key"]), first.get(m["mst_key"])
        if parent is None or (visit is not None and parent["digest"] != visit["digest_in"]):
            raise NotReady(
                f"run {run['run_id']} went on from the states of run {run['parent_run_id']}, which are gone",
                hint="A warm-started run can be replayed while the run that it went on from is recorded.",
            )
        found[m["mst_key"]] = WarmModel(m["first_epoch"], state=parent)
    return WarmStart(run["parent_run_id"], run["seed"], found)

"""Rows of the record for tests without a server: defaults for all required fields, and the test's values."""

from collections.abc import Sequence

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import OutputName, OutputSummary, PackedData, Plan, SearchPlan, ShardPlan
from madlib_mop.catalog.rows.run import RunRow

OUTPUT = OutputName("public", "models", False)


def a_model(mst_key: int, **columns) -> ModelRow:
    """Return a model of two iterations that waits for its first visit."""
    given = {"ordinal": mst_key - 1, "model_id": 1, "compile_params": "", "fit_params": "", "model_arch": {}}
    return ModelRow(mst_key=mst_key, **{**given, "last_epoch": 2, **columns})


def packed(shards: Sequence[tuple[int, int]], table: str = "public.packed") -> PackedData:
    """Return a packed table of one input and one output, with segment and number of rows of each shard."""
    plans = tuple(ShardPlan(segment, n_rows, 8 * n_rows) for segment, n_rows in shards)
    return PackedData(table, table, 1, "SELECT", 1, 1, 1.0, plans)


def a_search(method: str = "hyperband", **fields) -> SearchPlan:
    """Return a search over architecture 1."""
    given = {"params": "", "budget_s": None, "random_state": 7, "model_ids": [1], "compile_params_grid": "{}"}
    given |= {"fit_params_grid": None, "archs": {"1": "{}"}, "start_weights": {}, "custom_names": []}
    return SearchPlan(method, **{**given, "selection": OUTPUT, **fields})


def a_summary(**columns) -> OutputSummary:
    """Return the summary of a run with one output of two classes."""
    names = {"dependent_varname": ["y"], "independent_varname": ["x"], "dependent_vartype": ["integer"]}
    classes = {"num_classes": [2], "class_values": [("integer[]", "{0,1}")], "normalizing_const": 1.0}
    given = {"model": "models", "model_arch_table": "arch", "object_table": None, **names, **classes}
    return OutputSummary(**{**given, **columns})


def a_plan(shards: Sequence[tuple[int, int]] = ((0, 10), (1, 10)), **fields) -> Plan:
    """Return a plan on these shards (segment, number of rows), without validation data."""
    given = {"validation": None, "trainer": {}, "shares": {}, "gpus": {}, "worker_host": "127.0.0.1"}
    given |= {"host_wait_s": 600, "output": OUTPUT, "summary": a_summary()}
    return Plan(training=packed(shards), **{**given, **fields})


def a_run(plan: Plan, **columns) -> RunRow:
    """Return a run of a plan."""
    given = {"run_id": 1, "kind": "fit_multiple_model", "owner_oid": 10, "owner": "ada", "source_table": "packed"}
    given |= {"model_output_table": "models", "model_arch_table": "arch", "num_iterations": 2, "seed": 0}
    given |= {"schedule": "rotation", "n_models": 1, "n_segments": len(plan.training.segments)}
    return RunRow(plan=plan, **{**given, **columns})

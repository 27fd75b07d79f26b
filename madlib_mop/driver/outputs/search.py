"""The additional outputs of a search: brackets, arguments, and the best configuration."""

import math
from collections.abc import Iterable, Sequence

from madlib_mop.catalog.names import statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import OutputSummary
from madlib_mop.catalog.rows.run import RunRow, SearchEvent
from madlib_mop.driver.data.library_tables import create_selection, write_selection_summary
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.models.changes import Add, Extend
from madlib_mop.models.parameters.class_weights import as_given
from madlib_mop.models.sizes import size_of
from madlib_mop.search import costs_of, first_front


def info_columns(summary: OutputSummary) -> tuple[tuple[str, str], ...]:
    """Return the columns that a search adds to ``_info``."""
    is_hyperband = summary.automl_method == "hyperband"
    return (("metrics_iters", "integer[]"), *((("s", "integer"), ("i", "integer")) if is_hyperband else ()))


def info_values(record: Record, run: RunRow) -> dict[int, dict[str, int]]:
    """Return ``s`` and ``i`` of each model."""
    found = brackets(record.search_events(run.run_id))
    return {mst_key: {"s": s, "i": i} for mst_key, (s, i) in found.items()}


def write_selection(
    session: CallerSession, run: RunRow, models: list[ModelRow], losses: dict[int, float | None]
) -> None:
    """Write the model selection table with only the best configuration, or with those that no other one surpasses.

    A reopened run finds its tables, which `drop_replaced` has emptied.

    Parameters
    ----------
    session : CallerSession
    run : RunRow
    models : list of ModelRow
    losses : dict of int to float
        The loss that the search uses, for the written models, by mst_key.
    """
    target, summary = run.search_plan.selection.relation, run.plan.summary
    assert summary.model_arch_table is not None, "a search has a table of architectures"
    if not (run.reopened and session.existing(target.sql)):
        create_selection(session, target)
    names = summary.model_arch_table, summary.object_table
    created = run.reopened and session.existing(target.with_suffix("_summary").sql) is not None
    write_selection_summary(session, target, *names, summary.qualified_names["model_arch_table"], created)
    finite = {key: loss for key, loss in losses.items() if loss is not None and math.isfinite(loss)}
    if not finite:
        session.warning(f"run {run.run_id}: no model was trained to a finite loss, so {target} is empty")
        return
    by_key, objective = {m.mst_key: m for m in models}, run.search_plan.objective
    costs = {key: _costs_of(by_key[key], objective) for key in finite}
    chosen = first_front([(loss, key) for key, loss in finite.items()], costs)
    class_weight = run.plan.class_weight
    for key in chosen:
        model = by_key[key]
        fit_params = as_given(model.fit_params, class_weight) if class_weight else model.fit_params
        session.execute(
            statement(
                "INSERT INTO {t} (mst_key, model_id, compile_params, fit_params) VALUES ($1, $2, $3, $4)",
                t=target,
            ),
            [key, model.model_id, model.compile_params, fit_params],
            ["integer", "integer"],
        )
    session.execute(  # A statement of its own: Greenplum runs the INSERT on a segment, where no sequence can be set.
        "SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence($1, 'mst_key'), $2)",
        [target.sql, max(chosen)],
        ["text", "bigint"],
    )
    best = f"the model with the lowest loss is mst_key {chosen[0]}, {finite[chosen[0]]:.4f}"
    if objective:
        front = f"no other model surpasses mst_key {', '.join(map(str, chosen))} in loss and {' and '.join(objective)}"
        session.notice(f"run {run.run_id}: {best}; {front}; they are in {target}")
    else:
        session.notice(f"run {run.run_id}: {best}; it is in {target}")


def _costs_of(model: ModelRow, objective: Sequence[str]) -> tuple[float, ...]:
    """Return the costs of a model; infinite ones if they are not known, which only a person can have added."""
    if not objective:
        return ()
    if model.multiplications is None:
        return (math.inf,) * len(objective)
    return costs_of(size_of(model.configuration.architecture), objective)


def brackets(events: Iterable[SearchEvent]) -> dict[int, tuple[int, int]]:
    """Return hyperband's bracket and the newest round of each model."""
    found: dict[int, tuple[int, int]] = {}
    for event in events:
        for change in event.changes:
            if isinstance(change, Add) and change.proposal.i is not None:
                assert change.proposal.s is not None, "a round is one of a bracket"
                found[change.proposal.mst_key] = change.proposal.s, change.proposal.i
            elif isinstance(change, Extend) and change.i is not None:
                assert change.mst_key is not None, "a search extends one model"
                found[change.mst_key] = found[change.mst_key][0], change.i
    return found

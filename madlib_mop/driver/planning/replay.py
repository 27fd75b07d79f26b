"""Replay: plans a run that repeats the visits of an earlier one, from the same start, in the same order."""

from collections.abc import Sequence
from dataclasses import replace

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import FusedPlan, OutputName
from madlib_mop.catalog.rows.run import RunRow, VisitRow
from madlib_mop.driver.data.packed import check_versions
from madlib_mop.driver.outputs.writers import outputs_of
from madlib_mop.driver.planning.plan import RunPlan
from madlib_mop.driver.planning.run_data import check_tables
from madlib_mop.driver.planning.warm_start import WarmModel, WarmStart
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import find_run
from madlib_mop.errors import NotReady
from madlib_mop.schedule import Visit
from madlib_mop.schedule.bulk import AVERAGING

_OUTPUT = ("model_output_table", "model")  # names of this argument in the fit functions


def plan_replay(call: Call, record: Record) -> RunPlan:
    """Check the arguments of replay and plan its run; a replay of a replay repeats the first run.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    NotReady
        If the run has not ended, or the states that it started from were dropped.
    """
    run = find_run(record, call)
    check_tables(call.session, run)
    check_versions(call.session, record.raw, run)
    suffixes = outputs_of(run.schedule).SUFFIXES
    output = call.session.output(call.arguments.get("output_table"), suffixes, "output_table")
    while run.kind == "replay":
        parent = record.run(run.parent_run_id) if run.parent_run_id is not None else None
        if parent is None:
            raise _parent_dropped(run, "A run can be replayed only while its record exists.")
        run = parent
    if not run.state.is_trained:
        raise NotReady(
            f"run {run.run_id} has not ended: it is {run.state}",
            hint=f"SELECT madlib_mop.resume({run.run_id}); completes it; then it can be replayed.",
        )
    # a search adds its models again, in the recorded order; clones are made again after the same visits
    models = [m for m in record.models(run.run_id) if m.cloned_from is None]
    if run.is_search:
        models = [m for m in models if m.command_id is not None]
    visits = record.visits(run.run_id)
    plan = replace(
        run.plan,
        output=OutputName.of(output),
        summary=replace(run.plan.summary, model=str(output)),
        fused_training=_fused_again(run.plan.fused_training, visits),
        policy=None,  # its commands are repeated
        time_limit_s=None,  # each model ends where it ended
        direct_hops=None,  # clones need states in the middle of an iteration
    )
    made = {name: str(output) for name in _OUTPUT if name in run.arguments}
    repeated = RunRow(
        kind="replay",
        owner_oid=call.info.role_oid,
        owner=call.info.role,
        source_table=run.source_table,
        validation_table=run.validation_table,
        model_output_table=str(output),
        model_selection_table=run.model_selection_table,
        model_arch_table=run.model_arch_table,
        num_iterations=run.num_iterations,
        metrics_compute_frequency=run.metrics_compute_frequency,
        warm_start=run.warm_start,
        use_caching=run.use_caching,
        seed=run.seed,
        schedule=AVERAGING if run.schedule == AVERAGING else "recorded",
        n_models=len(models),
        n_segments=run.n_segments,
        n_threads=run.n_threads,
        parent_run_id=run.run_id,
        plan=plan,
        arguments={**run.arguments, **made, "replace": False},
    )
    return RunPlan(
        repeated,
        [untrained(model) for model in models],
        [replace(segment, run_id=0) for segment in record.segments(run.run_id)],
        record.start_weights(run.run_id),
        _states(record, run, models, visits),
        record.custom_functions(run.run_id),
        record.caller_settings(run.run_id),
        record.preprocessor(run.run_id),
    )


def untrained(model: ModelRow) -> ModelRow:
    """Return a model as it was before its first visit; one that was stopped or has failed does not stop early."""
    return ModelRow(
        mst_key=model.mst_key,
        ordinal=model.ordinal,
        model_id=model.model_id,
        compile_params=model.compile_params,
        fit_params=model.fit_params,
        model_arch=model.model_arch,
        start_weights=model.start_weights,
        first_epoch=model.first_epoch,
        last_epoch=model.last_epoch,
        epoch=model.first_epoch - 1,
        loss_type=model.loss_type,
        metrics_type=model.metrics_type,
        early_stopping=model.early_stopping if model.is_alive else None,
        command_id=model.command_id,
        hyper_parameters=model.hyper_parameters,
        multiplications=model.multiplications,
    )


def _fused_again(plan: FusedPlan | None, visits: Sequence[VisitRow]) -> FusedPlan | None:
    """Plan the groups of a replay: which visits their members made together, and whether they made others later."""
    if plan is None:
        return None
    until: dict[int, list[int]] = {}
    separate = set()
    for visit in visits:  # those of a model are in their order
        if "fused" in visit.timing:
            until[visit.mst_key] = [visit.epoch, visit.position]
        else:
            separate.add(visit.mst_key)
    groups = (
        replace(
            group,
            until=[until.get(key, [0, 0]) for key in group.mst_keys],
            dissolves=not separate.isdisjoint(group.mst_keys),
        )
        for group in plan.groups
    )
    return replace(plan, groups=tuple(groups), dissolved=())


def _states(record: Record, run: RunRow, models: list[ModelRow], visits: Sequence[VisitRow]) -> WarmStart | None:
    """Find the states that a warm start continued from: those at the end of its parent."""
    first: dict[int, VisitRow] = {}
    for visit in visits:
        first.setdefault(visit.mst_key, visit)
    taken_over = [m for m in models if m.first_epoch > 1 and m.start_weights is None and m.command_id is None]
    if not taken_over:
        return None
    parents = {m.mst_key: m for m in record.models(run.parent_run_id or 0)}
    found = {}
    for m in taken_over:
        parent, begun = parents.get(m.mst_key), first.get(m.mst_key)
        if parent is None or (begun is not None and parent.digest != begun.digest_in):
            raise NotReady(
                f"run {run.run_id} continued from the states of run {run.parent_run_id}, which were dropped",
                hint="A warm-started run can be replayed only while the record of its parent run exists.",
            )
        found[m.mst_key] = WarmModel(m.first_epoch, state=parent)
    return WarmStart(run.parent_run_id, run.seed, found)


def recorded_visits(record: Record, run: RunRow) -> list[Visit]:
    """Return the visits that a replay repeats."""
    parent = run.parent_run_id
    if parent is None or record.run(parent) is None:
        hint = f"SELECT madlib_mop.drop_run({run.run_id}); drops the record of this run too."
        raise _parent_dropped(run, hint)
    # the visits in a clone's state count as its own
    inherited = [
        Visit((m.mst_key,), segment, m.cloned_from.epoch, number)
        for m in record.models(parent)
        if m.cloned_from is not None
        for number, segment in enumerate(m.cloned_from.segments, start=1)
    ]
    return inherited + [Visit((v.mst_key,), v.segment_id, v.epoch, v.position) for v in record.visits(parent)]


def _parent_dropped(run: RunRow, hint: str) -> NotReady:
    """Return the error for a replay whose original is no longer recorded."""
    return NotReady(f"run {run.run_id} repeats run {run.parent_run_id}, whose record was dropped", hint=hint)

"""The plan of a run: the arguments of a call of the hopper, checked before any work starts."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from madlib_mop.calls.limits import MAX_SEED
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.base import Json
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.of_run import SegmentRow
from madlib_mop.catalog.rows.preprocessor import PreprocessorRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.state_slots import SLOTS_PER_RUN, create_slot
from madlib_mop.driver.data.custom_functions import warn_changed
from madlib_mop.driver.outputs.earlier_runs import EarlierRuns
from madlib_mop.driver.outputs.hopper import SUFFIXES, check_replaceable
from madlib_mop.driver.outputs.tables import MODEL_TABLES, if_there, names_of, read_replace
from madlib_mop.driver.planning.architecture_fit import check_fit
from madlib_mop.driver.planning.early_decisions import plan_policy, plan_sample
from madlib_mop.driver.planning.early_stopping import plan_early_stopping
from madlib_mop.driver.planning.fused_groups import plan_fused_groups
from madlib_mop.driver.planning.label_fit import check_labels, with_class_weights
from madlib_mop.driver.planning.run_data import check_connections, read_data
from madlib_mop.driver.planning.selection import read_selection
from madlib_mop.driver.planning.warm_start import WarmStart, find_table, find_warm_start, recorded_functions
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.settings import read_backend, read_settings
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.configuration import Configuration


@dataclass(frozen=True)
class RunPlan:
    """A run ready to be recorded and started.

    Attributes
    ----------
    run : RunRow
    models : list of ModelRow
    segments : list of SegmentRow
    weights : dict of str to bytes
        Rows of `madlib_mop.start_weights` by origin.
    warm : WarmStart or None
        The source of the states that a warm start continues.
    functions : mapping of str to bytes
        Rows of `madlib_mop.custom_function` by name.
    settings : mapping of str to str
        Rows of `madlib_mop.caller_setting` by name.
    preprocessor : PreprocessorRow or None
        The row of `madlib_mop.preprocessor`.
    """

    run: RunRow
    models: list[ModelRow]
    segments: list[SegmentRow]
    weights: dict[str, bytes] = field(repr=False)
    warm: WarmStart | None = None
    functions: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    preprocessor: PreprocessorRow | None = field(default=None, repr=False)


def plan_fit(call: Call, record: Record) -> RunPlan:
    """Check the arguments of madlib_keras_fit_multiple_model and plan its run.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a, session = call.arguments, call.session
    num_iterations = a["num_iterations"]
    frequency = read_frequency(a, num_iterations)
    data = read_data(call, record)
    warm_start, replace = bool(a.get("warm_start")), read_replace(a)
    warm: WarmStart | None = None
    old: Relation | None = None
    earlier: EarlierRuns | None = None
    if warm_start:
        session.check_may_write(a.get("model_output_table"), "model_output_table")
        old = session.relation(a.get("model_output_table"), "model_output_table")
        earlier = find_table(session, record, old, call.info.role_oid)
    recorded = recorded_functions(record, earlier) if earlier is not None else None
    selection = read_selection(session, a.get("model_selection_table"), recorded)
    backend = read_backend(record, session)
    check_fit([(c.model_id, c.arch) for c in selection.configurations.values()], data.source, backend)
    early_stopping = plan_early_stopping(
        a.get("early_stopping"), selection.configurations, num_iterations, frequency,
        a.get("validation_table") is not None,
    )  # fmt: skip
    check_labels(selection.configurations, data.source)
    configurations, class_weight = with_class_weights(selection.configurations, data.source)
    if old is not None and earlier is not None:
        warn_changed(session, selection.object_table, selection.functions)
        output = old
        warm = find_warm_start(session, output, earlier, configurations, backend)
    else:
        there = if_there(session, replace, MODEL_TABLES, "model_output_table")
        output = session.output(a.get("model_output_table"), SUFFIXES, "model_output_table", there)
    seed = choose_seed(a["seed"], warm)
    summary = data.summary(
        model=a["model_output_table"],
        model_arch_table=selection.arch_table_text,
        object_table=selection.object_table,
        qualified_names=names_of(
            session,
            **data.tables,
            model_selection_table=selection.relation,
            model_arch_table=selection.arch_table,
        ),
    )
    if warm_start:
        check_replaceable(session, output, summary)
    settings = read_settings(record, session, data.source.n_here, bool(a.get("use_caching")))
    check_connections(record, data.source, call.info.role, 0 if a["policy"] is None else 1)
    models, weights = plan_models(configurations, selection.weights, num_iterations, warm, early_stopping)
    max_fused = settings.fused_training
    if max_fused and any(early_stopping.values()):
        session.notice("fused training: not used, models may stop early")
        max_fused = 0
    sample = plan_sample(session, a, data)
    starts = [(model.first_epoch, _continues(model.mst_key, warm)) for model in models]
    run = RunRow(
        kind="fit_multiple_model",
        owner_oid=call.info.role_oid,
        owner=call.info.role,
        **data.run_columns(),
        model_output_table=str(output),
        model_selection_table=str(selection.relation),
        model_arch_table=str(selection.arch_table),
        num_iterations=num_iterations,
        metrics_compute_frequency=frequency,
        warm_start=warm_start,
        use_caching=bool(a.get("use_caching")),
        seed=seed,
        schedule=a["schedule"],
        n_models=len(models),
        n_threads=settings.trainer_threads,
        parent_run_id=warm.run_id if warm else None,
        plan=data.plan(
            settings,
            output,
            fused_training=plan_fused_groups(session, max_fused, settings.backend, configurations, starts, data),
            class_weight=class_weight,
            summary=summary,
            sample=sample,
            policy=plan_policy(call, settings),
        ),
    )
    return RunPlan(
        run, models, data.segments(sample), weights, warm, selection.functions.objects, data.settings,
        data.preprocessor,
    )  # fmt: skip


def plan_models(
    configurations: Mapping[int, Configuration],
    weights: dict[int, bytes | None],
    num_iterations: int,
    warm: WarmStart | None,
    early_stopping: Mapping[int, Json | None],
) -> tuple[list[ModelRow], dict[str, bytes]]:
    """Return the models of a run, and their start weights by origin.

    Parameters
    ----------
    configurations : mapping of int to Configuration
        By mst_key, in order.
    weights : dict of int to bytes
        The architectures' start weights by model_id.
    num_iterations : int
    warm : WarmStart or None
    early_stopping : mapping
        The early stopping rule of each, by mst_key; see `plan_early_stopping`.
    """
    models: list[ModelRow] = []
    origins: dict[str, bytes] = {}
    for ordinal, (mst_key, c) in enumerate(configurations.items()):
        old = warm.models.get(mst_key) if warm else None
        first_epoch = old.next_epoch if old else 1
        origin = None
        if old and old.weights is not None:
            origin = f"mst_key {mst_key}"
            origins[origin] = old.weights
        elif old is None and (given := weights.get(c.model_id)) is not None:
            origin = f"model_id {c.model_id}"
            origins[origin] = given
        models.append(
            ModelRow(
                mst_key=mst_key,
                ordinal=ordinal,
                start_weights=origin,
                first_epoch=first_epoch,
                last_epoch=first_epoch + num_iterations - 1,
                epoch=first_epoch - 1,
                early_stopping=early_stopping[mst_key],
                **c.columns(),
            )
        )
    return models, origins


def _continues(mst_key: int, warm: WarmStart | None) -> bool:
    """Return whether a model continues with a complete training state."""
    old = warm.models.get(mst_key) if warm else None
    return old is not None and old.state is not None


def read_frequency(arguments: Mapping[str, Any], num_iterations: int) -> int:
    """Return after how many iterations metrics are computed. Raises InvalidParameter.

    NULL: after each iteration if there is a validation table, so that curves and leaderboards have points; else only
    after the last one. Output tables then have what MADlib's have: the metrics of the last iteration.
    """
    value: int | None = arguments.get("metrics_compute_frequency")
    if value is None:
        return 1 if arguments.get("validation_table") else num_iterations
    if not 1 <= value <= num_iterations:
        raise InvalidParameter(
            f"metrics_compute_frequency must be from 1 to num_iterations ({num_iterations}). Received: {value}",
            hint="Omit it: with a validation table it is 1, else metrics are computed after the last iteration.",
        )
    return value


def choose_seed(given: int | None, warm: WarmStart | None) -> int:
    """Return the seed of a run; NULL stands for the seed of a warm start's parent run, or a drawn one."""
    if given is not None:
        return given
    return warm.seed if warm and warm.seed is not None else secrets.randbelow(MAX_SEED)


def add_run(record: Record, plan: RunPlan) -> int:
    """Record a planned run, including its models' first states, in one transaction; return its run_id."""
    with record.transaction():
        run_id = record.add_run(
            plan.run, plan.models, plan.segments, plan.weights, plan.functions, plan.settings, plan.preprocessor
        )
        taken_over = {key: m.state for key, m in (plan.warm.models if plan.warm else {}).items() if m.state}
        if taken_over:
            slot = run_id * SLOTS_PER_RUN
            create_slot(record, slot)
            for mst_key, state in taken_over.items():
                record.copy_state(run_id, mst_key, slot, state)
    return run_id

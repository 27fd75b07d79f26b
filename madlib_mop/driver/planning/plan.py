"""The plan of a run, from a call's arguments to a plan to record: that of the fit functions, and the steps that all
training functions share.

A training function calls `read_inputs`, reads its configurations, and calls `find_output` and `complete_plan`.
`search` has what a search adds. A replay makes its `RunPlan` from the record (`replay`).
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from madlib_mop.calls.limits import MAX_SEED
from madlib_mop.calls.shared import CHECKPOINT_EVERY, COPIES
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.base import Json
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import (
    FusedPlan,
    HopPlan,
    Plan,
    PolicyPlan,
    PreprocessorRow,
    SamplePlan,
    SearchPlan,
    query_of_policy,
)
from madlib_mop.catalog.rows.run import RunRow, SegmentRow
from madlib_mop.catalog.state_slots import SLOTS_PER_RUN, create_slot
from madlib_mop.driver.data.custom_functions import warn_changed
from madlib_mop.driver.outputs.earlier_runs import EarlierRuns
from madlib_mop.driver.outputs.tables import MODEL_TABLES, if_there, names_of, read_replace
from madlib_mop.driver.outputs.writers import check_replaceable, outputs_of
from madlib_mop.driver.planning.fused_groups import plan_fused_groups
from madlib_mop.driver.planning.run_data import Data, check_connections, read_data
from madlib_mop.driver.planning.selection import ModelSelection, check_selection, origin_of, read_one, read_selection
from madlib_mop.driver.planning.warm_start import WarmStart, find_table, find_warm_start, recorded_functions
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import Settings, read_backend, read_settings
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.models.architecture import has_frozen_layers
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.schedule.bulk import AVERAGING

_LEAST_SAMPLE_ROWS = 100
_SAMPLE_DIVISOR = 10  # by default, the sample has a tenth of the rows of a visit


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


@dataclass(frozen=True)
class RunInputs:
    """What a training function reads before its configurations.

    Attributes
    ----------
    call : Call
    record : Record
    schedule : str
    data : Data
        The packed tables.
    continued : Relation or None
        The output table that a warm start continues.
    earlier : EarlierRuns or None
        What the record has of its models.
    """

    call: Call
    record: Record
    schedule: str
    data: Data
    continued: Relation | None = None
    earlier: EarlierRuns | None = None

    @property
    def recorded_functions(self) -> CustomFunctions | None:
        """The custom functions of the run that a warm start continues; None if it is none."""
        return None if self.earlier is None else recorded_functions(self.record, self.earlier)

    @property
    def outputs(self) -> ModuleType:
        """The module that writes the output tables."""
        return outputs_of(self.schedule)


def plan_fit_multiple(call: Call, record: Record) -> RunPlan:
    """Check the arguments of madlib_keras_fit_multiple_model and plan its run.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a = call.arguments
    frequency = read_frequency(a)
    inputs = read_inputs(call, record)
    selection = read_selection(call.session, a.get("model_selection_table"), inputs.recorded_functions)
    return complete_plan(inputs, "fit_multiple_model", selection, find_output(inputs), a["num_iterations"], frequency)


def plan_fit(call: Call, record: Record) -> RunPlan:
    """Check the arguments of madlib_keras_fit and plan its run, of one model.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a = call.arguments
    frequency = read_frequency(a)
    inputs = read_inputs(call, record)
    selection = read_one(call.session, a, inputs.recorded_functions)
    return complete_plan(inputs, "fit", selection, find_output(inputs), a["num_iterations"], frequency)


def read_inputs(call: Call, record: Record) -> RunInputs:
    """Read the packed tables of a call and, for a warm start, the models to continue.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a, session = call.arguments, call.session
    schedule = a.get("schedule", AVERAGING)  # madlib_keras_fit has no such argument
    data = read_data(call, record)
    read_replace(a)  # not with warm_start
    if not a.get("warm_start"):
        return RunInputs(call, record, schedule, data)
    what = outputs_of(schedule).ARGUMENT
    session.check_may_write(a.get(what), what)
    output = session.relation(a.get(what), what)
    return RunInputs(call, record, schedule, data, output, find_table(call, record, output, what, schedule))


def find_output(inputs: RunInputs) -> Relation:
    """Return the output table to write: a new one that can be created, or the one that a warm start continues.

    Raises
    ------
    MopError
        If it cannot be created.
    """
    if inputs.continued is not None:
        return inputs.continued
    a, session, what = inputs.call.arguments, inputs.call.session, inputs.outputs.ARGUMENT
    there = if_there(session, read_replace(a), MODEL_TABLES, what)
    return session.output(a.get(what), inputs.outputs.SUFFIXES, what, there)


def complete_plan(
    inputs: RunInputs,
    kind: str,
    selection: ModelSelection,
    output: Relation,
    num_iterations: int,
    frequency: int | None,
    *,
    search: SearchPlan | None = None,
    **summary_columns: Any,
) -> RunPlan:
    """Check the configurations of a call against its data, and plan its run.

    Parameters
    ----------
    inputs : RunInputs
    kind : str
        As in `RunRow`.
    selection : ModelSelection
        The configurations to train; of a search, those that stand for all of its space.
    output : Relation
        See `find_output`.
    num_iterations : int
    frequency : int or None
        After how many iterations metrics are computed; None: when a search needs them.
    search : SearchPlan, optional
        The run begins without models.
    **summary_columns : object
        More columns of the output's summary.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    call, record, data = inputs.call, inputs.record, inputs.data
    a, session, what = call.arguments, call.session, inputs.outputs.ARGUMENT
    backend = read_backend(record, session)
    checked = check_selection(
        selection, data.source, backend, a.get("early_stopping"), num_iterations, frequency or num_iterations,
        data.validation is not None,
    )  # fmt: skip
    warm: WarmStart | None = None
    if inputs.earlier is not None:
        warn_changed(session, selection.object_table, selection.functions)
        warm = find_warm_start(
            session, output, what, inputs.schedule, inputs.earlier, checked.configurations, backend
        )
    default_seed = warm.seed if warm is not None else search.random_state if search is not None else None
    seed = choose_seed(a["seed"], default_seed)
    summary = data.summary(
        model=a[what],
        model_arch_table=selection.arch_table_text,
        object_table=selection.object_table,
        qualified_names=names_of(
            session,
            **data.tables,
            model_selection_table=selection.relation,
            model_arch_table=selection.arch_table,
        ),
        **summary_columns,
    )
    if inputs.earlier is not None:
        check_replaceable(session, output, summary, inputs.schedule)
    use_caching = bool(a.get("use_caching"))
    settings = read_settings(record, session, data.source.n_here, use_caching)
    check_connections(record, data.source, call.info.role, 0 if a.get("policy") is None else 1)
    if search is None:
        models, weights = plan_models(
            checked.configurations, selection.weights, num_iterations, warm, checked.early_stopping
        )
    else:
        models, weights = [], selection.start_weights
    sample = fused = policy = hops = None
    if inputs.schedule != AVERAGING:  # models that hop
        sample = plan_sample(session, a, data)
        fused = _plan_fused_groups(inputs, settings, checked.configurations, models, warm, search)
        policy = plan_policy(call, settings)
        # fused models, and those of a search that copies states, would need more than the newest states of one
        if fused is None and (search is None or search.method != "pbt"):
            hops = HopPlan(a["copies"], a["checkpoint_every"])
    # what a trainer keeps of frozen layers is larger than the rows, so a shard's is kept in one trainer only
    archs = (configuration.arch for configuration in checked.configurations.values())
    keeps_features = settings.materialise_features and any(map(has_frozen_layers, archs))
    run = RunRow(
        kind=kind,
        owner_oid=call.info.role_oid,
        owner=call.info.role,
        **data.run_columns(),
        model_output_table=str(output),
        model_selection_table=None if selection.relation is None else str(selection.relation),
        model_arch_table=str(selection.arch_table),
        num_iterations=num_iterations,
        metrics_compute_frequency=frequency,
        warm_start=warm is not None,
        use_caching=use_caching,
        seed=seed,
        schedule=inputs.schedule,
        n_models=len(models),
        n_threads=settings.trainer_threads,
        parent_run_id=warm.run_id if warm else None,
        plan=data.plan(
            settings,
            output,
            may_stay=inputs.schedule != AVERAGING and not keeps_features,
            hops=hops,
            fused_training=fused,
            class_weight=checked.class_weight,
            summary=summary,
            search=search,
            sample=sample,
            policy=policy,
            time_limit_s=a.get("max_seconds") if search is None else None,
        ),
    )
    if inputs.schedule != AVERAGING:
        _tell_of_hops(session, a, run.plan)
    return RunPlan(
        run, models, data.segments(sample), weights, warm, selection.functions.objects, data.settings,
        data.preprocessor,
    )  # fmt: skip


def plan_sample(session: CallerSession, arguments: Mapping[str, Any], data: Data) -> SamplePlan | None:
    """Plan the sample on which models are evaluated after visits; None if metrics are computed after iterations only.

    It is the beginning of one shard: packing distributes rows at random, so the first rows of a shard are a random
    sample. Each trainer keeps it in memory, and evaluates a model on it right after a visit; the visit is committed
    together with these metrics.

    Parameters
    ----------
    session : CallerSession
        Gets a NOTICE if the sample is smaller than requested.
    arguments : mapping
        Of the call: ``metrics_every``, ``metrics_sample_rows``.
    data : Data

    Raises
    ------
    InvalidParameter
        If a number of rows is given without ``metrics_every``.
    """
    every, given = arguments["metrics_every"], arguments["metrics_sample_rows"]
    if every == "iteration":
        if given is not None:
            raise InvalidParameter(
                f"metrics_sample_rows is used only with metrics_every. Received: {given}",
                hint="Pass metrics_every => 'visit' too, or omit metrics_sample_rows.",
            )
        return None
    data_set, packed = ("validation", data.validation) if data.validation else ("training", data.source)
    shard = max(packed.shards, key=lambda shard: shard.n_rows)
    usual = max(_LEAST_SAMPLE_ROWS, max(shard.n_rows for shard in data.source.shards) // _SAMPLE_DIVISOR)
    n_rows = min(shard.n_rows, usual if given is None else given)
    if given is not None and n_rows < given:
        session.notice(f"metrics_sample_rows: {n_rows} rows are used, which are all rows of one {data_set} shard")
    return SamplePlan(data_set, shard.segment_id, n_rows, 1 if every == "visit" else int(every))


def plan_policy(call: Call, settings: Settings) -> PolicyPlan | None:
    """Plan the policy of a run, and check it by running it without rows, with the caller's rights and search_path.

    Raises
    ------
    InvalidParameter
        If it is no query, or lacks the columns mst_key and action.
    """
    given: str | None = call.arguments["policy"]
    if given is None:
        return None
    query = query_of_policy(given)
    path = call.info.search_path
    check = f"SELECT p.mst_key::pg_catalog.int4, p.action::pg_catalog.text FROM (\n{query}\n) AS p LIMIT 0"
    try:
        _set_path(call.session, path)
        call.session.execute(check, [0], ["pg_catalog.int8"])
    except MopError as error:
        raise InvalidParameter(
            f"policy cannot be run: {error.message}",
            detail=error.detail,
            hint="A policy is one SELECT with the columns mst_key (integer) and action (text), and optionally reason"
            " (text) and arguments (jsonb). In it, $1 is the run_id.",
        ) from None
    finally:
        _set_path(call.session, "pg_catalog, pg_temp")
    return PolicyPlan(query, path, settings.policy_timeout_s)


def _tell_of_hops(session: CallerSession, arguments: Mapping[str, Any], plan: Plan) -> None:
    """Write a NOTICE if the arguments about direct hops have no effect, or not the whole one."""
    given = [a.name for a in (COPIES, CHECKPOINT_EVERY) if arguments[a.name] != a.default]
    if plan.direct_hops is None:
        if given:
            session.notice(f"{', '.join(given)}: not used, because no state of this run stays at a host")
        return
    n_hosts = len({shard.server for shard in plan.training.segments} - {None})
    if COPIES.name in given and plan.direct_hops.copies > n_hosts:
        session.notice(f"copies: the rows are at {n_hosts} hosts, so states of a model are at no more hosts")


def _set_path(session: CallerSession, path: str | None) -> None:
    """Set the search_path until the end of the function that the caller's session runs."""
    session.execute("SELECT pg_catalog.set_config('search_path', $1, true)", [path or "pg_catalog, pg_temp"])


def _plan_fused_groups(
    inputs: RunInputs,
    settings: Settings,
    configurations: Mapping[int, Configuration],
    models: list[ModelRow],
    warm: WarmStart | None,
    search: SearchPlan | None,
) -> FusedPlan | None:
    """Return the fused groups of a run, if the setting asks for them and models start and end together."""
    session, most = inputs.call.session, settings.fused_training
    why_not = None
    if search is not None:
        why_not = "a search adds and stops models one by one"
    elif any(model.early_stopping for model in models):
        why_not = "models may stop early"
    if most and why_not is not None:
        session.notice(f"fused training: not used, {why_not}")
        most = 0
    starts = [(model.first_epoch, _continues(model.mst_key, warm)) for model in models]
    return plan_fused_groups(session, most, settings.backend, configurations, starts, inputs.data)


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
            origin = origin_of(c.model_id)
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


def read_frequency(arguments: Mapping[str, Any]) -> int:
    """Return after how many iterations metrics are computed. Raises InvalidParameter.

    NULL: after each iteration if there is a validation table, so that curves and leaderboards have points; else only
    after the last one. Output tables then have what MADlib's have: the metrics of the last iteration.
    """
    value: int | None = arguments.get("metrics_compute_frequency")
    num_iterations: int = arguments["num_iterations"]
    if value is None:
        return 1 if arguments.get("validation_table") else num_iterations
    if not 1 <= value <= num_iterations:
        raise InvalidParameter(
            f"metrics_compute_frequency must be from 1 to num_iterations ({num_iterations}). Received: {value}",
            hint="Omit it: with a validation table it is 1, else metrics are computed after the last iteration.",
        )
    return value


def choose_seed(given: int | None, default: int | None = None) -> int:
    """Return the given seed, else the default one, else a drawn one."""
    if given is not None:
        return given
    return secrets.randbelow(MAX_SEED) if default is None else default


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

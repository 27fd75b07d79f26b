"""The plan of a run of model averaging: the arguments of madlib_keras_fit, checked before any work."""

from mop_backend.keras_backends import BackendName

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.data.custom_functions import custom_names, read_custom_functions
from madlib_mop.driver.data.weights import check_weights, recorded_digest
from madlib_mop.driver.outputs.averaging import SUFFIXES, check_replaceable
from madlib_mop.driver.outputs.earlier_runs import EarlierRuns, find_earlier_runs, weights_digests
from madlib_mop.driver.outputs.tables import MODEL_TABLES, if_there, names_of, read_replace
from madlib_mop.driver.planning.architecture_fit import check_fit
from madlib_mop.driver.planning.early_stopping import plan_early_stopping
from madlib_mop.driver.planning.hopper import RunPlan, choose_seed, plan_models, read_frequency
from madlib_mop.driver.planning.label_fit import check_compile_params, with_class_weights
from madlib_mop.driver.planning.run_data import check_connections, read_data
from madlib_mop.driver.planning.selection import read_architecture_table, read_configuration
from madlib_mop.driver.planning.warm_start import (
    NO_STATE,
    WarmModel,
    WarmStart,
    no_weights,
    recorded_functions,
    tell_migration,
    warm_start_of,
)
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import read_backend, read_settings
from madlib_mop.errors import InvalidParameter, UndefinedTable, is_missing
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.stored import same_architecture
from madlib_mop.schedule.bulk import AVERAGING, MST_KEY


def plan_model(call: Call, record: Record) -> RunPlan:
    """Check the arguments of madlib_keras_fit and plan its run.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a, session = call.arguments, call.session
    num_iterations = a["num_iterations"]
    frequency = read_frequency(a, num_iterations)
    data = read_data(call, record)
    arch_table = read_architecture_table(session, a.get("model_arch_table"))
    if a.get("model_id") is None:
        raise is_missing("model_id", None, f"SELECT model_id, name FROM {arch_table.written};")
    warm_start, replace = bool(a.get("warm_start")), read_replace(a)
    warm: WarmStart | None = None
    old: Relation | None = None
    earlier: EarlierRuns | None = None
    if warm_start:
        session.check_may_write(a.get("model"), "model")
        old = session.relation(a.get("model"), "model")
        earlier = _find_table(session, record, old, call.info.role_oid)
    recorded = recorded_functions(record, earlier) if earlier is not None else None
    object_table = (a.get("object_table") or "").strip() or None
    known = custom_names(session, object_table, recorded=recorded)
    configuration, weights = read_configuration(
        session, arch_table, a["model_id"], a.get("compile_params"), a.get("fit_params"), known
    )
    backend = read_backend(record, session)
    check_fit([(configuration.model_id, configuration.arch)], data.source, backend)
    early_stopping = plan_early_stopping(
        a.get("early_stopping"), {MST_KEY: configuration}, num_iterations, frequency,
        a.get("validation_table") is not None,
    )  # fmt: skip
    check_compile_params(configuration.compiled, configuration.shape, data.source)
    configurations, class_weight = with_class_weights({MST_KEY: configuration}, data.source)
    configuration = configurations[MST_KEY]
    functions = read_custom_functions(session, object_table, set(configuration.custom_names), recorded=recorded)
    if old is not None and earlier is not None:
        output = old
        warm = _find_warm_start(session, output, earlier, configuration, backend)
    else:
        there = if_there(session, replace, MODEL_TABLES, "model")
        output = session.output(a.get("model"), SUFFIXES, "model", there)
    seed = choose_seed(a["seed"], warm)
    summary = data.summary(
        model=a["model"],
        object_table=object_table,
        qualified_names=names_of(session, **data.tables, model_arch_table=arch_table),
    )
    if warm_start:
        check_replaceable(session, output, summary)
    settings = read_settings(record, session, data.source.n_here, use_caching=False)
    check_connections(record, data.source, call.info.role)
    models, origins = plan_models(
        configurations, {configuration.model_id: weights}, num_iterations, warm, early_stopping
    )
    run = RunRow(
        kind="fit",
        owner_oid=call.info.role_oid,
        owner=call.info.role,
        **data.run_columns(),
        model_output_table=str(output),
        model_arch_table=str(arch_table),
        num_iterations=num_iterations,
        metrics_compute_frequency=frequency,
        warm_start=warm_start,
        seed=seed,
        schedule=AVERAGING,
        n_models=1,
        n_threads=settings.trainer_threads,
        parent_run_id=warm.run_id if warm else None,
        plan=data.plan(settings, output, class_weight=class_weight, summary=summary),
    )
    return RunPlan(run, models, data.segments(), origins, warm, functions.objects, data.settings, data.preprocessor)


def _find_table(session: CallerSession, record: Record, output: Relation, owner: int) -> EarlierRuns:
    """Find the recorded runs of an output table: like `find_table`, for a table of one model."""
    digests = weights_digests(session, output, averaging=True)
    if digests is None:
        raise UndefinedTable(
            f"model: warm_start needs a table that madlib_keras_fit wrote. Received: {output}",
            hint="Pass the name of an earlier output table, or omit warm_start.",
        )
    if len(digests) != 1:
        raise InvalidParameter(
            f"model: a warm start needs a table with one row; {output} has {len(digests)}. Received: {output}",
            hint="Omit warm_start and choose a new name.",
        )
    return find_earlier_runs(record, output, owner, dict(digests), averaging=True)


def _find_warm_start(
    session: CallerSession,
    output: Relation,
    earlier: EarlierRuns,
    c: Configuration,
    backend: BackendName,
) -> WarmStart:
    """Find the state to continue the model of an output table with: like `find_warm_start`, for a table of one
    model."""
    state = earlier.states.get(MST_KEY)
    next_epoch = state.epoch + 1 if state else 1
    if state and state.compile_params == c.compile_params and same_architecture(state.model_arch, c.arch):
        models = {MST_KEY: WarmModel(next_epoch, state=state)}
        tell_migration(session, earlier, models, backend)
        return warm_start_of(earlier, models)
    if earlier.digests[MST_KEY] is None:
        raise no_weights(f"model: {output}", state is not None)
    session.notice(f"warm start: continuing with the weights only; the optimizer state is reset ({NO_STATE})")
    digest = recorded_digest(session.columns(output))
    (row,) = session.execute(statement(f"SELECT model_weights, {digest} AS digest FROM {{t}}", t=output))
    weights = check_weights(row["model_weights"], row["digest"], str(output))
    return warm_start_of(earlier, {MST_KEY: WarmModel(next_epoch, weights=weights)})

"""Warm start: finds the states to continue with: the full states of an earlier run, or at least its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mop_backend.keras_backends import BackendName

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.data.weights import check_weights, recorded_digest
from madlib_mop.driver.outputs.earlier_runs import EarlierRuns, find_earlier_runs, weights_digests
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady, UndefinedTable
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.stored import same_architecture
from madlib_mop.schedule.bulk import AVERAGING


@dataclass(frozen=True)
class WarmModel:
    """The start of one configuration.

    Attributes
    ----------
    next_epoch : int
        Epoch of its next visit, 1-based.
    state : ModelRow or None
        The earlier run's model whose training state is continued.
    weights : bytes or None
        The output table's weights, if the training state is not available.
    """

    next_epoch: int
    state: ModelRow | None = None
    weights: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WarmStart:
    """The earlier run, if it is recorded, and its models by mst_key."""

    run_id: int | None
    seed: int | None
    models: dict[int, WarmModel]


def find_table(call: Call, record: Record, output: Relation, what: str, schedule: str) -> EarlierRuns:
    """Find the recorded runs of an output table whose models are to continue.

    Parameters
    ----------
    call : Call
    record : Record
    output : Relation
    what : str
        The argument that names the output table, for messages.
    schedule : str
        Of the new run: a table of one model has other columns than a table of many.

    Raises
    ------
    UndefinedTable
        If the table is not one that this function wrote.
    InvalidParameter
        If it is a table of one model without exactly one row.
    """
    averaging = schedule == AVERAGING
    digests = weights_digests(call.session, output, averaging)
    has_info = averaging or call.session.existing(output.with_suffix("_info").sql) is not None
    if digests is None or not has_info:
        raise UndefinedTable(
            f"{what}: warm_start needs a table that {call.function} wrote. Received: {output}",
            hint="Pass the name of an earlier output table, or omit warm_start.",
        )
    if averaging and len(digests) != 1:
        raise InvalidParameter(
            f"{what}: a warm start needs a table with one row; {output} has {len(digests)}. Received: {output}",
            hint="Omit warm_start and choose a new name.",
        )
    return find_earlier_runs(record, output, call.info.role_oid, dict(digests), averaging)


def find_warm_start(
    session: CallerSession,
    output: Relation,
    what: str,
    schedule: str,
    earlier: EarlierRuns,
    configurations: Mapping[int, Configuration],
    backend: BackendName,
) -> WarmStart:
    """Find the states to continue the models of an output table with.

    A model continues with its full training state if one of these weights is recorded, and its compile parameters and
    its architecture are unchanged; else with the table's weights. The state may be of another backend; its first visit
    converts it.
    Weights that do not fit into a field are no start weights: then the state must be available.

    Raises
    ------
    NotReady
        If a model has neither weights in the table nor a matching state in the record.
    """
    has_keys = schedule != AVERAGING
    models = {}
    for mst_key, c in configurations.items():
        if mst_key not in earlier.digests:
            continue
        label = f"mst_key {mst_key} of {output}" if has_keys else str(output)
        state = earlier.states.get(mst_key)
        if state and state.compile_params == c.compile_params and same_architecture(state.model_arch, c.arch):
            models[mst_key] = WarmModel(state.epoch + 1, state=state)
        else:
            weights = _weights(session, output, mst_key if has_keys else None, what, label)
            if weights is None:
                raise _no_weights(f"{what}: {label}", state is not None)
            models[mst_key] = WarmModel(state.epoch + 1 if state else 1, weights=weights)
    weights_only = sorted(key for key, model in models.items() if model.state is None)
    if weights_only:
        which = f"mst_key {', '.join(map(str, weights_only))}: " if has_keys else ""
        session.notice(
            f"warm start: {which}continuing with the weights only; the optimizer state is reset"
            " (no training state is recorded for these weights and parameters)"
        )
    _tell_migration(session, earlier, models, backend)
    parent = earlier.run
    return WarmStart(parent.run_id if parent else None, parent.seed if parent else None, models)


def backend_of(run: RunRow) -> BackendName:
    """Return the backend of a run's trainers; runs of older versions do not say."""
    return BackendName(run.plan.trainer.get("backend", BackendName.TENSORFLOW))


def _tell_migration(
    session: CallerSession, earlier: EarlierRuns, models: Mapping[int, WarmModel], backend: BackendName
) -> None:
    """Say it if training states continue on another backend than that of their run."""
    continued = {model.state.run_id for model in models.values() if model.state is not None}
    for run in earlier.origins:
        if run.run_id in continued and backend_of(run) != backend:
            session.notice(
                f"warm start: run {run.run_id} trained on {backend_of(run)}, and this one trains on {backend}:"
                " weights and variables of optimizers are converted, and random numbers begin anew"
            )


def recorded_functions(record: Record, earlier: EarlierRuns) -> CustomFunctions:
    """Return the custom functions of the run that a warm start continues."""
    return CustomFunctions(record.custom_functions(earlier.run.run_id) if earlier.run else {})


def _no_weights(label: str, has_state: bool) -> NotReady:
    """Return the error of a warm start without states, where the weights do not fit into a field."""
    reason = (
        "its recorded state has different compile parameters or another architecture"
        if has_state
        else "none of your recorded runs has its state"
    )
    return NotReady(
        f"{label} has no weights to continue with: model_weights is NULL, and {reason}",
        hint="Weights that do not fit into a field are continued with their training state only. Use the same"
        " parameters again, or omit warm_start.",
    )


def _weights(session: CallerSession, output: Relation, mst_key: int | None, what: str, label: str) -> bytes | None:
    """Return the weights of a model in an output table, of its only one if these have no keys; None if they are no
    field."""
    digest = recorded_digest(session.columns(output))
    query = statement(f"SELECT model_weights, {digest} AS digest FROM {{t}}", t=output)
    if mst_key is None:
        rows = session.execute(query)
    else:
        rows = session.execute(query + statement(" WHERE mst_key = $1"), [mst_key], ["integer"])
    if len(rows) != 1:
        raise InvalidParameter(f"{what}: mst_key {mst_key} occurs {len(rows)} times. Received: {output}")
    weights: bytes | None = rows[0]["model_weights"]
    return None if weights is None else check_weights(weights, rows[0]["digest"], label)

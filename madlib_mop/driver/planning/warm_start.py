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
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady, UndefinedTable
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.stored import same_architecture

#: Why a warm start has the weights only.
NO_STATE = "no training state is recorded for these weights and parameters"


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


def find_table(session: CallerSession, record: Record, output: Relation, owner: int) -> EarlierRuns:
    """Find the recorded runs of an output table whose models are to continue.

    Raises
    ------
    UndefinedTable
        If the table is not one that the hopper wrote.
    """
    digests = weights_digests(session, output, averaging=False)
    if digests is None or session.existing(output.with_suffix("_info").sql) is None:
        raise UndefinedTable(
            f"model_output_table: warm_start needs a table that madlib_keras_fit_multiple_model wrote."
            f" Received: {output}",
            hint="Pass the name of an earlier output table, or omit warm_start.",
        )
    return find_earlier_runs(record, output, owner, dict(digests), averaging=False)


def find_warm_start(
    session: CallerSession,
    output: Relation,
    earlier: EarlierRuns,
    configurations: Mapping[int, Configuration],
    backend: BackendName,
) -> WarmStart:
    """Find the states to continue the models of an output table with.

    A model continues with its full training state if one of these weights is recorded, and its compile parameters and
    its architecture are unchanged; else with the table's weights. The state may be of another backend; its first visit
    converts it.
    Weights that do not fit into a field are NULL in the table: then the state must be available.

    Raises
    ------
    NotReady
        If a model has neither weights in the table nor a matching state in the record.
    """
    models = {}
    for mst_key, c in configurations.items():
        if mst_key not in earlier.digests:
            continue
        state = earlier.states.get(mst_key)
        if state and state.compile_params == c.compile_params and same_architecture(state.model_arch, c.arch):
            models[mst_key] = WarmModel(state.epoch + 1, state=state)
        elif earlier.digests[mst_key] is None:
            raise no_weights(f"model_output_table: mst_key {mst_key} of {output}", state is not None)
        else:
            models[mst_key] = WarmModel(state.epoch + 1 if state else 1, weights=_weights(session, output, mst_key))
    weights_only = sorted(key for key, model in models.items() if model.state is None)
    if weights_only:
        session.notice(
            f"warm start: mst_key {', '.join(map(str, weights_only))}: continuing with the weights only; the"
            f" optimizer state is reset ({NO_STATE})"
        )
    tell_migration(session, earlier, models, backend)
    return warm_start_of(earlier, models)


def warm_start_of(earlier: EarlierRuns, models: dict[int, WarmModel]) -> WarmStart:
    """Return the start of models, with the run that they continue."""
    parent = earlier.run
    return WarmStart(parent.run_id if parent else None, parent.seed if parent else None, models)


def backend_of(run: RunRow) -> BackendName:
    """Return the backend of a run's trainers; runs of older versions do not say."""
    return BackendName(run.plan.trainer.get("backend", BackendName.TENSORFLOW))


def tell_migration(
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


def no_weights(label: str, has_state: bool) -> NotReady:
    """Return the error of a warm start without states, because weights above 1 GB are not in the table."""
    reason = (
        "its recorded state has different compile parameters or another architecture"
        if has_state
        else "none of your recorded runs has its state"
    )
    return NotReady(
        f"{label} has no weights to continue with: model_weights is NULL, and {reason}",
        hint="Weights that do not fit into a field of 1 GB are only in the record, together with their training"
        " parameters. Use the same parameters again, or omit warm_start.",
    )


def _weights(session: CallerSession, output: Relation, mst_key: int) -> bytes:
    digest = recorded_digest(session.columns(output))
    query = statement(f"SELECT model_weights, {digest} AS digest FROM {{t}} WHERE mst_key = $1", t=output)
    rows = session.execute(query, [mst_key], ["integer"])
    if len(rows) != 1:
        raise InvalidParameter(f"model_output_table: mst_key {mst_key} occurs {len(rows)} times. Received: {output}")
    return check_weights(rows[0]["model_weights"], rows[0]["digest"], f"mst_key {mst_key} of {output}")

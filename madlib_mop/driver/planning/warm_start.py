"""Warm start: finds the states to continue with: the full states of an earlier run, or at least its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import Model
from madlib_mop.catalog.rows.run import Run
from madlib_mop.driver.outputs.hopper import passes_field
from madlib_mop.driver.planning.selection import Configuration
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady, UndefinedTable
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.stored import same_architecture
from madlib_mop.trainer.backends.base.names import BackendName

#: Why a warm start has the weights only.
NO_STATE = "no training state is recorded for these weights and parameters"
_COLUMNS = {"mst_key", "model_weights", "model_arch"}


@dataclass(frozen=True)
class WarmModel:
    """The start of one configuration.

    Attributes
    ----------
    next_epoch : int
        Epoch of its next visit, 1-based.
    state : Model or None
        The earlier run's model whose training state is continued.
    weights : bytes or None
        The output table's weights, if the training state is not available.
    """

    next_epoch: int
    state: Model | None = None
    weights: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WarmStart:
    """The earlier run, if it is recorded, and its models by mst_key."""

    run_id: int | None
    seed: int | None
    models: dict[int, WarmModel]


def find_warm_start(
    session: CallerSession,
    record: Record,
    output: Relation,
    owner: int,
    configurations: Sequence[Configuration],
    backend: BackendName,
) -> WarmStart:
    """Find the states to continue the models of an output table with.

    A model continues with its full training state if the run that wrote it is recorded, the table has the same
    weights, and its compile parameters and its architecture are unchanged; else with the table's weights. The state may
    be of another backend; its first visit converts it.
    Weights that do not fit into a field are NULL in the table: then the state must be available.

    Raises
    ------
    UndefinedTable
        If the table is not one that the hopper wrote.
    NotReady
        If a model has neither weights in the table nor a matching state in the record.
    """
    columns = {column.name for column in session.columns(output)}
    if not columns >= _COLUMNS or session.existing(output.with_suffix("_info").sql) is None:
        raise UndefinedTable(
            f"model_output_table: warm_start needs a table that madlib_keras_fit_multiple_model wrote."
            f" Received: {output}",
            hint="Pass the name of an earlier output table, or omit warm_start.",
        )
    found = session.execute(
        statement(
            "SELECT mst_key, pg_catalog.encode(pg_catalog.sha256(model_weights), 'hex') AS digest,"
            " model_arch::pg_catalog.text AS arch FROM {t}",
            t=output,
        )
    )
    digests = {row["mst_key"]: row["digest"] for row in found}
    parent = record.newest_run(str(output), owner)
    old = {m.mst_key: m for m in record.models(parent.run_id)} if parent else {}
    models = {}
    for c in configurations:
        if c.mst_key not in digests:
            continue
        m = old.get(c.mst_key)
        state = m if is_state_of(m, digests[c.mst_key]) else None
        if state and state.compile_params == c.compile_params and same_architecture(state.model_arch, c.arch):
            models[c.mst_key] = WarmModel(state.epoch + 1, state=state)
        elif digests[c.mst_key] is None:
            raise no_weights(f"model_output_table: mst_key {c.mst_key} of {output}", state is not None)
        else:
            models[c.mst_key] = WarmModel(state.epoch + 1 if state else 1, weights=_weights(session, output, c.mst_key))
    weights_only = sorted(key for key, model in models.items() if model.state is None)
    if weights_only:
        session.notice(
            f"warm start: mst_key {', '.join(map(str, weights_only))}: continuing with the weights only; the"
            f" optimizer state is reset ({NO_STATE})"
        )
    if len(weights_only) < len(models):
        tell_migration(session, parent, backend)
    return WarmStart(parent.run_id if parent else None, parent.seed if parent else None, models)


def backend_of(run: Run) -> BackendName:
    """Return the backend of a run's trainers; runs of older versions do not say."""
    return BackendName(run.plan.trainer.get("backend", BackendName.TENSORFLOW))


def tell_migration(session: CallerSession, parent: Run | None, backend: BackendName) -> None:
    """Say it if training states of a run continue on another backend."""
    if parent is not None and backend_of(parent) != backend:
        session.notice(
            f"warm start: run {parent.run_id} trained on {backend_of(parent)}, and this one trains on {backend}:"
            " weights and variables of optimizers are converted, and random numbers begin anew"
        )


def recorded_functions(record: Record, output: Relation, owner: int) -> CustomFunctions:
    """Return the custom functions of the run that wrote an output table, for its warm start."""
    parent = record.newest_run(str(output), owner)
    return CustomFunctions(record.custom_functions(parent.run_id) if parent else {})


def is_state_of(model: Model | None, weights_digest: str | None) -> bool:
    """Return whether a recorded model's state has the weights of an output table.

    Parameters
    ----------
    model : Model or None
        Its row in the newest run that wrote the table.
    weights_digest : str or None
        SHA-256 of the table's weights; None if they are NULL because they do not fit into a field.
    """
    if model is None or model.state_slot is None:
        return False
    return passes_field(model) if weights_digest is None else model.weights_digest == weights_digest


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
    rows = session.execute(
        statement("SELECT model_weights FROM {t} WHERE mst_key = $1", t=output), [mst_key], ["integer"]
    )
    if len(rows) != 1:
        raise InvalidParameter(f"model_output_table: mst_key {mst_key} occurs {len(rows)} times. Received: {output}")
    weights: bytes = rows[0]["model_weights"]
    return weights

"""The commands load_keras_model and delete_keras_model: rows of a user's table of architectures."""

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.library_tables import (
    add_architecture,
    check_architecture_table,
    create_architectures,
    drop_if_empty,
)
from madlib_mop.driver.inference.described import DescribedModel, describe_model
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.planning.start_weights import weights_by_layer
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.stored import check_statistics

_WHAT = "keras_model_arch_table"
_MAY_CHANGE = """
SELECT pg_catalog.bool_or(pg_catalog.has_table_privilege($1::pg_catalog.oid, r)) AS may
FROM pg_catalog.unnest(ARRAY['UPDATE', 'DELETE', 'TRUNCATE']) r
"""


def load_keras_model(call: Call) -> None:
    """Add an architecture to a table, which is created if it does not exist; its ``model_id`` is the highest one plus
    1.

    The stored JSON is the output of Keras' ``model.to_json()``, regardless of the input's form.

    Raises
    ------
    InvalidParameter
        If the table's name or the JSON is missing, the weights do not fit, or Keras has no such argument.
    UnreadableText, Unsupported, ModelFailed
        If the JSON is not that of a model that can be trained.
    UndefinedColumn
        If the table exists and is not a table of architectures.
    """
    session, given = call.session, call.arguments
    table = session.existing(given[_WHAT], _WHAT)
    if table is None:
        session.output(given[_WHAT], suffixes=("",), what=_WHAT)
    else:
        check_architecture_table(session, table, given[_WHAT], _WHAT)
    model, weights = _model(call)
    table = table or create_architectures(session, given[_WHAT], _WHAT)
    wait_for_others(session, table)
    model_id = add_architecture(session, table, model.text, weights, given.get("name"), given.get("description"))
    session.notice(f"{call.function}: model_id {model_id} is in {table.written}")


def wait_for_others(session: CallerSession, table: Relation) -> None:
    """Lock a table until the transaction ends, so ids are assigned one at a time.

    The lock is on the table itself: roles without rights on it cannot take it. Roles that can only insert take a
    weaker lock. They wait for the others, but not for each other, so two of them can get the same id.
    """
    if table.kind not in ("r", "p"):
        return
    (row,) = session.execute(_MAY_CHANGE, [table.oid], ["bigint"])
    mode = "SHARE ROW EXCLUSIVE" if row["may"] else "ROW EXCLUSIVE"
    # defence: no-advisory-lock = session.execute(
    #     "SELECT pg_catalog.pg_advisory_xact_lock($1)", [0x6D6F70 << 32 | table.oid], ["bigint"])
    session.execute(statement(f"LOCK TABLE {{table}} IN {mode} MODE", table=table))
    session.lock_to_write(table, _WHAT)


def _model(call: Call) -> tuple[DescribedModel, bytes | None]:
    """Return Keras' description of the architecture, and its start weights."""
    session, given = call.session, call.arguments
    arch = check_architecture(given["model_arch"])
    check_statistics(arch)
    weights, source = given.get("model_weights"), (given.get("weights") or "").strip()
    if source and weights is not None:
        raise InvalidParameter(
            f"model_weights and weights are mutually exclusive. Received: {len(weights)} bytes, and weights {source!r}",
            hint="model_weights contains the weights of all layers; weights names a table to take them from, layer by "
            "layer.",
        )
    if not source and given.get("weights_key") is not None:
        raise InvalidParameter(
            f"weights_key selects a row of the table weights, which is missing. Received: "
            f"weights_key {given['weights_key']}"
        )
    with LocalTrainer(session) as trainer:
        if source:
            model, start = weights_by_layer(session, trainer, arch, source, given.get("weights_key"))
            anew = f"; newly drawn: {', '.join(start.drawn)}" if start.drawn else ""
            session.notice(f"{call.function}: weights taken from {start.label}: {', '.join(start.taken)}{anew}")
            return model, start.weights
        model = describe_model(trainer, arch)
    if weights is not None:
        model.check_weights(len(weights), "model_weights")
    return model, weights


def delete_keras_model(call: Call) -> None:
    """Delete an architecture, and the table with the last one.

    Raises
    ------
    InvalidParameter
        If the table has no such ``model_id``.
    UndefinedTable, UndefinedColumn
        If the table does not exist, or is not a table of architectures.
    """
    session, given = call.session, call.arguments
    table = session.relation(given[_WHAT], _WHAT)
    check_architecture_table(session, table, given[_WHAT], _WHAT)
    model_id = given["model_id"]
    session.lock_to_write(table, _WHAT)
    deleted = session.execute(
        statement("DELETE FROM {table} WHERE model_id = $1 RETURNING model_id", table=table), [model_id], ["integer"]
    )
    if not deleted:
        raise InvalidParameter(
            f"{table} has no such model_id. Received: {model_id}",
            hint="SELECT model_id, name FROM the table shows those that it has.",
        )
    drop_if_empty(call, table, "model")

"""The commands load_keras_model and delete_keras_model: rows of a user's table of architectures."""

import uuid

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.call import Call
from madlib_mop.driver.caller import CallerSession
from madlib_mop.driver.emptied import drop_if_empty
from madlib_mop.driver.engine import table_form
from madlib_mop.errors import InvalidParameter, UndefinedColumn

COLUMNS = ("model_id", "model_arch", "model_weights", "name", "description", "__internal_madlib_id__")
_WHAT = "keras_model_arch_table"
_FLOAT32_BYTES = 4
_LOCK_SPACE = 0x6D6F70 << 32

_CREATE = """
CREATE TABLE {table} (
    model_id integer,
    model_arch json,
    model_weights bytea,
    name text,
    description text,
    __internal_madlib_id__ text UNIQUE
)
"""


def load_keras_model(call: Call) -> None:
    """Add an architecture to a table, which is made if it is not there; its ``model_id`` is the highest so far plus 1.

    Any JSON may be loaded: it is checked when it is used.

    Raises
    ------
    InvalidParameter
        If the table's name or the JSON is missing.
    UndefinedColumn
        If the table is there and is not one of architectures.
    """
    session, given = call.session, call.arguments
    if given.get("model_arch") is None:
        raise InvalidParameter(
            "model_arch is missing. Received: NULL", hint="Give what Keras' model.to_json() returns."
        )
    table = session.existing(given[_WHAT], _WHAT)
    if table is None:
        table = _create(session, given[_WHAT])
    else:
        _check_columns(session, table, given[_WHAT])
    weights = given.get("model_weights")
    if weights is not None and len(weights) % _FLOAT32_BYTES:
        session.warning(
            f"{call.function}: model_weights are not float32 numbers: their {len(weights)} bytes are no multiple of"
            f" {_FLOAT32_BYTES}; training with them will fail"
        )
    # ids are taken one at a time, until the transaction that took the last one ends
    session.execute("SELECT pg_catalog.pg_advisory_xact_lock($1)", [_LOCK_SPACE | table.oid], ["bigint"])
    (row,) = session.execute(
        statement(
            "INSERT INTO {table} (model_id, model_arch, model_weights, name, description, __internal_madlib_id__)"
            " SELECT coalesce(pg_catalog.max(model_id), 0) + 1, $1, $2, $3, $4, $5 FROM {table} RETURNING model_id",
            table=table,
        ),
        [given["model_arch"], weights, given.get("name"), given.get("description"), uuid.uuid4().hex],
        ["json", "bytea", "text", "text", "text"],
    )
    session.notice(f"{call.function}: model_id {row['model_id']} is in {table}")


def delete_keras_model(call: Call) -> None:
    """Delete an architecture, and with the last one the table.

    Raises
    ------
    InvalidParameter
        If the table has no such ``model_id``.
    UndefinedTable, UndefinedColumn
        If there is no such table, or it is not one of architectures.
    """
    session, given = call.session, call.arguments
    table = session.relation(given[_WHAT], _WHAT)
    _check_columns(session, table, given[_WHAT])
    model_id = given.get("model_id")
    if model_id is None:
        raise InvalidParameter("model_id is missing. Received: NULL")
    deleted = session.execute(
        statement("DELETE FROM {table} WHERE model_id = $1 RETURNING model_id", table=table), [model_id], ["integer"]
    )
    if not deleted:
        raise InvalidParameter(
            f"{table} has no such model_id. Received: {model_id}",
            hint="SELECT model_id, name FROM the table shows those that it has.",
        )
    drop_if_empty(call, table, "model")


def _create(session: CallerSession, name: str) -> Relation:
    table = session.output(name, suffixes=("",), what=_WHAT)
    session.execute(statement(_CREATE, table=table) + table_form(session, "__internal_madlib_id__"))
    return session.relation(table.sql, _WHAT)


def _check_columns(session: CallerSession, table: Relation, name: str) -> None:
    present = {column.name for column in session.columns(table)}
    if missing := [column for column in COLUMNS if column not in present]:
        raise UndefinedColumn(
            f"{_WHAT}: {table} is no table of architectures: it has no column {missing[0]!r}. Received: {name!r}",
            hint="load_keras_model makes such a table where there is none.",
        )

"""The commands load_custom_function, delete_custom_function and load_top_k_accuracy_function: for superusers."""

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.driver.data.custom_functions import check_pickle, find_object_table, object_relation, pickles_allowed
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.data.library_tables import drop_if_empty
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.custom import check_name, check_source, is_pickle, top_k_name, top_k_source

_CREATE = "CREATE TABLE {table} (id serial, name text PRIMARY KEY, description text, object bytea)"
_N_SHOWN = 20
_SUPERUSERS_ONLY = (
    "custom functions are code that the server runs, so only superusers register and delete them",
    "Ask a superuser; every role may use registered functions.",
)


def load_custom_function(call: Call) -> None:
    """Register a function in an object table, which is created if it does not exist. The function is not executed.

    Raises
    ------
    InsufficientPrivilege
        If the caller is not a superuser, or other roles can write to the table.
    UnreadableText, InvalidParameter, Unsupported
        If the object is not Python source that defines the name, or is a pickle and these are disabled; or the name
        is one of Keras' or already used.
    """
    given = call.arguments
    call.need_superuser(*_SUPERUSERS_ONLY)
    name, value = given["name"], given.get("object")
    check_name(name)
    if value is None or not len(value):
        raise InvalidParameter(
            f"object is missing. Received: {'NULL' if value is None else 'no bytes'}",
            hint="Pass Python source as UTF-8 bytes: convert_to('def ...', 'UTF8').",
        )
    if is_pickle(value):
        check_pickle("the object", pickles_allowed(call.session))
    else:
        check_source(name, bytes(value))
    _add(call, name, bytes(value), given.get("description"))


def load_top_k_accuracy_function(call: Call) -> None:
    """Register the metric ``top_<k>_accuracy``: the share of rows with the true class among the k best scores."""
    call.need_superuser(*_SUPERUSERS_ONLY)
    k = call.arguments["k"]
    _add(call, top_k_name(k), top_k_source(k), f"returns {top_k_name(k)}")


def delete_custom_function(call: Call) -> None:
    """Delete a function by its id or name, and the table with the last one."""
    session, given = call.session, call.arguments
    call.need_superuser(*_SUPERUSERS_ONLY)
    table = find_object_table(session, given.get("object_table"))
    by, kind = ("name", "text") if given.get("id") is None else ("id", "integer")
    wanted = given[by]
    if wanted is None:
        raise InvalidParameter("id or name of the function is missing. Received: NULL")
    deleted = session.execute(
        statement("DELETE FROM {t} WHERE {by} = $1 RETURNING id, name", t=table, by=Identifier(by)),
        [wanted],
        [kind],
    )
    if not deleted:
        rows = session.execute(statement("SELECT id, name FROM {t} ORDER BY id", t=table))
        present = ", ".join(f"{row['id']} ({row['name']})" for row in rows[:_N_SHOWN]) or "none"
        raise InvalidParameter(f"{table} has no such {by}. Received: {wanted!r}", hint=f"It has {present}.")
    session.notice(f"{call.function}: {deleted[0]['name']}, id {deleted[0]['id']}, was deleted from {table}")
    drop_if_empty(call, table, "function")


def _add(call: Call, name: str, value: bytes, description: str | None) -> None:
    session, object_table = call.session, call.arguments.get("object_table")
    wanted = object_relation(object_table)
    if session.existing(wanted.sql, "object_table") is None:
        _create(session, wanted)
    table = find_object_table(session, object_table)
    added = session.execute(
        statement(
            "INSERT INTO {t} (name, description, object) SELECT $1, $2, $3"
            " WHERE NOT EXISTS (SELECT FROM {t} o WHERE o.name = $1) RETURNING id",
            t=table,
        ),
        [name, description, value],
        ["text", "text", "bytea"],
    )
    if not added:
        raise InvalidParameter(
            f"{table} already has a function of that name. Received: {name!r}",
            hint="Delete it first by delete_custom_function, or choose another name.",
        )
    session.notice(f"{call.function}: {name} is in {table}, id {added[0]['id']}")


def _create(session: CallerSession, table: Relation) -> None:
    target = session.output(table.sql, suffixes=("",), what="object_table")
    session.execute(statement(_CREATE, table=target) + table_form(session, "name"))
    session.execute(statement("GRANT SELECT ON TABLE {table} TO PUBLIC", table=target))

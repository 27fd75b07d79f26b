"""Exports the models of a run from its output table, with the rights of the role that logs in; called by `following`.

Whoever reads a table can run code of its owner: a view, a row policy, an expression of an index. The record names the
table, not the person at the command line. So without a request, only tables of the very role that logs in are read.
Whoever may drop them or rename their schema could put others in their place. So the transaction that reads them locks
them first and checks them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
from mop_backend.weights import PARTS_SUFFIX

from madlib_mop.catalog.facts.models import ModelFacts, in_order
from madlib_mop.catalog.facts.outputs import read_output
from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.facts.tracked import TrackedRun
from madlib_mop.catalog.live.words import clean
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.states import ModelState, RunState
from madlib_mop.errors import InsufficientPrivilege, NotReady, read_server_error
from madlib_mop.exports.formats import SIGNATURE, Format, read_additions

#: Locks an output table and its companions, so that they cannot be dropped, renamed or given to another role.
_LOCK = "LOCK TABLE ONLY {tables} IN ACCESS SHARE MODE"
#: Whose code could run when such tables of a schema are read: one of them with its owner, if it is not the role that
#: logs in, and a role that may rename the schema, which no lock prevents. Superusers may rename it, and, unless a
#: superuser logs in, so may the owner of the database; they can do more harm in other ways.
_FOREIGN = """
SELECT (SELECT ARRAY[c.relname::pg_catalog.text, pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text]
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = n.oid AND c.relname = ANY (%s::pg_catalog.text[]) AND c.relowner <> u.oid
        ORDER BY c.relname LIMIT 1),
       (SELECT pg_catalog.min(o.rolname::pg_catalog.text)
        FROM pg_catalog.pg_roles AS o
        WHERE pg_catalog.has_database_privilege(o.oid, d.oid, 'CREATE') AND NOT o.rolsuper
          AND pg_catalog.pg_has_role(o.oid, n.nspowner, 'MEMBER')
          -- defence: owner-of-the-database = AND NOT pg_catalog.pg_has_role(o.oid, d.datdba, 'MEMBER')
          AND (u.rolsuper OR NOT pg_catalog.pg_has_role(o.oid, d.datdba, 'MEMBER'))
          AND NOT pg_catalog.pg_has_role(o.oid, u.oid, 'MEMBER'))
FROM pg_catalog.pg_namespace AS n
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
JOIN pg_catalog.pg_roles AS u ON u.rolname = current_user
WHERE n.nspname = %s::pg_catalog.text
"""
_IS_OWN = """
SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_roles AS u ON u.oid = c.relowner AND u.rolname = current_user
WHERE c.oid = pg_catalog.to_regclass(%s::pg_catalog.text)
"""
_EXPORT = "SELECT madlib_mop.export_model(%s::pg_catalog.text, %s::pg_catalog.int4, %s::pg_catalog.text)"


class Models(StrEnum):
    """Which models of a run a tracker gets as files."""

    BEST = "best"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class OutputTable:
    """The table that has the models of a finished run.

    Attributes
    ----------
    relation : Relation
    has_keys : bool
        Whether it has a column ``mst_key``: the table of ``madlib_keras_fit`` has one model and no such column.
    of_others : bool
        Whether it may belong to another role than the one that logs in.
    """

    relation: Relation
    has_keys: bool
    of_others: bool = False

    @property
    def relations(self) -> list[Relation]:
        """What is read to export one of its models: the table and its companions."""
        # defence: companions-of-tables = ("",) if self.has_keys else ("", "_summary")
        suffixes = ("", "_info", "_summary") if self.has_keys else ("", "_summary")
        return [self.relation.with_suffix(suffix) for suffix in suffixes]

    @property
    def parts(self) -> Relation:
        """The table with the parts of weights that do not fit into a field; most tables have none."""
        return self.relation.with_suffix(PARTS_SUFFIX)


def chosen(models: Sequence[ModelFacts], which: Models) -> list[ModelFacts]:
    """Return the models that were asked for, the best first. Only trained models are in the output table."""
    trained = [model for model in in_order(models) if model.state == ModelState.TRAINED]
    return trained[: {Models.NONE: 0, Models.BEST: 1}.get(which)]


def find_table(connection: psycopg.Connection[Any], run: TrackedRun, of_others: bool) -> OutputTable:
    """Return the output table of a run. Nothing is read of it.

    Parameters
    ----------
    connection : psycopg.Connection
    run : TrackedRun
    of_others : bool
        Whether the table of another role may be read.

    Raises
    ------
    NotReady
        If the run has no output table.
    InsufficientPrivilege
        If ``of_others`` is False, and code of another role could run when the table is read.
    """
    if run.state != RunState.FINISHED:
        raise NotReady(f"the run is {run.state}, and has no output table")
    with one_snapshot(connection):
        found = read_output(lambda statement, values: connection.execute(statement, values).fetchall(), run.run_id)
    if found is None or not found.is_there:
        table = clean(run.model_output_table)
        raise NotReady(f"{table} is not there: it was dropped, or its transaction has not ended")
    output = OutputTable(found.table, found.has_keys, of_others)
    if not of_others:  # defence: tables-of-others
        _check_own(connection, output)
    return output


def export_model(connection: psycopg.Connection[Any], table: OutputTable, model: ModelFacts) -> bytes:
    """Return a model as a Keras file, as ``madlib_mop.export_model`` makes it.

    Raises
    ------
    InsufficientPrivilege
        If code of another role could run, and `find_table` was not told that it may.
    MopError
        If the role may not export it, the server has another error, or the table has other weights than the run.
    psycopg.OperationalError
        If the connection is lost.
    """
    key = model.mst_key if table.has_keys else None
    try:
        with connection.transaction():
            if not table.of_others:
                # defence: tables-locked
                # that of another role is not read (`driver.data.weights.find_parts`)
                has_parts = connection.execute(_IS_OWN, [table.parts.sql]).fetchone() is not None
                tables = [*table.relations, *[table.parts] * has_parts]
                connection.execute(_LOCK.format(tables=", ".join(one.sql for one in tables)))
                _check_own(connection, table)  # defence: tables-checked-again
            row = connection.execute(_EXPORT, [table.relation.sql, key, Format.KERAS.value], binary=True).fetchone()
    except psycopg.Error as error:
        found = read_server_error(error)
        if found.sqlstate is None:
            raise
        raise found.as_error() from None
    assert row is not None, "a function returns one row"
    from madlib_mop.imports.signatures import read_signature  # each command would load numpy and the preprocessors

    data = bytes(row[0])
    signature = read_signature(read_additions(Format.KERAS.file_name, data)[SIGNATURE])
    # defence: weights-of-the-run
    if model.weights_digest is not None and signature.weights_digest != model.weights_digest:
        raise NotReady(f"{table.relation} has other weights than the run: it was written again")
    return data


def _check_own(connection: psycopg.Connection[Any], table: OutputTable) -> None:
    """Raise InsufficientPrivilege if code of another role could run when the table is read."""
    names = [one.name for one in table.relations]
    row = connection.execute(_FOREIGN, [names, table.relation.schema]).fetchone()
    foreign, renamer = row or (None, None)
    if foreign is not None:
        name, owner = foreign
        is_whose = f"{clean(str(Relation(table.relation.schema, name)))} belongs to role {clean(owner)}"
    elif renamer is not None:  # defence: schemas-of-tables
        is_whose = f"schema {clean(table.relation.schema)} can be renamed by role {clean(renamer)}"
    else:
        return
    raise InsufficientPrivilege(f"{is_whose}, whose code could run when it is read. --models best reads it")

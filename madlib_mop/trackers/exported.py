"""Exports the models of a run from its output table, with the rights of the role that logs in; called by `following`.

Whoever reads a table can run code of its owner: a view, a row policy, an expression of an index. The record names the
table, not the person at the command line. So without a request, only tables of the very role that logs in are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg

from madlib_mop.catalog.live.words import clean
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.states import ModelState, RunState
from madlib_mop.errors import InsufficientPrivilege, NotReady, from_dict
from madlib_mop.exports.formats import SIGNATURE, Format, read_additions
from madlib_mop.exports.signature import Signature
from madlib_mop.reports.reader import one_snapshot
from madlib_mop.trackers.facts import TrackedModel, TrackedRun

_TABLE = """
SELECT r.plan #>> '{output,schema}', r.plan #>> '{output,name}',
       pg_catalog.pg_get_userbyid(c.relowner)::pg_catalog.text, c.relowner = u.oid,
       EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
               WHERE a.attrelid = c.oid AND a.attname = 'mst_key' AND NOT a.attisdropped)
FROM madlib_mop.run AS r
JOIN pg_catalog.pg_namespace AS n ON n.nspname = r.plan #>> '{output,schema}'
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = r.plan #>> '{output,name}'
JOIN pg_catalog.pg_roles AS u ON u.rolname = current_user
WHERE r.run_id = %s::pg_catalog.int8
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
    """

    relation: Relation
    has_keys: bool


def chosen(models: Sequence[TrackedModel], which: Models) -> list[TrackedModel]:
    """Return the models that were asked for, the best first. Only trained models are in the output table."""
    trained = [model for model in models if model.state == ModelState.TRAINED]
    ranked = sorted(trained, key=lambda model: (model.rank is None, model.rank, model.mst_key))
    return ranked[: {Models.NONE: 0, Models.BEST: 1}.get(which)]


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
        If it belongs to another role, and ``of_others`` is False.
    """
    if run.state != RunState.FINISHED:
        raise NotReady(f"the run is {run.state}, and has no output table")
    with one_snapshot(connection):
        found = connection.execute(_TABLE, [run.origin.run_id]).fetchone()
    if found is None:
        raise NotReady(f"{clean(run.output_table)} is not there: it was dropped, or its transaction has not ended")
    schema, name, owner, is_own, has_keys = found
    if not is_own and not of_others:
        raise InsufficientPrivilege(
            f"{clean(run.output_table)} belongs to role {clean(owner)}, whose code could run when it is read."
            " --models best reads it"
        )
    return OutputTable(Relation(schema, name), has_keys)


def export_model(connection: psycopg.Connection[Any], table: OutputTable, model: TrackedModel) -> bytes:
    """Return a model as a Keras file, as ``madlib_mop.export_model`` makes it.

    Raises
    ------
    MopError
        If the role may not export it, the server has another error, or the table has other weights than the run.
    psycopg.OperationalError
        If the connection is lost.
    """
    key = model.mst_key if table.has_keys else None
    try:
        row = connection.execute(_EXPORT, [table.relation.sql, key, Format.KERAS.value], binary=True).fetchone()
    except psycopg.Error as error:
        if error.sqlstate is None:
            raise
        raise from_dict({"sqlstate": error.sqlstate, "message": error.diag.message_primary or str(error)}) from None
    assert row is not None, "a function returns one row"
    data = bytes(row[0])
    signature = Signature.from_json(read_additions(Format.KERAS.file_name, data)[SIGNATURE])
    if model.weights_digest is not None and signature.weights_digest != model.weights_digest:
        raise NotReady(f"{table.relation} has other weights than the run: it was written again")
    return data

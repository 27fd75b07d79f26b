"""The command describe_preprocessor: the readable form of what pack_columns has fitted."""

from typing import Any

from madlib_mop.columns.preprocessors.description import describe
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.kinds import INPUT
from madlib_mop.driver.data.packed import read_preprocessor_row
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter


def describe_preprocessor(call: Call) -> list[dict[str, Any]]:
    """Return a row for each input and target of a packed table: which tensor it is part of, and how it is encoded."""
    preprocessor = read_preprocessor(call.session, call.arguments["packed_table"], "packed_table")
    tensors: dict[str, list[str]] = {}
    for tensor in preprocessor.tensors:
        for name in tensor.columns:
            tensors.setdefault(name, []).append(tensor.name)
    return [
        {
            "column_name": row.name,
            "sql_type": row.sql_type,
            "role": row.role,
            "kind": row.kind,
            "inputs": tensors.get(row.name, []) if row.role == INPUT else [],
            "encoding": row.encoding,
            "nulls": row.nulls,
            "units": list(row.units),
        }
        for row in describe(preprocessor)
    ]


def read_preprocessor(session: CallerSession, name: str | None, what: str) -> Preprocessor:
    """Return the preprocessor of a packed table.

    Raises
    ------
    UndefinedTable
        If there is no such table.
    InvalidParameter
        If pack_columns has not made it.
    UnreadableText
        If its preprocessor was changed.
    """
    table = session.relation(name, what)
    summary = session.existing(table.with_suffix("_summary").sql)
    row = read_preprocessor_row(session, summary) if summary is not None else None
    if row is None:
        raise InvalidParameter(
            f"{what}: {table} was not made by pack_columns. Received: {name!r}",
            hint="Give a table that madlib_mop.pack_columns packed.",
        )
    return Preprocessor.from_json(row.document)

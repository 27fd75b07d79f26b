"""The commands madlib_keras_predict, madlib_keras_predict_byom and score: one model over the rows of a table."""

import dataclasses
from collections.abc import Callable

import numpy as np
from mop_backend.registered_names import with_newest

from madlib_mop.catalog.names import Relation, quote
from madlib_mop.certainty.scores import calibrate
from madlib_mop.driver.data.copied import CopiedColumn, check_copied
from madlib_mop.driver.inference.byom import read_own_model
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.prediction import predict_table, score_table
from madlib_mop.driver.inference.registered import find_model, need_registry
from madlib_mop.driver.inference.rows import read_rows_to_predict
from madlib_mop.driver.inference.scored import ScoreColumns, score_columns
from madlib_mop.driver.inference.trainer import gpus_of_call
from madlib_mop.driver.inference.wanted import read_pred_type
from madlib_mop.driver.packing.columns import find_column, split_columns
from madlib_mop.driver.packing.tables import comment_on
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import was_changed
from madlib_mop.errors import DuplicateTable, InvalidParameter

_SOURCE, _OUTPUT, _KEEP = "source_table", "output_table", "keep"
_EVERY = "*"
#: What the comment of a table begins with that score has written, and may replace.
_COMMENT = "madlib_mop: predictions of "
_IS_SCORED = """
SELECT coalesce(pg_catalog.strpos(pg_catalog.obj_description($1::pg_catalog.oid, 'pg_class'), $2) = 1, false) AS yes
"""
_PRIMARY_KEY = """
SELECT a.attname::pg_catalog.text AS name
FROM pg_catalog.pg_constraint c, pg_catalog.unnest(c.conkey) WITH ORDINALITY AS k (attnum, place),
     pg_catalog.pg_attribute a
WHERE c.conrelid = $1::pg_catalog.oid AND c.contype = 'p' AND a.attrelid = c.conrelid AND a.attnum = k.attnum
ORDER BY k.place
"""


def madlib_keras_predict(call: Call) -> None:
    """Predict a table with a model from an output table or from the registry."""
    a = call.arguments
    _predict(call, lambda: find_model(call.session, call.function, a.get("model_table"), a.get("mst_key")))


def madlib_keras_predict_byom(call: Call) -> None:
    """Predict a table with a model from an architecture table, also one trained elsewhere."""
    _predict(call, lambda: read_own_model(call.session, call.arguments))


def _predict(call: Call, read: Callable[[], TrainedModel]) -> None:
    """Predict a table; all checks come first, and an error leaves no output table."""
    a, session = call.arguments, call.session
    wanted = read_pred_type(a)
    gpus = gpus_of_call(session, a.get("use_gpus"))
    output = session.output(a.get("output_table"), ("",), "output_table")
    model = read()
    names = a.get("test_table"), a.get("id_col"), a.get("independent_varname")
    reader = read_rows_to_predict(session, *names, model)
    if not predict_table(session, model, reader, output, wanted, gpus):
        session.warning(f"{call.function}: test_table {reader.relation} has no rows; {output} is empty")


def score(call: Call) -> int:
    """Write a table with a prediction for each row of another one; return the number of rows.

    All checks come first, and an error leaves the output table as it was.
    """
    a, session = call.arguments, call.session
    source = session.relation(a[_SOURCE], _SOURCE, any_type=True)
    replaced: list[Relation] = []
    output = session.output(a[_OUTPUT], ("",), _OUTPUT, _if_there(call, source, replaced))
    model = find_model(session, call.function, with_newest(a["model_table"], a["mst_key"]), a["mst_key"])
    columns = score_columns(model.outputs, model.shape.output_units, a["of_class"])
    if a["calibrated"]:
        columns = _calibrated(session, model, columns)
    kept = _kept(session, source, a[_KEEP], [name for one in columns for name, _ in one.names])
    inputs = a["independent_varname"]
    if inputs is None and model.preprocessor is None and model.inputs:
        inputs = ", ".join(map(quote, model.inputs))
    reader = read_rows_to_predict(session, a[_SOURCE], None, inputs, model, kept, _SOURCE)
    if reader.relation.oid != source.oid:
        raise was_changed(source)
    for table in replaced:
        session.drop_checked(table)
    n_rows = score_table(session, model, reader, output, columns)
    comment_on(session, output, f"{_COMMENT}{source} by {model.label}")
    if not n_rows:
        session.warning(f"{call.function}: {_SOURCE} {source} has no rows; {output} is empty")
    return n_rows


def _calibrated(session: CallerSession, model: TrainedModel, columns: list[ScoreColumns]) -> list[ScoreColumns]:
    """Return the columns with calibrated probabilities. Raises MopError if a class has none."""
    if not any(one.labels for one in columns):
        raise InvalidParameter(
            f"calibrated is for classes, and {model.label} predicts numbers. Received: true",
            hint="madlib_mop.predict_interval returns an interval.",
        )
    need_registry(session)
    found = [
        dataclasses.replace(one, held_out=model.held_out_of(output.name)) if one.labels else one
        for output, one in zip(model.outputs, columns, strict=True)
    ]
    for one in found:
        if one.held_out is not None:  # an error before any row is predicted
            calibrate(np.full((1, len(one.labels)), 1 / len(one.labels)), one.held_out)
    return found


def _if_there(
    call: Call, source: Relation, replaced: list[Relation]
) -> Callable[[Relation, list[Relation]], str | None]:
    """Return the callback of `RelationLookup.output`; ``replaced`` gets the table to drop."""
    session, replace = call.session, call.arguments["replace"]

    def answer(output: Relation, there: list[Relation]) -> str | None:
        table = session.relation(output.sql, _OUTPUT)
        if not replace:
            return "replace => true replaces a table that score has written. Or choose another name."
        if table.oid == source.oid:
            raise InvalidParameter(
                f"{_OUTPUT}: {table} has the rows to predict, so it cannot be replaced. Received:"
                f" {call.arguments[_OUTPUT]!r}",
                hint="Choose another name.",
            )
        (row,) = session.execute(_IS_SCORED, [table.oid, _COMMENT], ["bigint", "text"])
        if table.kind not in ("r", "p") or not row["yes"]:
            raise DuplicateTable(
                f"{_OUTPUT}: {table} exists and was not written by score, so it is not replaced."
                f" Received: {call.arguments[_OUTPUT]!r}",
                hint="Drop it, or choose another name.",
            )
        session.check_may_drop(table, _OUTPUT)
        replaced.append(table)
        return None

    return answer


def _kept(
    session: CallerSession, source: Relation, keep: str | None, predicted: list[str]
) -> tuple[CopiedColumn, ...]:
    """Return the columns to copy: those of ``keep``, or the primary key, or all. Raises MopError."""
    known = {column.name: column for column in session.columns(source)}
    if keep is not None and keep.strip() != _EVERY:
        names = list(dict.fromkeys(split_columns(keep, _KEEP)))
    else:
        key = [] if keep else [row["name"] for row in session.execute(_PRIMARY_KEY, [source.oid], ["bigint"])]
        names = key or list(known)
    for name in names:
        if name in predicted:
            raise InvalidParameter(
                f"{_KEEP}: the output table already has a column {name!r}, the prediction. "
                f"Received: {'no keep' if keep is None else repr(keep)}",
                hint="Name the columns to keep, without this one, or give it another name in a view.",
            )
    return tuple(check_copied(find_column(known, name, _KEEP, source), _KEEP, keep) for name in names)

"""The scores of held-out rows that register records, for prediction intervals, prediction sets and calibrated
probabilities (mop_backend/held_out.py)."""

from collections.abc import Iterator, Mapping
from typing import Any

from mop_backend.held_out import ISOTONIC, HeldOut

from madlib_mop.catalog.facts.findings import Findings
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.certainty.scores import MOST_CURVES, of_classes, of_numbers
from madlib_mop.driver.inference.labelled_rows import find_labelled, is_packed
from madlib_mop.driver.inference.measured import NumberOutput, measured_outputs
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.packed_rows import predicted_rows
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.outputs.tables import QUALIFIED
from madlib_mop.driver.registry.findings import of_output
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import is_own
from madlib_mop.errors import InvalidParameter, MopError, Unsupported

_WHAT = "held_out"
_HINT = (
    "Pass rows that neither trained nor chose the model: pack_columns(..., test => 0.2) holds such rows out, and learn"
    " does so by itself."
)


def record_held_out(
    session: CallerSession, model: TrainedModel, name: str, calibration: str, lineage: Mapping[str, Any]
) -> tuple[tuple[HeldOut, ...], Findings]:
    """Predict held-out rows, and return what is kept of their scores, and what reports show of them.

    There is a record for each output, but none for one of several numbers, such as a vector.

    Parameters
    ----------
    session : CallerSession
    model : TrainedModel
        Of a table.
    name : str
        The table of the rows, packed or not, as written by the caller in the argument ``held_out``.
    calibration : str
        How probabilities are calibrated.
    lineage : mapping
        As `lineage_of` returns it, with the members of an ensemble.

    Raises
    ------
    MopError
        If there is no such table, it does not fit the model, or it has no rows.
    InvalidParameter
        If its rows are known to have trained or chosen the model.
    """
    table = find_labelled(session, name, _WHAT)
    _check_unused(session, model, table.relation, name, lineage)
    (rows,) = table.rows_of([model])
    with LocalTrainer(session) as trainer:
        predicted = predicted_rows(session, trainer, model, rows, _WHAT)
    where, found, outputs = str(table.relation), [], []
    for output in measured_outputs(model, predicted.outputs, predicted.labels, _WHAT):
        if isinstance(output, NumberOutput):
            found.append(of_numbers(output.name, where, output.numbers, output.truth, output.with_logarithm))
            continue
        if calibration == ISOTONIC and len(output.labels) > MOST_CURVES:
            raise Unsupported(
                f"calibration: 'isotonic' is for at most {MOST_CURVES} classes, and {output.name!r} has"
                f" {len(output.labels)}",
                hint="Use calibration => 'temperature'.",
            )
        found.append(of_classes(output.name, where, output.probabilities, output.truth, calibration))
        outputs.append(of_output(output, found[-1]))
    return tuple(found), Findings(held_out=where, outputs=tuple(outputs))


def _check_unused(
    session: CallerSession, model: TrainedModel, relation: Relation, name: str, lineage: Mapping[str, Any]
) -> None:
    """Raise InvalidParameter if a table is one whose rows trained or chose the model, as far as is known."""
    packed = is_packed({column.name for column in session.columns(relation)})
    for use, written in _used(session, model, lineage):
        try:
            found = session.existing(written, _WHAT)
            if found is not None and not packed:
                found = _source_of(session, found)
        except MopError:  # not the caller's to see
            continue
        if found is not None and found.oid == relation.oid:
            where = relation.written if packed else f"{relation.written}, from which {written} was packed,"
            raise InvalidParameter(f"{_WHAT}: rows of {where} {use} the model. Received: {name!r}", hint=_HINT)


def _used(session: CallerSession, model: TrainedModel, lineage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a table was used for, and its name, of all tables that the model's summary and its runs name."""
    names: list[Mapping[str, Any]] = [lineage, *((lineage.get("ensemble") or {}).get("runs") or ())]
    summary = session.existing(model.place.relation.with_suffix("_summary").sql)
    types = {} if summary is None else {column.name: column.type_sql for column in session.columns(summary)}
    if summary is not None and types.get(QUALIFIED[0]) == QUALIFIED[1]:  # tables of older versions lack the column
        query = (
            "SELECT qualified_names ->> 'source_table' AS source_table,"
            " qualified_names ->> 'validation_table' AS validation_table FROM {t}"
        )
        names.append(session.only_row(statement(query, t=summary), summary))
    for found in names:
        for column, use in (("source_table", "have trained"), ("validation_table", "have chosen")):
            if isinstance(found.get(column), str):
                yield use, found[column]


def _source_of(session: CallerSession, packed: Relation) -> Relation | None:
    """Return the table from which a packed one was made, by its summary; None if that may not be read."""
    summary = session.existing(packed.with_suffix("_summary").sql)
    if summary is None or not is_own(session, summary):
        return None
    if {column.name: column.type_sql for column in session.columns(summary)}.get("source_table") != "text":
        return None
    query = statement("SELECT source_table AS name FROM {t}", t=summary)
    return session.existing(session.only_row(query, summary)["name"], _WHAT)


"""Checks and writes a run's output tables, in the caller's transaction.

`hopper` has the tables of many models, `averaging` those of one. Called by all commands that train or continue a run.
"""

from types import ModuleType

from mop_backend.weights import PARTS_SUFFIX

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import OutputSummary
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.driver.data.weights import DIGEST, PARTS, find_parts
from madlib_mop.driver.outputs import averaging, hopper
from madlib_mop.driver.outputs.earlier_runs import has_models_of
from madlib_mop.driver.outputs.tables import (
    MODEL_TABLES,
    SELECTION_SUFFIXES,
    SELECTION_TABLES,
    check_columns,
    check_droppable,
    check_some_trained,
    create_table,
    drop_replaced,
    selection_relation,
)
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import exist_already
from madlib_mop.errors import DuplicateTable, ModelFailed, UndefinedTable
from madlib_mop.schedule.bulk import AVERAGING


def outputs_of(schedule: str) -> ModuleType:
    """Return the module with the tables of a schedule's runs: ``ARGUMENT``, ``KEYS``, ``SUFFIXES``, ``columns_of`` and
    ``write_rows``."""
    return averaging if schedule == AVERAGING else hopper


def check_outputs(session: CallerSession, run: RunRow) -> None:
    """Raise an error if a run's output tables exist, unless it replaces their rows (a warm start, a reopened run).

    Raises
    ------
    DuplicateTable, ReadOnly, InsufficientPrivilege, InvalidParameter
    """
    output = run.plan.output.relation
    what = f"run {run.run_id} writes table {output}, which"
    session.check_may_write(str(output), what)
    if run.replaces_rows and session.existing(output.sql) is not None:
        check_replaceable(session, output, run.plan.summary, run.schedule)
        return
    session.check_may_create(output, str(output), what)
    tables = {output.with_suffix(suffix): MODEL_TABLES[suffix] for suffix in outputs_of(run.schedule).SUFFIXES}
    if (selection := selection_relation(run)) is not None:
        session.check_may_create(selection, str(selection), what)
        tables |= {selection.with_suffix(suffix): SELECTION_TABLES[suffix] for suffix in SELECTION_SUFFIXES}
    there = [table for table in tables if session.existing(table.sql) is not None]
    if run.arguments.get("replace"):
        for table in there:
            check_droppable(session, session.relation(table.sql), tables[table], f"run {run.run_id}: replace")
    elif there:
        raise DuplicateTable(
            f"run {run.run_id} cannot write its tables: {exist_already(there)}",
            hint="Rename or drop it, then resume the run; or give another name:"
            f" SELECT madlib_mop.resume({run.run_id}, output_table => '...');",
        )


def has_outputs(session: CallerSession, record: Record, run: RunRow) -> bool:
    """Return whether a finished run's output tables exist.

    The tables of a warm start existed before it, as may those that a run replaces. Its call may have been rolled back:
    then they have the models of an earlier run, and are written again.
    """
    output = run.plan.output.relation
    if any(session.existing(output.with_suffix(suffix).sql) is None for suffix in outputs_of(run.schedule).KEYS):
        return False
    may_be_of_others = run.arguments.get("replace") or run.replaces_rows
    return not may_be_of_others or has_models_of(session, record, run)


def check_parts(session: CallerSession, run: RunRow) -> None:
    """Check that a finished run's table of weights in parts exists, if its output table has weights there.

    Raises
    ------
    UndefinedTable
    """
    output = run.plan.output.relation
    types = {(column.name, column.type_sql) for column in session.columns(session.relation(output.sql, any_type=True))}
    if DIGEST not in types or ("model_weights", "bytea") not in types or find_parts(session, output) is not None:
        return
    in_parts = "SELECT EXISTS (SELECT FROM {t} WHERE model_weights IS NULL AND weights_digest IS NOT NULL) AS value"
    if session.only_row(statement(in_parts, t=output), output)["value"]:
        table = output.with_suffix(PARTS_SUFFIX)
        raise UndefinedTable(
            f"run {run.run_id} is finished, and its output table {output} exists, but not {table}, which has the"
            " weights in parts",
            hint="If it was renamed, rename it back; or restore it from a backup. Otherwise drop the other tables, and"
            f" resume the run again, which writes all: SELECT madlib_mop.drop_models('{output}');",
        )


def check_replaceable(session: CallerSession, output: Relation, summary: OutputSummary, schedule: str) -> None:
    """Check the tables whose rows a warm start or a reopened run will replace.

    Raises
    ------
    UndefinedTable, InvalidParameter, InsufficientPrivilege
        If one does not exist, has different columns, or the caller has no right to change it.
    """
    outputs = outputs_of(schedule)
    expected = {suffix: [name for name, _ in columns] for suffix, columns in outputs.columns_of(summary).items()}
    if find_parts(session, output) is not None:
        expected[PARTS_SUFFIX] = [name for name, _ in PARTS[outputs is averaging :]]
    check_columns(session, output, expected, outputs.ARGUMENT)


def write_outputs(session: CallerSession, record: Record, run_id: int, models: list[ModelRow] | None = None) -> None:
    """Write the output tables of a trained run, and mark it finished.

    Parameters
    ----------
    session : CallerSession
    record : Record
    run_id : int
    models : list of ModelRow, optional
        Those of the run when its training ended; by default, those of the record.

    Raises
    ------
    ModelFailed
        If all models have failed: the run is marked as failed, and nothing is written.
    """
    run, models = record.known_run(run_id), models or record.models(run_id)
    try:
        check_some_trained(run_id, models)
    except ModelFailed as error:
        record.set_run(run_id, state=RunState.FAILED, state_detail=error.message)
        raise
    _make_tables(session, run)
    outputs_of(run.schedule).write_rows(session, record, run, models)
    record.finish(run_id)


def _make_tables(session: CallerSession, run: RunRow) -> None:
    """Create a run's output tables, or empty those whose rows it replaces."""
    output, outputs = run.plan.output.relation, outputs_of(run.schedule)
    drop_replaced(session, run, () if run.reopened else outputs.SUFFIXES)
    if run.replaces_rows and session.existing(output.sql):
        tables = [output.with_suffix(suffix) for suffix in outputs.KEYS]
        for table in (*tables, *filter(None, [find_parts(session, output)])):
            session.lock_to_write(table)
            session.execute(statement("DELETE FROM {t}", t=table))
        return
    parts = output.with_suffix(PARTS_SUFFIX)
    if session.existing(parts.sql, any_type=True) is not None:  # made since the run began: its rows are not the run's
        raise DuplicateTable(exist_already([parts]))
    for suffix, columns in outputs.columns_of(run.plan.summary).items():
        create_table(session, output.with_suffix(suffix), columns, outputs.KEYS[suffix])

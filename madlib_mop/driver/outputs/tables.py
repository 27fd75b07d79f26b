"""The output tables of a run: their names, reserved while it trains; created, or replaced, at its end.

Without reserved names, two runs with the same output table would both train to the end, and one in vain. So the
caller's transaction holds each name until it ends.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mop_backend.weights import PARTS_SUFFIX

from madlib_mop.catalog.names import Identifier, Relation, Slot, SqlType, quote, split_name, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.data.class_values import class_parameter
from madlib_mop.driver.data.engine import identify_rows, table_form
from madlib_mop.driver.data.weights import DIGEST, PARTS, are_parts, find_parts
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import session_lost
from madlib_mop.errors import (
    DataDamaged,
    DuplicateTable,
    InsufficientPrivilege,
    InvalidParameter,
    ModelFailed,
    MopError,
    NotReady,
    is_missing,
    may_not_create,
)
from madlib_mop.schedule.bulk import AVERAGING

SELECTION_SUFFIXES = ("", "_summary")


def selection_relation(run: RunRow) -> Relation | None:
    """Return the name of the model selection table that a run creates, or None."""
    return run.search_plan.selection.relation if run.kind == "automl" else None


_RUN = "SELECT max(run_id) FROM madlib_mop.run WHERE caller_pid = %s AND state = 'running'"


def reserve_outputs(session: CallerSession, record: Record, run: RunRow, suffixes: Sequence[str]) -> None:
    """Reserve the names of a run's output tables, until the caller's transaction ends.

    Parameters
    ----------
    session : CallerSession
    record : Record
    run : RunRow
        A recorded run, or one to record.
    suffixes : sequence of str

    Raises
    ------
    NotReady
        If another session has reserved one of them.
    InsufficientPrivilege
        If the caller cannot write a table of this name, so the name cannot be blocked for others.
    """
    tables = [table for table in _tables(run, suffixes) if not table.is_temp]
    for table in tables:
        if not record.may_write(session.info.role_oid, table):  # defence: reserved-names
            raise may_not_create(session.info.role, table.schema, str(table))
    if tables:
        session.check_tablespace(str(tables[0]))
    holder = record.holder(session.info.pid)
    if holder is None:
        raise session_lost()
    taken = record.reserve(tables, holder)
    if taken is None:
        return
    table, pid = taken
    ((run_id,),) = record.execute(_RUN, [pid])
    whose = f"run {run_id}" if run_id is not None else "another session's call"
    raise NotReady(
        f"table {table} is being written by {whose}, in the session with process ID {pid}."
        f" Received: {run.plan.output.relation}",
        hint=f"Choose another name, or wait until it ends; SELECT madlib_mop.cancel({run_id}); stops it."
        if run_id is not None
        else "Choose another name, or wait until that session's transaction has ended.",
    )


def keep_when_prepared(session: CallerSession, record: Record) -> None:
    """Keep the names reserved if the caller's transaction, which has written the tables, is prepared (PREPARE
    TRANSACTION)."""
    holder = record.holder(session.info.pid)
    if holder is not None:
        (row,) = session.execute("SELECT pg_catalog.txid_current() AS txid")
        record.note_transaction(holder, row["txid"])


def _tables(run: RunRow, suffixes: Sequence[str]) -> list[Relation]:
    """Return the tables that a run will write."""
    tables = [run.plan.output.relation.with_suffix(suffix) for suffix in suffixes]
    if (selection := selection_relation(run)) is not None:
        tables += [selection.with_suffix(suffix) for suffix in SELECTION_SUFFIXES]
    return tables


#: Columns of a table: name and SQL type.
Columns = Sequence[tuple[str, str]]
#: Columns that identify a table as written by this library or by MADlib, by the suffix of its name.
MODEL_TABLES = {
    "": {"model_weights", "model_arch"},
    "_info": {"mst_key", "model_id", "compile_params", "fit_params", "model_type", "model_size"},
    "_summary": {"source_table", "model", "dependent_varname", "independent_varname", "madlib_version"},
    PARTS_SUFFIX: {name for name, _ in PARTS[1:]},
}
SELECTION_TABLES = {
    "": {"mst_key", "model_id", "compile_params", "fit_params"},
    "_summary": {"model_arch_table", "object_table"},
}
ARCHITECTURE_TABLES = {"": {"model_id", "model_arch"}}
#: SQLSTATEs for a table name that exists or that another transaction is creating.
_EXISTS_STATES = ("42P07", "42710", "23505")
#: Column with the schema-qualified names of tables, by the column that has them as the user wrote them.
QUALIFIED = ("qualified_names", "json")
#: Columns with weights, or parts of them.
_WEIGHTS = {"model_weights", PARTS[-1][0]}
#: Columns that tables of older versions lack.
_NEW = {QUALIFIED[0], DIGEST[0]}


def check_droppable(session: CallerSession, table: Relation, columns: set[str], what: str) -> None:
    """Raise an error unless a table to replace or drop is an output table, and as `RelationLookup.check_may_drop`.

    Raises
    ------
    DuplicateTable, InsufficientPrivilege
    """
    _check_output(session, table, columns, what, table.kind in ("r", "p"))
    session.check_may_drop(table, what)


def _check_output(session: CallerSession, table: Relation, columns: set[str], what: str, is_table: bool) -> None:
    """Raise DuplicateTable unless a table to drop or to write again has the columns of an output table."""
    if not is_table or not _has_columns(session, table, columns):
        raise DuplicateTable(
            f"{what}: {table} exists and was not written by a fit function, so it is not dropped.",
            hint="Rename it, or choose another name.",
        )


def _is_of(session: CallerSession, parts: Relation, tables: list[Relation], columns: set[str]) -> bool:
    """Return whether a table has the parts of weights of a table of models, the first of those that were found.

    Most tables of models have none, so one of that name may be another table.
    """
    is_there = tables and tables[0].name + PARTS_SUFFIX == parts.name
    return _has_columns(session, parts, columns) and (not is_there or find_parts(session, tables[0]) is not None)


def _has_columns(session: CallerSession, table: Relation, columns: set[str]) -> bool:
    present = session.columns(table)
    if columns == MODEL_TABLES[PARTS_SUFFIX] and not are_parts(present):
        return False
    return columns <= {column.name for column in present}


def drop_replaced(session: CallerSession, run: RunRow, suffixes: Sequence[str]) -> None:
    """Drop the tables that a run replaces, if they exist, in the caller's transaction.

    The selection tables of a reopened search stay, so views and rights on them stay too; they lose their rows.
    """
    if not run.arguments.get("replace") and not run.reopened:
        return
    found = [(run.plan.output.relation, suffix, MODEL_TABLES) for suffix in suffixes]
    if (selection := selection_relation(run)) is not None:
        found += [(selection, suffix, SELECTION_TABLES) for suffix in SELECTION_SUFFIXES]
    for output, suffix, columns in found:
        table = session.existing(output.with_suffix(suffix).sql)
        if table is not None and run.reopened:
            _check_output(session, table, columns[suffix], f"run {run.run_id}", table.kind == "r")
            session.lock_to_write(table)
            session.execute(statement("DELETE FROM {t}", t=table))
        elif table is not None:
            check_droppable(session, table, columns[suffix], f"run {run.run_id}: replace")
            session.execute(statement("DROP TABLE {t}", t=table))


def check_some_trained(run_id: int, models: list[ModelRow]) -> None:
    """Raise an error if all models of a run have failed.

    Raises
    ------
    ModelFailed
        If all models have failed; the message has the reason of the first, the detail those of all.
    """
    if not models or any(model.state is not ModelState.FAILED for model in models):
        return
    reasons = [f"mst_key {model.mst_key}: {model.state_detail}" for model in models]
    many = f"all {len(models)} models failed" if len(models) > 1 else "its only model failed"
    raise ModelFailed(
        f"run {run_id}: {many}, so no output tables were written. {reasons[0]}",
        detail="\n".join(reasons),
        hint=f"SELECT mst_key, state_detail FROM madlib_mop.leaderboard WHERE run_id = {run_id}; shows all reasons.",
    )


@contextmanager
def telling_how_to_resume(run: RunRow) -> Iterator[None]:
    """Add a hint to an error in writing a trained run's tables: the results are kept.

    Raises
    ------
    DuplicateTable
        If one of the tables exists now, or another transaction is creating it.
    """
    run_id, output = run.run_id, run.plan.output.relation
    try:
        yield
    except MopError as error:
        resume = f"SELECT madlib_mop.resume({run_id});"
        if error.sqlstate in _EXISTS_STATES:
            raise DuplicateTable(
                f"run {run_id} is trained, but its output tables cannot be created: another session has created a"
                f" table of the same name ({error.message}). The run's results are kept. Received: {output}",
                hint=f"Rename or drop it, then {resume} or give another name:"
                f" SELECT madlib_mop.resume({run_id}, output_table => '...');",
            ) from None
        is_lost = error.sqlstate in (ModelFailed.sqlstate, DataDamaged.sqlstate)
        if not is_lost and resume not in (error.hint or ""):
            kept = f"The models are trained; {resume} writes the tables."
            error.hint = kept if error.hint is None else f"{error.hint} {kept}"
        raise


def read_replace(arguments: Mapping[str, Any]) -> bool:
    """Return the argument replace. Raises InvalidParameter if warm_start is also true."""
    if arguments.get("replace") and arguments.get("warm_start"):
        raise InvalidParameter(
            "replace and warm_start cannot both be true. Received: true and true",
            hint="warm_start continues with the models of the output table; replace drops them.",
        )
    return bool(arguments.get("replace"))


def if_there(
    session: CallerSession,
    replace: bool,
    known: dict[str, set[str]],
    what: str,
    replaced: list[Relation] | None = None,
) -> Callable[[Relation, list[Relation]], str | None]:
    """Return the callback of `RelationLookup.output` for existing output tables.

    Parameters
    ----------
    session : CallerSession
    replace : bool
        Whether to replace them; then each must be replaceable.
    known : dict of str to set of str
        `MODEL_TABLES` or `SELECTION_TABLES`.
    what : str
        The argument's name, for messages.
    replaced : list of Relation, optional
        Gets the tables to replace.
    """

    def answer(output: Relation, there: list[Relation]) -> str | None:
        found = [(session.relation(t.sql), known[t.name[len(output.name) :]]) for t in there]
        if replace:
            for table, columns in found:
                check_droppable(session, table, columns, what)
            if replaced is not None:
                replaced.extend(table for table, _ in found)
            return None
        if not all(columns <= {c.name for c in session.columns(table)} for table, columns in found):
            return ""
        return _drop_hint(output) if known is MODEL_TABLES else "Use replace => true, or choose another name."

    return answer


def _drop_hint(output: Relation) -> str:
    """Return the hint for existing output tables of a fit function."""
    name = f"{quote(output.schema)}.{quote(output.name)}".replace("'", "''")
    if all(part.isidentifier() and part == part.lower() for part in (output.schema, output.name)):
        name = str(output)
    drop = f"SELECT madlib_mop.drop_models('{name}'); drops models"
    return f"{drop}; replace => true replaces them. Or choose another name."


def find_models(session: CallerSession, name: str | None) -> list[Relation]:
    """Return the existing tables of an output table and its companions; each is checked, and that it can be dropped.

    Raises
    ------
    InvalidParameter
        If none exists.
    DuplicateTable, InsufficientPrivilege
    """
    what = "model_table"
    if name is None or not name.strip():
        raise is_missing(what, name, "Pass the name of a table.")
    schema, base = split_name(name, what)
    tables: list[Relation] = []
    for suffix, columns in MODEL_TABLES.items():
        place = tables[0].schema if tables else schema
        full_name = ".".join(quote(part) for part in (place, base + suffix) if part)
        table = session.existing(full_name, any_type=suffix == PARTS_SUFFIX)
        if table is not None and suffix == PARTS_SUFFIX and not _is_of(session, table, tables, columns):
            continue
        if table is not None:
            check_droppable(session, table, columns, what)
            tables.append(table)
    if not tables:
        raise InvalidParameter(
            f"{what}: there is neither a table {base} nor {base}_info or {base}_summary. Received: {name!r}",
            hint="Pass the name of a table that a fit function wrote, with its schema if that is not in search_path.",
        )
    return tables


def check_columns(session: CallerSession, output: Relation, expected: dict[str, list[str]], argument: str) -> None:
    """Check that tables have the columns to write, by suffix.

    Parameters
    ----------
    session : CallerSession
    output : Relation
    expected : dict of str to list of str
    argument : str
        The argument that names the output table, for messages.

    Raises
    ------
    UndefinedTable, InvalidParameter, InsufficientPrivilege
    """
    for suffix, columns in expected.items():
        table = session.relation(output.with_suffix(suffix).sql, argument)
        present = [column.name for column in session.columns(table)]
        if present not in (columns, [name for name in columns if name not in _NEW]):
            odd = sorted({*present} ^ {*columns} - _NEW) or present
            raise InvalidParameter(
                f"{argument}: a warm start cannot write its results into {table}, which has different columns"
                f" ({', '.join(odd)}). Received: {output}",
                hint="Omit warm_start and choose a new name.",
            )
        (row,) = session.execute(
            "SELECT bool_and(pg_catalog.has_table_privilege($1::pg_catalog.oid, p)) AS allowed"
            " FROM pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'DELETE']) p",
            [table.oid],
            ["bigint"],
        )
        if not row["allowed"]:
            raise InsufficientPrivilege(
                f"{argument}: role {session.info.role} cannot replace the rows of {table}. Received: {output}",
                hint=f"GRANT SELECT, INSERT, DELETE ON {table.written} TO {session.info.role};",
            )


def create_table(
    session: CallerSession, table: Relation, columns: Columns, key: str | Sequence[str] | None = None
) -> None:
    """Create a table of columns (name and SQL type); ``key`` are the columns of its primary key, if any."""
    keys = [] if key is None else [key] if isinstance(key, str) else list(key)
    items: list[str] = []
    slots: dict[str, Slot] = {}
    for number, (name, type_name) in enumerate(columns):
        items.append(f"{{c{number}}} {{t{number}}}")
        slots |= {f"c{number}": Identifier(name), f"t{number}": SqlType(type_name)}
    if keys:
        items.append("PRIMARY KEY (" + ", ".join(f"{{k{number}}}" for number, _ in enumerate(keys)) + ")")
        slots |= {f"k{number}": Identifier(name) for number, name in enumerate(keys)}
    made = statement("CREATE TABLE {t} (" + ", ".join(items) + ")", t=table, **slots)
    session.execute(made + table_form(session, *keys))
    if not keys:
        identify_rows(session, table)
    for name in _WEIGHTS.intersection(name for name, _ in columns):  # they cannot be compressed
        column = Identifier(name)
        session.execute(statement("ALTER TABLE {t} ALTER COLUMN {c} SET STORAGE EXTERNAL", t=table, c=column))


def names_of(session: CallerSession, **tables: Relation | None) -> dict[str, str]:
    """Return the schema-qualified names of existing tables, by the columns that name them."""
    return {column: session.qualified(table) for column, table in tables.items() if table is not None}


def qualified_names(session: CallerSession, run: RunRow, of_weights: Mapping[str, str]) -> str:
    """Return the names of the tables of a run with their schemas, as JSON; ``of_weights`` is that of the parts."""
    output = run.plan.output.relation
    names = {**run.plan.summary.qualified_names, "model": session.qualified(output), **of_weights}
    if run.schedule != AVERAGING:
        names["model_info"] = session.qualified(output.with_suffix("_info"))
    return json.dumps(names)


def insert_row(
    session: CallerSession, table: Relation, columns: Columns, values: Mapping[str, Any]
) -> None:
    """Write one row: for each column (name and SQL type) the value of this name.

    Times are ISO texts with their zone; class values are arrays in PostgreSQL's text form. Tables of older versions,
    to which a warm start can write, have no column of qualified names, and none of the SHA-256 of weights.
    """
    present = {column.name for column in session.columns(session.relation(table.sql))}
    columns = [column for column in columns if column[0] in present]
    casts = ", ".join(
        f"${n}::pg_catalog.timestamptz::pg_catalog.timestamp" if type_name == "timestamp" else f"${n}::{{t{n}}}"
        if name.endswith("_class_values") else f"${n}"
        for n, (name, type_name) in enumerate(columns, 1)
    )  # fmt: skip
    params = [
        class_parameter(session, type_name, values[name]) if name.endswith("_class_values")
        else (values[name], "text" if type_name == "timestamp" else type_name)
        for name, type_name in columns
    ]  # fmt: skip
    slots = {f"t{n}": SqlType(type_name) for n, (_, type_name) in enumerate(columns, 1)}
    session.execute(
        statement(f"INSERT INTO {{table}} VALUES ({casts})", table=table, **slots),
        [value for value, _ in params],
        [type_name for _, type_name in params],
    )

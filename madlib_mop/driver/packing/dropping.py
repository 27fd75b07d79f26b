"""Packed tables are dropped, with all that belongs to them: by `drop_packed`, and when `pack_columns` replaces one.

Everything is dropped in the caller's transaction, with the caller's rights.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.driver.data.packed import PackedSummary, names_of, preprocessor_digest, read_summary
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import was_changed
from madlib_mop.driver.session.relations import exist_already
from madlib_mop.errors import (
    DuplicateTable,
    InsufficientPrivilege,
    InvalidParameter,
    MopError,
    NotReady,
    UndefinedColumn,
    UndefinedTable,
)

#: The suffixes of the packed tables of the validation rows and of the test rows.
VALIDATION, TEST = "_validation", "_test"
#: The suffixes of packed tables that belong to another one if they were packed in the same way.
COMPANIONS = (VALIDATION, TEST)
_TABLE = "packed_table"
#: SQLSTATEs of tables that the caller cannot drop: those of other roles, and those on which something depends.
_NOT_DROPPABLE = (InsufficientPrivilege.sqlstate, DuplicateTable.sqlstate)
_DEADLOCK = "40P01"
#: A column of the summaries of this library that those of MADlib lack.
_OWN_COLUMN = "independent_columns"
_PARTITIONS = """
SELECT c.relname::pg_catalog.text AS name FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
WHERE i.inhparent = $1::pg_catalog.oid AND c.relnamespace = p.relnamespace
"""


@dataclass(frozen=True)
class PackedSet:
    """A packed table with all that belongs to it.

    Attributes
    ----------
    pairs : tuple of (Relation, Relation)
        The packed table with its summary, then those of its validation rows and the like.
    left : tuple of (Relation, str)
        Tables with the name of one that would belong to it, which do not, and why.
    """

    pairs: tuple[tuple[Relation, Relation], ...]
    left: tuple[tuple[Relation, str], ...]

    @property
    def packed(self) -> list[Relation]:
        """The packed tables."""
        return [table for table, _ in self.pairs]

    @property
    def tables(self) -> list[Relation]:
        """All tables; partitions belong to their tables."""
        return [table for pair in self.pairs for table in pair]


class PackedDrop:
    """The drop of a packed table with all that belongs to it.

    Parameters
    ----------
    call : Call
    found : PackedSet
    what : str
        The argument that names the table, for messages.

    Raises
    ------
    NotReady
        If a run that is not at its end trains on one of the tables, or would be resumed on it.
    """

    def __init__(self, call: Call, found: PackedSet, what: str):
        from madlib_mop.driver.session.opening import open_record  # imports SQLAlchemy, which most calls do not need

        self._call, self._found, self._what = call, found, what
        self._record = open_record(call.info)
        self._check_unneeded()

    def execute(self) -> None:
        """Drop the tables in the caller's transaction.

        Raises
        ------
        NotReady
            As the constructor; if a table was replaced by another one since, or another session is about to drop it.
        """
        session = self._call.session
        # calls read the summary first, and hold their locks until the runs that they plan have ended
        in_order = [table for packed, summary in self._found.pairs for table in (summary, packed)]
        try:
            session.execute(statement("LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE", tables=in_order))
        except MopError as error:
            if error.sqlstate != _DEADLOCK:  # two calls have read the summary, and each waits for the other
                raise
            raise NotReady(
                f"{self._what}: another session drops or replaces {self._found.packed[0]} too", hint="Call again."
            ) from None
        self._check_unneeded()  # no further run can begin
        for table in in_order:
            now = session.existing(table.sql, self._what)
            if now is None or now.oid != table.oid:
                raise was_changed(table)
        session.execute(statement("DROP TABLE {tables}", tables=self._found.tables))

    def _check_unneeded(self) -> None:
        needing = self._record.runs_that_need(self._found.packed)
        if not needing:
            return
        run = needing[0]
        is_own = self._record.may_see(self._call.info.role_oid, run.owner_oid)
        raise NotReady(
            f"{self._what}: {self._found.packed[0]} is still needed by {_runs(needing)}",
            hint=_what_to_do(run, is_own),
        )


def drop_packed(call: Call) -> list[str]:
    """Drop a packed table with all that belongs to it; return the names of the dropped tables."""
    session, name = call.session, call.arguments[_TABLE]
    session.check_may_write(name, _TABLE)
    table = session.relation(name, _TABLE)
    found = find_packed(session, table, _TABLE)
    if found is None and session.existing(table.sql) is None:
        raise was_changed(table)
    if found is None:
        raise InvalidParameter(
            f"{_TABLE}: {table} is not a packed table that this library made, so it is not dropped."
            f" Received: {name!r}",
            hint="madlib_mop.drop_models drops the tables of models, and DROP TABLE any other table.",
        )
    PackedDrop(call, found, _TABLE).execute()
    for other, reason in found.left:
        session.notice(f"{call.function}: {other} was not dropped: {reason}")
    return [str(one) for one in found.tables]


def find_packed(session: CallerSession, table: Relation, what: str) -> PackedSet | None:
    """Return a packed table with all that belongs to it, which the caller can drop; None if it is no packed table.

    Tables that belong to it: its summary, and the packed tables of its validation rows and the like, with theirs. These
    have the name of the table with a suffix, and the same encoding.

    Raises
    ------
    InsufficientPrivilege, DuplicateTable
        If the table or its summary belongs to another role, or something depends on it.
    """
    summary = _summary_of(session, table, what)
    if summary is None:
        return None
    for one in (table, summary.relation):
        session.check_may_drop(one, what)
    pairs = [(table, summary.relation)]
    left: list[tuple[Relation, str]] = []
    encoding = _encoding(session, summary)
    for suffix in COMPANIONS:
        other = table.with_suffix(suffix)
        try:
            companion = session.existing(other.sql)
            of_companion = None if companion is None else _summary_of(session, companion, what)
            if companion is None:
                continue
            if of_companion is None:
                left.append((other, "it is not a packed table"))
            elif _encoding(session, of_companion) != encoding:
                left.append((other, "it was packed in another way"))
            else:
                for one in (companion, of_companion.relation):
                    session.check_may_drop(one, what)
                pairs.append((companion, of_companion.relation))
        except MopError as error:
            if error.sqlstate not in _NOT_DROPPABLE:
                raise
            left.append((other, error.message.removeprefix(f"{what}: ").removesuffix(".")))
    return PackedSet(tuple(pairs), tuple(left))


def if_there(
    call: Call, what: str, drops: list[PackedDrop]
) -> Callable[[Relation, list[Relation]], str | None]:
    """Return the callback of `RelationLookup.output` for existing packed tables.

    Parameters
    ----------
    call : Call
        With the argument ``replace``, they are replaced; then each must belong to the packed table of the name.
    what : str
        The argument that has the name.
    drops : list of PackedDrop
        Gets the drop to execute before the new tables are made.
    """
    session, replace = call.session, call.arguments.get("replace")

    def answer(output: Relation, there: list[Relation]) -> str | None:
        if not replace:
            with suppress(MopError):  # the error is that the table exists, not why it could not be replaced
                table = session.existing(output.sql, what)
                if table is not None and find_packed(session, table, what) is not None:
                    return _hint_of_existing(table, "replace" in call.arguments)
            return ""
        table = session.existing(output.sql, what)
        found = None if table is None else find_packed(session, table, what)
        known = set() if found is None else _names(session, found)
        if strange := [one for one in there if one.name not in known]:
            raise DuplicateTable(
                f"{what}: {exist_already(strange)}, and replace => true replaces only a packed table with all that"
                f" belongs to it. Received: {call.arguments[what]!r}",
                hint="Drop what is in the way, or choose another name.",
            )
        assert found is not None, "a table is there, and belongs to it"
        drops.append(PackedDrop(call, found, what))
        return None

    return answer


def _hint_of_existing(table: Relation, may_replace: bool) -> str:
    name = table.written.replace("'", "''")
    replaces = "replace => true replaces it; " if may_replace else ""
    return f"{replaces}SELECT madlib_mop.drop_packed('{name}'); drops it. Or choose another name."


def _names(session: CallerSession, found: PackedSet) -> set[str]:
    """Return the names of the tables, and of the partitions of the packed ones."""
    names = {table.name for table in found.tables}
    for table in found.packed:
        names |= {row["name"] for row in session.execute(_PARTITIONS, [table.oid], ["bigint"])}
    return names


def _summary_of(session: CallerSession, table: Relation, what: str) -> PackedSummary | None:
    """Return the summary of a packed table; None if the table does not have exactly the columns that packing makes."""
    if table.kind not in ("r", "p"):
        return None
    try:
        summary = read_summary(session, table, table.name, what)
    except (UndefinedTable, UndefinedColumn, InvalidParameter):
        return None
    if summary.relation.kind not in ("r", "p") or _OWN_COLUMN not in summary.types:
        return None
    columns = {column.name: column.type_sql for column in session.columns(table)}
    expected = {"__dist_key__": "integer", "buffer_id": "integer"}
    for name in _columns(summary):
        expected |= {name: "bytea", f"{name}_shape": "integer[]"}
    return summary if columns == expected else None


def _columns(summary: PackedSummary) -> list[str]:
    return [*names_of(summary.row["independent_varname"]), *names_of(summary.row["dependent_varname"])]


def _encoding(session: CallerSession, summary: PackedSummary) -> tuple[object, ...]:
    """Return what two packed tables have in common if one was packed for the other."""
    row = summary.row
    digest = preprocessor_digest(session, summary)
    return _columns(summary), digest, row["normalizing_const"], row["num_classes"]


def _runs(runs: Sequence[RunRow]) -> str:
    """Return the first run with its state and owner, and how many more there are."""
    run = runs[0]
    more = f", and by {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"run {run.run_id} of role {run.owner}, which is {run.state}{more}"


def _what_to_do(run: RunRow, is_own: bool) -> str:
    if not is_own:
        return f"Wait until role {run.owner} has finished or dropped the run. DROP TABLE would drop the tables at once."
    drops = f"SELECT madlib_mop.drop_run({run.run_id}); deletes it"
    if run.state is RunState.RUNNING:
        return f"Wait until it has ended; or SELECT madlib_mop.cancel({run.run_id}); stops it, and then {drops}."
    return f"SELECT madlib_mop.resume({run.run_id}); continues it; {drops}."

"""Tables that the client makes, finds and drops; the handles of packed tables and of configurations."""

import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from madlib_mop.catalog.names import MAX_NAME_BYTES, Identifier, Relation, SqlType, split_name, statement
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.calling.sessions import ClientSessions, execute, own_path, rows_of
from madlib_mop.client.calls import Calls, read_own
from madlib_mop.client.frames.columns import Frame
from madlib_mop.errors import MopError, UndefinedTable

if TYPE_CHECKING:
    import pandas

_LOOK_UP = "SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid"
_NAMES = """
SELECT n.nspname, c.relname FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s::pg_catalog.oid
"""
_FIRST_SCHEMA = "SELECT pg_catalog.current_schema()"
_SUFFIXES = ("", "_summary")


def new_name(stem: str) -> str:
    """Return a name that no table has."""
    end = f"_{secrets.token_hex(4)}"
    return stem.encode()[: MAX_NAME_BYTES - 20 - len(end)].decode(errors="ignore") + end


def read_name(name: object, what: str) -> Relation | Identifier:
    """Return a table's name as it is quoted: with its schema if it has one. Raises MopError if it cannot be read."""
    if not isinstance(name, str):
        raise bad_input(f"{what} must be the name of a table. Received: {type(name).__name__}")
    try:
        schema, own = split_name(name, what)
    except MopError as error:
        raise noted(error) from None
    return Identifier(own) if schema is None else Relation(schema, own)


def find_table(connection: Connection, name: object, what: str) -> Relation:
    """Return a table with its schema, by the person's search_path.

    Raises
    ------
    UndefinedTable
        If there is none.
    """
    given = read_name(name, what).sql
    with own_path(connection):
        ((oid,),) = rows_of(connection, _LOOK_UP, [given])
    rows = rows_of(connection, _NAMES, [oid])
    if not rows:
        raise noted(UndefinedTable(f"{what}: there is no table {name}", hint="Write schema.name, or check the name."))
    ((schema, own),) = rows
    return Relation(schema, own)


def create_table(
    sessions: ClientSessions, connection: Connection, name: str, frame: Frame, temporary: bool = False
) -> str:
    """Create a table with the rows of a frame; return its quoted name, with its schema.

    Parameters
    ----------
    sessions : ClientSessions
    connection : sqlalchemy.Connection
        Of these sessions, in the transaction that commits the table.
    name : str
    frame : Frame
    temporary : bool
        Whether it is a temporary table, which the end of the transaction drops.
    """
    given = read_name(name, "table")
    relation = Relation("pg_temp", given.name) if temporary else _to_be_created(connection, given)
    columns = ", ".join(
        statement("{name} {type}", name=Identifier(column.name), type=SqlType(column.sql_type))
        for column in frame.columns
    )
    made, end = ("CREATE TEMPORARY TABLE", " ON COMMIT DROP") if temporary else ("CREATE TABLE", "")
    execute(connection, f"{made} {relation.sql} ({columns}){end}", [])
    names = [Identifier(column.name) for column in frame.columns]
    sessions.copy(connection, statement("COPY {t} ({c}) FROM STDIN", t=relation, c=names), frame.pieces())
    return relation.sql


def _to_be_created(connection: Connection, name: Relation | Identifier) -> Relation:
    """Return a name with its schema: as CREATE TABLE does, without one the first schema of the person's path."""
    if isinstance(name, Relation):
        return name
    with own_path(connection):
        ((schema,),) = rows_of(connection, _FIRST_SCHEMA)
    if schema is None:
        raise bad_input(
            f"table {name.name} has no schema to be created in: search_path contains no existing schema",
            "Write schema.name.",
        )
    return Relation(schema, name.name)


def drop_tables(sessions: ClientSessions, relations: Iterable[Relation | Identifier]) -> None:
    """Drop tables, as far as they exist."""
    with sessions.begin() as connection, own_path(connection):
        for relation in relations:
            execute(connection, statement("DROP TABLE IF EXISTS {t}", t=relation))


class Packed:
    """A packed table, made by ``pack_columns`` or by ``training_preprocessor_dl``.

    Attributes
    ----------
    table : str
        Its quoted name, with its schema.
    validation, test : str or None
        The packed tables of the validation rows and of the test rows.
    source : str or None
        The table whose rows were packed.
    targets : tuple of str
        The columns to predict.
    """

    def __init__(
        self,
        calls: Calls,
        table: Relation,
        validation: Relation | None,
        test: Relation | None,
        source: Relation | None,
        targets: tuple[str, ...],
        owns_source: bool = False,
    ):
        self._calls = calls
        self._owned = [source] if owns_source and source is not None else []
        self.table = table.sql
        self.validation = None if validation is None else validation.sql
        self.test = None if test is None else test.sql
        self.source = None if source is None else source.sql
        self.targets = targets

    def __repr__(self) -> str:
        kept = f", validation={self.validation!r}" if self.validation else ""
        kept += f", test={self.test!r}" if self.test else ""
        return f"Packed({self.table!r}{kept}, targets={list(self.targets)})"

    def describe(self) -> "pandas.DataFrame":
        """Return how each column is encoded: a row for each column, as ``describe_preprocessor`` returns it."""
        frame: pandas.DataFrame = self._calls.call("describe_preprocessor", packed_table=self.table)
        return frame

    def gradient_boosting(self, **arguments: Any) -> "pandas.DataFrame":
        """Return how good gradient boosting is on the held-out rows: a row for each set, target and metric.

        Parameters
        ----------
        **arguments
            Of the SQL function ``gradient_boosting``: ``test_table``, ``max_seconds``, ``seed``.
        """
        frame: pandas.DataFrame = self._calls.call("gradient_boosting", packed_table=self.table, **arguments)
        return frame

    def drop(self) -> None:
        """Drop the packed tables with ``drop_packed``, and the table made of a data frame. Trained models stay.

        Raises
        ------
        NotReady
            If a run that is not at its end needs the packed tables.
        """
        with suppress(UndefinedTable):  # they were dropped before
            self._calls.call("drop_packed", packed_table=self.table)
        drop_tables(self._calls.sessions, self._owned)


class Configurations:
    """A model selection table: a row for each configuration.

    Attributes
    ----------
    table : str
        Its quoted name, with its schema.
    architectures : str or None
        The table of its architectures.
    """

    def __init__(self, calls: Calls, table: Relation, architectures: Relation | None):
        self._calls = calls
        self._table, self._architectures = table, architectures
        self.table = table.sql
        self.architectures = None if architectures is None else architectures.sql

    def __repr__(self) -> str:
        return f"Configurations({self.table!r})"

    def __len__(self) -> int:
        query = statement("SELECT pg_catalog.count(*) FROM {t}", t=self._table)
        ((n,),) = self._calls.sessions.rows(query)
        return int(n)

    def frame(self) -> "pandas.DataFrame":
        """Return the rows: ``mst_key``, ``model_id``, ``compile_params``, ``fit_params``."""
        columns = [Identifier(name) for name in ("mst_key", "model_id", "compile_params", "fit_params")]
        query = statement("SELECT {c} FROM {t} ORDER BY {k}", c=columns, t=self._table, k=columns[0])
        return read_own(self._calls.sessions, query)

    def drop(self) -> None:
        """Drop the model selection table, and the table of architectures. Trained models stay."""
        tables = [self._table.with_suffix(end) for end in _SUFFIXES]
        drop_tables(self._calls.sessions, [*tables, *([self._architectures] if self._architectures else [])])


def names_of(value: Any) -> tuple[str, ...]:
    """Return names that a summary has as an array or, as MADlib writes a single one, as a text."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)

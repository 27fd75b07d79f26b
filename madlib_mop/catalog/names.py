"""Names of tables and columns, quoted into SQL; used by the driver and the engines. Sessions without the driver, and
logins, use psycopg2's ``sql`` instead."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.errors import InvalidParameter, MopError, UnreadableText

MAX_NAME_BYTES = 63
#: The system columns of all engines: no other column of a table can have one of these names.
SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "cmin", "xmax", "cmax", "tableoid", "gp_segment_id", "gp_foreign_server"})
# In a multibyte encoding, PostgreSQL folds ASCII letters only.
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def quote(name: str) -> str:
    """Quote one identifier for SQL, always, so no name can be read as a keyword."""
    if not name or "\0" in name:
        raise InvalidParameter(f"a name must not be empty or contain a zero byte. Received: {name!r}")
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Identifier:
    """One column, role or constraint name, unquoted."""

    name: str

    @property
    def sql(self) -> str:
        """The quoted name."""
        return quote(self.name)


@dataclass(frozen=True)
class SqlType:
    """A type as ``format_type`` wrote it; created only from the server's own answer."""

    sql: str


@dataclass(frozen=True)
class StatementParameter:
    """A parameter of a statement, by its number from 1, where a template cannot know the number."""

    number: int

    @property
    def sql(self) -> str:
        """As the statement has it."""
        return f"${self.number:d}"


@dataclass(frozen=True)
class Relation:
    """A table or view that exists, or one to be created (``oid`` 0)."""

    schema: str
    name: str
    oid: int = 0
    kind: str = "r"
    is_temp: bool = False

    @property
    def sql(self) -> str:
        """The quoted, schema-qualified name."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def written(self) -> str:
        """The name as SQL reads it, quoted only where it must be; for texts that a user copies."""
        try:
            reads_back = split_name(str(self)) == (self.schema, self.name)
        except MopError:
            reads_back = False
        return str(self) if reads_back else self.sql

    def __str__(self) -> str:
        """The name without quotes, as messages and the record have it."""
        return f"{self.schema}.{self.name}"

    def with_suffix(self, suffix: str) -> "Relation":
        """Return the companion table's name, e.g. with ``_summary``; ``oid`` is 0."""
        return Relation(self.schema, self.name + suffix, 0, self.kind, self.is_temp)


Name = Identifier | Relation | SqlType | StatementParameter
Slot = Name | Sequence[Identifier] | Sequence[Relation] | Sequence[SqlType] | Sequence[Name]


def statement(template: str, **slots: Slot) -> str:
    """Fill the ``{slots}`` of an SQL template with quoted names.

    Parameters
    ----------
    template : str
        SQL with ``{name}`` slots for names and ``$1`` ... for values (values never go into the text).
    **slots : Identifier, Relation, SqlType, Parameter or a list of these
        A list is joined by commas.

    Raises
    ------
    TypeError
        If a slot gets anything else, such as a plain string.
    """

    def text(value: object) -> str:
        if isinstance(value, list | tuple):
            return ", ".join(text(item) for item in value)
        if isinstance(value, Identifier | Relation | SqlType | StatementParameter):
            return value.sql
        raise TypeError(f"a slot of an SQL statement takes names only, not {type(value).__name__}")

    return string.Formatter().vformat(template, (), {name: text(value) for name, value in slots.items()})


def with_end(text: str, end: str) -> str:
    """Return a name as a caller wrote it with an end, such as ``_validation``, within its quotes."""
    return f'{text[:-1]}{end}"' if text.endswith('"') else text + end


def split_name(text: str, what: str = "table name") -> tuple[str | None, str]:
    """Split ``name``, ``schema.name`` or quoted forms as PostgreSQL does: unquoted parts are folded to lower case.

    Returns
    -------
    tuple of (str or None, str)
        Schema, or None, and name.

    Raises
    ------
    UnreadableText
        If the text is not one or two identifiers.
    InvalidParameter
        If one is longer than 63 bytes; PostgreSQL would cut it, and find another table.
    """
    parts: list[str] = []
    rest = (text or "").strip()
    while rest:
        if rest.startswith('"'):
            end = 1
            while (end := rest.find('"', end)) != -1 and rest[end : end + 2] == '""':
                end += 2
            if end == -1:
                break
            parts.append(rest[1:end].replace('""', '"'))
            rest = rest[end + 1 :].lstrip()
        else:
            end = len(rest.split(".", 1)[0])
            part = rest[:end].strip()
            if not part or not (part[0].isalpha() or part[0] == "_" or ord(part[0]) > 127):
                break
            if not all(c.isalnum() or c in "_$" or ord(c) > 127 for c in part):
                break
            parts.append(part.translate(_FOLDED))
            rest = rest[end:]
        if not rest:
            break
        if not rest.startswith("."):
            break
        rest = rest[1:].lstrip()
        if not rest:
            rest = "."
            break
    if rest or not 1 <= len(parts) <= 2 or not all(parts):
        raise UnreadableText(
            f"{what} cannot be read. Received: {text!r}",
            hint='Write name, schema.name or "Quoted"."Forms".',
        )
    for part in parts:
        if len(part.encode()) > MAX_NAME_BYTES:
            raise InvalidParameter(
                f"{what}: {part!r} is longer than {MAX_NAME_BYTES} bytes. Received: {text!r}",
                hint="PostgreSQL's names have at most 63 bytes: use the table's actual name.",
            )
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])

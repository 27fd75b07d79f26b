"""Finds the caller's tables and columns by the caller's names, and checks for code of other roles that reading or
writing a table could run; mixed into every kind of session.

A role can make readers of its table or view run its code in two ways:

- A view, rule, trigger, index expression, constraint or function of that role runs in the reading session. In a
  superuser's session it can become superuser by RESET ROLE. So superusers' calls accept only objects that superusers
  own.
- A call names a table in many statements, in several sessions, until its end. The owner of a schema can rename it, and
  can drop what is in it, and so put another table or type in the place of one that was checked. No lock of a table
  prevents that. So superusers' calls accept only tables and types in schemas that superusers own. Then a name means
  the same until the call ends: only superusers can change what it means.
- A user-defined type can have casts by its owner, and its name can be that of a built-in type, such as
  ``float4``. So values are cast only between types that superusers own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mop_backend.rights import OWNER_OF_SCHEMA

from madlib_mop.catalog.names import MAX_NAME_BYTES, Relation, SqlType, quote, split_name, statement
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.driver.session.messages import was_changed
from madlib_mop.errors import (
    DuplicateTable,
    InsufficientPrivilege,
    InvalidParameter,
    NotReady,
    ReadOnly,
    UndefinedTable,
    is_missing,
    may_not_create,
)

# The parts of a relation (rules, indexes, defaults, constraints, triggers, statistics, policies, partitions and
# children), the objects that they use, and so on. Objects that initdb has created are not in pg_depend; the first
# superuser owns them all. The server checks a foreign key as the owner of the other table. Each kind of part is a
# branch of its own: Greenplum cannot plan a UNION ALL within another one on the lateral side of a recursive query.
_FOREIGN = """
WITH RECURSIVE used (classid, objid) AS (
    SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid, $1::pg_catalog.oid
    UNION
    SELECT next.classid, next.objid FROM used u CROSS JOIN LATERAL (
        SELECT d.refclassid AS classid, d.refobjid AS objid FROM pg_catalog.pg_depend d
        WHERE d.classid = u.classid AND d.objid = u.objid  -- defence: what-relations-use = WHERE false
              AND d.refclassid IN (
            'pg_catalog.pg_class'::pg_catalog.regclass, 'pg_catalog.pg_proc'::pg_catalog.regclass,
            'pg_catalog.pg_operator'::pg_catalog.regclass, 'pg_catalog.pg_type'::pg_catalog.regclass,
            'pg_catalog.pg_cast'::pg_catalog.regclass)
        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, p.inhrelid FROM pg_catalog.pg_inherits p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.inhparent = u.objid
        UNION ALL SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass, p.oid FROM pg_catalog.pg_rewrite p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.ev_class = u.objid
        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, p.indexrelid FROM pg_catalog.pg_index p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.indrelid = u.objid
        UNION ALL SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, p.oid FROM pg_catalog.pg_attrdef p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.adrelid = u.objid
        UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, p.oid FROM pg_catalog.pg_constraint p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.conrelid = u.objid AND p.contype <> 'f'
        UNION ALL SELECT 'pg_catalog.pg_trigger'::pg_catalog.regclass, p.oid FROM pg_catalog.pg_trigger p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.tgrelid = u.objid AND NOT p.tgisinternal
        UNION ALL SELECT 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, p.oid FROM pg_catalog.pg_statistic_ext p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.stxrelid = u.objid
        UNION ALL SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass, p.oid FROM pg_catalog.pg_policy p
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND p.polrelid = u.objid
        UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid FROM pg_catalog.pg_constraint k
        WHERE u.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND k.contypid = u.objid
    ) next
)
SELECT u.objid = $1::pg_catalog.oid AND kind <> 'type' AS is_itself, kind, name,
       coalesce(r.rolname::pg_catalog.text, 'a role that was dropped') AS owner FROM used u CROSS JOIN LATERAL (
    SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table'
                          WHEN 'c' THEN 'type' ELSE 'table' END AS kind,
           c.oid::pg_catalog.regclass::pg_catalog.text AS name, c.relowner AS owner
    FROM pg_catalog.pg_class c
    WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = u.objid AND c.relkind <> 'S'
    UNION ALL SELECT 'function', p.oid::pg_catalog.regprocedure::pg_catalog.text, p.proowner FROM pg_catalog.pg_proc p
    WHERE u.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = u.objid
    UNION ALL SELECT 'operator', o.oid::pg_catalog.regoperator::pg_catalog.text, o.oprowner FROM pg_catalog.pg_operator o
    WHERE u.classid = 'pg_catalog.pg_operator'::pg_catalog.regclass AND o.oid = u.objid
    UNION ALL SELECT 'type', pg_catalog.format_type(t.oid, NULL), t.typowner FROM pg_catalog.pg_type t
    WHERE u.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.oid = u.objid
    UNION ALL SELECT 'schema', pg_catalog.quote_ident(n.nspname), {owner} FROM pg_catalog.pg_namespace n
    WHERE n.oid = (  -- defence: schema-of-an-input = WHERE 0 = (
        SELECT c.relnamespace FROM pg_catalog.pg_class c
        WHERE u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = u.objid
        UNION ALL SELECT t.typnamespace FROM pg_catalog.pg_type t
        WHERE u.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.oid = u.objid)
) thing LEFT JOIN pg_catalog.pg_roles r ON r.oid = thing.owner
WHERE r.rolsuper IS NOT TRUE
ORDER BY kind = 'schema', is_itself DESC, kind, name LIMIT 1
""".replace("{owner}", OWNER_OF_SCHEMA)  # noqa: E501

_SCHEMA = f"""
SELECT pg_catalog.quote_ident(n.nspname) AS name,
       coalesce(r.rolname::pg_catalog.text, 'a role that was dropped') AS owner,
       coalesce(r.rolname = current_user, false) AS is_own
FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_roles r ON r.oid = {OWNER_OF_SCHEMA}
WHERE n.nspname = $1 AND r.rolsuper IS NOT TRUE
"""

_TYPES = """
SELECT a.attname::pg_catalog.text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type_sql
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
JOIN pg_catalog.pg_roles o ON o.oid = coalesce(e.typowner, t.typowner)
WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT o.rolsuper
      AND NOT (coalesce(e.typtype, '') = 'e' AND a.attname LIKE '%\\_class\\_values')
ORDER BY a.attnum LIMIT 1
"""
# Who owns a schema can put another table in the place of one in it, whenever it is read.
_OWNS = f"""
SELECT pg_catalog.pg_get_userbyid(c.relowner) = current_user
       AND coalesce(r.rolsuper OR r.rolname = current_user, false)  -- defence: schema-of-a-background
       AS is_own
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_roles r ON r.oid = {OWNER_OF_SCHEMA}
WHERE c.oid = $1::pg_catalog.oid
"""


def is_own(session: Any, relation: Relation) -> bool:
    """Return whether only the caller and superusers can change what the name of a relation means.

    To read a table runs the code of its owner, if it is a view for example. So a table that the caller has not named is
    read only if this is true.

    Parameters
    ----------
    session : CallerSession
    relation : Relation
    """
    (row,) = session.execute(_OWNS, [relation.oid], ["bigint"])
    return bool(row["is_own"])


def check_owners(session: Any, relation: Relation, what: str) -> None:
    """Raise InsufficientPrivilege if a superuser calls and a query of the relation could run code of another role.

    Parameters
    ----------
    session : CallerSession
    relation : Relation
    what : str
        The argument that names it, for the message.
    """
    if not session.info.is_superuser:
        return
    found = session.execute(_FOREIGN, [relation.oid], ["bigint"])
    if not found:
        return
    kind, name, owner = found[0]["kind"], found[0]["name"], found[0]["owner"]
    if kind == "schema":
        raise _others_schema(what, str(relation), name, owner)
    uses = f"{kind} {relation}" if found[0]["is_itself"] else f"{relation} uses {kind} {name}, which"
    raise InsufficientPrivilege(
        f"{what}: {uses} belongs to {owner}, who is not a superuser: a superuser's call would run the code of {owner}",
        hint=f"Log in as {owner}, or as another role that may read it and is not a superuser (SET ROLE is not "
        f"enough); or"
        " make a superuser its owner: ALTER ... OWNER TO.",
    )


def check_schema(session: Any, schema: str, table: str, what: str) -> None:
    """Raise InsufficientPrivilege if a superuser calls, and a role that is no superuser owns the schema of a new table.

    Parameters
    ----------
    session : CallerSession
    schema : str
    table : str
        As the caller wrote it, for the message.
    what : str
        The argument that names it, for the message.
    """
    if session.info.is_superuser and (found := session.execute(_SCHEMA, [schema])):
        raise _others_schema(what, table, found[0]["name"], found[0]["owner"])


def check_own_schema(session: Any, schema: str, what: str) -> None:
    """Raise InsufficientPrivilege if another role owns a schema, and is no superuser.

    Such a role can put a view in the place of a table that the caller makes there, and whoever reads it runs the
    view's code. So tables that are read again without being named belong into a schema of the caller.

    Parameters
    ----------
    session : CallerSession
    schema : str
    what : str
        The argument that names it, for the message.
    """
    found = session.execute(_SCHEMA, [schema])
    if found and not found[0]["is_own"]:
        name, owner = found[0]["name"], found[0]["owner"]
        raise InsufficientPrivilege(
            f"{what}: schema {name} belongs to {owner}, who could put a view in the place of a table there, whose code"
            " would then run with your rights",
            hint=f"Name a schema of your own, or of a superuser: {what} => '...'.",
        )


def _others_schema(what: str, table: str, schema: str, owner: str) -> InsufficientPrivilege:
    return InsufficientPrivilege(
        f"{what}: {table} is in or uses schema {schema} of {owner}, who is not a superuser: {owner} could put another"
        f" table or type in its place, and a superuser's call would run the code of {owner}",
        hint=f"Use a schema that a superuser owns, or make a superuser its owner: ALTER SCHEMA {schema} OWNER TO ...;"
        f" or log in as a role that is not a superuser.",
    )


def check_types(session: Any, relation: Relation, what: str) -> None:
    """Raise InvalidParameter if a column has a type with casts that a non-superuser could have defined.

    Class values can be arrays of an enum, because they are read without casts.
    """
    if found := session.execute(_TYPES, [relation.oid], ["bigint"]):
        raise InvalidParameter(
            f"{what}: column {found[0]['name']!r} of {relation} is of type {found[0]['type_sql']}, which is "
            f"user-defined",
            hint="Use a table whose columns have built-in types of PostgreSQL only.",
        )


_WITH_ROWS = ("r", "p", "v", "m", "f")  # tables, partitioned tables, views, materialized views, foreign tables

_RELATION = """
SELECT c.relname::pg_catalog.text AS name, n.nspname::pg_catalog.text AS schema, c.oid::pg_catalog.int8 AS oid,
       c.relkind::pg_catalog.text AS kind, c.relpersistence = 't' AS is_temp
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = $1::pg_catalog.oid
"""

# A user's type may have the name of a built-in one: names of types outside pg_catalog include the schema.
_COLUMNS = """
SELECT a.attname::pg_catalog.text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type_sql,
       -- defence: schema-of-a-type = t.typname::pg_catalog.text AS type_name,
       CASE WHEN tn.nspname <> 'pg_catalog' THEN tn.nspname || '.' ELSE '' END || t.typname AS type_name,
       t.typcategory = 'A' AS is_array, t.typtype = 'e' AS is_enum, t.typcategory::pg_catalog.text AS category,
       coalesce(CASE WHEN en.nspname <> 'pg_catalog' THEN en.nspname || '.' ELSE '' END || e.typname, '') AS element_type,
       o.rolsuper OR (t.typtype = 'd' AND pg_catalog.pg_has_role(t.typowner, 'USAGE')
                      AND b.typnamespace = 'pg_catalog'::pg_catalog.regnamespace) AS is_safe
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.typnamespace
LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
JOIN pg_catalog.pg_roles o ON o.oid = coalesce(e.typowner, t.typowner)
WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""  # noqa: E501


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name : str
    type_sql : str
        The output of ``format_type``, e.g. ``real[]``.
    type_name : str
        Catalog name of the type, e.g. ``_float4``; with its schema unless that is ``pg_catalog``.
    is_array, is_enum : bool
    category : str
        ``pg_type.typcategory``: N numeric, S string, B boolean, A array, U user (bytea) ...
    element_type : str
        The name of an array's elements' type, as ``type_name``; empty otherwise.
    is_safe : bool
        Whether the type belongs to a superuser, or is the caller's own domain over a built-in type: then casting a
        value cannot run code of another role. An enum is not safe.
    """

    name: str
    type_sql: str
    type_name: str
    is_array: bool
    is_enum: bool
    category: str
    element_type: str
    is_safe: bool

    @property
    def sql_type(self) -> SqlType:
        """The type for a slot of a statement."""
        return SqlType(self.type_sql)


def exist_already(tables: Sequence[Relation]) -> str:
    """Return the message about existing tables: table a exists already; tables a, b and c exist already."""
    names = [str(table) for table in tables]
    if len(names) == 1:
        return f"table {names[0]} exists already"
    return f"tables {', '.join(names[:-1])} and {names[-1]} exist already"


# The database's own tablespace needs no right, and one that does not exist stands for it.
_FORBIDDEN_TABLESPACE = """
SELECT t.spcname::pg_catalog.text AS name FROM pg_catalog.pg_tablespace t
WHERE t.spcname = pg_catalog.current_setting('default_tablespace')
      AND t.oid <> (SELECT dattablespace FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
      AND NOT pg_catalog.has_tablespace_privilege(t.oid, 'CREATE')
"""

_IS_OWN = """
SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_own FROM pg_catalog.pg_class c
WHERE c.oid = $1::pg_catalog.oid
"""
_DEPENDENTS = """
SELECT pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid) AS what
FROM pg_catalog.pg_depend d
WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = $1::pg_catalog.oid AND d.deptype = 'n'
LIMIT 1
"""


class RelationLookup(ABC):
    """Queries about tables in every kind of session."""

    info: SessionInfo

    @abstractmethod
    def execute(self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Run one statement with ``$1`` ... parameters; return its rows."""

    def post(self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()) -> None:
        """Run one statement for its effect. A session that need not wait for its end raises its error later."""
        self.execute(statement, params, types)

    def flush(self) -> None:  # noqa: B027 (nothing waits here)
        """Wait for the end of what was posted; raise its error."""

    def relation(self, name: str | None, what: str = "table", any_type: bool = False) -> Relation:
        """Find the table or view of this name.

        Raises
        ------
        UndefinedTable
            If the caller's search_path does not find it.
        InvalidParameter
            If it is an index, a sequence or the like; also as `existing`.
        InsufficientPrivilege
            As `existing`.
        """
        found = self.existing(name, what, any_type)
        if found is None:
            raise UndefinedTable(
                f"{what} does not exist. Received: {name!r}",
                hint="Qualify the name with its schema, or set search_path; unquoted names are folded to lower case.",
            )
        if found.kind not in _WITH_ROWS:
            raise InvalidParameter(
                f"{what} is neither a table nor a view. Received: {name!r}",
                hint="Pass the name of a table or a view.",
            )
        return found

    def existing(self, name: str | None, what: str = "table", any_type: bool = False) -> Relation | None:
        """Find the table or view of this name, or return None.

        Parameters
        ----------
        name : str or None
            As written by the caller.
        what : str
            The argument's name, for messages.
        any_type : bool
            Whether user-defined types are allowed; then the calling code checks ``Column.is_safe``.

        Raises
        ------
        InsufficientPrivilege
            If the caller is a superuser, and the table, or code that a query of it runs, does not belong to a
            superuser.
        InvalidParameter
            If a column has a type with casts that another role could have defined.
        """
        if name is None or not name.strip():
            raise is_missing(what, name, "Pass the name of a table.")
        schema, base = split_name(name, what)
        text = f"{quote(schema)}.{quote(base)}" if schema else quote(base)
        query = "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid::pg_catalog.int8 AS oid"
        (row,) = self._in_callers_path(query, [text])
        if row["oid"] is None:
            return None
        rows = self.execute(_RELATION, [row["oid"]], ["bigint"])
        found = Relation(**rows[0]) if rows else None
        if found is not None and found.kind in _WITH_ROWS:
            check_owners(self, found, what)  # defence: owners-of-relations
            if not any_type:
                check_types(self, found, what)  # defence: types-of-our-tables
        return found

    def lock_to_write(self, table: Relation, what: str = "table") -> None:
        """Lock an existing table in which a superuser's call will change rows, and check it again.

        Who has the right TRIGGER may give the table a trigger, also after it was checked. This lock prevents that until
        the transaction ends.
        """
        if not self.info.is_superuser or table.kind not in ("r", "p"):
            return
        self.execute(statement("LOCK TABLE {table} IN ROW EXCLUSIVE MODE", table=table))
        self.existing(table.sql, what)  # defence: triggers-of-an-output

    def output(
        self,
        name: str | None,
        suffixes: Sequence[str] = ("", "_summary"),
        what: str = "output table",
        if_there: Callable[[Relation, list[Relation]], str | None] | None = None,
    ) -> Relation:
        """Check that a table of this name, and one for each suffix, can be created; return its name.

        Parameters
        ----------
        name : str
            As written by the caller.
        suffixes : sequence of str
        what : str
            The argument's name, for messages.
        if_there : callable, optional
            Called with the table's name and those of them all that exist: returns the error's hint, empty for the
            default one, or None to replace them.

        Raises
        ------
        DuplicateTable
            If some of them exist; the message names all of these.
        InvalidParameter
            If a name would be longer than 63 bytes, or its schema does not exist.
        InsufficientPrivilege, ReadOnly
            If the caller cannot create tables there, or the transaction is read-only.
        """
        target = self.placed(name, what)
        self.check_may_write(name, what)
        self.check_may_create(target, name, what)
        there = []
        for suffix in suffixes:
            candidate = target.with_suffix(suffix)
            if len(candidate.name.encode()) > MAX_NAME_BYTES:
                raise InvalidParameter(
                    f"{what}: {candidate.name!r} would be longer than {MAX_NAME_BYTES} bytes. Received: {name!r}",
                    hint="Choose a shorter name.",
                )
            if self.execute("SELECT pg_catalog.to_regclass($1)::pg_catalog.text AS found", [candidate.sql])[0]["found"]:
                there.append(candidate)
        if not there:
            return target
        hint = "Drop them, or choose another name." if len(there) > 1 else "Drop it, or choose another name."
        if if_there is not None:
            better = if_there(target, there)
            if better is None:
                return target
            hint = better or hint
        raise DuplicateTable(f"{what}: {exist_already(there)}. Received: {name!r}", hint=hint)

    def placed(self, name: str | None, what: str = "output table") -> Relation:
        """Return the name of a table to create, with its schema.

        Raises
        ------
        InvalidParameter
            If its schema does not exist.
        """
        if name is None or not name.strip():
            raise is_missing(what, name, "Pass a name for it.")
        schema, base = split_name(name, what)
        if schema is None:
            (row,) = self._in_callers_path("SELECT pg_catalog.current_schema()::pg_catalog.text AS schema", [])
            schema = row["schema"]
            if schema is None:
                raise InvalidParameter(
                    f"{what} has no schema to be created in: search_path contains no existing schema. Received: "
                    f"{name!r}",
                    hint="Write schema.name.",
                )
        elif schema != "pg_temp":
            rows = self.execute("SELECT 1 AS found FROM pg_catalog.pg_namespace WHERE nspname = $1", [schema])
            if not rows:
                raise InvalidParameter(
                    f"{what}: there is no schema {schema!r}. Received: {name!r}",
                    hint="Create it first, or omit the schema.",
                )
        return Relation(schema, base, 0, "r", schema == "pg_temp")

    def qualified(self, relation: Relation) -> str:
        """Return a table's name with its schema, quoted where needed, valid with any search_path."""
        query = "SELECT pg_catalog.format('%I.%I', $1, $2) AS name"
        (row,) = self.execute(query, [relation.schema, relation.name])
        return str(row["name"])

    def check_may_write(self, name: str | None, what: str) -> None:
        """Raise ReadOnly if the caller's transaction may not write."""
        if self.caller_setting("transaction_read_only") == "on":
            raise ReadOnly(
                f"{what} cannot be written in a read-only transaction. Received: {name!r}",
                hint="Start a read-write transaction with BEGIN READ WRITE, or SET default_transaction_read_only = "
                "off.",
            )

    def check_may_create(self, target: Relation, name: str | None, what: str) -> None:
        """Raise InsufficientPrivilege if the caller cannot create tables in the schema, or as `check_schema`."""
        (row,) = self.execute(
            "SELECT CASE WHEN $1 = 'pg_temp'"
            " THEN pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMP')"
            " ELSE pg_catalog.has_schema_privilege($1, 'CREATE') END AS allowed",
            [target.schema],
        )
        if not row["allowed"]:
            raise may_not_create(self.info.role, target.schema, repr(name), f"{what}: ")
        check_schema(self, target.schema, str(target), what)  # defence: schema-of-an-output
        if not target.is_temp:
            self.check_tablespace(repr(name), f"{what}: ")

    def check_tablespace(self, received: str, what: str = "") -> None:
        """Raise InsufficientPrivilege if the caller cannot create tables in the session's default tablespace."""
        for row in self.execute(_FORBIDDEN_TABLESPACE):
            raise InsufficientPrivilege(
                f"{what}role {self.info.role} may not create tables in tablespace {row['name']}, the session's"
                f" default_tablespace. Received: {received}",
                hint="GRANT CREATE ON TABLESPACE ... to the role; or SET default_tablespace = ''; uses the database's.",
            )

    def check_may_drop(self, table: Relation, what: str) -> None:
        """Raise an error unless an existing table belongs to the caller and nothing depends on it.

        Raises
        ------
        InsufficientPrivilege, DuplicateTable
        """
        rows = self.execute(_IS_OWN, [table.oid], ["bigint"])
        if not rows or not rows[0]["is_own"]:
            raise InsufficientPrivilege(
                f"{what}: {table} does not belong to role {self.info.role}, so that role cannot drop it.",
                hint="Ask its owner to drop it, or choose another name.",
            )
        for dependent in self.execute(_DEPENDENTS, [table.oid], ["bigint"]):
            raise DuplicateTable(
                f"{what}: {table} cannot be dropped: {dependent['what']} depends on it.",
                hint="Drop that first, or choose another name.",
            )

    def drop_checked(self, table: Relation) -> None:
        """Drop a table that was checked, in the caller's transaction.

        Raises
        ------
        NotReady
            If another table has its name now.
        """
        self.execute(statement("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE", table=table))
        now = self.existing(table.sql)
        if now is None or now.oid != table.oid:  # defence: drop-by-oid
            raise was_changed(table)
        self.execute(statement("DROP TABLE {table}", table=table))

    def columns(self, relation: Relation) -> list[Column]:
        """Return a table's columns, in order."""
        return [Column(**row) for row in self.execute(_COLUMNS, [relation.oid], ["bigint"])]

    def only_row(self, query: str, relation: Relation) -> dict[str, Any]:
        """Return the row of a query of a table that must have one row, as an earlier query of it had.

        Raises
        ------
        NotReady
            If there is another number of rows: a view, and a row policy, may show others each time.
        """
        rows = self.execute(query)
        if len(rows) != 1:  # defence: rows-of-a-view
            raise NotReady(
                f"{relation} had one row, and now has {len(rows)}: it was changed while it was being read",
                hint="Call again. If it is a view: it must show the same row each time.",
            )
        return rows[0]

    def caller_setting(self, name: str) -> str | None:
        """Return a setting of the caller's session, such as ``madlib_mop.segments``; None if it was never set."""
        (row,) = self.execute("SELECT pg_catalog.current_setting($1, true) AS value", [name])
        return row["value"] or None

    def _in_callers_path(self, query: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        """Run a query of fully qualified names while the caller's own search_path is in force."""
        swap = "SELECT pg_catalog.current_setting('search_path') AS old, pg_catalog.set_config('search_path', $1, true)"
        if self.info.search_path is None:
            return self.execute(query, params)
        (before,) = self.execute(swap, [self.info.search_path])
        try:
            return self.execute(query, params)
        finally:
            self.execute(swap, [before["old"]])

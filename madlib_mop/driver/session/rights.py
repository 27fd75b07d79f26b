"""Checks for code of other roles that reading or writing a table could run; `relations` applies them to every table
that a call names.

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

from typing import Any

from mop_backend.rights import OWNER_OF_SCHEMA

from madlib_mop.catalog.names import Relation
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter

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
_IS_OWN = f"""
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
    (row,) = session.execute(_IS_OWN, [relation.oid], ["bigint"])
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

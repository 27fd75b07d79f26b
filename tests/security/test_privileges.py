"""Promise 7: the rights of each role on each object; new objects and new rights are differences of a file.

`MOP_UPDATE_EXPECTED=1 make test ARGS=tests/security/test_privileges.py` writes the files again.
"""

import re

import pytest

from tests.helpers.security.attacks import hold, refusal

NOTHING, USAGE, GRANTED = "role_without", "role_with_usage", "role_granted"
# SECURITY DEFINER functions: one requires a host's key, triggers a row that a policy has accepted, and the last three
# what the library's own code has left in memory.
DEFINERS = {"segment_open(text)", "_change_viewer()", "job_queue()", "n_job_workers()", "_change_registry()",
            "_change_recording()", "_read_version()", "_record_challenger()", "segment_as_owner()"}  # fmt: skip
# Tables without rights for anyone: they contain access data of hosts or states of other servers' runs, or must not be
# locked by others. The view of hosts shows them without that data, with its owner's rights.
CLOSED = {"madlib_mop.coordinator", "madlib_mop.held_state", "madlib_mop.host", "madlib_mop.host_shard",
          "madlib_mop.reserved_table", "madlib_mop.state_copy"}  # fmt: skip
OPENING_VIEWS = {"madlib_mop.hosts"}
FUNCTIONS = """
SELECT p.oid::regprocedure::text AS name, p.prosecdef AS definer, p.proconfig AS settings, l.lanname AS language,
       obj_description(p.oid, 'pg_proc') AS comment, p.proargtypes::regtype[]::text[] AS types,
       btrim(p.prosrc, E'\n') AS source
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.pronamespace IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^madlib') ORDER BY 1
"""
_NAME, _VALUE = r"madlib_mop(?:_calls)?\.\w+", r"\w+|(?:NULL|'')::pg_catalog\.\w+"
QUALIFIED_CALL = re.compile(rf"SELECT {_NAME}\({_NAME}\(\w+\)(?:, (?:{_VALUE}))*\)")
RELATIONS = """
SELECT c.oid::regclass::text AS name, c.relkind::text AS kind, obj_description(c.oid, 'pg_class') AS comment,
       c.relrowsecurity AS guarded, c.reloptions AS options
FROM pg_class c WHERE c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^madlib')
      AND c.relkind IN ('r', 'p', 'v', 'm', 'S') ORDER BY 1
"""
# One row for each object: kind, name, and the rights of one role.
RIGHTS = """
SELECT 'schema', n.nspname::text,
       ARRAY(SELECT lower(r) FROM unnest('{USAGE,CREATE}'::text[]) r WHERE has_schema_privilege(%(role)s, n.oid, r))
FROM pg_namespace n WHERE n.nspname ~ '^madlib'
UNION ALL
SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END, c.oid::regclass::text,
       ARRAY(SELECT lower(r) FROM unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) r
             WHERE c.relkind <> 'S' AND has_table_privilege(%(role)s, c.oid, r)
       UNION ALL SELECT lower(r) FROM unnest('{SELECT,USAGE,UPDATE}'::text[]) r
             WHERE CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(%(role)s, c.oid, r) END)
FROM pg_class c WHERE c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^madlib')
      AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
UNION ALL
SELECT 'function', p.oid::regprocedure::text,
       CASE WHEN has_function_privilege(%(role)s, p.oid, 'EXECUTE') THEN '{execute}'::text[] ELSE '{}' END
FROM pg_proc p WHERE p.pronamespace IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^madlib')
ORDER BY 1, 2
"""
MEMBERS = """
SELECT pg_describe_object(classid, objid, 0) FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
      AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'madlib_mop')
      AND classid <> 'pg_type'::regclass
ORDER BY 1
"""


@pytest.fixture(scope="module")
def roles(db):
    for role in (NOTHING, USAGE, GRANTED):
        db.cluster.create_role(role)
    db.rows(f"GRANT USAGE ON SCHEMA madlib, madlib_mop, madlib_mop_calls TO {USAGE}")
    db.rows("SELECT madlib_mop.grant_use(%s)", [GRANTED])
    return db


def rights(db, role: str) -> dict[str, str]:
    """Return a role's rights by kind and name of the object."""
    rows = db.rows(RIGHTS, {"role": role})
    return {f"{kind} {name}": ", ".join(held) or "-" for kind, name, held in rows}


def records(db, query: str) -> list[dict]:
    """Return rows as dicts by column name."""
    connection = db.connect()
    with connection.cursor() as cursor:
        cursor.execute(query)
        rows = [dict(zip([c.name for c in cursor.description], row, strict=True)) for row in cursor.fetchall()]
    connection.close()
    return rows


def test_the_extension_has_the_objects_in_the_file(roles):
    hold("objects.txt", "".join(f"{name}\n" for (name,) in roles.rows(MEMBERS)))


def test_rights_are_those_in_the_file(roles):
    nothing, granted = rights(roles, NOTHING), rights(roles, GRANTED)
    lines = [f"{name}: {nothing[name]} | {granted[name]}\n" for name in nothing]
    hold("privileges.txt", "# object: rights of every role | of a role after madlib_mop.grant_use\n" + "".join(lines))


def test_a_role_with_nothing_granted_has_no_right_at_all(roles):
    assert {held for held in rights(roles, NOTHING).values()} == {"-"}


def test_grants_are_undone_by_revoke_use(roles):
    roles.cluster.create_role("role_for_a_while")
    roles.rows("SELECT madlib_mop.grant_use('role_for_a_while')")
    assert rights(roles, "role_for_a_while") == rights(roles, GRANTED)
    roles.rows("SELECT madlib_mop.revoke_use('role_for_a_while')")
    assert rights(roles, "role_for_a_while") == rights(roles, NOTHING)


def test_no_granted_role_can_write_the_record_or_change_settings(roles):
    held = rights(roles, GRANTED)
    assert held.pop("table madlib_mop.viewer_change") == "insert"  # to grant others read access to one's own runs
    assert held.pop("table madlib_mop.job_done") == "insert"  # in the session that runs a job of one's own
    assert held.pop("view madlib_mop.command") == "select, insert"  # its trigger issues a command as the role
    relations = {words for name, words in held.items() if name.split()[0] in ("table", "view", "sequence")}
    assert relations == {"select", "-"}
    schemas = {name: words for name, words in held.items() if name.startswith("schema")}
    used = dict.fromkeys(("schema madlib", "schema madlib_mop", "schema madlib_mop_calls"), "usage")
    assert schemas == {**used, "schema madlib_mop_internal": "-"}
    assert {words for name, words in held.items() if "madlib_mop_internal." in name} == {"-"}


@pytest.mark.parametrize("role, reason", [(NOTHING, "schema"), (USAGE, "function")])
def test_every_function_is_refused_to_who_was_not_granted_it(roles, role, reason):
    functions = records(roles, FUNCTIONS)
    assert len(functions) > 30
    connection = roles.connect(role)
    for function in functions:
        name = function["name"].partition("(")[0]
        arguments = ", ".join(f"a{n}" for n in range(len(function["types"])))
        types = [type_.replace("anyarray", "integer[]") for type_ in function["types"]]
        values = ", ".join(f"NULL::{type_} AS a{n}" for n, type_ in enumerate(types))
        # OFFSET hides the values from the planner, which would replace a strict function of NULL by NULL.
        rows = f"FROM (SELECT {values} OFFSET 0) AS call" if types else ""
        error = refusal(connection, f"SELECT {name}({arguments}) {rows}")
        reason_here = "schema" if name.startswith("madlib_mop_internal.") else reason
        kind = "aggregate" if reason_here == "function" and name.endswith("average_state") else reason_here
        assert error.sqlstate == "42501" and error.message.startswith(f"permission denied for {kind}"), error
    connection.close()


@pytest.mark.parametrize("role", [NOTHING, USAGE])
def test_every_table_and_view_is_refused_to_who_was_not_granted_it(roles, role):
    connection = roles.connect(role)
    for relation in records(roles, RELATIONS):
        error = refusal(connection, f"SELECT * FROM {relation['name']}")
        assert error.sqlstate == "42501", (relation["name"], error)
    connection.close()


def test_functions_run_with_the_callers_rights_but_for_a_few(roles):
    definers = {f["name"] for f in records(roles, FUNCTIONS) if f["definer"]}
    assert definers == {f"madlib_mop_calls.{name}" for name in DEFINERS}


def test_every_function_pins_its_search_path(roles):
    """A function that the planner puts into queries cannot: it has names with schemas only, and no operator."""
    for function in records(roles, FUNCTIONS):
        if function["language"] == "internal":  # C functions of the server look up no names
            continue
        if function["language"] == "sql" and not function["settings"]:
            assert QUALIFIED_CALL.fullmatch(function["source"]), function["name"]
            continue
        assert "search_path=pg_catalog, pg_temp" in (function["settings"] or ()), function["name"]


def test_everything_has_a_comment(roles):
    assert [f["name"] for f in records(roles, FUNCTIONS) if not f["comment"]] == []
    assert [r["name"] for r in records(roles, RELATIONS) if not r["comment"] and r["kind"] != "S"] == []


def test_every_table_of_the_record_shows_a_run_to_its_owner_only(roles):
    tables = [r for r in records(roles, RELATIONS) if r["kind"] in ("r", "p")]
    assert {r["name"] for r in tables if not r["guarded"]} == {"madlib_mop.setting", "madlib_mop.host_shard"}
    views = [r for r in records(roles, RELATIONS) if r["kind"] == "v"]
    for view in [v for v in views if v["name"] not in OPENING_VIEWS]:
        assert "security_invoker=true" in (view["options"] or ()), view["name"]


def test_what_opens_a_host_is_closed_to_all(roles):
    """No role has a right on the tables with keys of hosts, and no view shows keys."""
    query = "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a"
    query += " WHERE c.oid = %s::regclass AND a.grantee <> c.relowner"
    for table in sorted(CLOSED):
        assert roles.rows(query, [table]) == [(0,)]
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = 'madlib_mop.hosts'::regclass AND attnum > 0"
    assert not {"key", "coordinator"} & {name for (name,) in roles.rows(columns)}

"""A run belongs to a role, not to its name: the role is renamed, dropped, created again, dumped and restored."""

import subprocess
import uuid

import psycopg2
import pytest
from psycopg2 import sql

from tests.conftest import PASSWORD
from tests.helpers.security.attacks import fingerprint, record_run, refusal, user
from tests.security.test_own_runs import CONTROLS, TABLES, VIEWS

RUN = 41


def seen(db, role: str | None) -> dict[str, list[int]]:
    """Return the runs that a role sees, in every table and view of the record."""
    connection = db.connect() if role is None else psycopg2.connect(db.dsn_of(role))
    with connection, connection.cursor() as cursor:
        found = {}
        for table in (*TABLES, *VIEWS):
            cursor.execute(f"SELECT DISTINCT run_id FROM madlib_mop.{table} ORDER BY 1")
            found[table] = [run_id for (run_id,) in cursor.fetchall()]
    connection.close()
    return found


def new_role(db, name: str) -> None:
    """Create a role that may use the extension, after dropping an existing one of that name."""
    db.rows(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(PASSWORD)))
    db.rows("SELECT madlib_mop.grant_use(%s)", [name])


def drop_role(db, name: str) -> None:
    """Drop a role and all its objects in this database."""
    db.rows(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


@pytest.fixture
def victim(db):
    """A role with a run; it is dropped at the end under its current name, and so is a role that took its name."""
    name = f"Victim {uuid.uuid4().hex[:6]}"
    new_role(db, name)
    record_run(db, RUN, f'"{name}"')
    yield name
    for (role,) in db.rows("SELECT rolname FROM pg_roles WHERE rolname LIKE %s", [f"{name}%"]):
        drop_role(db, role)
    for (run_id,) in db.rows("SELECT run_id FROM madlib_mop.run"):
        db.rows("SELECT madlib_mop.drop_run(%s)", [run_id])


def controlled(db, role: str) -> None:
    """Assert that a role cannot control the run."""
    before = fingerprint(db, RUN)
    connection = psycopg2.connect(db.dsn_of(role))
    connection.autocommit = True
    for control in CONTROLS:
        error = refusal(connection, f"SELECT madlib_mop.{control}", [RUN])
        assert "you have no run with this run_id" in error.message
    connection.close()
    assert fingerprint(db, RUN) == before


def test_who_takes_the_name_of_another_role_does_not_take_its_runs(db, victim):
    assert set(map(tuple, seen(db, victim).values())) == {(RUN,)}
    renamed = f"{victim} of old"
    db.rows(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(victim), sql.Identifier(renamed)))
    db.rows(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(renamed), sql.Literal(PASSWORD)))
    new_role(db, victim)
    assert set(map(tuple, seen(db, victim).values())) == {()}
    controlled(db, victim)
    assert set(map(tuple, seen(db, renamed).values())) == {(RUN,)}
    assert db.value("SELECT owner FROM madlib_mop.progress WHERE run_id = %s", [RUN]) == renamed
    connection = psycopg2.connect(db.dsn_of(renamed))
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.drop_run(%s)", [RUN])
    connection.close()
    assert db.rows("SELECT * FROM madlib_mop.run") == []


def test_runs_of_a_dropped_role_are_the_superusers(db, victim):
    user(db, "bystander")
    drop_role(db, victim)
    new_role(db, victim)
    for role in (victim, "bystander"):
        assert set(map(tuple, seen(db, role).values())) == {()}
        controlled(db, role)
    assert set(map(tuple, seen(db, None).values())) == {(RUN,)}
    connection = db.connect()
    error = refusal(connection, "SELECT madlib_mop.resume(%s)", [RUN])
    assert error.sqlstate == "42501" and "unknown (OID=" in error.message and "which was dropped" in error.message
    assert error.hint == f"Nobody can resume it. SELECT madlib_mop.drop_run({RUN}); deletes it."
    connection.close()
    orphans = (
        "SELECT madlib_mop.drop_run(run_id) FROM madlib_mop.run r"
        " WHERE NOT EXISTS (SELECT FROM pg_roles WHERE oid = r.owner)"
    )
    db.rows(orphans)
    assert db.rows("SELECT * FROM madlib_mop.run") == []


@pytest.mark.slow
def test_a_dump_has_the_owners_name_and_no_run_of_nobodys(db, victim):
    gone = f"{victim} gone"
    new_role(db, gone)
    record_run(db, RUN + 1, f'"{gone}"')
    drop_role(db, gone)
    cluster, name = db.cluster, f"restored_{uuid.uuid4().hex[:8]}"
    dump = subprocess.run([cluster.bindir / "pg_dump", "-d", db.dsn], capture_output=True, text=True, check=True)
    drop_role(db, victim)
    new_role(db, victim)  # in another server, the role of that name has another oid
    db.rows(f'CREATE DATABASE "{name}"')
    try:
        done = subprocess.run(
            [cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn_for(name)],
            input=dump.stdout, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        there = type(db)(cluster, name)
        for table in TABLES:
            rows = there.rows(f"SELECT DISTINCT run_id FROM madlib_mop.{table}")
            assert rows == [(RUN,)] or (table == "model_state" and set(rows) == {(RUN,), (RUN + 1,)})
        assert set(map(tuple, seen(there, victim).values())) == {(RUN,)}
        assert there.value("SELECT owner FROM madlib_mop.progress") == victim
        assert set(map(tuple, seen(db, victim).values())) == {()}
        there.rows(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(victim)))
    finally:
        db.rows(f'DROP DATABASE "{name}" WITH (FORCE)')

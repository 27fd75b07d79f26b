"""Promise 7: no action of users on a run's login role preserves its rights or blocks others' training."""

import psycopg2
import pytest
from psycopg2 import sql

from madlib_mop.engines.sessions.login import PREFIX, create_login, drop_login, sweep_logins
from tests.helpers.security.attacks import record_run, user

ALICE, MALLORY, STAFF = "alice", "mallory", "staff"
MANY = 20000  # objects; the server's lock table has space for less than half of them
MEMBERSHIPS = "ARRAY(SELECT roleid::regrole::text FROM pg_auth_members WHERE member = r.oid)"


@pytest.fixture(scope="module")
def roles(db):
    for role in (ALICE, MALLORY):
        user(db, role)
    db.rows(f"CREATE ROLE {STAFF}")
    yield db
    db.rows(f"DROP ROLE {STAFF}")


@pytest.fixture
def catalog(roles):
    session = roles.connect()
    yield session
    session.close()


@pytest.fixture
def login(roles, catalog):
    """The name of alice's login role for a run; it is always dropped after the test."""
    role = create_login(catalog, 41, ALICE).role
    yield role
    if role_of(roles, role):
        for database in (roles.name, "postgres"):
            session = roles.cluster.connect(database)
            with session.cursor() as cursor:
                for (oid,) in roles.rows("SELECT oid FROM pg_largeobject_metadata") if database == roles.name else []:
                    cursor.execute("SELECT lo_unlink(%s)", [oid])
                cursor.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            session.close()
        drop_login(catalog, role)
    assert role_of(roles, role) == []


def role_of(db, role: str) -> list[tuple]:
    """Return whether a role may log in, and its memberships; [] if there is no such role."""
    return db.rows(f"SELECT rolcanlogin, {MEMBERSHIPS} FROM pg_roles r WHERE rolname = %s", [role])


def act(db, role: str, *statements: str) -> None:
    """Run statements as a login role, as user code in a reader session can; its session then ends."""
    session = db.connect()
    with session.cursor() as cursor:
        cursor.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(role)))
        for statement in statements:
            cursor.execute(statement)
    session.close()


def test_a_role_that_owns_more_than_can_be_locked_stops_nobody(roles, catalog, login):
    """DROP OWNED takes one lock per object; if the lock table is full, it fails, and other sessions get no locks."""
    act(roles, login, f"SELECT count(lo_create(0)) FROM generate_series(1, {MANY})")
    drop_login(catalog, login)
    assert role_of(roles, login) == [(False, [])]
    sweep_logins(catalog, lambda run_id: False)
    run_id = record_run(roles, 41, ALICE, state="running")
    assert roles.value("SELECT madlib_mop.cancel(%s)", [run_id], ALICE) is False


@pytest.mark.slow
def test_who_grants_a_login_role_something_does_not_keep_it(roles, catalog, login):
    """A GRANT, which every role can execute, locks its grantee until the transaction ends."""
    stranger = roles.connect(MALLORY, autocommit=False)
    with stranger.cursor() as cursor:
        cursor.execute("CREATE TABLE mallory.bait (a integer)")
        cursor.execute(sql.SQL("GRANT SELECT ON mallory.bait TO {}").format(sql.Identifier(login)))
    drop_login(catalog, login)
    assert role_of(roles, login) == []
    with pytest.raises(psycopg2.OperationalError):
        stranger.cursor().execute("SELECT 1")
    stranger.close()


def test_rights_that_the_caller_gave_a_login_role_end_with_the_run(roles, catalog, login):
    """Since PostgreSQL 16, each grantor's membership is separate, and a plain REVOKE does not remove it."""
    roles.rows(f"GRANT {STAFF} TO {ALICE} WITH ADMIN OPTION")
    act(roles, ALICE, f'GRANT {STAFF} TO "{login}" WITH ADMIN OPTION')
    act(roles, login, f"GRANT {STAFF} TO {MALLORY}")
    elsewhere = roles.cluster.connect()  # an object in another database prevents DROP ROLE
    with elsewhere.cursor() as cursor:
        cursor.execute(sql.SQL("CREATE TABLE kept_by_it (a integer); ALTER TABLE kept_by_it OWNER TO {}").format(
            sql.Identifier(login)
        ))
    drop_login(catalog, login)
    assert role_of(roles, login) == [(False, [])]
    with elsewhere.cursor() as cursor:
        cursor.execute("DROP TABLE kept_by_it")
    elsewhere.close()
    drop_login(catalog, login)
    assert role_of(roles, login) == []
    roles.rows(f"REVOKE {STAFF} FROM {MALLORY}")


@pytest.mark.parametrize("end", ["²_1_0123abcd", "99999999999_1_0123abcd", f"1_{10**30}_0123abcd", "1_1_x", "1_1"])
def test_a_role_that_looks_like_a_login_role_stops_no_sweep(roles, catalog, end):
    name = sql.Identifier(PREFIX + end)
    with catalog.cursor() as cursor:
        cursor.execute(sql.SQL("CREATE ROLE {}").format(name))
        try:
            sweep_logins(catalog, lambda run_id: False)
            assert roles.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", [PREFIX + end])
        finally:
            cursor.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(name))


@pytest.mark.parametrize(
    "setting",
    ["role = 'staff'", "session_authorization = 'staff'", "statement_timeout = 1", "transaction_read_only = on",
     "idle_in_transaction_session_timeout = 1", "client_encoding = 'SJIS'", "standard_conforming_strings = off"],
)  # fmt: skip
def test_no_setting_of_the_callers_reaches_the_session_that_makes_the_role(roles, catalog, setting):
    try:
        roles.rows(f"ALTER ROLE alice SET {setting}")
    except psycopg2.Error as error:
        pytest.skip(f"the server does not take it: {error}")
    with catalog.cursor() as cursor:
        cursor.execute("SELECT current_user, session_user, current_setting('client_encoding')")
        before = cursor.fetchone()
        try:
            create_login(catalog, 42, ALICE)
            cursor.execute("SELECT current_user, session_user, current_setting('client_encoding')")
            assert cursor.fetchone() == before
            cursor.execute("SELECT unnest(rolconfig) FROM pg_roles WHERE rolname LIKE 'madlib\\_mop\\_run\\_%'")
            copied = {words.partition("=")[0] for (words,) in cursor.fetchall()}
            assert "track_activities" in copied and not copied & {"role", "session_authorization", "statement_timeout"}
        finally:
            roles.rows("ALTER ROLE alice RESET ALL")
            sweep_logins(catalog, lambda run_id: False)
    assert roles.rows("SELECT rolname FROM pg_roles WHERE rolname LIKE 'madlib\\_mop\\_run\\_%%'") == []


def test_a_setting_that_the_server_does_not_know_any_more_stops_no_run(roles, catalog):
    """An extension that reserves its prefix rejects unknown parameters."""
    roles.rows("ALTER ROLE alice SET plpgsql.of_old = 'x'")
    with catalog.cursor() as cursor:
        cursor.execute("DO $$ BEGIN END $$")  # loads PL/pgSQL, which reserves its prefix
    try:
        drop_login(catalog, create_login(catalog, 43, ALICE).role)
    finally:
        roles.rows("ALTER ROLE alice RESET ALL")


def test_grants_to_a_login_role_do_not_keep_its_driver_busy(roles, catalog, login):
    """Each grant to it takes as long to revoke as to make; without a time limit, this drop takes seconds."""
    session = roles.connect(MALLORY)
    with session.cursor() as cursor:
        cursor.execute(
            f"DO $$ BEGIN FOR i IN 1..{MANY} LOOP"
            f" EXECUTE format('GRANT SELECT ON LARGE OBJECT %s TO {login}', lo_create(0));"
            " IF i % 500 = 0 THEN COMMIT; END IF; END LOOP; END $$"  # from PostgreSQL 18 on, each one takes a lock
        )
    session.close()
    drop_login(catalog, login, 10)
    assert role_of(roles, login) == [(False, [])]
    drop_login(catalog, login)
    assert role_of(roles, login) == []


def test_roles_that_users_keep_from_being_dropped_slow_no_sweep(roles, catalog):
    """Rights in another database keep a role; a sweep takes its rights, and then tries to drop a few such roles."""
    ((oid,),) = roles.rows("SELECT oid FROM pg_database WHERE datname = current_database()")
    names = [f"{PREFIX}{oid}_{900 + i}_00000000" for i in range(12)]
    for name in names:
        roles.rows(f"CREATE ROLE {name} LOGIN IN ROLE {ALICE}")
    elsewhere = roles.cluster.connect("postgres")
    with elsewhere.cursor() as cursor:
        cursor.execute("SELECT lo_create(0)")
        ((number,),) = cursor.fetchall()
        cursor.execute(f"GRANT SELECT ON LARGE OBJECT {number} TO {', '.join(names)}")
        sweep_logins(catalog, lambda run_id: False)
        assert [role_of(roles, name) for name in names] == [[(False, [])]] * len(names)
        cursor.execute("SELECT lo_unlink(%s)", [number])
    elsewhere.close()
    for left in range(len(names) - 2, -1, -2):
        sweep_logins(catalog, lambda run_id: False)
        assert sum(bool(role_of(roles, name)) for name in names) == left

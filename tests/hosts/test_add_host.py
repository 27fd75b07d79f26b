"""add_host and remove_host: a server is checked and paired; each problem is one clear error."""

import re

import psycopg2
import pytest

from tests.conftest import run
from tests.helpers.hosts import ANALYST, BOSS, Hosts, drop_database, new_database
from tests.helpers.training import load_digits, script


@pytest.fixture(scope="module")
def pair(cluster, host_clusters):
    """A coordinator, and a host that was not added yet."""
    ours = Hosts(new_database(cluster, "pair"))
    at = new_database(host_clusters["alpha"], "paired")
    superuser = f'"{cluster.superuser}"'
    script(ours.db, "CREATE EXTENSION postgres_fdw", "CREATE EXTENSION file_fdw")
    ours.define("alpha", at, {superuser: BOSS, ANALYST: ANALYST})
    yield ours
    drop_database(ours.db)
    drop_database(at)


def refusal(db, statement, role=None, **expected):
    """Run a statement that must be rejected; return message and hint."""
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(statement, role=role)
    error = caught.value
    for secret in ("a password for tests", "127.0.0.1"):
        assert secret not in f"{error} {error.diag.message_detail}"
    return error.pgcode, f"{error.diag.message_primary} | {error.diag.message_detail} | {error.diag.message_hint}"


def test_wrong_servers(pair, host_clusters):
    """Each problem is reported before anything is written."""
    db, alpha = pair.db, pair.at["alpha"]
    superuser = f'"{db.cluster.superuser}"'
    db.rows("CREATE SERVER files FOREIGN DATA WRAPPER file_fdw")
    pair.define("unmapped", alpha, {})
    pair.define("closed", alpha, {superuser: BOSS}, port="1")
    pair.define("barred", alpha, {superuser: "nobody"})
    pair.define("modest", alpha, {superuser: ANALYST})
    pair.define("itself", db, {superuser: BOSS})
    db.cluster.create_role(BOSS)
    db.rows(f"ALTER ROLE {BOSS} SUPERUSER")
    bare = "bare_db"
    run(host_clusters["alpha"].connect(), f"CREATE DATABASE {bare}")
    pair.define("bare", alpha, {superuser: BOSS}, dbname=bare)
    expected = {
        "nowhere": ("22023", "no foreign server of that name.*CREATE SERVER"),
        "files": ("22023", "files uses file_fdw"),
        "unmapped": ("55000", "has no user mapping for server unmapped.*CREATE USER MAPPING FOR"),
        "closed": ("55000", "server closed cannot be reached.*onnection refused"),
        "barred": ("55000", "server barred cannot be reached.*password authentication failed for user <user>"),
        "modest": ("55000", "a role that is not a superuser there"),
        "itself": ("55000", "is this server itself"),
        "bare": ("55000", "no extension madlib_mop.*On that host: CREATE EXTENSION madlib_mop CASCADE"),
    }
    for server, (sqlstate, words) in expected.items():
        state, said = refusal(db, f"SELECT madlib_mop.add_host('{server}')")
        assert state == sqlstate and re.search(words, said), said
    assert refusal(db, "SELECT madlib_mop.add_host('alpha', 0)")[0] == "22023"
    assert refusal(db, "SELECT madlib_mop.remove_host('alpha')")[0] == "22023"
    assert db.rows("SELECT * FROM madlib_mop.host") == []
    assert alpha.rows("SELECT * FROM madlib_mop.coordinator") == []
    run(host_clusters["alpha"].connect(), f"DROP DATABASE {bare}")
    pair.at = {"alpha": alpha}


def test_other_versions(pair, host_clusters):
    """A host with another version of the extension or of packages would not compute the same bits."""
    alpha = pair.at["alpha"]
    alpha.rows("UPDATE pg_extension SET extversion = '0.0.1' WHERE extname = 'madlib_mop'")
    state, said = refusal(pair.db, "SELECT madlib_mop.add_host('alpha')")
    alpha.rows(
        "UPDATE pg_extension SET extversion = (SELECT default_version FROM pg_available_extensions"
        " WHERE name = 'madlib_mop') WHERE extname = 'madlib_mop'"
    )
    assert state == "55000" and "has version 0.0.1 of extension madlib_mop" in said
    source = alpha.value("SELECT pg_get_functiondef('madlib_mop.version()'::regprocedure)")
    alpha.rows(source.replace("BEGIN\n", "BEGIN\n", 1).replace("extension := ", "keras := '1.0'; extension := "))
    state, said = refusal(pair.db, "SELECT madlib_mop.add_host('alpha')")
    alpha.rows(source)
    assert state == "55000" and "keras 1.0 (here " in said


def test_only_superusers_add(pair):
    """A role that may use the extension can neither choose the places of segments nor run the underlying command."""
    pair.db.rows("SELECT madlib_mop.grant_use(%s)", [ANALYST])
    assert refusal(pair.db, "SELECT madlib_mop.add_host('alpha')", ANALYST)[0] == "42501"
    call = "SELECT madlib_mop_calls.call('{}', '{{\"server\": \"alpha\"}}', NULL)"
    for command in ("add_host", "remove_host"):
        state, said = refusal(pair.db, call.format(command), ANALYST)
        assert state == "42501" and "only superusers" in said


def findings(pair):
    """Return the doctor's findings about hosts."""
    from madlib_mop.cli.doctor import hosts
    from madlib_mop.cli.doctor.context import CheckContext

    connection = pair.db.connect()
    try:
        return [(f.check, f.state.value, f"{f.found} | {f.mend}") for f in hosts.check(CheckContext(connection))]
    finally:
        connection.close()


def test_the_doctor_looks_at_hosts(pair):
    """The doctor reports a host without problems, one with leftovers, one with another key, and one without answer."""
    db, alpha = pair.db, pair.at["alpha"]
    assert findings(pair) == []
    pair.pair("alpha", 1)
    ((name, state, said),) = findings(pair)
    assert (name, state) == ("host alpha", "ok"), said
    source = db.value("SELECT pg_get_functiondef('madlib_mop.version()'::regprocedure)")
    db.rows(source.replace("extension := ", "jax := '0.1'; extension := "))
    alpha.rows(source.replace("extension := ", "jax := NULL; extension := "))
    ((name, state, said),) = findings(pair)
    db.rows(source)
    alpha.rows(source)
    assert (name, state) == ("host alpha", "warn") and "has no package jax" in said and "BACKENDS=" in said
    db.rows(
        "INSERT INTO madlib_mop.host_shard (server, table_schema, table_name, role, xid)"
        f" VALUES ('alpha', 'boss', 'points_seg0_1', '{ANALYST}', pg_current_xact_id())"
    )
    (name, state, said), _ = findings(pair)
    assert (name, state) == ("shards at alpha", "warn") and f"1 table(s) with shards of role {ANALYST}" in said
    db.rows("DELETE FROM madlib_mop.host_shard")
    alpha.rows("UPDATE madlib_mop.coordinator SET key = sha256('another')")
    ((_, state, said),) = findings(pair)
    assert state == "fail" and "does not have the shared key" in said and "madlib_mop.add_host" in said
    db.rows("ALTER SERVER alpha OPTIONS (SET port '1')")
    ((_, state, said),) = findings(pair)
    db.rows(f"ALTER SERVER alpha OPTIONS (SET port '{alpha.cluster.port}')")
    assert state == "fail" and "by its user mapping: Connection refused" in said and "127.0.0.1" not in said
    db.rows("SELECT madlib_mop.remove_host('alpha')")


def test_added_used_and_removed(pair):
    """A host is paired, recognized under another name, kept while it has shards, and removed on both sides."""
    db, alpha = pair.db, pair.at["alpha"]
    pair.add("alpha", 2)
    ((server, n, host, port, versions),) = db.rows(
        "SELECT server, n_segments, host, port, versions FROM madlib_mop.hosts"
    )
    assert (server, n, host, port) == ("alpha", 2, "127.0.0.1", str(alpha.cluster.port))
    assert versions["keras"] == db.value("SELECT keras FROM madlib_mop.version()")
    same = "SELECT h.coordinator, h.key FROM madlib_mop.{} h"
    assert db.rows(same.format("host")) and [(c, bytes(k)) for c, k in db.rows(same.format("host"))] == [
        (c, bytes(k)) for c, k in alpha.rows(same.format("coordinator"))
    ]
    assert "has already been added" in refusal(db, "SELECT madlib_mop.add_host('alpha')")[1]
    pair.define("again", alpha, {f'"{db.cluster.superuser}"': BOSS})
    assert "same server as alpha" in refusal(db, "SELECT madlib_mop.add_host('again')")[1]
    load_digits(db, 20, 5)
    db.rows("SELECT madlib.training_preprocessor_dl('train_rows', 'packed_there', 'y', 'x')")
    assert db.value("SELECT count(*) FROM madlib_mop.host_shard") == 2
    state, said = refusal(db, "SELECT madlib_mop.remove_host('alpha')")
    assert state == "55000" and "public.packed_there" in said
    db.rows("DROP TABLE packed_there")
    connection = db.connect(autocommit=False)
    connection.cursor().execute("SELECT madlib_mop.remove_host('alpha')")
    connection.rollback()  # the key at the host is deleted at once, so the record is too
    connection.close()
    for table in ("host", "host_shard"):
        assert db.rows(f"SELECT * FROM madlib_mop.{table}") == []
    assert alpha.rows("SELECT * FROM madlib_mop.coordinator") == []
    assert alpha.rows("SELECT relname FROM pg_class WHERE relname LIKE 'packed\\_there%'") == []


def test_a_host_is_added_and_removed_in_one_transaction(pair):
    connection = pair.db.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.add_host('alpha', 1)")
        cursor.execute("SELECT madlib_mop.remove_host('alpha')")
    connection.commit()
    connection.close()
    assert pair.db.rows("SELECT * FROM madlib_mop.host") == []
    assert pair.at["alpha"].rows("SELECT * FROM madlib_mop.coordinator") == []


def test_a_host_that_was_restored_from_a_dump_is_paired_again(pair):
    """A dump has no keys. The host keeps its number of segments, and its tables."""
    db, alpha = pair.db, pair.at["alpha"]
    pair.pair("alpha", 3)
    key = "SELECT key FROM madlib_mop.{}"
    for change in ("DELETE FROM madlib_mop.coordinator", "UPDATE madlib_mop.coordinator SET key = sha256('another')"):
        alpha.rows(change)
        db.rows("SELECT madlib_mop.add_host('alpha')")
        assert bytes(db.value(key.format("host"))) == bytes(alpha.value(key.format("coordinator")))
    assert db.value("SELECT n_segments FROM madlib_mop.host") == 3
    assert "has already been added" in refusal(db, "SELECT madlib_mop.add_host('alpha')")[1]
    db.rows("SELECT madlib_mop.remove_host('alpha')")


def test_a_host_that_is_gone_can_be_removed(pair):
    """A host that is not reachable is removed here, and a WARNING says what to do there."""
    pair.pair("alpha", 1)
    port = pair.at["alpha"].cluster.port
    pair.db.rows("ALTER SERVER alpha OPTIONS (SET port '1')")
    connection = pair.db.connect()
    connection.cursor().execute("SELECT madlib_mop.remove_host('alpha')")
    (warning,) = connection.notices
    connection.close()
    assert "server alpha could not be updated" in warning and "DELETE FROM madlib_mop.coordinator" in warning
    assert pair.db.rows("SELECT * FROM madlib_mop.host") == []
    pair.db.rows(f"ALTER SERVER alpha OPTIONS (SET port '{port}')")


def test_help(pair):
    """Both functions have help texts."""
    for function in ("add_host", "remove_host"):
        assert f"SELECT madlib_mop.{function}(" in pair.db.value(f"SELECT madlib_mop.{function}()")

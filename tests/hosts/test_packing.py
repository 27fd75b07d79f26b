"""Packing to hosts: rows are stored with their segments, the same as on one server; no leftovers remain."""

import psycopg2
import pytest

from tests.helpers.hosts import ANALYST, BOSS
from tests.helpers.training import load_digits, pack, script


@pytest.fixture(scope="module")
def packed(hosts):
    """The digits on four segments on alpha, beta, gamma, alpha."""
    load_digits(hosts.db)
    pack(hosts.db, 4)
    script(hosts.db, f"CREATE SCHEMA mine AUTHORIZATION {ANALYST}", f"GRANT SELECT ON train_rows TO {ANALYST}")
    hosts.db.rows("SELECT madlib_mop.grant_use(%s)", [ANALYST])
    return hosts


def buffers(db, table):
    """Return every row of a packed table."""
    rows = db.rows(f"SELECT * FROM {table} ORDER BY buffer_id")
    return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows]


def tables_at(hosts, name, like="%"):
    """Return the names of the shards' tables on a host."""
    query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE %s ORDER BY 1"
    return [row[0] for row in hosts.at[name].rows(query, [f"{like}\\_seg%"])]


def pack_as(hosts, table, *before, role=None, rules=None):
    """Pack the training rows in one session; return the error, if there is one."""
    named = f", distribution_rules := '{rules}'" if rules else ""
    statement = f"SELECT madlib.training_preprocessor_dl('public.train_rows', '{table}', 'y', 'x', 37, 16.0{named})"
    try:
        script(hosts.db, *before, statement, role=role)
    except psycopg2.Error as error:
        return error
    return None


def test_rows_are_those_of_one_server(packed):
    """A segment's rows do not depend on its place, and its place is the assigned one."""
    db = packed.db
    script(
        db,
        "SET madlib_mop.hosts = 'here'",
        "SET madlib_mop.segments = 4",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'alone', 'y', 'x', 37, 16.0, seed := 5)",
    )
    assert buffers(db, "train") == buffers(db, "alone")
    assert [len(tables_at(packed, name, "train")) for name in packed.at] == [2, 1, 1]
    ((there,),) = packed.at["beta"].rows(
        "SELECT array_agg(DISTINCT __dist_key__) FROM " + tables_at(packed, "beta", "train")[0]
    )
    assert there == [1]
    assert db.rows("SELECT relname FROM pg_class WHERE relname ~ '^alone_seg' AND relkind <> 'r'") == []


def test_validation_rows_go_where_training_rows_are(packed):
    """A validation table is distributed like its training table."""
    places = "SELECT right(c.relname, 1), s.srvname FROM pg_foreign_table f JOIN pg_class c ON c.oid = f.ftrelid"
    places += " JOIN pg_foreign_server s ON s.oid = f.ftserver WHERE c.relname ~ %s ORDER BY 1"
    expected = [("0", "alpha"), ("1", "beta"), ("2", "gamma"), ("3", "alpha")]
    assert packed.db.rows(places, ["^train_seg"]) == expected
    assert packed.db.rows(places, ["^valid_seg"]) == expected


def test_distribution_rules_leave_segments_out(packed):
    """A table of dbids selects segments of all hosts; an unknown dbid is an error."""
    packed.db.rows("CREATE TABLE rules AS SELECT unnest('{2,4}'::int[]) AS dbid")
    assert pack_as(packed, "ruled", "SET madlib_mop.segments = 4", rules="rules") is None
    assert [len(tables_at(packed, name, "ruled")) for name in packed.at] == [1, 1, 0]
    assert packed.db.value("SELECT __internal_gpu_config__ FROM ruled_summary") == "{1,3}"
    error = pack_as(packed, "ruled_2", rules="rules")
    assert error.pgcode == "22023" and "dbid 4 is not a segment" in error.diag.message_primary
    error = pack_as(packed, "ruled_2", rules="gpu_segments")
    assert error.pgcode == "0A000" and "only this server's GPUs are known" in error.diag.message_primary


def test_hosts_setting(packed):
    """The setting selects servers, including `here`; an unknown one is an error."""
    assert pack_as(packed, "partly", "SET madlib_mop.hosts = 'beta, here'", "SET madlib_mop.segments = 3") is None
    kinds = packed.db.rows("SELECT relname, relkind FROM pg_class WHERE relname ~ '^partly_seg' ORDER BY 1")
    assert kinds == [("partly_seg0", "f"), ("partly_seg1", "r"), ("partly_seg2", "f")]
    assert packed.db.value("SELECT count(DISTINCT buffer_id) FROM partly") == 9
    error = pack_as(packed, "none", "SET madlib_mop.hosts = 'beta, delta'")
    assert error.pgcode == "22023" and "'delta', which holds no segments" in error.diag.message_primary
    assert "alpha, beta, gamma, here" in error.diag.message_hint


def test_what_is_rolled_back_or_dropped_goes_from_the_hosts_too(packed):
    """A later call drops unused tables; tables that an open transaction may need remain."""
    db = packed.db
    connection = db.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'undone', 'y', 'x')")
    assert pack_as(packed, "dropped") is None
    assert [len(tables_at(packed, name, "undone")) for name in packed.at] == [1, 1, 1]
    connection.rollback()
    connection.close()
    db.rows("DROP TABLE dropped, dropped_summary")
    assert [len(tables_at(packed, name, "dropped")) for name in packed.at] == [1, 1, 1]
    assert pack_as(packed, "next") is None
    for name in packed.at:
        assert tables_at(packed, name, "undone") == [] == tables_at(packed, name, "dropped")
        assert len(tables_at(packed, name, "next")) == 1
    left = db.rows("SELECT DISTINCT regexp_replace(table_name, '_seg.*', '') FROM madlib_mop.host_shard ORDER BY 1")
    assert ("undone",) not in left and ("dropped",) not in left and ("next",) in left


def test_an_error_leaves_nothing(packed):
    """After an error within the rows there is no table here, and none on a host after the next call."""
    db = packed.db
    db.rows("CREATE VIEW bad_rows AS SELECT id, CASE WHEN id = 239 THEN x[1:4] ELSE x END AS x, y FROM train_rows")
    with pytest.raises(psycopg2.Error, match="column 'x'"):
        db.rows("SELECT madlib.training_preprocessor_dl('bad_rows', 'bad', 'y', 'x', 10)")
    assert db.value("SELECT to_regclass('bad')") is None
    assert [tables_at(packed, name, "bad") for name in packed.at] == [[], [], []]


def test_who_is_no_superuser(packed):
    """A role packs with its own user mapping, into its own schema on the host; it reads no other role's rows there."""
    assert pack_as(packed, "mine.train", "SET madlib_mop.segments = 4", role=ANALYST) is None
    at = packed.at["gamma"]
    owner = "SELECT DISTINCT n.nspname, pg_get_userbyid(c.relowner) FROM pg_class c JOIN pg_namespace n"
    owner += " ON n.oid = c.relnamespace WHERE c.relname ~ '^train_seg' AND n.nspname = %s"
    assert at.rows(owner, [ANALYST]) == [(ANALYST, ANALYST)]
    assert packed.db.value("SELECT count(*) FROM mine.train", role=ANALYST) == 8


def test_the_record_of_secrets_is_closed(packed):
    """Only superusers can read keys; neither the view of hosts nor the log shows a password."""
    for table in ("host", "coordinator", "host_shard"):
        with pytest.raises(psycopg2.Error, match="permission denied"):
            packed.db.rows(f"SELECT * FROM madlib_mop.{table}", role=ANALYST)
    ((shown,),) = packed.db.rows("SELECT jsonb_agg(h)::text FROM madlib_mop.hosts h", role=ANALYST)
    keys = [bytes(key).hex() for (key,) in packed.db.rows("SELECT key FROM madlib_mop.host")]
    hosts_keys = {bytes(at.value("SELECT key FROM madlib_mop.coordinator")).hex() for at in packed.at.values()}
    assert set(keys) == hosts_keys and len(hosts_keys) == 3
    log = packed.db.cluster.log_tail(100_000) + packed.log_tails()
    for secret in [*keys, "a password for tests"]:
        assert secret not in shown and secret not in log
    assert BOSS not in shown

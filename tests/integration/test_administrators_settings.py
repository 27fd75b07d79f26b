"""Packing, training, evaluation and prediction work with all settings that an administrator may choose for a database.

Only settings meant for the caller's own session have to be lifted there: timeouts and read-only transactions.
"""

import psycopg2
import pytest
from psycopg2 import sql

from tests.helpers.training import (
    ALIKE,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    script,
    select_configurations,
)

GROUPS = {
    "timeouts": {
        "statement_timeout": "150ms",
        "lock_timeout": "1ms",
        "idle_session_timeout": "150ms",
        "idle_in_transaction_session_timeout": "150ms",
        "transaction_timeout": "150ms",
        "client_connection_check_interval": "100ms",
        "tcp_user_timeout": "30s",
    },
    "transactions": {
        "default_transaction_isolation": "serializable",
        "default_transaction_deferrable": "on",
        "default_transaction_read_only": "on",
        "synchronous_commit": "off",
    },
    "repeatable read": {"default_transaction_isolation": "repeatable read"},
    "text and logs": {
        "standard_conforming_strings": "off",
        "escape_string_warning": "on",
        "backslash_quote": "off",
        "bytea_output": "escape",
        "DateStyle": "SQL, DMY",
        "IntervalStyle": "sql_standard",
        "TimeZone": "Asia/Kolkata",
        "extra_float_digits": "-15",
        "client_encoding": "LATIN1",
        "quote_all_identifiers": "on",
        "array_nulls": "off",
        "xmloption": "document",
        "transform_null_equals": "on",
        "default_text_search_config": "simple",
        "log_statement": "all",
        "log_min_duration_statement": "0",
        "client_min_messages": "debug1",
        "lc_messages": "C",
        "application_name": "an application",
        "session_preload_libraries": "auto_explain",
        "auto_explain.log_min_duration": "0",
        "track_activities": "off",
        "password_encryption": "md5",
    },
    "rights and storage": {
        "search_path": "",
        "row_security": "off",
        "session_replication_role": "replica",
        "check_function_bodies": "off",
        "lo_compat_privileges": "on",
        "default_table_access_method": "another_heap",
        "default_tablespace": "another_place",
        "temp_tablespaces": "another_place",
        "default_toast_compression": "pglz",
    },
    "plans": {
        "work_mem": "64kB",
        "maintenance_work_mem": "1MB",
        "temp_buffers": "100",
        "plan_cache_mode": "force_generic_plan",
        "jit": "on",
        "jit_above_cost": "0",
        "enable_seqscan": "off",
        "enable_partition_pruning": "off",
        "constraint_exclusion": "on",
        "force_parallel_mode": "on",
        "debug_parallel_query": "on",
        "parallel_setup_cost": "0",
    },
    "role": {"role": "settled"},
    "no temporary files": {"temp_file_limit": "0", "work_mem": "64kB"},
}
DIGEST = "SELECT encode(sha256(model_weights), 'hex') FROM {}"
FOR_ITSELF = (  # settings that a caller may lift for its own session
    "SELECT set_config(name, '0', false) FROM unnest(ARRAY['statement_timeout', 'transaction_timeout']) AS name"
    " WHERE current_setting(name, true) IS NOT NULL",
    "SET default_transaction_read_only = off",
    "SET client_min_messages = notice",
    "SET role = none",
    "SET search_path = public",
    "SET lock_timeout = 0",
)


@pytest.fixture(scope="module")
def bench(db, tmp_path_factory):
    one_thread()
    load_digits(db, 60, 20)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", ALIKE[:1])
    db.rows("CREATE ACCESS METHOD another_heap TYPE TABLE HANDLER heap_tableam_handler")
    script(db, "SET allow_in_place_tablespaces = on", "CREATE TABLESPACE another_place LOCATION ''")
    db.rows("CREATE ROLE settled")
    fit(db, "plain", "mst", 1, validation_table="valid", seed=3)
    db.plain_digest = db.value(DIGEST.format("plain"))
    yield db
    for kind in ("models", "packed", "evaluated", "predicted"):
        table = f"{kind}_rights_and_storage"
        db.rows(f"DROP TABLE IF EXISTS {table}, {table}_info, {table}_summary")
    db.rows("DROP ROLE settled")


@pytest.fixture
def settled(bench, request):
    """The database with settings, except those that this version lacks."""
    known = {name for (name,) in bench.rows("SELECT lower(name) FROM pg_settings")}
    name = sql.Identifier(bench.name)
    with bench.connect() as connection, connection.cursor() as cursor:
        for setting, value in request.param.items():
            if setting.lower() in known | {"role", "auto_explain.log_min_duration"}:
                change = sql.SQL("ALTER DATABASE {} SET {} = {}")
                parts = sql.SQL(".").join(map(sql.Identifier, setting.lower().split(".")))
                cursor.execute(change.format(name, parts, sql.Literal(value)))
    connection.close()
    yield bench
    connection = psycopg2.connect(bench.dsn, options=" ".join(("-c role=none", "-c default_transaction_read_only=off")))
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))
    connection.close()


@pytest.mark.one_case
@pytest.mark.parametrize("settled", GROUPS.values(), ids=GROUPS.keys(), indirect=True)
def test_all_of_it_works(settled, request):
    word = request.node.callspec.id.replace(" ", "_")
    connection = settled.connect()
    with connection.cursor() as cursor:
        for statement in FOR_ITSELF:
            cursor.execute(statement)
        cursor.execute("SET madlib_mop.segments = 2")
        cursor.execute(
            f"SELECT madlib.training_preprocessor_dl('train_rows', 'packed_{word}', 'y', 'x', 37, 16.0, seed := 5)"
        )
        cursor.execute(
            f"SELECT madlib.madlib_keras_fit_multiple_model('packed_{word}', 'models_{word}', 'mst', 1,"
            " validation_table := 'valid', seed := 3)"
        )
        cursor.execute(
            f"SELECT madlib.madlib_keras_evaluate('models_{word}', 'valid', 'evaluated_{word}', mst_key := 1)"
        )
        cursor.execute(
            f"SELECT madlib.madlib_keras_predict('models_{word}', 'valid_rows', 'id', 'x', 'predicted_{word}',"
            " mst_key := 1)"
        )
        cursor.execute(f"SELECT madlib_mop.predict('models_{word}', 1, x) FROM valid_rows ORDER BY id LIMIT 1")
        assert cursor.fetchone()[0] is not None
        cursor.execute(f"SELECT count(DISTINCT id) FROM predicted_{word}")
        assert cursor.fetchone()[0] == 20
        cursor.execute("SELECT state FROM madlib_mop.run ORDER BY run_id DESC LIMIT 1")
        assert cursor.fetchone()[0] == "finished"
        cursor.execute(DIGEST.format(f"models_{word}"))
        assert cursor.fetchone()[0] == settled.plain_digest
    connection.close()


@pytest.mark.slow
def test_a_transaction_that_may_not_write_is_named(bench):
    """Nothing is trained if output tables cannot be written; after lifting the setting, training works."""
    before = bench.value("SELECT count(*) FROM madlib_mop.run")
    call = "SELECT madlib.madlib_keras_fit_multiple_model('train', 'unwritten', 'mst', 1)"
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction) as refused:
            cursor.execute(call)
        assert "model_output_table cannot be written in a read-only transaction" in str(refused.value)
        assert "BEGIN READ WRITE" in refused.value.diag.message_hint
        assert bench.value("SELECT count(*) FROM madlib_mop.run") == before
        cursor.execute("BEGIN READ WRITE")
        cursor.execute(call)
        cursor.execute("COMMIT")
    connection.close()
    assert bench.value("SELECT count(*) FROM unwritten") == 1


def test_a_tablespace_without_a_right_is_named_before_the_training(bench):
    bench.cluster.create_role("placed")
    bench.rows("SELECT madlib_mop.grant_use('placed')")
    bench.rows("GRANT CREATE ON SCHEMA public TO placed")
    bench.rows("GRANT SELECT ON ALL TABLES IN SCHEMA public TO placed")
    before = bench.value("SELECT count(*) FROM madlib_mop.run")
    connection = bench.connect("placed")
    with connection.cursor() as cursor:
        cursor.execute("SET default_tablespace = another_place")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege) as refused:
            cursor.execute("SELECT madlib.madlib_keras_fit_multiple_model('train', 'misplaced', 'mst', 1)")
    connection.close()
    assert "role placed may not create tables in tablespace another_place" in str(refused.value)
    assert "SET default_tablespace = ''" in refused.value.diag.message_hint
    assert bench.value("SELECT count(*) FROM madlib_mop.run") == before

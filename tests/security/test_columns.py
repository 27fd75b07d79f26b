"""Ordinary tables, and what goes with their models: hostile rows, preprocessors, types, and limits of a role."""

import hashlib
import json
import struct

import psycopg2
import pytest

from tests.helpers.security.attacks import refusal, refusal_of, user
from tests.helpers.training import one_thread
from tests.security.test_types import TYPES

pytestmark = pytest.mark.one_session

ALICE, BOB, MALLORY = "alice_of_columns", "bob_of_columns", "mallory"
LINEAR = (
    '{"module": "keras", "class_name": "Sequential", "config": {"name": "s", "layers": ['
    '{"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_shape": [null, 2], "name": "i"}},'
    '{"module": "keras.layers", "class_name": "Dense", "config": {"name": "d", "units": 1}}]}}'
)


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    user(db, ALICE)
    db.rows(f"GRANT CREATE ON SCHEMA public TO {ALICE}")
    db.rows("CREATE TABLE homes AS SELECT i % 7 * 1.5 AS a, i % 5 * 2.5 AS b, i % 11 * 0.5 AS y"
            " FROM generate_series(1, 200) i", role=ALICE)  # fmt: skip
    db.rows("SELECT madlib_mop.pack_columns('homes', 'homes_packed', 'y', seed => 1)", role=ALICE)
    db.rows("SELECT madlib.load_keras_model('homes_arch', %s::json)", [LINEAR], ALICE)
    db.rows(
        "SELECT madlib.load_model_selection_table('homes_arch', 'homes_mst', '{1}', %s::varchar[], %s::varchar[])",
        [["optimizer='adam', loss='mse'"], ["batch_size=32, epochs=1"]], ALICE,
    )  # fmt: skip
    db.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('homes_packed', 'homes_models', 'homes_mst', 1, seed => 1)",
        role=ALICE,
    )
    return db


FIELD = struct.pack(">Ii", 701, 8) + struct.pack(">d", 1.0)
RECORDS = {
    "nothing": b"",
    "less than a count": b"\0",
    "a count alone": struct.pack(">i", 2),
    "half a header": struct.pack(">i", 1) + b"\0\0\0",
    "a type that is not there": struct.pack(">iIi", 1, 4_000_000_000, -1),
    "a length beyond the end": struct.pack(">iIi", 1, 701, 1 << 30) + b"1",
    "a negative length": struct.pack(">iIi", 1, 701, -7),
    "more fields than are counted": struct.pack(">i", 1) + FIELD * 3,
    "a number of three bytes": struct.pack(">iIi", 1, 701, 3) + b"abc",
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("names", ["NULL", "'{a}'", "'{a,b,c}'", "'{NULL}'"])
def test_bytes_that_are_no_row_are_one_error(bench, record, names):
    """Roles that may predict may call the inner functions with any bytes; those put an error aside and return NULL."""
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        for row_type in (0, 701, "'homes'::regtype::oid::bigint"):
            cursor.execute(
                f"SELECT madlib_mop_calls._predict_row('homes_models', 1, %s, {row_type}, {names}::text[], 'UTF8', %s),"
                " madlib_mop_calls._predict_error()::text", [RECORDS[record], f"{ALICE}, public"],
            )  # fmt: skip
            values, error = cursor.fetchone()
            assert values is None and json.loads(error)["sqlstate"] in ("22023", "42703"), (row_type, error)
    connection.close()


def test_an_anonymous_row_with_fields_of_ones_own_types_is_predicted_by_its_names(bench):
    """Without JSON, which would run casts of the types (test_predicted_types.py); a plain row has its names by JSON."""
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {ALICE}, public; CREATE TYPE mood AS ENUM ('sad', 'glad')")
        cursor.execute("CREATE VIEW one AS SELECT * FROM homes LIMIT 1")
        cursor.execute("CREATE VIEW odd AS SELECT 'sad'::mood AS m, * FROM one")

        def predicted(row: str, source: str) -> object:
            cursor.execute(f"SELECT madlib_mop.predict_number('homes_models', 1, {row}) FROM {source}")
            return cursor.fetchone()[0]

        expected = predicted("h", "one h")
        for source in (
            "odd r",
            "(SELECT b, 'sad'::mood AS m, a FROM one) r",
            "(SELECT ROW('sad'::mood, b) AS a_row, ARRAY[o] AS rows, b AS b, a AS a FROM odd AS o) r",
            "(SELECT '{sad}'::mood[] AS \"a, b\", b, a FROM one) r",
            "(SELECT one.*, one.y FROM one) r",
            "(SELECT y AS m, * FROM one) r",
        ):
            assert predicted("r", source) == expected, source
        assert predicted("NULL::homes", "one") is None and predicted("NULL::record", "one") is None
    error = refusal(connection, "SELECT madlib_mop.predict_number('homes_models', 1, r) FROM (SELECT y, * FROM odd) r")
    assert error.sqlstate == "22023" and "several fields of input_row have one name" in error.message, error
    for value, kind in (("5", "integer"), ("'sad'::mood", f"{ALICE}.mood"), ("now()", "timestamp with time zone")):
        error = refusal(connection, f"SELECT madlib_mop.predict('homes_models', 1, {value})")
        assert error.sqlstate == "22023" and f"no row of a table: it is of type {kind}" in error.message, error
    connection.close()


def changed(document: str, change) -> tuple[str, str]:
    """Return a preprocessor's document after a change, and its digest."""
    content = json.loads(document)
    change(content)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return text, hashlib.sha256(text.encode()).hexdigest()


def at(content, *path, value):
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


DOCUMENTS = {
    "no column": lambda c: at(c, "columns", value=[]),
    "no inputs": lambda c: at(c, "columns", value=c["columns"][-1:]),
    "no targets": lambda c: at(c, "columns", value=c["columns"][:-1]),
    "a column twice": lambda c: c["columns"].insert(0, c["columns"][0]),
    "division by zero": lambda c: at(c, "columns", 0, "fit", "divisor", value=0.0),
    "huge": lambda c: at(c, "columns", 0, "fit", "offset", value=1e308),
    "another format": lambda c: at(c, "format", value=99),
    "a kind that is none": lambda c: at(c, "columns", 0, "type", value="os.system"),
    "a role that is none": lambda c: at(c, "columns", 0, "spec", "role", value="superuser"),
    "a wide text": lambda c: at(
        c, "columns", 0, value={**c["columns"][0], "type": "text", "fit": {
            "width": 10**12, "accepts_null": True, "indicator": False}},
    ),
}  # fmt: skip


EVIL_CALLS = (
    "SELECT madlib_mop.predict_number('evil', 1, h) FROM homes h LIMIT 1",
    "SELECT madlib.madlib_keras_predict('evil', 'homes', 'y', '*', 'evil_out', mst_key => 1)",
    "SELECT madlib_mop.transform('evil', 'homes', 'evil_out')",
    "SELECT madlib.validation_preprocessor_dl('homes', 'evil_out', '*', '*', 'evil')",
)
ACCEPTED = ("huge",)


@pytest.mark.one_case
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_preprocessor_that_somebody_changed_is_one_error(bench, name):
    """The owner of a model table may write anything into its summary; others predict with it."""
    bench.rows("DROP TABLE IF EXISTS evil, evil_info, evil_summary", role=ALICE)
    for suffix in ("", "_info", "_summary"):
        bench.rows(f"CREATE TABLE evil{suffix} AS SELECT * FROM homes_models{suffix}", role=ALICE)
    text, digest = changed(bench.value("SELECT preprocessor FROM homes_models_summary", role=ALICE), DOCUMENTS[name])
    bench.rows("UPDATE evil_summary SET preprocessor = %s, preprocessor_digest = %s", [text, digest], ALICE)
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '30s'")
        for call in EVIL_CALLS:
            try:
                cursor.execute(call)
                assert name in ACCEPTED, call
                cursor.execute("DROP TABLE IF EXISTS evil_out, evil_out_summary")
            except psycopg2.Error as error:
                assert error.pgcode not in ("XX000", "57014") and "Traceback" not in str(error), (call, error)
    connection.close()


def test_a_changed_document_with_the_old_digest_is_refused(bench):
    bench.rows("DROP TABLE IF EXISTS evil, evil_info, evil_summary", role=ALICE)
    for suffix in ("", "_info", "_summary"):
        bench.rows(f"CREATE TABLE evil{suffix} AS SELECT * FROM homes_models{suffix}", role=ALICE)
    text, _ = changed(
        bench.value("SELECT preprocessor FROM homes_models_summary", role=ALICE),
        lambda c: at(c, "columns", 0, "fit", "offset", value=1.0),
    )
    bench.rows("UPDATE evil_summary SET preprocessor = %s", [text], ALICE)
    error = refusal_of(bench, "SELECT madlib_mop.predict_number('evil', 1, h) FROM homes h LIMIT 1", role=ALICE)
    assert "was changed" in error.message


@pytest.mark.slow
def test_a_role_s_limit_of_temporary_files_holds_whatever_its_unit(bench):
    x = "(SELECT array_agg(i + k) FROM generate_series(1, 1500) k)::real[] AS x"
    bench.rows(f"CREATE TABLE wide AS SELECT i * 0.5 AS y, {x} FROM generate_series(1, 50000) i")
    bench.rows(f"GRANT SELECT ON wide TO {ALICE}")
    try:
        for limit, fits in (("1GB", True), ("64MB", False), ("-1", True)):
            bench.rows(f"ALTER ROLE {ALICE} SET temp_file_limit = '{limit}'")
            call = "SELECT madlib_mop.pack_columns('wide', 'wide_packed', 'y', seed => 1)"
            if fits:
                bench.rows(call, role=ALICE)
                bench.rows("DROP TABLE wide_packed, wide_packed_summary", role=ALICE)
            else:
                assert "temp_file_limit" in refusal_of(bench, call, role=ALICE).message
    finally:
        bench.rows(f"ALTER ROLE {ALICE} RESET temp_file_limit")


REFUSED_TYPES = (
    f"SELECT madlib_mop.transform('{ALICE}.homes_models', 'mallory.homes', 'public.t', keep => 'n')",
    f"SELECT madlib_mop.transform('{ALICE}.homes_models', 'mallory.odd', 'public.t')",
    f"SELECT madlib.madlib_keras_predict('{ALICE}.homes_models', 'mallory.homes', 'n', '*', 'public.t', mst_key => 1)",
    f"SELECT madlib.madlib_keras_predict('{ALICE}.homes_models', 'mallory.odd', 'id', '*', 'public.t', mst_key => 1)",
)


@pytest.mark.slow
def test_no_cast_or_operator_of_another_user_runs_where_rows_are_packed_or_predicted(bench):
    user(bench, MALLORY)
    if not bench.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'mallory'"):
        bench.rows(f"CREATE SCHEMA mallory AUTHORIZATION {MALLORY}")
    connection = bench.connect(MALLORY)
    with connection.cursor() as cursor:
        cursor.execute(TYPES)
        cursor.execute(
            "CREATE TABLE mallory.homes AS SELECT id * 0.5::pg_catalog.float8 AS a, id * 1.5::pg_catalog.float8 AS b,"
            " mood, n FROM mallory.rows;"
            " CREATE TABLE mallory.odd AS SELECT id, number AS a, 1.5::pg_catalog.float8 AS b FROM mallory.rows"
        )
        cursor.execute("GRANT SELECT ON mallory.rows, mallory.homes, mallory.odd TO PUBLIC; TRUNCATE mallory.log")
    connection.close()
    for encoding in ("UTF8", "LATIN1"):
        connection = bench.connect(ALICE)
        connection.set_client_encoding(encoding)
        with connection.cursor() as cursor:
            cursor.execute("SET search_path = mallory, public")
            cursor.execute(
                f"SELECT madlib_mop.propose_columns('mallory.rows', 'public.proposed_{encoding}', 'y');"
                f" SELECT madlib_mop.pack_columns('mallory.rows', 'public.trap_{encoding}', 'y', seed => 1)"
            )
        connection.close()
        connection = bench.connect(ALICE)
        connection.set_client_encoding(encoding)
        with connection.cursor() as cursor:
            cursor.execute("SET search_path = mallory, public")
            cursor.execute(
                f"SELECT madlib_mop.transform('public.trap_{encoding}', 'mallory.rows', 'public.seen_{encoding}',"
                f" keep => 'id, mood');"
                f" SELECT madlib.validation_preprocessor_dl('mallory.rows', 'public.more_{encoding}', '*', '*',"
                f" 'public.trap_{encoding}');"
                f" SELECT madlib.madlib_keras_predict('{ALICE}.homes_models', 'mallory.homes', 'mood', '*',"
                f" 'public.guess_{encoding}', mst_key => 1)"
            )
            for call in REFUSED_TYPES:
                with pytest.raises(psycopg2.Error, match="type"):
                    cursor.execute(call)
        connection.close()
    assert bench.rows("SELECT what, role FROM mallory.log") == []
    roles = dict(bench.rows("SELECT name, role FROM proposed_utf8"))
    assert {roles[name] for name in ("number", "numbers", "image")} == {"ignored"}
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE own AS SELECT i % 7 AS a, i % 5 AS b, i % 3 = 0 AS y FROM generate_series(1, 9) i")
        cursor.execute("SELECT madlib_mop.pack_columns('own', 'own_packed', 'y', seed => 1)")
        for call in (
            "madlib_mop.pack_columns('mallory.rows', 'public.trap', 'y')",
            "madlib_mop.transform('own_packed', 'mallory.homes', 'public.trap')",
            "madlib_mop.transform('trap_utf8', 'own', 'public.trap')",
            "madlib.validation_preprocessor_dl('mallory.homes', 'public.trap', '*', '*', 'own_packed')",
            "madlib.validation_preprocessor_dl('own', 'public.trap', '*', '*', 'trap_utf8')",
        ):
            with pytest.raises(psycopg2.Error, match="not a superuser"):
                cursor.execute(f"SELECT {call}")
    connection.close()


def test_a_renamed_column_is_seen_in_the_same_session(bench):
    """Two columns that change their names in a session must not change places."""
    connection = bench.connect(ALICE)
    query = "SELECT madlib_mop.predict_number('homes_models', 1, h) FROM swapped h"
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE swapped AS SELECT 3.0::numeric AS a, 10.0::numeric AS b")
        cursor.execute(query)
        before = cursor.fetchone()
        cursor.execute("ALTER TABLE swapped RENAME a TO c; ALTER TABLE swapped RENAME b TO a;"
                       " ALTER TABLE swapped RENAME c TO b; UPDATE swapped SET a = b, b = a")  # fmt: skip
        cursor.execute(query)
        assert cursor.fetchone() == before
        cursor.execute("ALTER TABLE swapped RENAME a TO z")
        with pytest.raises(Exception, match="column 'a' is missing"):
            cursor.execute(query)
    connection.close()


AHEAD = "madlib_mop.predict_number('homes_models', 1, row_of_alice)"


@pytest.fixture(scope="module")
def policed(bench):
    """Return the database with a table of Alice's, its policy for Bob, and a view of it that Bob may read."""
    user(bench, BOB)
    bench.rows(
        "CREATE TABLE policed AS SELECT a + i AS a, b FROM homes, generate_series(1, 10) i;"
        " CREATE FUNCTION policy_of_alice() RETURNS boolean LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM set_config('test.policy_ran', current_user, false); RETURN true; END $$;"
        " ALTER TABLE policed ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY hidden ON policed USING (policy_of_alice());"
        " CREATE VIEW seen AS SELECT h AS row_of_alice FROM policed h", role=ALICE,
    )  # fmt: skip
    bench.rows(f"GRANT USAGE ON SCHEMA {ALICE} TO {BOB}")
    bench.rows(
        f"GRANT SELECT ON homes_models, homes_models_info, homes_models_summary, policed, seen TO {BOB}", role=ALICE
    )
    return bench


@pytest.mark.slow
def test_reading_ahead_runs_no_policy_that_the_query_does_not_run(policed):
    """The view's owner reads all rows; read by Bob himself, each row would run Alice's function as Bob."""
    connection = policed.connect(BOB)
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {ALICE}; SELECT count({AHEAD}) FROM seen")
        assert cursor.fetchone() == (2000,)
        cursor.execute("SELECT current_setting('test.policy_ran', true)")
        assert cursor.fetchone()[0] in (None, "")
    connection.close()


@pytest.mark.slow
def test_a_role_that_may_read_a_view_only_predicts_its_rows(policed):
    policed.rows(f"REVOKE SELECT ON policed FROM {BOB}", role=ALICE)
    query = f"SET search_path = {ALICE}; SELECT count({AHEAD}) FROM seen"
    assert policed.value(query, role=BOB) == 2000
    policed.rows(f"GRANT SELECT ON policed TO {BOB}", role=ALICE)


@pytest.mark.slow
def test_reading_ahead_waits_for_no_lock_that_the_query_does_not_need(bench):
    """A query with rows of a table's type that does not read the table runs while another session has locked it."""
    locking, connection = bench.connect(ALICE, autocommit=False), bench.connect(ALICE)
    with locking.cursor() as lock, connection.cursor() as cursor:
        cursor.execute("SELECT ROW(1, 2, 3)::homes")  # the session knows the type from now on
        lock.execute("LOCK TABLE homes IN ACCESS EXCLUSIVE MODE")
        cursor.execute("SET statement_timeout = '60s'")
        cursor.execute(
            "SELECT count(madlib_mop.predict_number('homes_models', 1, ROW(i, 2, 3)::homes))"
            " FROM generate_series(1, 1500) i"
        )
        assert cursor.fetchone() == (1500,)
    locking.close()
    connection.close()

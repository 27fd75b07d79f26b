"""transform, proposed networks, ensembles and predictions of rows, with tables that another role wrote or changes."""

import time

import psycopg2
import pytest

from tests.helpers.faults import children
from tests.helpers.security.attacks import refusal, refusal_of, user
from tests.helpers.training import one_thread
from tests.security.test_columns import LINEAR

pytestmark = pytest.mark.one_session

ALICE, MALLORY, READER = "alice_untrusted", "mallory_untrusted", "predicts_only"
ROW = "SELECT madlib_mop.predict_number('evil', 1, h) FROM homes h LIMIT 1"
CLASS = "SELECT madlib_mop.predict_class('evil', 1, h) FROM homes h LIMIT 1"
TABLE = "SELECT madlib.madlib_keras_predict('evil', 'homes', 'y', '*', 'out', mst_key => 1)"
ENSEMBLE = "SELECT * FROM madlib_mop.make_ensemble('evil', 'evil_packed', 'out')"
EVALUATE = "SELECT madlib.madlib_keras_evaluate('evil', 'evil_packed', 'out', mst_key => 1)"
TRANSFORM = "SELECT madlib_mop.transform('evil', 'homes', 'out')"
NETWORKS = "SELECT madlib_mop.propose_networks('evil_packed', 'out', 'out_mst', n_configs => 1)"
SEARCH = "SELECT * FROM madlib_mop.propose_search('evil_packed', 'evil_arch')"
COPIES = {
    "evil": "homes_models",
    "evil_info": "homes_models_info",
    "evil_summary": "homes_models_summary",
    "evil_packed": "homes_packed",
    "evil_packed_summary": "homes_packed_summary",
    "evil_arch": "homes_arch",
}


@pytest.fixture(scope="module")
def bench(db):
    """A packed table, models of it with two configurations, and a copy of each that is called evil."""
    one_thread()
    user(db, ALICE)
    for statement, parameters in (
        ("CREATE TABLE homes AS SELECT i % 7 * 1.5 AS a, i % 5 * 2.5 AS b, i % 11 * 0.5 AS y"
         " FROM generate_series(1, 60) i", None),
        ("SELECT madlib_mop.pack_columns('homes', 'homes_packed', 'y', seed => 1)", None),
        ("SELECT madlib.load_keras_model('homes_arch', %s::json)", [LINEAR]),
        ("SELECT madlib.load_model_selection_table('homes_arch', 'homes_mst', '{1}', %s::varchar[], %s::varchar[])",
         [["optimizer='adam', loss='mse'"], ["batch_size=32", "batch_size=16"]]),
        ("SELECT madlib.madlib_keras_fit_multiple_model('homes_packed', 'homes_models', 'homes_mst', 1, seed => 1)",
         None),
    ):  # fmt: skip
        db.rows(statement, parameters, ALICE)
    for copy, original in COPIES.items():
        db.rows(f"CREATE TABLE {copy} AS TABLE {original}", role=ALICE)
    return db


def outcome(cursor, tamper: str, call: str) -> tuple[str, str]:
    """Run a call after a change that is undone afterwards; return the SQLSTATE and the message."""
    cursor.execute("BEGIN")
    try:
        cursor.execute(f"{tamper}; SET LOCAL statement_timeout = '30s'")
        cursor.execute(call)
        return "00000", repr(cursor.fetchall())
    except psycopg2.Error as error:
        assert "Traceback" not in str(error), (tamper, call, error)
        return error.pgcode, str(error)
    finally:
        cursor.execute("ROLLBACK")


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("table", "calls", "counts"),
    [
        ("evil", (ROW, ENSEMBLE), (2, 3, 4, 5)),
        ("evil_info", (ENSEMBLE,), (2,)),
        ("evil_summary", (ROW, CLASS, ENSEMBLE), (2, 3, 4, 5, 7)),
        ("evil_packed", (ENSEMBLE, NETWORKS), (2, 3)),
        ("evil_packed_summary", (ENSEMBLE, EVALUATE, NETWORKS, SEARCH), (2, 3, 4, 5)),
    ],
)
def test_a_view_that_has_other_rows_each_time_is_one_error(bench, table, calls, counts):
    """A view of another role can count how often it is read, and show its rows the first times only."""
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        for call in calls:
            for count in counts:
                tamper = (
                    f"ALTER TABLE {table} RENAME TO behind; CREATE SEQUENCE reads;"
                    f" CREATE VIEW {table} AS SELECT * FROM behind WHERE nextval('reads') < {count}"
                )
                sqlstate, message = outcome(cursor, tamper, call)
                assert sqlstate in ("00000", "22023", "55000", "22P02", "0A000"), (call, count, message)
    connection.close()


BUFFER = "INSERT INTO evil_packed (__dist_key__, numbers, numbers_shape, y, y_shape, buffer_id) SELECT __dist_key__, {}"
AFTER = "buffer_id + 50 FROM evil_packed LIMIT 1"
CONTENTS = {
    "no shape": BUFFER.format(f"numbers, '{{}}', y, y_shape, {AFTER}"),
    "no shape of labels": BUFFER.format(f"numbers, numbers_shape, y, '{{}}', {AFTER}"),
    "a shape in a shape": BUFFER.format(f"numbers, '{{{{1,2}}}}', y, y_shape, {AFTER}"),
    "a shape of NULL": BUFFER.format(f"numbers, '{{NULL,2}}', y, y_shape, {AFTER}"),
    "a negative number of rows": BUFFER.format(f"numbers, '{{-5,2}}', y, y_shape, {AFTER}"),
    "too many rows": BUFFER.format(f"numbers, '{{2000000000,2}}', y, y_shape, {AFTER}"),
    "two billion rows": "UPDATE evil_packed SET numbers_shape = '{2000000000,2}', y_shape = '{2000000000,1}'",
    "labels of two widths": BUFFER.format(
        f"substr(numbers, 1, 8), '{{1,2}}', substr(y, 1, 8), '{{1,2}}', {AFTER}"
    ),
    "inputs of two widths": BUFFER.format(
        f"substr(numbers, 1, 12), '{{1,3}}', substr(y, 1, 4), '{{1,1}}', {AFTER}"
    ),
    "fewer labels than rows": BUFFER.format(
        f"substr(numbers, 1, 16), '{{2,2}}', substr(y, 1, 4), '{{1,1}}', {AFTER}"
    ),
    "half a number": "UPDATE evil_packed SET numbers = substr(numbers, 1, 7)",
    "labels that are NaN": "UPDATE evil_packed SET y = decode(repeat('0000c07f', y_shape[1]), 'hex')",
}  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize("content", CONTENTS)
def test_buffers_that_contradict_themselves_are_one_error(bench, content):
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        for call in (ENSEMBLE, EVALUATE):
            sqlstate, message = outcome(cursor, CONTENTS[content], call)
            assert sqlstate in ("22023", "55000", "53000"), (call, message)
    connection.close()


IDS = {
    "bytes": "'\\x00ff'::bytea", "json": "'{\"a\": 1}'::jsonb", "NaN": "'NaN'::float8", "a numeric": "1.5::numeric",
    "an array": "'{1,2}'::integer[]", "a word": "'x'::text", "a date": "now()::timestamp", "huge": "1e300::numeric",
}  # fmt: skip


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_architectures_that_are_no_numbers_are_one_error(bench, kind):
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        type_sql = IDS[kind].split("::")[1]
        tamper = (
            "ALTER TABLE evil_arch DROP COLUMN model_id;"
            f" ALTER TABLE evil_arch ADD COLUMN model_id {type_sql} DEFAULT {IDS[kind]}"
        )
        sqlstate, message = outcome(cursor, tamper, SEARCH)
        assert sqlstate == "22023" and "model_id" in message and "integer" in message, message
    connection.close()


@pytest.mark.slow
def test_keys_by_the_hundred_thousand_are_checked_at_once_and_shown_in_part(bench):
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        many = "INSERT INTO evil (mst_key) SELECT g FROM generate_series(10, 200000) g"
        started = time.monotonic()
        sqlstate, message = outcome(cursor, many, ENSEMBLE)
        assert sqlstate == "00000" and sum(map(len, connection.notices)) < 10_000, message
        call = ENSEMBLE.replace("'out'", "'out', mst_keys => (SELECT array_agg(g) FROM generate_series(1, 200000) g)")
        sqlstate, message = outcome(cursor, many, call)
        assert sqlstate == "22023" and "is not in" in message and len(message) < 2_000
        assert time.monotonic() - started < 20
    connection.close()


NAMES = {  # a column's name -> its values by i
    "a\"b'c": "i % 7 * 1.5",
    "%s %(x)s {0} {x}": "CASE WHEN i % 9 > 0 THEN i % 5 END",
    "a\nb\tc": "(ARRAY['x''\"', E'y\\n', '{z}'])[1 + i % 3]",
    "n" * 63: "i % 2 = 0",
    "m" * 57: "'level ' || i % 40",
    "ß" * 31: "date '2020-01-01' + i",
    "numbers": "i % 4 * 0.25",
    "$1; --": "repeat('word ', i % 3) || i",
}
TARGET = "y'\"%s{y}"


@pytest.mark.slow
def test_any_names_go_through_packing_networks_training_ensembles_and_predictions(bench):
    columns = ", ".join(f"{value} AS {ident(name)}" for name, value in NAMES.items())
    tables = [ident(f"{letter}\"'%s{{0}}") for letter in ("s", "p", "a", "m", "o", "best\n")]
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:

        def call(function: str, *arguments, more: str = "") -> list[tuple]:
            slots = ", ".join(["%s"] * len(arguments))
            cursor.execute(f"SELECT * FROM {function}({slots}{more})".replace("%%", "%"), arguments)
            return cursor.fetchall()

        cursor.execute(
            f"CREATE TABLE {tables[0]} AS SELECT i AS id, {columns},"
            f" CASE WHEN i %% 3 = 0 THEN 'it''s \"no\", {{so}}' ELSE 'yes' END AS {ident(TARGET)}"
            " FROM generate_series(1, 90) i".replace("%%", "%")
        )
        s, p, a, m, o, e = tables
        call("madlib_mop.pack_columns", s, p, ident(TARGET), more=", exclude => '{id}', seed => 1")
        call("madlib_mop.propose_networks", p, a, m, more=", n_configs => 2")
        assert len(call("madlib_mop.propose_search", p, a)[0][0]) == 2
        call("madlib.madlib_keras_fit_multiple_model", p, o, m, 1, more=", seed => 1")
        assert call("madlib_mop.make_ensemble", o, p, e, more=", n_members => 2")
        call("madlib_mop.transform", e, s, "seen", "id")
        call("madlib.validation_preprocessor_dl", s, "again", "*", "*", p)
        call("madlib.madlib_keras_predict", e, s, "id", "*", "guessed", more=", mst_key => 1")
        row = f"FROM {s.replace('%', '%%')} t"
        cursor.execute(f"SELECT madlib_mop.predict_class(%s, 1, t), madlib_mop.predict_json(%s, 1, t) {row}", [e, e])
        rows = cursor.fetchall()
        assert {label for label, _ in rows} <= {"it's \"no\", {so}", "yes"}
        assert {key for _, shares in rows for key in shares} == {"it's \"no\", {so}", "yes"}
        cursor.execute("SELECT count(*) FROM seen")
        assert cursor.fetchone() == (90,) and len(rows) == 90
    connection.close()


def test_names_that_are_too_long_or_clash_in_a_packed_table_are_one_error(bench):
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        for columns, target in (
            (f"'level ' || i % 20 AS {'m' * 58}, i AS y", "y"),
            (f"i % 7 * 1.5 AS a, i % 2 = 0 AS {'y' * 51}", "y" * 51),
            ("'v' || i % 20 AS k, 'w' || i % 20 AS k_shape, i AS y", "y"),
            ("i % 7 * 1.5 AS a, 'w' || i % 20 AS numbers_shape, i AS y", "y"),
            ("'v' || i % 20 AS buffer_id, i AS y", "y"),
            ("'v' || i % 20 AS __dist_key__, i AS y", "y"),
        ):
            tamper = f"CREATE TABLE odd AS SELECT {columns} FROM generate_series(1, 400) i"
            sqlstate, message = outcome(cursor, tamper, f"SELECT madlib_mop.pack_columns('odd', 'out', '{target}')")
            assert sqlstate == "22023" and ("would result in two" in message or "would be longer" in message), message
    connection.close()


def ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


OTHERS = (
    "madlib_mop.transform('{s}.homes_packed', 'own', 'out')",
    "madlib_mop.propose_networks('{s}.homes_packed', 'out', 'out_mst')",
    "madlib_mop.propose_search('{s}.homes_packed', 'own_arch')",
    "madlib_mop.propose_search('own_packed', '{s}.homes_arch')",
    "madlib_mop.make_ensemble('{s}.homes_models', 'own_packed', 'out')",
    "madlib_mop.make_ensemble('own_models', '{s}.homes_packed', 'out')",
    "madlib_mop.predict('{s}.homes_models', 1, (SELECT o FROM own o LIMIT 1))",
    "madlib_mop.predict_number('{s}.homes_models', 1, (SELECT o FROM own o LIMIT 1))",
    "madlib_mop.predict_class('{s}.homes_models', 1, (SELECT o FROM own o LIMIT 1))",
    "madlib_mop.predict_json('{s}.homes_models', 1, (SELECT o FROM own o LIMIT 1))",
)


def test_a_superuser_uses_no_packed_tables_models_or_architectures_of_another_role(bench):
    for name in ("", "_packed", "_packed_summary", "_arch", "_models", "_models_info", "_models_summary"):
        bench.rows(f"CREATE TABLE public.own{name} AS TABLE {ALICE}.homes{name}")
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = public")
    for call in OTHERS:
        error = refusal(connection, f"SELECT {call.format(s=ALICE)}")
        assert error.sqlstate == "42501" and f"{ALICE}, who is not a superuser" in error.message, (call, error)
    connection.close()


def test_a_role_that_may_only_predict_calls_nothing_else(bench):
    bench.cluster.create_role(READER)
    bench.rows("SELECT madlib_mop.grant_predict(%s, %s)", [READER, f"{ALICE}.homes_models"])
    calls = (TRANSFORM, NETWORKS, SEARCH, ENSEMBLE, TABLE)
    inner = [f"SELECT madlib_mop_calls.call('{name}', '{{}}', 'public')" for name in ("transform", "make_ensemble")]
    for call in (*calls, *inner):
        error = refusal_of(bench, call, role=READER)
        assert error.sqlstate == "42501", (call, error)


OUTPUTS = {
    "madlib_mop.transform('homes_packed', 'homes', 'out')": ("out",),
    "madlib_mop.propose_networks('homes_packed', 'out', 'out_mst', 1)": ("out", "out_mst", "out_mst_summary"),
    "madlib_mop.make_ensemble('homes_models', 'homes_packed', 'out')": ("out", "out_info", "out_summary"),
}


@pytest.mark.one_case
@pytest.mark.parametrize("call", OUTPUTS)
def test_tables_come_and_go_with_the_callers_transaction(bench, call):
    one, other = bench.connect(ALICE), bench.connect(ALICE)
    present = "SELECT count(*) FROM pg_class WHERE relname = ANY (%s)"
    with one.cursor() as cursor:
        cursor.execute(f"BEGIN; SAVEPOINT s; SELECT {call}; ROLLBACK TO s; SELECT {call}")
        cursor.execute(present, [list(OUTPUTS[call])])
        assert cursor.fetchone() == (len(OUTPUTS[call]),)
        cursor.execute("ROLLBACK; BEGIN READ ONLY")
        assert refusal(one, f"SELECT {call}").sqlstate == "25006"
        cursor.execute("ROLLBACK")
        cursor.execute(f"DO $$ BEGIN PERFORM {call}; RAISE 'end'; EXCEPTION WHEN raise_exception THEN NULL; END $$")
        cursor.execute(f"BEGIN; SELECT {call}")
        with other.cursor() as second:  # waits for the first transaction, which ends by a rollback or a commit
            second.execute("SET lock_timeout = '300ms'")
            error = refusal(other, f"SELECT {call}")
            assert error.sqlstate in ("55P03", "42P07"), error
        cursor.execute("ROLLBACK")
        cursor.execute(present, [list(OUTPUTS[call])])
        assert cursor.fetchone() == (0,)
    one.close()
    other.close()


@pytest.mark.one_case
@pytest.mark.parametrize("call", OUTPUTS)
def test_a_call_that_is_cancelled_leaves_no_table_and_no_process(bench, call):
    connection = bench.connect(ALICE)
    with connection.cursor() as cursor:
        for timeout_ms in (20, 150, 300, 600):
            cursor.execute(f"BEGIN; SET LOCAL statement_timeout = {timeout_ms}")
            try:
                cursor.execute(f"SELECT {call}")
            except psycopg2.Error as error:
                assert error.pgcode == "57014", error
            cursor.execute("ROLLBACK")
            cursor.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'out%'")
            assert cursor.fetchone() == (0,)
        deadline = time.monotonic() + 10
        backend = connection.info.backend_pid
        while (left := children(backend, "madlib_mop.driver")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left
    connection.close()


"""No call of an ordinary role causes an internal error, an endless run, or exhaustion of the server's memory."""

import json
import resource
import subprocess
import sys

import psycopg2
import pytest

from tests.helpers.security.attacks import SOFTMAX, refusal, user
from tests.helpers.training import load_digits, pack

pytestmark = pytest.mark.one_session

ALICE, READER = "alice", "reader_of_all"
COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
FUNCTIONS = """
SELECT p.oid::regprocedure::text, p.proretset, p.proargtypes::regtype[]::text[]
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname IN ('madlib', 'madlib_mop', 'madlib_mop_calls') AND p.prokind = 'f'
      AND p.prorettype <> 'trigger'::regtype
      AND 'internal'::regtype <> ALL (p.proargtypes::regtype[]) ORDER BY 1
"""
# Called by the driver's own sessions only; their errors may be of any kind and wording.
INNER = ("worker_", "segment_", "dispatch_", "average_", "end_session", "_call", "reader_", "writer_")
VALUES = {
    "text": ["NULL", "''", "'a=' || repeat('9', 5000)"],
    "integer": ["NULL", "-2147483648", "2147483647"],
    "bigint": ["NULL", "0", "9223372036854775807"],
    "double precision": ["NULL", "'NaN'::float8", "1e308"],
    "real": ["NULL", "'NaN'::real", "3.4e38"],
    "boolean": ["NULL", "true"],
    "json": ["NULL", "'[]'", "'{\"sqlstate\": 1}'"],
    "bytea": ["NULL", "''", "'\\x00'"],
    "name": ["NULL", "''", "'x'"],
}
ARRAYS = ["NULL", "'{}'"]


@pytest.fixture(scope="module")
def bench(db):
    user(db, ALICE)
    load_digits(db, 40, 20)
    db.rows("GRANT SELECT ON ALL TABLES IN SCHEMA public TO alice; GRANT CREATE ON SCHEMA public TO alice")
    pack(db, 1, role=ALICE)
    db.rows("SELECT madlib.load_keras_model('arch', %s)", [SOFTMAX], ALICE)
    return db


@pytest.fixture
def alice(bench):
    connection = bench.connect(ALICE)
    yield connection
    connection.close()


def values_of(kind: str) -> list[str]:
    """Return values of a type as SQL: NULL, empty, least, greatest and malformed ones."""
    if kind.endswith("[]"):
        element = values_of(kind[:-2])[-1]
        return [f"({value})::{kind}" for value in (*ARRAYS, f"ARRAY[{element}]")]
    if kind == "anyarray":
        return ["NULL::integer[]", "'{}'::real[]", "ARRAY['x']"]
    base = {"character varying": "text", "regrole": "name"}.get(kind, kind)
    return [f"({value})::{'name' if kind == 'regrole' else kind}" for value in VALUES.get(base, ["NULL"])]


def errors(connection, call: str) -> tuple[str | None, str]:
    """Run a call; return SQLSTATE and text of its error, if there is one."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"SET statement_timeout = '30s'; SELECT * FROM {call}")
        except psycopg2.Error as error:
            return error.pgcode, str(error)
    return None, ""


@pytest.mark.slow
def test_no_function_has_an_internal_error_whatever_it_is_given(bench, alice):
    """All arguments NULL, all empty or least, all greatest or malformed."""
    wrong = []
    for signature, _, kinds in bench.rows(FUNCTIONS):
        name = signature.split("(")[0]
        if name.split(".")[1].startswith(INNER):
            continue
        values = [values_of(kind) for kind in kinds or []]
        for i in range(3 if values else 1):
            arguments = [known[min(i, len(known) - 1)] for known in values]
            call = f"{name}({', '.join(arguments)})"
            sqlstate, text = errors(alice, call)
            if sqlstate == "XX000" or "Traceback" in text or 'File "' in text or sqlstate == "57014":
                wrong.append((call, sqlstate, text.splitlines()[0]))
    assert not wrong, "\n".join(map(str, wrong))


JUNK = [
    None, [], {}, "x", 1, 1.5, True, 10**30, -(10**30), [None], [1, "x"], [[1]], {"a": 1}, {"$blob": 0}, {"$blob": "x"},
    "a\0b", "\ud800", "9" * 5000, float("inf"),
]  # fmt: skip


@pytest.mark.slow
def test_no_command_has_an_internal_error_whatever_json_it_is_given(bench, alice):
    """madlib_mop_calls.call gets values without the type checks of the SQL functions."""

    from madlib_mop.calls import FUNCTIONS

    texts = ["null", "[]", "1", '"x"', "{", '{"a": NaN}', "[" * 10_000 + "]" * 10_000, '{"a": ' + "9" * 5000 + "}"]
    calls = [("load_keras_model", text) for text in texts]
    names = {name: [a.name for a in (*f.arguments, *f.added)] for name, f in FUNCTIONS.items()}
    calls += [(name, json.dumps(dict.fromkeys(names[name], junk))) for name in ("replay", "help") for junk in JUNK]
    for text, number, flag in (("", 0, None), ("x", 2**31 - 1, True)):
        values = {"boolean": flag, "real": 1e308, "double precision": 10**400, "any": text, "bytea": None,
                  **dict.fromkeys(("integer", "bigint"), number), "integer[]": [number],
                  **dict.fromkeys(("text[]", "varchar[]"), [text])}  # fmt: skip
        for name, f in FUNCTIONS.items():
            arguments = {a.name: values.get(a.type, text) for a in (*f.arguments, *f.added)}
            calls.append((name, json.dumps(arguments)))
    calls += [(command, "{}") for command in (*FUNCTIONS, "nothing", None)]
    wrong = []
    for command, text in calls:
        with alice.cursor() as cursor:
            cursor.execute("SELECT madlib_mop_calls._call(%s, %s, 'public', NULL, NULL)", [command, text])
            answer = json.loads(cursor.fetchone()[0])
        if answer.get("error", {}).get("sqlstate") == "XX000" or "Traceback" in str(answer):
            wrong.append((command, text[:60], str(answer)[:300]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("call, message", [
    ("madlib.generate_model_configs('arch', 'mst', ARRAY[1], $${'loss': ['mse'], 'optimizer_params_list':"
     " [{'lr': [0.1, 0.2, 'linear']}]}$$, NULL, 'random', 2147483647)", "num_configs requests 2,147,483,647"),
    ("madlib.load_model_selection_table('arch', 'mst', ARRAY[1], array_fill('loss=''mse'', optimizer=''Adam'''::text,"
     " ARRAY[400]), array_fill('batch_size=1'::text, ARRAY[400]))", "the lists have 160,000 configurations"),
    ("madlib.hyperband_schedule('s', 2147483647, 2)", "R must be a whole number from 1 to 1,000,000"),
    ("madlib.madlib_keras_fit('train', 'o', 'arch', 1, $$loss='mse', optimizer='Adam'$$, NULL, 2147483647)",
     "num_iterations must be at most 1,000,000"),
])  # fmt: skip
def test_counts_have_a_limit_that_is_told_before_any_work(alice, call, message):
    error = refusal(alice, f"SET statement_timeout = '60s'; SELECT {call}")
    assert error.sqlstate == "22023" and message in error.message, error


@pytest.mark.parametrize("compile_params, fit_params", [
    (COMPILE, f"batch_size={10**21}"),
    (COMPILE, "batch_size=4294967296"),
    (COMPILE, f"epochs={10**400}"),
    (COMPILE, '{"steps_per_epoch": 1e999}'),
    (COMPILE, f'{{"initial_epoch": {10**30}}}'),
    (COMPILE, f"class_weight={{0: 1e300, {10**20}: 1.0}}"),
    (COMPILE.replace("0.01", "1e39"), "batch_size=8"),
    (COMPILE.replace("0.01", str(10**60)), "batch_size=8"),
    (COMPILE.replace("0.01", "NaN"), "batch_size=8"),
    (COMPILE + f", loss_weights={10**80}", "batch_size=8"),
    (COMPILE, "batch_size=" + "9" * 5000),
])  # fmt: skip
def test_a_number_that_nothing_holds_is_one_clear_error(alice, compile_params, fit_params):
    call = "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[%s], ARRAY[%s])"
    error = refusal(alice, call, [compile_params, fit_params])
    assert (
        error.sqlstate in ("22023", "22P02")
        and "compile_params_list[1]" in error.message + ""
        or ("fit_params_list[1]" in error.message)
    ), error


def test_an_architectures_numbers_have_a_limit_too(alice):
    document = SOFTMAX.replace('"units": 10', f'"units": {10**30}')
    error = refusal(alice, "SELECT madlib.load_keras_model('huge', %s)", [document])
    assert error.sqlstate == "22P02" and "a number is too large" in error.message, error


def test_who_reads_all_data_reads_no_key(bench):
    user(bench, READER)
    bench.rows(f"GRANT pg_read_all_data TO {READER}")
    bench.rows(
        "INSERT INTO madlib_mop.host (server, n_segments, coordinator, key) VALUES ('there', 1, 'c', sha256('a'));"
        "INSERT INTO madlib_mop.coordinator (coordinator, key) VALUES ('c', sha256('a'))"
    )
    for table in ("host", "coordinator"):
        assert bench.rows(f"SELECT key FROM madlib_mop.{table}", role=READER) == []
        assert len(bench.rows(f"SELECT key FROM madlib_mop.{table}")) == 1
    assert bench.rows("SELECT server FROM madlib_mop.hosts", role=READER) == [("there",)]
    bench.rows("DELETE FROM madlib_mop.host; DELETE FROM madlib_mop.coordinator")


def test_a_driver_that_needs_too_much_memory_says_so_in_one_error(monkeypatch):
    code = """if True:
        import resource
        from madlib_mop.driver import __main__ as driver, commands
        driver._limit_memory()
        print(resource.getrlimit(resource.RLIMIT_DATA)[0])
        resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        commands.find_command = lambda function: lambda call: bytearray(4 << 30)
        session = {"role": "r", "login": "r", "database": "d", "pid": 1, "port": "", "sockets": ""}
        print(driver._answer({"function": "version", "arguments": {}, "session": session}, [], None))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    limit, answer = done.stdout.splitlines()
    assert int(limit) < resource.RLIM_INFINITY or int(limit) > 0
    assert "'sqlstate': '53000'" in answer and "512 MB" in answer, (answer, done.stderr)


def test_every_function_has_the_signatures_of_its_specification(bench):
    """Names, types, defaults and order: the command line, help texts and manual agree with the server."""
    from madlib_mop.calls import USER_FUNCTIONS

    long = {
        "varchar": "character varying",
        "varchar[]": "character varying[]",
        "timestamptz": "timestamp with time zone",
    }
    rows = bench.rows(
        "SELECT p.pronamespace::regnamespace || '.' || p.proname, p.proargnames, p.proargtypes::regtype[]::text[],"
        " ARRAY(SELECT pg_get_function_arg_default(p.oid, n::int) FROM generate_series(1, p.pronargs) n ORDER BY n)"
        " FROM pg_proc p WHERE p.pronamespace IN ('madlib'::regnamespace, 'madlib_mop'::regnamespace)"
    )
    found = {}
    for name, names, types, defaults in rows:
        parameters = zip(names or (), types or (), defaults, strict=False)
        found.setdefault(name, set()).add(
            tuple((n, t, d and d.split("::")[0]) for n, t, d in parameters if n != "caller_path")
        )
    for function in USER_FUNCTIONS:
        expected = {
            tuple((p.name, long.get(p.type, p.type), p.default) for p in signature)
            for signature in function.signatures()
        }
        # where a function takes json, it takes jsonb and text too; only json has a default: no call is ambiguous
        expected |= {
            tuple((n, form, None) if t == "json" else (n, t, d) for n, t, d in signature)
            for signature in expected
            for form in ("jsonb", "text")
        }
        help_forms = {(), (("usage", "text", "NULL"),)} - expected
        assert found[f"{function.schema}.{function.name}"] - help_forms == expected, function.name

"""A prediction of rows of another role's table runs no code of that role: no cast, no check of a domain, no operator.

A plain SELECT of these columns runs none. All that mallory has here is a plain table, and types that she owns.
"""

import pytest

from tests.helpers.security.attacks import refusal, user
from tests.helpers.training import script

pytestmark = pytest.mark.one_session

MALLORY, VICTIM, PREDICTOR = "mallory_of_types", "victim_of_types", "predicts_others_rows"
TRAPS = """
CREATE SEQUENCE calls; -- counts also in a transaction that fails
GRANT USAGE ON SCHEMA {0} TO PUBLIC;
GRANT USAGE ON SEQUENCE calls TO PUBLIC;
CREATE FUNCTION spy(what text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM nextval('{0}.calls');
    RAISE WARNING '% ran as %', what, current_user;
    RETURN true;
END $$;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a integer, m mood);
CREATE TYPE span AS RANGE (subtype = mood);
CREATE TYPE small AS (n real);
CREATE DOMAIN checked AS integer CHECK ({0}.spy('check of a domain'));
CREATE DOMAIN checked_mood AS mood CHECK ({0}.spy('check of a domain'));
CREATE DOMAIN checked_numbers AS real[] CHECK ({0}.spy('check of a domain'));
CREATE FUNCTION same(a mood, b mood) RETURNS boolean LANGUAGE sql AS $$ SELECT {0}.spy('=') $$;
CREATE OPERATOR = (LEFTARG = mood, RIGHTARG = mood, FUNCTION = same);
"""
#: The types from which casts are, and those to which they are.
SOURCES = (
    "mood", "mood[]", "pair", "pair[]", "span", "span[]", "small", "small[]", "checked[]", "checked_mood[]", "things"
)  # fmt: skip
TARGETS = ("json", "jsonb", "text", "real", "real[]", "float8", "float8[]", "numeric", "bytea", "text[]", "record")
TABLE = """
CREATE TABLE things (
    a integer, m mood, ms mood[], p pair, ps pair[], s span, ss span[], f small, fs small[], c checked, cs checked[],
    cm checked_mood, cms checked_mood[], n checked_numbers
);
INSERT INTO things VALUES (1, 'sad', '{sad,glad}', '(1,sad)', '{"(1,sad)"}', '[sad,glad]', '{"[sad,glad]"}', '(1)',
    '{(1)}', 1, '{1,2}', 'sad', '{sad}', '{1,2}');
INSERT INTO things TABLE things;
GRANT SELECT ON things TO PUBLIC;
"""
ARRAYS = ("ms", "ps", "ss", "fs", "cs", "cms")
OF_ARRAYS = ("predict", "predict_class", "predict_named", "predict_rows", "predict_class_rows", "predict_named_rows")
OF_ROWS = ("predict", "predict_number", "predict_class", "predict_json")
ROWS = {
    "the table's": ("t", "{0}.things t"),
    "a query's": ("t", "(SELECT * FROM {0}.things OFFSET 0) t"),
    "a query's with the table's row": ("t", "(SELECT x, 1 AS a FROM {0}.things x) t"),
    "a query's with a row": ("t", "(SELECT ROW(m, 1, ms) AS r, 1 AS a FROM {0}.things) t"),
    "a query's with rows": ("t", "(SELECT ARRAY[ROW(m, 1, ms)] AS r, 1 AS a FROM {0}.things) t"),
    "an enum": ("ROW(m)", "{0}.things"),
    "an array of enums": ("ROW(ms)", "{0}.things"),
    "a domain over an enum": ("ROW(cm, c, n)", "{0}.things"),
    "twice the same name": ("t", "(SELECT a, m, m FROM {0}.things) t"),
    # the server's statistics hold an array of the values, in a column of type anyarray
    "statistics": ("t", "(SELECT stavalues1 FROM pg_statistic WHERE starelid = '{0}.things'::regclass"
                   " AND staattnum = 2) t"),
}  # fmt: skip


@pytest.fixture(scope="module")
def traps(db):
    for role in (MALLORY, VICTIM, PREDICTOR):
        user(db, role)
    script(db, f"SET search_path = {MALLORY}, public; {TRAPS.format(MALLORY)} {TABLE}", role=MALLORY)
    casts = []
    for source in SOURCES:
        for target in TARGETS:
            name = f"{MALLORY}.as_{len(casts)}"
            given = f"{MALLORY}.{source}"
            casts.append(
                f"CREATE FUNCTION {name}(v {given}) RETURNS {target} LANGUAGE plpgsql AS"
                f" $$ BEGIN PERFORM {MALLORY}.spy('{source} as {target}'); RETURN NULL; END $$;"
                f" CREATE CAST ({given} AS {target}) WITH FUNCTION {name}({given})"
            )
    connection = db.connect(MALLORY)
    with connection.cursor() as cursor:
        for cast in casts:
            try:
                cursor.execute(cast)
            except Exception as error:
                assert "cannot cast" in str(error) or "pseudo-type" in str(error) or "record" in str(error), error
    connection.close()
    db.rows(f"ANALYZE {MALLORY}.things")
    return db


@pytest.fixture(params=[None, VICTIM])
def reader(traps, request):
    """A session of a superuser or of an ordinary role; none of mallory's code may run in it."""
    before = calls(traps)
    connection = traps.connect(request.param)
    yield connection
    assert calls(traps) == before, connection.notices
    connection.close()


def calls(db) -> tuple:
    return db.rows(f"SELECT last_value, is_called FROM {MALLORY}.calls")[0]


def test_a_plain_query_of_the_table_runs_none_of_it(reader):
    with reader.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {MALLORY}.things")
        assert cursor.rowcount == 2


@pytest.mark.parametrize("column", ARRAYS)
def test_arrays_of_a_users_type_are_refused_before_a_cast(reader, column):
    for function in OF_ARRAYS:
        error = refusal(reader, f"SELECT madlib_mop.{function}('m', 1, {column}) FROM {MALLORY}.things")
        assert error.sqlstate == "22023" and "x must be an array of numbers" in error.message, error
        assert f"Received: {MALLORY}." in error.message and "::real[]" in error.hint


@pytest.mark.parametrize("column", ARRAYS)
def test_arrays_for_a_name_alone_are_refused_before_a_cast(reader, column):
    for function in OF_ARRAYS:
        error = refusal(reader, f"SELECT madlib_mop.{function}('m', {column}) FROM {MALLORY}.things")
        assert error.sqlstate == "22023" and "x must be an array of numbers" in error.message, error


@pytest.mark.parametrize("row", ROWS)
def test_rows_with_a_users_types_run_no_cast(reader, row):
    """The casts ran before the model was looked up."""
    given, source = ROWS[row]
    if row == "statistics" and reader.info.user == VICTIM:
        pytest.skip("only superusers read it")
    for function in OF_ROWS:
        error = refusal(reader, f"SELECT madlib_mop.{function}('m', 1, {given}) FROM {source.format(MALLORY)}")
        expected = "model_table does not exist" if row != "twice the same name" else "one name"
        assert expected in error.message, error
        error = refusal(reader, f"SELECT madlib_mop.{function}('m', {given}) FROM {source.format(MALLORY)}")
        expected = "no registered model" if row != "twice the same name" else "one name"
        assert expected in error.message, error

"""Rows that are read ahead: the answers are those of single rows, whatever the query and the table do meanwhile."""

import threading

import psycopg2
import pytest

from tests.helpers.faults import children, kill

pytestmark = pytest.mark.one_session

#: More rows than a statement predicts one by one before it reads ahead.
N_ROWS = 1500
STATE = """
CREATE FUNCTION read_ahead_rows() RETURNS bigint LANGUAGE plpython3u AS $$
from mop_backend import predict_row
contexts = predict_row._contexts._contexts.values()
return sum(len(batch._rows) for context in contexts for batch in context._batches)
$$;
"""


@pytest.fixture(scope="module")
def db(churn_db):
    return churn_db


@pytest.fixture(scope="module")
def churn(db):
    db.rows(f"INSERT INTO customers SELECT i + 1, c.age, c.income + i, c.tier, c.city, c.active, c.joined, c.seen,"
            f" c.churned FROM customers c, generate_series(600, {N_ROWS - 1}) i WHERE c.id = i % 600 + 1")  # fmt: skip
    db.rows(STATE)
    # one row in a statement is predicted alone; predictions of the same rows, each by a statement of its own
    db.rows("CREATE TABLE alone (id integer, p real[])")
    connection = db.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM customers ORDER BY id")
        for (number,) in cursor.fetchall():
            cursor.execute("INSERT INTO alone SELECT id, madlib_mop.predict('churn', 1, c) FROM customers c"
                           " WHERE id = %s", [number])  # fmt: skip
    connection.close()
    return db


@pytest.fixture
def session(churn):
    connection = churn.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.predict('churn', 1, c) FROM customers c LIMIT 1")
        yield cursor
    connection.close()


def values(cursor, query: str) -> list[tuple]:
    cursor.execute(query)
    return cursor.fetchall()


def read_ahead_rows(cursor) -> int:
    """Return how many answers the session holds for the statement before."""
    return values(cursor, "SELECT read_ahead_rows()")[0][0]


P = "madlib_mop.predict('churn', 1, c)"
#: A row of a dense network has the same bits alone and in a batch.
DIFFERENT = "SELECT count(*), count(*) FILTER (WHERE q.p[1] <> a.p[1]) FROM ({}) q JOIN alone a USING (id)"
QUERIES = {
    "all": f"SELECT id, {P} AS p FROM customers c OFFSET 0",
    "filtered": f"SELECT id, {P} AS p FROM customers c WHERE id % 3 = 0 OFFSET 0",
    "seldom": f"SELECT id, {P} AS p FROM customers c WHERE id % 50 = 0 OFFSET 0",
    "backwards": f"SELECT id, {P} AS p FROM (SELECT * FROM customers x ORDER BY id DESC OFFSET 0) c OFFSET 0",
    "mixed": f"SELECT id, {P} AS p FROM (SELECT * FROM customers x ORDER BY id * 389 % 601 OFFSET 0) c OFFSET 0",
    "each twice": f"SELECT c.id, {P} AS p FROM customers c, generate_series(1, 2) OFFSET 0",
    "the table twice": f"SELECT c.id, {P} AS p FROM generate_series(1, 2) g, LATERAL (SELECT * FROM customers x"
    " WHERE g > 0 OFFSET 0) c OFFSET 0",
}


@pytest.mark.one_case
@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_single_rows(session, query):
    ((n_rows, n_different),) = values(session, DIFFERENT.format(QUERIES[query]))
    assert n_rows > 0 and n_different == 0


def test_a_scan_of_a_table_is_read_ahead_and_a_single_row_is_not(session):
    values(session, f"SELECT count({P}) FROM customers c")
    assert read_ahead_rows(session) > 100
    values(session, f"SELECT {P} FROM customers c WHERE id = 7")
    assert read_ahead_rows(session) == 0


def test_the_other_forms_return_the_same_from_a_batch(session):
    forms = "madlib_mop.predict_class('churn', 1, c) AS best, madlib_mop.predict_json('churn', 1, c) AS named"
    wrong = (
        f"SELECT count(*) FROM (SELECT id, {forms} FROM customers c OFFSET 0) q JOIN alone a USING (id)"
        " WHERE best <> (ARRAY['no', 'yes'])[1 + (p[2] > p[1])::integer] OR (named ->> 'yes')::real <> p[2]"
    )
    assert values(session, wrong) == [(0,)]


def test_rows_changed_in_the_same_transaction(session):
    session.execute("BEGIN; UPDATE customers SET income = income + 1000 WHERE id % 2 = 0;"
                    " DELETE FROM customers WHERE id % 5 = 0")  # fmt: skip
    query = f"SELECT id, {P} AS p FROM customers c OFFSET 0"
    ((n_rows, n_different),) = values(session, DIFFERENT.format(query))
    assert n_rows == N_ROWS * 4 // 5 and 0 < n_different <= n_rows // 2
    session.execute("UPDATE customers SET income = 0 WHERE (madlib_mop.predict('churn', 1, customers))[1] < 0")
    session.execute("ROLLBACK")


def test_a_table_is_altered_and_dropped_right_after(session):
    session.execute("BEGIN; CREATE TABLE short AS TABLE customers")
    values(session, "SELECT count(madlib_mop.predict('churn', 1, c)) FROM short c")
    session.execute("ALTER TABLE short ADD extra text; ALTER TABLE short DROP churned")
    values(session, "SELECT count(madlib_mop.predict('churn', 1, c)) FROM short c")
    session.execute("DROP TABLE short; COMMIT")


def test_a_model_that_changes_in_the_middle_of_a_statement(session):
    """A DO block is one statement of the client; its queries see the model as it is then.

    The answers for the last rows are those that the session still has when the model changes.
    """
    session.execute(
        "BEGIN; CREATE TABLE m AS TABLE churn; CREATE TABLE m_info AS TABLE churn_info;"
        " CREATE TABLE m_summary AS TABLE churn_summary; CREATE TEMP TABLE seen (id integer, p real[]); COMMIT"
    )
    add = "INSERT INTO seen SELECT id, madlib_mop.predict('m', 1, c) FROM customers c"
    session.execute(
        f"DO $$ BEGIN {add}; DELETE FROM seen WHERE id <= 1470;"
        " UPDATE m SET weights_digest = NULL, model_weights ="
        " overlay(model_weights PLACING '\\x00002041'::bytea FROM octet_length(model_weights) - 3);"
        f" {add} WHERE id > 1470; END $$"
    )
    assert values(session, "SELECT count(*), count(DISTINCT (id, p)) FROM seen") == [(60, 60)]


@pytest.mark.slow
def test_a_column_that_is_renamed_in_the_middle_of_a_statement(session):
    """The last rows, whose answers the session has, are predicted anew by their new names."""
    session.execute("CREATE TABLE swapped AS SELECT *, income AS other FROM customers; UPDATE swapped SET other = 0;"
                    " CREATE TEMP TABLE found (id integer, p float8)")  # fmt: skip
    add = "INSERT INTO found SELECT id, (madlib_mop.predict('churn', 1, c))[1] FROM swapped c"
    session.execute(
        f"DO $$ BEGIN {add}; DELETE FROM found; ALTER TABLE swapped RENAME income TO x;"
        f" ALTER TABLE swapped RENAME other TO income; {add} WHERE id > 1470; END $$"
    )
    alone = (
        "SELECT id, (madlib_mop.predict('churn', 1, s))[1] AS p"
        " FROM (SELECT id, age, income, tier, city, active, joined, seen FROM swapped) s OFFSET 0"
    )
    different = f"SELECT count(*), count(*) FILTER (WHERE f.p <> a.p) FROM found f JOIN ({alone}) a USING (id)"
    assert values(session, different) == [(30, 0)]


@pytest.mark.parametrize(
    "change",
    [
        "RENAME income TO x; ALTER TABLE {} RENAME other TO income", "ALTER income TYPE numeric USING other",
        "ALTER age TYPE bigint, DROP other", "ADD more text DEFAULT 'x', ALTER income TYPE real",
    ],
)  # fmt: skip
def test_columns_that_another_session_changes_between_two_rows(churn, session, change):
    churn.rows("DROP TABLE IF EXISTS changing; CREATE TABLE changing AS SELECT *, 3 * income AS other FROM customers")
    row = "SELECT (madlib_mop.predict('churn', 1, c))[1] FROM changing c WHERE id = 7"
    names = "id, age, income, tier, city, active, joined, seen"
    of_query = f"SELECT (madlib_mop.predict('churn', 1, s))[1] FROM (SELECT {names} FROM changing WHERE id = 7) s"
    assert values(session, row) == values(session, row) == values(session, of_query)
    before = values(session, row)
    churn.rows(f"ALTER TABLE changing {change.format('changing')}")
    after = values(session, row)
    assert after == values(session, of_query) and (after != before) == ("other" in change and "DROP" not in change)
    churn.rows("ALTER TABLE changing DROP income")
    with pytest.raises(psycopg2.Error, match="column 'income' is missing"):
        values(session, row)


def test_errors_of_rows_that_the_query_leaves_out_do_not_surface(session):
    session.execute("CREATE TABLE some_bad AS SELECT c.id, age, CASE WHEN id % 10 = 9 THEN 'NaN' ELSE income END AS"
                    " income, tier, city, active, joined, seen FROM customers c")  # fmt: skip
    query = f"SELECT id, {P} AS p FROM some_bad c WHERE income <> 'NaN' OFFSET 0"
    ((n_rows, n_different),) = values(session, DIFFERENT.format(query))
    assert n_rows > 0 and n_different == 0
    assert read_ahead_rows(session) > 100
    with pytest.raises(psycopg2.Error, match="column 'income' has the value NaN"):
        session.execute(query.replace("<> 'NaN'", "IS NOT NULL"))


@pytest.mark.slow
def test_wide_rows_are_read_one_by_one_and_memory_is_bounded(session):
    session.execute("CREATE TABLE widened AS SELECT c.*, repeat(md5(id::text), 60) AS note FROM customers c")
    session.execute("ALTER TABLE widened ALTER note SET STORAGE EXTERNAL;"
                    " UPDATE widened SET note = repeat(note, 50) WHERE id % 7 = 0")  # fmt: skip
    query = "SELECT id, madlib_mop.predict('churn', 1, c) AS p FROM widened c OFFSET 0"
    ((n_rows, n_different),) = values(session, DIFFERENT.format(query))
    assert n_rows > 0 and n_different == 0
    session.execute(
        "CREATE FUNCTION most_bytes() RETURNS bigint LANGUAGE plpython3u AS $$\n"
        "from mop_backend import predict_row\n"
        "contexts = predict_row._contexts._contexts.values()\n"
        "return max([sum(map(len, b._rows)) for c in contexts for b in c._batches] or [0])\n$$"
    )
    assert values(session, "SELECT most_bytes()")[0][0] <= (1 << 20) + 128 * (1 << 14)


#: Each row twenty times, in the order of the table: a scan that goes on for a while.
LONG = f"SELECT id, {P} AS p FROM generate_series(1, 20) g, LATERAL (SELECT * FROM customers x WHERE g > 0 OFFSET 0) c"


@pytest.mark.one_case
@pytest.mark.parametrize("seconds", [0.15, 0.4, 0.8])
def test_after_a_cancel_in_the_middle_answers_are_right(session, seconds):
    """The answer to a batch whose statement was cancelled must not be taken for that of the next request."""
    session.execute(f"SET statement_timeout = {int(seconds * 1000)}")
    with pytest.raises(psycopg2.errors.QueryCanceled):
        session.execute(f"SELECT count(p) FROM ({LONG} OFFSET 0) q, pg_sleep(0.00002 * (id / id))")
    session.execute("RESET statement_timeout")
    ((n_rows, n_different),) = values(session, DIFFERENT.format(QUERIES["all"]))
    assert n_rows == N_ROWS and n_different == 0


def test_a_trainer_that_dies_in_the_middle_is_one_clear_error_and_another_one_is_started(churn, session):
    backend = session.connection.info.backend_pid
    is_over = threading.Event()

    def kill_them():
        """A trainer that is shared and ends between two requests is no error, so one kill may not suffice."""
        while not is_over.wait(0.2):
            for pid in children(backend, "madlib_mop.trainer"):
                kill(pid)

    killer = threading.Thread(target=kill_them)
    killer.start()
    try:
        with pytest.raises(psycopg2.Error, match="the trainer process ended with status -9") as caught:
            session.execute(f"SELECT count(p) FROM ({LONG.replace('20)', '2000)')} OFFSET 0) q")
    finally:
        is_over.set()
        killer.join()
    assert caught.value.pgcode == "53000"
    ((n_rows, n_different),) = values(session, DIFFERENT.format(QUERIES["all"]))
    assert n_rows == N_ROWS and n_different == 0

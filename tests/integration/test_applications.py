"""Calls as applications make them: SQLAlchemy, prepared statements, typed parameters, savepoints, cursors, COPY.

docs/applications.md promises what these tests hold; tests/pools/ has connection pools in transaction mode.
"""

import io
from contextlib import closing

import numpy as np
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import text

from tests.helpers.faults import newest_run
from tests.helpers.security.attacks import SOFTMAX
from tests.helpers.training import SGD, load_digits

PACK = (
    "SELECT madlib.training_preprocessor_dl(source_table => 'train_rows', output_table => :table,"
    " dependent_varname => 'y', independent_varname => 'x', normalizing_const => 16.0, seed => 5)"
)
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('packed', {table}, 'mst', {n}, seed => 1)"
PREDICT = "SELECT id, madlib_mop.predict('digit_models', {key}, x) FROM train_rows WHERE id < {n} ORDER BY id"


@pytest.fixture(scope="module")
def engine(db):
    """An SQLAlchemy engine, and a trained model table that it has made."""
    load_digits(db, n_train=60)
    engine = sqlalchemy.create_engine(db.dsn.replace("postgresql://", "postgresql+psycopg2://"), pool_size=1)
    with engine.begin() as connection:
        connection.execute(text("SELECT madlib.load_keras_model('arch', CAST(:arch AS json))"), {"arch": SOFTMAX})
        connection.execute(text(PACK), {"table": "packed"})
        connection.execute(
            text("SELECT madlib.load_model_selection_table('arch', 'mst', '{1}', ARRAY[:compile], ARRAY[:fit])"),
            {"compile": SGD, "fit": "batch_size=16, epochs=1"},
        )
    with engine.begin() as connection:
        connection.execute(text(FIT.format(table=":table", n=":n")), {"table": "digit_models", "n": 2})
    yield engine
    engine.dispose()


@pytest.fixture
def psycopg3(db, engine):
    """A connection of psycopg 3: like JDBC it sends parameters beside the statement, and prepares it at the server."""
    with psycopg.connect(db.dsn) as connection:
        connection.prepare_threshold = 0
        yield connection


def table_of(rows) -> dict[int, bytes]:
    """Return the bits of predictions by id: drivers may widen float32."""
    return {key: np.asarray(values, np.float32).tobytes() for key, values in rows}


def test_sqlalchemy_trains_and_reads_the_leaderboard(engine):
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT mst_key, metric_name FROM madlib_mop.leaderboard JOIN madlib_mop.run USING (run_id)"
                " WHERE model_output_table = 'public.digit_models'"
            )
        ).mappings()
    assert [dict(row) for row in rows] == [{"mst_key": 1, "metric_name": "accuracy"}]


def test_a_table_that_was_packed_in_the_same_transaction_is_refused_with_what_to_do(engine):
    with engine.connect() as connection:
        connection.execute(text(PACK), {"table": "too_early"})
        with pytest.raises(sqlalchemy.exc.DBAPIError) as raised:
            connection.execute(text(FIT.format(table="'never'", n=1).replace("'packed'", "'too_early'")))
    assert "COMMIT" in raised.value.orig.diag.message_hint, raised.value
    assert "Traceback" not in str(raised.value)


@pytest.mark.slow
def test_what_an_application_rolls_back_is_gone_but_for_the_run(engine):
    with engine.connect() as connection:
        connection.execute(text(FIT.format(table="'rolled_back'", n=1)))
        connection.rollback()
        (state,) = connection.execute(
            text("SELECT state FROM madlib_mop.run WHERE model_output_table LIKE '%rolled_back'")
        ).one()
        assert state == "finished"
        assert connection.execute(text("SELECT to_regclass('rolled_back')")).scalar() is None
        run_id = connection.execute(text("SELECT max(run_id) FROM madlib_mop.run")).scalar()
        connection.execute(text("SELECT madlib_mop.resume(:run)"), {"run": run_id})
        connection.commit()
        assert connection.execute(text("SELECT count(*) FROM rolled_back")).scalar() == 1


@pytest.mark.slow
def test_prepared_calls_with_typed_parameters(psycopg3, db):
    """JDBC sends text as varchar and numbers as integer."""
    psycopg3.execute(
        "PREPARE train (varchar, integer) AS " + FIT.format(table="$1", n="$2"),
    )
    for n in (1, 2):
        psycopg3.execute(psycopg.sql.SQL("EXECUTE train ({}, {})").format(f"prepared_{n}", n))
    psycopg3.execute(FIT.format(table="%s", n="%s"), ["prepared_3", 2], prepare=True)
    psycopg3.commit()
    assert db.value("SELECT (SELECT model_weights FROM digit_models) = (SELECT model_weights FROM prepared_2)")
    assert db.value("SELECT (SELECT model_weights FROM digit_models) = (SELECT model_weights FROM prepared_3)")


@pytest.mark.one_case
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_prepared_predictions_are_those_of_their_arguments(psycopg3, db, mode):
    psycopg3.execute(f"SET plan_cache_mode = {mode}")
    expected = table_of(db.rows(PREDICT.format(key=1, n=8)))
    for n in (8, 3, 8, 5):
        for binary in (False, True):
            found = psycopg3.execute(PREDICT.format(key="%s", n="%s"), [1, n], prepare=True, binary=binary).fetchall()
            assert table_of(found) == {key: value for key, value in expected.items() if key < n}


@pytest.mark.slow
def test_each_statement_after_a_savepoint_of_its_own(db, engine):
    """As JDBC does it with autosave=always: after an error the transaction goes on."""
    with closing(db.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        cursor.execute("SAVEPOINT one")
        with pytest.raises(psycopg2.Error):
            cursor.execute(FIT.format(table="'digit_models'", n=1))
        cursor.execute("ROLLBACK TO one; SAVEPOINT two")
        cursor.execute(FIT.format(table="'after_a_savepoint'", n=2))
        cursor.execute("RELEASE two; SAVEPOINT three")
        cursor.execute("SELECT m.model_weights = s.model_weights FROM digit_models m, after_a_savepoint s")
        assert cursor.fetchone() == (True,)
        connection.commit()


def test_predictions_by_a_cursor_while_other_statements_run(db, engine):
    """As JDBC does it with a fetch size: a part of the rows at a time."""
    expected = table_of(db.rows(PREDICT.format(key=1, n=50)))
    with closing(db.connect(autocommit=False)) as connection:
        with connection.cursor("parts") as parts, connection.cursor() as other:
            parts.itersize = 7
            parts.execute(PREDICT.format(key=1, n=50))
            found = []
            for row in parts:
                found.append(row)
                other.execute("SELECT madlib_mop.predict_class('digit_models', 1, x) FROM train_rows WHERE id = 0")
        assert table_of(found) == expected


def test_predictions_by_copy_and_in_a_read_only_session(db, engine):
    """As BI tools read; training is refused there before a run is recorded."""
    before = newest_run(db)
    with closing(db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        out = io.StringIO()
        cursor.copy_expert(f"COPY ({PREDICT.format(key=1, n=9)}) TO STDOUT (FORMAT csv)", out)
        assert len(out.getvalue().splitlines()) == 9
        with pytest.raises(psycopg2.Error) as raised:
            cursor.execute(FIT.format(table="'never'", n=1))
        assert "read-only" in str(raised.value) and "Traceback" not in str(raised.value)
    assert newest_run(db) == before

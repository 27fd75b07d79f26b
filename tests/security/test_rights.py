"""Rights by classes: a role that may only predict, one that may only see runs, and the limits of both."""

import re

import numpy as np
import pytest

from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.security.attacks import record_run, refusal, user
from tests.unit.test_build_extension import ROOT, build_extension

ALICE, BOB, TEAM, PREDICTS = "alice_of_rights", "bob_of_rights", "team_of_rights", "predicts_only"
ALICES, BOBS = 71, 72
SEEN = ("run", "segment", "model", "visit", "metric", "evaluation", "search_event", "change", "progress", "leaderboard",
        "timeline", "search_history")  # fmt: skip
NOT_SEEN = ("model_state", "start_weights", "custom_function", "caller_setting", "run_policy", "preprocessor")
INSERTS = ("INSERT INTO madlib_mop.viewer VALUES ('{}', '{}')",
           "INSERT INTO madlib_mop.viewer_change VALUES ('{}', '{}', true)")  # fmt: skip
CLASSES = {"train", "predict", "read", "admin", "internal"}
CALL = "SELECT madlib_mop.predict('rooms.models', 1, ARRAY[1, 2, 3, 4])"


@pytest.fixture(scope="module")
def runs(db):
    for role in (ALICE, BOB):
        user(db, role)
    db.cluster.create_role(TEAM)
    record_run(db, ALICES, ALICE)
    record_run(db, BOBS, BOB)
    return db


@pytest.fixture(scope="module")
def models(db, keras):
    owner = User(db.connect())
    owner.rows("CREATE SCHEMA rooms; SET search_path = rooms")
    layers = keras.layers
    net = keras.Sequential([keras.Input((4,)), layers.Dense(2, "softmax")])
    owner.write_models("models", {1: net}, ModelTable(dependent=[Dependent(values=["a", "b"])]))
    owner.write_models("others", {1: net}, ModelTable(dependent=[Dependent(values=["a", "b"])]))
    owner.rows("CREATE TABLE no_models (id integer)")
    owner.connection.close()
    db.cluster.create_role(PREDICTS)
    return net.predict(np.array([[1, 2, 3, 4]], np.float32), verbose=0)[0]


def test_every_function_is_of_one_class(db):
    """A new function must be in _classes() of sql/90-grants.sql, or in the driver's own schema."""
    listed = db.rows("SELECT schema_name || '.' || name, class FROM madlib_mop_calls._classes(), unnest(names) AS name")
    assert sorted(name for name, _ in listed) == sorted({name for name, _ in listed})
    assert {kind for _, kind in listed} == CLASSES
    there = db.rows("SELECT DISTINCT n.nspname || '.' || p.proname FROM pg_proc p JOIN pg_namespace n"
                    " ON n.oid = p.pronamespace"
                    " WHERE n.nspname IN ('madlib', 'madlib_mop', 'madlib_mop_calls')")  # fmt: skip
    assert {name for (name,) in there} - {name for name, _ in listed} == set()
    made = {name for server in build_extension.DIALECTS for name in re.findall(
        r"CREATE (?:FUNCTION|AGGREGATE) (\w+\.\w+)", build_extension.source_sql(ROOT, server))}  # fmt: skip
    assert {name for name, _ in listed} - made == set()  # including those for Greenplum


def held(db, role: str) -> set[str]:
    rows = db.rows("SELECT p.oid::regprocedure::text FROM pg_proc p"
                   " WHERE p.pronamespace::regnamespace::text LIKE 'madlib%%'"
                   " AND has_function_privilege(%s, p.oid, 'EXECUTE')", [role])  # fmt: skip
    return {name for (name,) in rows}


def test_a_role_that_may_only_predict(db, models):
    before = refusal(db.connect(PREDICTS), CALL)
    assert before.sqlstate == "42501"
    db.rows(f"SELECT madlib_mop.grant_predict('{PREDICTS}', 'rooms.models')")
    session = User(db.connect(PREDICTS))
    assert np.allclose(session.value(CALL), models, atol=1e-6)
    assert session.value(CALL.replace("predict(", "predict_class(")) in "ab"
    rows = session.rows("SELECT madlib_mop.predict_rows('rooms.models', 1, ARRAY[[1, 2, 3, 4], [5, 6, 7, 8]])")
    assert len(rows) == 2
    others = session.refused(session.value, CALL.replace("models", "others"))
    assert others.sqlstate == "42501"
    for statement in (
        "SELECT madlib_mop_calls.call('madlib_keras_fit_multiple_model', '{}', NULL)",
        "SELECT madlib_mop_calls._call('madlib_keras_fit_multiple_model', '{}', NULL, NULL, NULL)",
        "SELECT madlib.madlib_keras_fit_multiple_model()",
        "SELECT madlib.load_keras_model('t', '{}')",
        "SELECT * FROM madlib_mop.run",
        "SELECT * FROM madlib_mop.progress",
        "SELECT madlib_mop.grant_read('postgres')",
        f"SELECT madlib_mop.grant_predict('{PREDICTS}', 'rooms.others')",
    ):
        assert session.refused(session.rows, statement).sqlstate == "42501", statement
    known = (".predict", ".explain_prediction", "._", "array_bytes", "_recording")
    assert all(any(word in name for word in known) for name in held(db, PREDICTS))
    db.rows(f"SELECT madlib_mop.revoke_predict('{PREDICTS}', 'rooms.models')")
    assert session.refused(session.value, CALL).sqlstate == "42501"
    session.connection.close()
    db.rows(f"SELECT madlib_mop.revoke_use('{PREDICTS}')")
    assert held(db, PREDICTS) == set()


def test_what_is_no_table_of_models_is_refused(db, models):
    connection = db.connect()
    error = refusal(connection, f"SELECT madlib_mop.grant_predict('{PREDICTS}', 'rooms.no_models')")
    assert error.sqlstate == "42P01" and "no _summary table" in error.message
    error = refusal(connection, f"SELECT madlib_mop.grant_predict('{PREDICTS}', NULL)")
    assert error.sqlstate == "22023" and "model_table is missing" in error.message
    connection.close()


def test_public_is_no_role_and_gets_no_rights(db, models):
    before = held(db, "public")
    connection = db.connect()
    for call in ("grant_use('public')", "grant_predict('public', 'rooms.models')", "grant_read('public', 'postgres')",
                 "grant_model('m', 'public', 'see')"):  # fmt: skip
        error = refusal(connection, f"SELECT madlib_mop.{call}")
        assert error.sqlstate == "42704" and error.message.endswith("there is no such role. Received: 'public'")
        assert error.hint == "Grant the right to a role of which others are members."
    assert refusal(connection, "SELECT madlib_mop.grant_use(NULL)").sqlstate == "22023"
    connection.close()
    assert held(db, "public") == before == set()
    db.rows("SELECT madlib_mop_calls._grant('{predict}', 'public')")  # as earlier versions did
    assert held(db, "public")
    db.rows("SELECT madlib_mop.revoke_use('public')")
    assert held(db, "public") == set()


def seen(db, role: str, table: str) -> list[int]:
    return [run for (run,) in db.rows(f"SELECT DISTINCT run_id FROM madlib_mop.{table} ORDER BY 1", role=role)]


def test_a_role_that_may_only_see_runs(runs):
    refused = refusal(runs.connect(ALICE), f"SELECT madlib_mop.grant_read('{TEAM}')")
    assert refused.sqlstate == "42501" and f"grant_read('{TEAM}', '{ALICE}')" in refused.hint
    runs.rows(f"SELECT madlib_mop.grant_read('{TEAM}', '{ALICE}')")
    for table in SEEN:
        assert seen(runs, TEAM, table) == [ALICES], table
    connection = runs.connect(TEAM)
    assert seen(runs, TEAM, "run_policy") == []
    for table in NOT_SEEN:
        if table == "run_policy":  # reports read it, and row-level security shows the reader's own runs only
            continue
        assert refusal(connection, f"SELECT * FROM madlib_mop.{table}").sqlstate == "42501"
    for control in ("resume(71)", "cancel(71)", "replay(71, 't')", "drop_run(71)", "grant_read('postgres')"):
        assert refusal(connection, f"SELECT madlib_mop.{control}").sqlstate == "42501", control
    for statement in INSERTS:
        assert refusal(connection, statement.format(BOB, TEAM)).sqlstate == "42501"
    connection.close()
    runs.rows(f"SELECT madlib_mop.revoke_read('{TEAM}')", role=ALICE)
    assert [seen(runs, TEAM, table) for table in SEEN] == [[]] * len(SEEN)


def test_an_owner_lets_another_user_see_but_not_control_his_runs(runs):
    runs.rows(f"SELECT madlib_mop.grant_read('{BOB}')", role=ALICE)
    assert [seen(runs, BOB, table) for table in SEEN] == [[ALICES, BOBS]] * len(SEEN)
    assert [seen(runs, BOB, table) for table in NOT_SEEN] == [[BOBS]] * len(NOT_SEEN)
    assert [seen(runs, ALICE, table) for table in SEEN] == [[ALICES]] * len(SEEN)
    connection = runs.connect(BOB)
    for control in ("resume", "cancel", "drop_run"):
        error = refusal(connection, f"SELECT madlib_mop.{control}({ALICES})")
        assert (error.sqlstate, "you have no run" in error.message) == ("22023", True)
    connection.close()
    runs.rows(f"SELECT madlib_mop.revoke_read('{BOB}')", role=ALICE)
    assert seen(runs, BOB, "run") == [BOBS]


def test_nobody_gives_away_what_is_anothers(runs):
    connection = runs.connect(BOB)
    for statement in (
        f"SELECT madlib_mop.grant_read('{BOB}', '{ALICE}')",
        f"SELECT madlib_mop.revoke_read('{BOB}', '{ALICE}')",
        *(insert.format(ALICE, BOB) for insert in INSERTS),
        f"UPDATE madlib_mop.viewer SET viewer = '{BOB}'",
        "DELETE FROM madlib_mop.viewer",
        "SELECT madlib_mop_calls._change_viewer()",
    ):
        assert refusal(connection, statement).sqlstate == "42501", statement
    error = refusal(connection, "SELECT madlib_mop.grant_read('nobody of that name')")
    assert error.sqlstate == "42704" and "no such role" in error.message
    connection.close()
    assert seen(runs, BOB, "run") == [BOBS]


def test_a_table_gives_away_none_that_another_role_has_named_alike(runs):
    """In a shared schema, the creator of a table m could otherwise grant rights on another role's m_summary."""
    runs.rows(f"CREATE SCHEMA shared; GRANT ALL ON SCHEMA shared TO {ALICE}, {BOB}")
    for name in ("m_summary", "m_info"):
        runs.rows(f"CREATE TABLE shared.{name} AS SELECT 'a secret' AS a", role=ALICE)
    runs.rows("CREATE TABLE shared.m (mst_key integer)", role=BOB)
    connection = runs.connect()
    error = refusal(connection, f"SELECT madlib_mop.grant_predict('{BOB}', 'shared.m')")
    connection.close()
    assert (error.sqlstate, "has no _summary table in its schema" in error.message) == ("42P01", True)
    connection = runs.connect(BOB)
    for name in ("m_summary", "m_info"):
        assert refusal(connection, f"SELECT * FROM shared.{name}").sqlstate == "42501"
    connection.close()

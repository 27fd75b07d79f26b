"""Errors of madlib_keras_predict: one error for each bad input, the caller's rights, and no leftovers."""

import threading
import time
from pathlib import Path

import numpy as np
import psycopg2
import pytest

from tests.helpers.faults import children
from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.no_gpu import NO_GPU

pytestmark = pytest.mark.one_session

WIDE = "column 'wide' has rows of the shape [3], but input 1 of mst_key 1 of public.models takes [2]"
ACROSS = "column 'across' has rows of the shape [1, 2], but input 1 of mst_key 1 of public.tall takes [2, 1]"


@pytest.fixture(scope="module")
def user(db, keras):
    user = User(db.connect())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")])
    facts = ModelTable(dependent=[Dependent(values=["a", "b", "c"])])
    user.write_models("models", {1: model, 2: model}, facts)
    user.rows("INSERT INTO models_info VALUES (3, '', '', NULL, NULL, 'failed', 'loss became nan')")
    user.rows("INSERT INTO models VALUES (4, NULL, (SELECT model_arch FROM models LIMIT 1), 0)")
    user.rows("INSERT INTO models_info SELECT 4, compile_params FROM models_info WHERE mst_key = 1")
    user.write_models("bent", {1: model}, facts)
    user.rows("UPDATE bent SET model_weights = substr(model_weights, 5)")
    user.write_models("strange", {1: model}, facts)
    user.rows('UPDATE strange SET model_arch = \'{"class_name": "Lambda", "config": {}}\'')
    tall = keras.Sequential([keras.Input((2, 1)), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
    user.write_models("tall", {1: tall}, facts)
    user.write_models("few", {1: model}, ModelTable(dependent=[Dependent(values=list("abcd"))]))
    user.write_one_model("archless", model, facts)
    user.rows("ALTER TABLE archless DROP model_arch; CREATE TABLE lonely AS TABLE models")
    user.rows("CREATE TABLE points AS SELECT i AS id, ARRAY[i, 1]::real[] AS x, 'a'::text AS t, i AS rank,"
              " ARRAY[i, 1, 1]::real[] AS wide, ARRAY[[i, 1]]::real[] AS across,"
              " i AS \"Mixed\" FROM generate_series(1, 3) i")  # fmt: skip
    user.rows("CREATE TABLE packed (x bytea, x_shape integer[], buffer_id integer); CREATE TABLE taken ()")
    yield user
    user.connection.close()


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ({"model_table": None}, "22023", "model_table is missing. Received: NULL"),
        ({"model_table": "nowhere"}, "42P01", "model_table does not exist. Received: 'nowhere'"),
        ({"model_table": "points"}, "42703", "model_table: public.points has no column 'model_weights'"),
        ({"model_table": "archless"}, "42703", "model_table: public.archless has no column 'model_arch'"),
        ({"model_table": "lonely"}, "42P01", "model_table: public.lonely has no table lonely_summary in its schema"),
        ({"mst_key": None}, "22023", "mst_key is missing: public.models has 3 models. Received: NULL"),
        ({"mst_key": 9}, "22023", "mst_key 9 is not in public.models. Received: 9"),
        (
            {"mst_key": 3},
            "22023",
            "mst_key 3 has no model in public.models: it failed in training: loss became nan. Received: 3",
        ),
        ({"mst_key": 4}, "0A000", "model_table: mst_key 4 of public.models has no weights: model_weights is NULL"),
        ({"model_table": "strange"}, "0A000", "model_table: mst_key 1 of public.strange: model_arch"),
        ({"test_table": ""}, "22023", "test_table is missing. Received: ''"),
        ({"test_table": "nowhere"}, "42P01", "test_table does not exist. Received: 'nowhere'"),
        ({"test_table": "packed"}, "22023", "test_table: public.packed is a packed table. Received: 'packed'"),
        ({"id_col": None}, "22023", "id_col is missing. Received: NULL"),
        ({"id_col": "id, t"}, "22023", "id_col must name one column. Received: 'id, t'"),
        ({"id_col": "idd"}, "42703", "id_col: table public.points has no column 'idd'"),
        ({"id_col": "Mixed"}, "42703", "id_col: table public.points has no column 'mixed'"),
        ({"id_col": "rank"}, "22023", "id_col: the output table already has a column 'rank'. Received: 'rank'"),
        ({"independent_varname": "z"}, "42703", "independent_varname: table public.points has no column 'z'"),
        (
            {"independent_varname": "x, x, x"},
            "22023",
            "independent_varname has 3 columns, but mst_key 1 of public.models has 1 inputs. Received: 'x, x, x'",
        ),
        (
            {"independent_varname": "x, x"},
            "22023",
            "independent_varname: several columns for one input must all be numbers; 'x' is real[]. Received: 'x, x'",
        ),
        ({"independent_varname": "t"}, "22023", "independent_varname: column 't' cannot be packed."),
        ({"output_table": "taken"}, "42P07", "output_table: table public.taken exists already. Received: 'taken'"),
        ({"output_table": "no.out"}, "22023", "output_table: there is no schema 'no'. Received: 'no.out'"),
        ({"pred_type": "best"}, "22023", "pred_type is invalid. Received: 'best'"),
        ({"pred_type": 0}, "22023", "an integer pred_type is a rank and must be at least 1. Received: 0"),
        (
            {"pred_type": 1.5},
            "22023",
            "a float8 pred_type is a probability and must be from 0 to below 1. Received: 1.5",
        ),
        ({"use_gpus": True}, "0A000", f"use_gpus => true: {NO_GPU}"),
    ],
)
def test_refused_before_any_work(user, arguments, sqlstate, message):
    given = {"model_table": "models", "test_table": "points", "output_table": "out", "mst_key": 1} | arguments
    refusal = user.refused(user.predict, given.pop("model_table"), given.pop("test_table"), given.pop("output_table"),
                           **given)  # fmt: skip
    assert refusal.sqlstate == sqlstate
    assert refusal.message.startswith(f"madlib_keras_predict: {message}")
    assert user.value("SELECT to_regclass('out')") is None


@pytest.mark.parametrize(
    ("model", "column", "values", "message"),
    [
        ("models", "wide", None, WIDE),
        ("tall", "across", None, ACROSS),
        ("bent", "x", None, None),
        ("few", "x", None, "the model has 3 outputs for 'y', which has 4 classes"),
        ("models", "bad", "{NaN,1}", "column 'bad' holds NaN (row with id = 2)"),
        ("models", "bad", None, "column 'bad' is NULL (row with id = 2)"),
        ("models", "bad", "{NULL,1}", "column 'bad' contains a NULL element at [1] (row with id = 2)"),
        ("models", "bad", "{1,2,3}", "column 'bad' has the shape [3], but [2] is expected (row with id = 2)"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_leave_no_output(user, model, column, values, message):
    user.rows("DROP VIEW IF EXISTS spoilt")
    literal = "NULL" if values is None else f"'{values}'"
    user.rows(f"CREATE VIEW spoilt AS SELECT *, CASE id WHEN 2 THEN {literal}::real[] ELSE x END AS bad FROM points")
    refusal = user.refused(user.predict, model, "spoilt", "out", independent_varname=column, mst_key=1)
    assert refusal.sqlstate == "22023"
    if message is not None:
        assert refusal.message == f"madlib_keras_predict: {message}"
    assert user.value("SELECT to_regclass('out')") is None


def test_the_callers_rights_and_policies_count(db, user):
    reader = User(db.connect("reader"))
    try:
        refusal = reader.refused(reader.predict, "models", "points", "pg_temp.mine", mst_key=1)
        assert (refusal.sqlstate, "permission denied" in refusal.message) == ("42501", True)
        user.rows("SELECT madlib_mop.grant_use('reader')")
        refusal = reader.refused(reader.predict, "models", "points", "pg_temp.mine", mst_key=1)
        assert (refusal.sqlstate, refusal.message) == (
            "42501",
            "madlib_keras_predict: permission denied for table models",
        )
        user.rows("GRANT SELECT ON models, models_info, models_summary, points TO reader")
        user.rows("ALTER TABLE points ENABLE ROW LEVEL SECURITY")
        user.rows("CREATE POLICY low ON points FOR SELECT TO reader USING (id < 3)")
        reader.predict("models", "points", "pg_temp.mine", mst_key=1, pred_type="response")
        assert reader.rows("SELECT array_agg(id ORDER BY id) FROM pg_temp.mine") == [([1, 2],)]
    finally:
        reader.connection.close()
        user.rows("ALTER TABLE points DISABLE ROW LEVEL SECURITY")


def test_a_cancelled_prediction_leaves_no_process_and_no_table(db, user):
    user.rows("CREATE VIEW slow AS SELECT id, x, pg_sleep(0.2)::text FROM points, generate_series(1, 500)")
    connection = db.connect()
    pid = connection.info.backend_pid
    problems = []

    def call():
        try:
            User(connection).predict("models", "slow", "out", mst_key=1)
        except psycopg2.Error as error:
            problems.append(error.pgcode)

    thread = threading.Thread(target=call)
    thread.start()
    family = _wait(lambda: len(found := _descendants(pid)) >= 2 and found)
    user.rows("SELECT pg_cancel_backend(%s)", pid)
    thread.join(20)
    assert problems == ["57014"]
    _wait(lambda: not any(Path(f"/proc/{member}").exists() for member in family))
    assert user.value("SELECT to_regclass('out')") is None
    connection.close()


def _descendants(pid: int) -> list[int]:
    """Return the driver of a backend and its trainer, if they run."""
    drivers = children(pid, "madlib_mop.driver")
    return drivers + [trainer for driver in drivers for trainer in children(driver, "madlib_mop.trainer")]


def _wait(condition, seconds: float = 20):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return result


def test_weights_that_are_not_numbers_give_probabilities_that_are_not(user, keras):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.set_weights([np.array([[np.nan, 1, np.inf]] * 2, np.float32), np.zeros(3, np.float32)])
    user.write_models("odd", {1: model}, ModelTable(dependent=[Dependent(values=["a", "b", "c"])]))
    user.predict("odd", "points", "out_odd", mst_key=1)
    rows = user.rows("SELECT class_value, prob::text, rank FROM out_odd WHERE id = 1 ORDER BY rank")
    assert rows == [("c", "Infinity", 1), ("b", "2", 2), ("a", "NaN", 3)]
    model.set_weights([np.full((2, 3), np.nan, np.float32), np.zeros(3, np.float32)])
    user.write_models("none", {1: model}, ModelTable(dependent=[Dependent(values=["a", "b", "c"])]))
    user.predict("none", "points", "out_none", pred_type="response", mst_key=1)
    assert user.rows("SELECT DISTINCT class_value, prob::text FROM out_none") == [(None, "NaN")]
    assert user.rows("SELECT madlib_mop.predict_class('none', 1, ARRAY[1, 2])") == [(None,)]

"""Registered models of ordinary tables: the forms of predict that take a row, and the lineage of a real run."""

import pytest

from tests.helpers.inference import User

NAME, TABLE = "'churn@champion', NULL", "'churn', 1"


@pytest.fixture(scope="module")
def db(churn_db):
    return churn_db


@pytest.fixture(scope="module")
def user(db):
    user = User(db.connect())
    assert user.value("SELECT madlib_mop.register('churn', 'churn')") == 1
    user.rows("SELECT madlib_mop.set_alias('churn', 'champion', 1)")
    yield user
    user.connection.close()


@pytest.mark.one_case
@pytest.mark.parametrize("form", ["predict", "predict_class", "predict_json"])
def test_rows_are_predicted_as_by_the_table(user, form):
    query = "SELECT id, madlib_mop.{}({}, c) FROM customers c ORDER BY id LIMIT 300"
    assert user.rows(query.format(form, NAME)) == user.rows(query.format(form, TABLE))


@pytest.mark.one_case
@pytest.mark.parametrize("form", ["predict", "predict_class", "predict_json"])
def test_a_name_and_a_row_are_enough(user, form):
    query = "SELECT madlib_mop.{}({}, c) FROM customers c ORDER BY id LIMIT 5"
    assert user.rows(query.format(form, "'churn@champion'")) == user.rows(query.format(form, TABLE))


@pytest.mark.slow
def test_a_whole_table_and_an_evaluation(user):
    for name, model in (("by_name", "'churn@1', "), ("by_table", "'churn', ")):
        key = "" if "@" in model else ", mst_key => 1"
        user.rows(f"SELECT madlib.madlib_keras_predict({model} 'customers', 'id', '*', '{name}'{key})")
        user.rows(f"SELECT madlib.madlib_keras_evaluate({model} 'packed_validation', 'of_{name}'{key})")
    assert user.rows("TABLE by_name EXCEPT TABLE by_table") == [] and user.value("SELECT count(*) FROM by_name") == 1200
    assert user.rows("TABLE of_by_name") == user.rows("TABLE of_by_table")


def test_a_number_is_refused_for_classes_as_by_the_table(user):
    for name in (NAME, "'churn@champion'"):
        error = user.refused(user.rows, f"SELECT madlib_mop.predict_number({name}, c) FROM customers c LIMIT 1")
        assert error.message == "predict_number: the model predicts a class, 'churned', not a number"


def test_the_lineage_is_that_of_the_run(db, user):
    visits = (
        "SELECT epoch, position, v.segment_id, v.n_rows, fingerprint, digest_in, digest_out FROM"
        " madlib_mop.visit v"
    )
    segment = "JOIN madlib_mop.segment s ON (s.run_id, s.segment_id, s.data_set) = (v.run_id, v.segment_id, 'training')"
    expected = user.rows(f"{visits} {segment} WHERE v.run_id = %s ORDER BY 1, 2", db.run.run_id)
    found = (
        "SELECT epoch, position, segment_id, n_rows, rows_digest, digest_in, digest_out FROM"
        " madlib_mop.version_lineage"
    )
    assert user.rows(f"{found} WHERE name = 'churn' ORDER BY 1, 2") == expected and expected
    run_id, metrics, digest = user.rows("SELECT run_id, metrics, digest FROM madlib_mop.registry")[0]
    assert run_id == db.run.run_id and {"training_loss", "validation_accuracy"} <= set(metrics)
    assert digest == user.value("SELECT encode(sha256(model_weights), 'hex') FROM churn")


@pytest.mark.slow
def test_challengers_predict_rows_too(user):
    user.rows("SELECT madlib_mop.register('churn', 'churn', 1); SELECT madlib_mop.set_challenger('churn',"
              " 'champion', 2, 1)")
    query = "SELECT madlib_mop.predict_class({}, c) FROM customers c ORDER BY id"
    assert user.rows(query.format(NAME)) == user.rows(query.format(TABLE))
    n_rows, same, difference = user.rows(
        "SELECT n_rows, same_best_share, max_difference FROM madlib_mop.challenger_comparison"
    )[0]
    assert n_rows >= 255 and (same, difference) == (1.0, 0.0)

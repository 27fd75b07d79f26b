"""Why: explain_prediction and importance, for a table of every kind of column, an ordinary role, and every error."""

import numpy as np
import psycopg2
import pytest

from tests.helpers.drift import rows_of
from tests.helpers.inference import Dependent, ModelTable, User

pytestmark = pytest.mark.one_session

ROW = "(SELECT c FROM customers c WHERE id = {})"
EXPLAIN = "SELECT * FROM madlib_mop.explain_prediction('churn', {row}, 1{more})"
INPUTS = {"age", "income", "tier", "city", "active", "joined", "seen"}


@pytest.fixture(scope="module")
def db(churn_db):
    return churn_db


@pytest.fixture(scope="module")
def user(db):
    user = User(db.connect())
    user.rows("SET madlib_mop.segments = 1")
    user.rows("SELECT madlib_mop.register('churn', 'churn', 1)")
    for alias in ("champion", "newest"):
        user.rows(f"SELECT madlib_mop.set_alias('churn', '{alias}', 1)")
    yield user
    user.connection.close()


@pytest.fixture(scope="module")
def analyst(user, db):
    """A session of a role that may only predict with the registered model, and read a view of some customers."""
    db.cluster.create_role("explains")
    user.rows("SELECT madlib_mop.grant_model('churn', 'explains', 'predict')")
    user.rows("CREATE VIEW of_analyst AS SELECT * FROM customers WHERE id <= 200")
    user.rows("GRANT SELECT ON of_analyst TO explains")
    session = User(db.connect("explains"))
    yield session
    session.connection.close()


def explain(user, number=7, more="") -> list[dict]:
    return rows_of(user, EXPLAIN.format(row=ROW.format(number), more=more))


def refused(session, query: str) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as caught:
        session.rows(query)
    assert "internal error" not in str(caught.value) and "Traceback" not in str(caught.value)
    return caught.value


def test_contributions_of_source_columns_add_up_to_the_prediction(user):
    for number in (3, 7, 9):  # 9 has no age
        found = explain(user, number)
        assert {row["feature"] for row in found} == INPUTS and len(found) == len(INPUTS)
        (prediction,), (base,) = {row["prediction"] for row in found}, {row["base"] for row in found}
        assert sum(row["contribution"] for row in found) == pytest.approx(prediction - base, abs=1e-6)
        predicted, p = user.rows(f"SELECT madlib_mop.predict_class('churn', 1, c), madlib_mop.predict('churn', 1, c)"
                                 f" FROM customers c WHERE id = {number}")[0]  # fmt: skip
        assert {(row["output"], row["class"]) for row in found} == {("churned", predicted)}
        assert np.float32(prediction) == np.float32(p[["no", "yes"].index(predicted)])
        sizes = [abs(row["contribution"]) for row in found]
        assert sizes == sorted(sizes, reverse=True) and all(row["standard_error"] >= 0 for row in found)


def test_what_decides_is_at_the_top(user):
    """Whether a customer leaves depends on age and tier: i * 7 % 50 + i % 3 * 9 > 35."""
    found = [explain(user, number)[0]["feature"] for number in range(20, 30)]
    assert sum(feature in ("age", "tier") for feature in found) >= 8


def test_base_is_the_mean_prediction_of_all_rows_of_the_background(user):
    user.rows("CREATE VIEW few AS SELECT * FROM customers WHERE id BETWEEN 300 AND 340")
    found = explain(user, 7, ", background => 'few', of_class => 'yes'")
    mean = user.value("SELECT avg((madlib_mop.predict('churn', 1, f))[2]::float8) FROM few f")
    assert {row["class"] for row in found} == {"yes"} and found[0]["base"] == pytest.approx(mean, abs=1e-7)
    assert sum(row["contribution"] for row in found) == pytest.approx(found[0]["prediction"] - mean, abs=1e-6)


def test_classes_of_two_contribute_the_opposite(user):
    yes, no = (
        {row["feature"]: row["contribution"] for row in explain(user, 7, f", of_class => '{one}'")}
        for one in ("yes", "no")
    )
    assert all(yes[feature] == pytest.approx(-no[feature], abs=1e-6) for feature in INPUTS)


def test_a_seed_repeats_an_explanation_to_the_bit(user):
    options = ", seed => 5, n_background => 20, n_permutations => 2"
    assert explain(user, 7, options) == explain(user, 7, options) != explain(user, 7, options.replace("5", "6"))


def test_many_rows_in_one_query(user):
    query = ("SELECT c.id, e.feature, e.contribution FROM customers c, madlib_mop.explain_prediction('churn', c, 1,"
             " n_background => 10) e WHERE c.id IN (7, 8, 9)")  # fmt: skip
    found = user.rows(query)
    assert len(found) == 3 * len(INPUTS)
    alone = {row["feature"]: row["contribution"] for row in explain(user, 8, ", n_background => 10")}
    assert {feature: value for number, feature, value in found if number == 8} == alone
    assert user.rows("SELECT * FROM madlib_mop.explain_prediction('churn', NULL::customers, 1)") == []


def test_the_background_is_read_anew_in_each_statement(user):
    user.rows("CREATE TABLE changing AS SELECT * FROM customers WHERE id <= 10")
    before = explain(user, 7, ", background => 'changing'")[0]["base"]
    user.rows("DELETE FROM changing WHERE id > 1")
    after = explain(user, 7, ", background => 'changing'")
    assert after[0]["base"] != before and {row["standard_error"] for row in after} == {None}


def test_all_rows_of_a_query_have_one_background_also_after_changes_of_the_transaction(user):
    user.rows("CREATE TABLE of_one_query AS SELECT * FROM customers WHERE id <= 50")
    user.rows("CREATE VIEW of_one_query_by_view AS SELECT * FROM of_one_query")
    query = ("SELECT count(*), count(DISTINCT base) FROM customers c, unnest('{{yes,no}}'::text[]) k,"
             " madlib_mop.explain_prediction('churn', c, 1, of_class => k, background => '{}')"
             " WHERE id <= 3")  # fmt: skip
    user.rows("BEGIN; CREATE TEMPORARY TABLE changed (a integer); SAVEPOINT a; INSERT INTO changed VALUES (1)")
    for background in ("of_one_query", "of_one_query_by_view"):
        assert user.rows(query.format(background)) == [(6 * len(INPUTS), 2)]
    user.rows("ROLLBACK")


def test_the_background_is_read_anew_after_each_change_within_a_statement(user):
    user.rows("CREATE TABLE shrinking AS SELECT * FROM customers WHERE id <= 10")
    base = ("(SELECT base FROM madlib_mop.explain_prediction('churn', (SELECT c FROM customers c WHERE id = 7), 1,"
            " of_class => 'yes', background => 'shrinking') LIMIT 1)")  # fmt: skip
    user.rows(f"""CREATE FUNCTION bases() RETURNS float8[] LANGUAGE plpgsql AS $$
        DECLARE
            found float8[] := ARRAY[{base}];
            undone float8;
        BEGIN
            DELETE FROM shrinking WHERE id > 8;
            found := found || {base};
            BEGIN
                DELETE FROM shrinking WHERE id > 6;
                undone := {base};
                RAISE EXCEPTION 'undo';
            EXCEPTION WHEN raise_exception THEN
                found := found || undone || {base};
            END;
            RETURN found;
        END $$""")
    means = [
        user.value(f"SELECT avg((madlib_mop.predict('churn', 1, c))[2]::float8) FROM customers c WHERE id <= {n}")
        for n in (10, 8, 6, 8)
    ]
    assert len(set(means)) == 3
    assert user.value("SELECT bases()") == pytest.approx(means, abs=1e-7)


def test_a_registered_model_has_each_of_its_names(user):
    """The name alone is its alias newest, as for predict, though a table has this name too."""
    for name in ("churn@champion", "churn@1", "churn@newest", "churn", "Churn"):
        assert rows_of(user, f"SELECT * FROM madlib_mop.explain_prediction('{name}', {ROW.format(7)})") == explain(user)


def test_an_anonymous_row(user):
    named = explain(user)
    row = "(SELECT r FROM (SELECT age, income, tier, city, active, joined, seen FROM customers WHERE id = 7) r)"
    assert rows_of(user, EXPLAIN.format(row=row, more="")) == named


def test_an_ordinary_role_explains_by_rows_that_it_may_read(analyst):
    query = "SELECT * FROM madlib_mop.explain_prediction('churn@champion', (SELECT c FROM of_analyst c WHERE id = 7){})"
    found = rows_of(analyst, query.format(", background => 'of_analyst'"))
    assert {row["feature"] for row in found} == INPUTS
    error = refused(analyst, query.format(""))
    assert error.pgcode == "22023" and "background is missing" in str(error) and "not your own" in str(error)
    for table in ("packed", "customers"):
        error = refused(analyst, query.format(f", background => '{table}'"))
        assert error.pgcode == "42501"


NUMBER = "22023"
ERRORS = [
    ("NULL, " + ROW.format(7), NUMBER, "explain_prediction: model_table is missing. Received: NULL"),
    ("'nobody', " + ROW.format(7) + ", 1", "42P01", "model_table does not exist. Received: 'nobody'"),
    ("'nobody', " + ROW.format(7), NUMBER, "there is no registered model of this name that you may use."),
    ("'churn@1', " + ROW.format(7) + ", 1", NUMBER, "mst_key is for tables; churn@1 names one model. Received: 1"),
    ("'nobody@1', " + ROW.format(7), NUMBER, "explain_prediction: there is no registered model of this name"),
    ("'churn', 5, 1", NUMBER, "explain_prediction: input_row is no row of a table: it is of type integer"),
    ("'churn', (SELECT r FROM (SELECT 1 AS age) r), 1", "42703", "explain_prediction: column"),
    ("'churn', " + ROW.format(7) + ", 99", NUMBER, "explain_prediction: mst_key 99 is not in"),
    ("'churn', " + ROW.format(7) + ", 1, of_class => 'maybe'", NUMBER, "it has the classes no, yes. Received: 'maybe'"),
    ("'churn', " + ROW.format(7) + ", 1, background => 'none'", "42P01", "background does not exist. Received: 'none'"),
    ("'churn', " + ROW.format(7) + ", 1, background => 'nothing'", NUMBER, "background: the table has no rows"),
    ("'churn', " + ROW.format(7) + ", 1, n_background => 0", NUMBER, "n_background must be at least 1. Received: 0"),
    ("'churn', " + ROW.format(7) + ", 1, n_permutations => 0", NUMBER, "n_permutations must be at least 1."),
    ("'churn', " + ROW.format(7) + ", 1, seed => NULL", NUMBER, "seed must be at least 0. Received: NULL"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), ERRORS)
def test_errors_say_what_is_wrong(user, arguments, code, words):
    user.rows("CREATE OR REPLACE VIEW nothing AS SELECT * FROM customers WHERE false")
    error = refused(user, f"SELECT * FROM madlib_mop.explain_prediction({arguments})")
    assert (error.pgcode, words in str(error)) == (code, True), str(error)
    assert "predict: " not in str(error).replace("explain_prediction: ", "")


def test_a_regression_is_explained_in_the_units_of_its_table(user, keras):
    user.rows("CREATE TABLE houses AS SELECT i AS id, (i % 97)::float8 AS area, i * 13 % 7 AS rooms,"
              " 1e5 + 3e3 * (i % 97) AS price FROM generate_series(1, 400) i")
    user.rows("SELECT madlib_mop.pack_columns('houses', 'houses_packed', 'price', exclude => '{id}', seed => 1)")
    linear = keras.Sequential([keras.Input((2,), name="numbers"), keras.layers.Dense(1)]).to_json()
    user.rows("SELECT madlib.load_keras_model('house_nets', %s::json)", linear)
    user.rows("SELECT madlib.load_model_selection_table('house_nets', 'house_configs', '{1}', %s, %s)",
              ["loss='mse', optimizer='Adam(lr=0.05)', metrics=['mae']"], ["batch_size=18, epochs=8"])  # fmt: skip
    user.rows("SELECT madlib.madlib_keras_fit_multiple_model('houses_packed', 'prices', 'house_configs', 1)")
    row = "(SELECT h FROM houses h WHERE id = 96)"
    found = rows_of(user, f"SELECT * FROM madlib_mop.explain_prediction('prices', {row}, 1)")
    (prediction,) = {row["prediction"] for row in found}
    assert prediction == user.value("SELECT madlib_mop.predict_number('prices', 1, h) FROM houses h WHERE id = 96")
    total = sum(row["contribution"] for row in found)
    assert total == pytest.approx(prediction - found[0]["base"], abs=1e-6)
    assert found[0]["feature"] == "area" and found[0]["contribution"] > 5e4 and found[0]["class"] is None
    found = rows_of(user, "SELECT * FROM madlib_mop.importance('prices', 'houses', 1, metric => 'absolute_error')")
    assert [row["feature"] for row in found] == ["area", "rooms"]
    assert found[0]["importance"] > 3e4 > found[0]["loss"] > 0
    found = rows_of(user, "SELECT * FROM madlib_mop.partial_dependence('prices', 'houses', 'area', 1, n_values => 5)")
    assert [row["value"] for row in found] == ["0", "22", "47", "71", "96"]
    assert {row["n_rows"] for row in found} == {400}
    for row in found:
        assert row["prediction"] == pytest.approx(1e5 + 3e3 * float(row["value"]), abs=6e4)
        assert row["lower"] <= row["prediction"] <= row["upper"] and row["class"] is None


def test_importance_finds_the_columns_that_decide(user):
    found = rows_of(user, "SELECT * FROM madlib_mop.importance('churn', 'customers', 1)")
    assert {row["feature"] for row in found} == INPUTS and {row["metric"] for row in found} == {"log_loss"}
    assert {row["feature"] for row in found[:2]} == {"age", "tier"} and {row["n_rows"] for row in found} == {600}
    assert all(row["lower"] <= row["importance"] <= row["upper"] for row in found) and found[0]["lower"] > 0
    p = np.array(user.rows("SELECT (madlib_mop.predict('churn', 1, c))[1], churned = 'no' FROM customers c"))
    loss = -np.log(np.where(p[:, 1] == 1, p[:, 0], 1 - p[:, 0])).mean()
    assert found[0]["loss"] == pytest.approx(loss, rel=1e-5)
    again = rows_of(user, "SELECT * FROM madlib_mop.importance('churn', 'customers', 1)")
    assert again == found


def test_importance_takes_packed_rows_and_a_registered_model(user):
    packed = rows_of(user, "SELECT * FROM madlib_mop.importance('churn@champion', 'packed_validation',"
                           " metric => 'error_rate', n_repeats => 2, max_rows => 50)")  # fmt: skip
    assert {row["n_rows"] for row in packed} == {50} and {row["metric"] for row in packed} == {"error_rate"}
    assert 0 <= packed[0]["loss"] < 0.5
    alone = "SELECT * FROM madlib_mop.importance('churn', 'packed_validation', n_repeats => 2)"
    assert rows_of(user, alone) == rows_of(user, alone.replace("'churn'", "'churn@1'"))


def test_a_packed_table_that_was_changed_by_hand_is_one_clear_error(user):
    user.rows("CREATE TABLE forged AS TABLE packed; CREATE TABLE forged_summary AS TABLE packed_summary")
    user.rows("UPDATE forged SET numbers_shape = numbers_shape[1:1] || 1 || numbers_shape[2:2]")
    explained = f"explain_prediction('churn', {ROW.format(7)}, background => 'forged')"
    for call in ("importance('churn', 'forged')", explained):
        error = refused(user, f"SELECT * FROM madlib_mop.{call}")
        assert error.pgcode == "22023" and "has rows of " in str(error), str(error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'churn', 'customers', 1, metric => 'squared_error'", "metric: the model predicts classes."),
        ("'churn', 'customers', 1, metric => 'auc'", "metric"),
        ("'churn', 'absent', 1", "source_table does not exist. Received: 'absent'"),
        ("'churn', 'nothing', 1", "source_table has no rows"),
        ("'churn', 'alone', 1", "source_table has one row"),
        ("'churn', 'customers', 1, max_rows => 1", "max_rows must be at least 2. Received: 1"),
    ],
)
def test_errors_of_importance_say_what_is_wrong(user, arguments, words):
    user.rows("CREATE OR REPLACE VIEW nothing AS SELECT * FROM customers WHERE false")
    user.rows("CREATE OR REPLACE VIEW alone AS SELECT * FROM customers WHERE id = 1")
    error = refused(user, f"SELECT * FROM madlib_mop.importance({arguments})")
    assert words in str(error) and "importance" in str(error)


def test_partial_dependence_is_the_mean_prediction_of_rows_with_the_value(user):
    call = "SELECT * FROM madlib_mop.partial_dependence('churn@champion', 'customers', '{}'{})"
    found = rows_of(user, call.format("tier", ", of_class => 'yes'"))
    assert [(row["output"], row["class"]) for row in found] == [("churned", "yes")] * 3
    user.rows("CREATE TABLE changed AS SELECT id, age, income, city, active, joined, seen, NULL::text AS tier"
              " FROM customers")  # fmt: skip
    for row in found:
        user.rows("UPDATE changed SET tier = %s", row["value"])
        mean = user.value("SELECT avg((madlib_mop.predict('churn', 1, r))[2]::float8) FROM changed r")
        assert row["prediction"] == pytest.approx(mean, abs=1e-6) and row["n_rows"] == 600
    assert {row["value"] for row in found} == {"gold", "silver", None}
    found = rows_of(user, call.format("joined", ", n_values => 4, max_rows => 50"))
    dates = [row["value"] for row in found if row["class"] == "no"]
    assert len(dates) == 4 and dates == sorted(dates) and all(len(date) == 10 for date in dates)
    assert {row["class"] for row in found} == {"yes", "no"} and {row["n_rows"] for row in found} == {50}
    assert found == rows_of(user, call.format("joined", ", n_values => 4, max_rows => 50"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'churn', 'customers', 'height', 1", "has no such input. Received: 'height'"),
        ("'churn', 'customers', NULL, 1", "has no such input. Received: NULL"),
        ("'churn', 'packed', 'age', 1", "is a packed table"),
        ("'churn', 'nothing', 'age', 1", "source_table has no rows"),
        ("'churn', 'customers', 'age', 1, of_class => 'maybe'", "it has the classes no, yes. Received: 'maybe'"),
        ("'churn', 'customers', 'age', 1, n_values => 0", "n_values must be at least 1. Received: 0"),
    ],
)
def test_errors_of_partial_dependence_say_what_is_wrong(user, arguments, words):
    user.rows("CREATE OR REPLACE VIEW nothing AS SELECT * FROM customers WHERE false")
    error = refused(user, f"SELECT * FROM madlib_mop.partial_dependence({arguments})")
    assert words in str(error) and "partial_dependence: " in str(error)


def test_models_of_arrays_have_no_columns_to_explain(user, keras):
    user.rows("CREATE TABLE arrays AS SELECT i AS id, ARRAY[i % 7, i % 3]::real[] AS x, i % 2 AS y"
              " FROM generate_series(1, 50) i")
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, activation="softmax")])
    classes = Dependent(vartype="integer", values=[0, 1], values_type="integer[]")
    user.write_models("of_arrays", {1: net}, ModelTable(dependent=[classes]))
    row = "(SELECT a FROM arrays a LIMIT 1)"
    for call in (f"explain_prediction('of_arrays', {row}, 1)", "importance('of_arrays', 'arrays', 1)"):
        error = refused(user, f"SELECT * FROM madlib_mop.{call}")
        assert error.pgcode == "0A000" and "was not trained on a table of pack_columns" in str(error)

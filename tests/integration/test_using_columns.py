"""Models of tables of pack_columns on ordinary tables: predictions of whole tables, new packed rows, evaluations."""

import keras
import numpy as np
import psycopg2
import pytest

from tests.helpers.columns import content
from tests.helpers.training import fit

pytestmark = pytest.mark.one_session

COLUMNS = "id, age, income, tier, city, active, joined, seen"


@pytest.fixture(scope="module")
def churn(churn_db):
    churn_db.rows(f"CREATE VIEW later AS SELECT {COLUMNS} FROM customers")
    return churn_db


@pytest.fixture(scope="module")
def prices(churn):
    churn.rows(
        "CREATE TABLE houses AS SELECT i AS id, i % 97 AS area, 1e5 + 3e3 * (i % 97) AS price"
        " FROM generate_series(1, 600) i"
    )
    churn.rows("SELECT madlib_mop.pack_columns('houses', 'houses_packed', 'price', exclude => '{id}', seed => 1)")
    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).to_json()
    churn.rows("SELECT madlib.load_keras_model('arch_h', %s::json)", [network])
    churn.rows(
        "SELECT madlib.load_model_selection_table('arch_h', 'mst_h', '{1}', %s::varchar[], %s::varchar[])",
        [["optimizer='adam(lr=0.1)', loss='mse'"], ["batch_size=32, epochs=1"]],
    )
    fit(churn, "prices", "mst_h", 10, source_table="houses_packed", seed=1)
    return churn


def predict(db, model: str, table: str, output: str, columns: str | None = "*", **options) -> None:
    values = "".join(f", {name} => %s" for name in options)
    query = f"SELECT madlib.madlib_keras_predict(%s, %s, 'id', %s, %s, mst_key => 1{values})"
    db.rows(query, [model, table, columns, output, *options.values()])


def refused(db, query: str, *parameters) -> str:
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(query, parameters or None)
    text = str(caught.value)
    assert "internal error" not in text and "Traceback" not in text and caught.value.pgcode[:2] != "XX"
    return text


@pytest.mark.one_case
@pytest.mark.parametrize("columns", ["*", None, "seen, joined, active, city, tier, income, age"])
def test_a_table_is_predicted_as_its_rows_are(churn, columns):
    """Row by row and by thousands: dense networks have the same bits."""
    churn.rows("DROP TABLE IF EXISTS predicted")
    predict(churn, "churn", "later", "predicted", columns)
    different = (
        "SELECT count(*) FROM predicted p JOIN customers c USING (id)"
        " WHERE p.prob::real <> (madlib_mop.predict('churn', 1, c))[CASE class_value WHEN 'no' THEN 1 ELSE 2 END]"
    )
    assert churn.value(different) == 0
    assert churn.rows("SELECT count(*), min(class_name), min(class_value), max(class_value) FROM predicted") == [
        (1200, "churned", "no", "yes")
    ]


@pytest.mark.slow
def test_forms_of_the_prediction(churn):
    predict(churn, "churn", "customers", "best", pred_type="response")
    right = churn.value("SELECT avg((class_value = churned)::integer) FROM best JOIN customers USING (id)")
    assert right > 0.8 and churn.value("SELECT count(*) FROM best") == 600
    churn.rows("CREATE VIEW nobody AS SELECT * FROM later WHERE false")
    predict(churn, "churn", "nobody", "none")
    assert churn.value("SELECT count(*) FROM none") == 0
    churn.rows(
        "CREATE VIEW strange AS SELECT id, NULL::integer AS age, 1e300::float8 AS income, 'tin' AS tier,"
        " 'Atlantis' AS city,"
        " NULL::boolean AS active, date '4000-01-01' AS joined, seen FROM customers LIMIT 5"
    )
    predict(churn, "churn", "strange", "unseen")
    assert churn.value("SELECT count(*) FROM unseen WHERE prob BETWEEN 0 AND 1") == 10


@pytest.mark.slow
def test_a_column_that_is_twice_in_a_row_is_an_error(churn):
    query = "SELECT madlib_mop.predict_class('churn', 1, r) FROM (SELECT c.*, {more} FROM customers c LIMIT 1) AS r"
    assert "column 'age' is twice in the row" in refused(churn, query.format(more="99 AS age"))
    assert churn.value(query.format(more="99 AS id")) is not None  # no input


@pytest.mark.slow
def test_a_client_without_an_encoding_predicts_rows_as_others_do(churn):
    """With SQL_ASCII, the server converts no texts."""
    query = r"""SELECT madlib_mop.predict('churn', 1, r)
        FROM (SELECT age, income, tier, U&'K\00F6ln' AS city, active, joined, seen FROM customers LIMIT 3) AS r"""
    connection = churn.connect()
    answers = []
    for encoding in ("UTF8", "SQL_ASCII"):
        connection.set_client_encoding(encoding)
        with connection.cursor() as cursor:
            cursor.execute(query)
            answers.append(cursor.fetchall())
    connection.close()
    assert answers[0] == answers[1] and len(answers[0]) == 3


@pytest.mark.slow
def test_a_regression_is_predicted_in_the_units_of_the_table(prices):
    predict(prices, "prices", "houses", "guesses")
    rows = prices.rows("SELECT price, prob, class_value, rank FROM guesses JOIN houses USING (id)")
    assert len(rows) == 600 and {row[2:] for row in rows} == {(None, 1)}
    assert all(abs(float(price) - guess) < 2000 for price, guess, _, _ in rows)
    each = "madlib_mop.predict_number('prices', 1, h)"
    same = f"SELECT count(*) FROM guesses g JOIN houses h USING (id) WHERE {each} = g.prob"
    assert prices.value(same) == 600
    # its network would take the area as an encoded one
    assert "takes rows, not arrays" in refused(prices, "SELECT madlib_mop.predict('prices', 1, ARRAY[3.0])")


@pytest.mark.slow
def test_several_targets_have_the_order_and_the_names_that_the_caller_gave(churn):
    """They had the order of the table; hints named functions that do not take such models."""
    churn.rows("CREATE TABLE both_kinds AS SELECT i AS id, i % 31 AS x, (ARRAY['a', 'b', 'c'])[1 + i % 3] AS kind,"
               " 1000.0 + i % 31 AS pay FROM generate_series(1, 400) i")  # fmt: skip
    pack = "SELECT madlib_mop.pack_columns('both_kinds', 'both_packed', 'pay, kind', exclude => '{id}', seed => 1)"
    churn.rows(pack)
    churn.rows("SELECT madlib_mop.propose_networks('both_packed', 'both_networks', 'both_configs', n_configs => 1)")
    fit(churn, "both", "both_configs", 1, source_table="both_packed", seed=1)
    row = "'both', 1, b) FROM both_kinds b WHERE id = 7"
    pay, *kinds = churn.value(f"SELECT madlib_mop.predict({row}")
    named = churn.value(f"SELECT madlib_mop.predict_json({row}")
    assert 900 < pay < 1200 and np.isclose(named["pay"], pay) and np.isclose(sum(kinds), 1, atol=1e-5)
    assert np.allclose([named["kind"][kind] for kind in "abc"], kinds, atol=1e-6)
    predict(churn, "both", "both_kinds", "both_guesses", pred_type="response")
    found = churn.rows("SELECT class_name, class_value, prob FROM both_guesses WHERE id = 7 ORDER BY 1")
    assert [one[:2] for one in found] == [("kind", "abc"[int(np.argmax(kinds))]), ("pay", None)]
    assert np.isclose(found[1][2], pay)
    for function in ("predict_class", "predict_number"):
        error = refused(churn, f"SELECT madlib_mop.{function}({row}")
        assert f"{function}: the model has 2 outputs" in error
        assert "HINT:  madlib_mop.predict_json returns each output by its name." in error
    error = refused(churn, "SELECT madlib_mop.make_ensemble('both', 'both_packed', 'e', metric => 'accuracy')")
    assert "is for classes, but public.both also predicts a number, 'pay'" in error


def test_later_rows_are_packed_by_the_recorded_preprocessor(churn):
    """The whole table packed again has the rows of both packed tables, whatever the order of its rows."""
    churn.rows("CREATE VIEW turned AS SELECT * FROM customers ORDER BY id * 389 % 600")
    for source, segments in (("customers", 1), ("turned", 3)):
        connection = churn.connect()
        connection.cursor().execute(f"SET madlib_mop.segments = {segments}")
        call = f"SELECT madlib.validation_preprocessor_dl('{source}', 'again_{source}', '*', NULL, 'packed')"
        connection.cursor().execute(call)
        assert any("encoded by the preprocessor of packed" in notice for notice in connection.notices)
        connection.close()
    first, second = content(churn, "again_customers"), content(churn, "again_turned")
    parts = content(churn, "packed"), content(churn, "packed_validation")
    for name, rows in first.items():
        assert rows.tobytes() == second[name].tobytes(), name
        whole = np.concatenate([part[name] for part in parts])
        assert sorted(row.tobytes() for row in rows) == sorted(row.tobytes() for row in whole), name
    digests = (
        "SELECT DISTINCT preprocessor_digest FROM (TABLE again_customers_summary UNION ALL TABLE packed_summary) s"
    )
    assert len(churn.rows(digests)) == 1


@pytest.mark.slow
def test_a_model_is_evaluated_on_the_validation_rows_and_on_later_rows(churn):
    churn.rows("SELECT madlib.madlib_keras_evaluate('churn', 'packed_validation', 'evaluation', mst_key => 1)")
    loss, metric = churn.rows("SELECT loss, metric FROM evaluation")[0]
    final = churn.rows("SELECT validation_loss_final, validation_metrics_final FROM churn_info")[0]
    assert (loss, metric) == pytest.approx(final, rel=1e-6)
    churn.rows("CREATE VIEW sample AS SELECT * FROM customers WHERE id <= 200")
    churn.rows("SELECT madlib.validation_preprocessor_dl('sample', 'sample_packed', 'churned', '*', 'packed')")
    churn.rows("SELECT madlib.madlib_keras_evaluate('churn', 'sample_packed', 'evaluation_2', mst_key => 1)")
    is_right = "(madlib_mop.predict_class('churn', 1, c) = churned)::integer"
    right = f"SELECT avg({is_right})::float8 FROM customers c WHERE id <= 200"
    assert churn.value("SELECT metric FROM evaluation_2") == pytest.approx(churn.value(right))
    churn.rows("SELECT madlib_mop.pack_columns('customers', 'other', 'churned', seed => 2, exclude => '{seen}')")
    evaluate = "SELECT madlib.madlib_keras_evaluate('churn', 'other', 'e', mst_key => 1)"
    assert "another preprocessor" in refused(churn, evaluate)


@pytest.mark.slow
def test_a_run_takes_later_rows_as_validation_table(churn):
    churn.rows("CREATE VIEW few AS SELECT * FROM customers WHERE id <= 50")
    churn.rows("SELECT madlib.validation_preprocessor_dl('few', 'few_packed', '*', '*', 'packed')")
    fit(churn, "churn_few", "mst", 1, source_table="packed", validation_table="few_packed", seed=1)
    assert churn.value("SELECT validation_loss_final > 0 FROM churn_few_info")


@pytest.mark.slow
def test_a_model_from_elsewhere_predicts_what_transform_writes(prices):
    """madlib_keras_predict_byom knows no preprocessor: the encoded table has its inputs."""
    predict(prices, "prices", "houses", "as_usual")
    prices.rows("SELECT madlib_mop.transform('prices', 'houses', 'houses_encoded', keep => 'id')")
    prices.rows("UPDATE arch_h SET model_weights = (SELECT model_weights FROM prices)")
    prices.rows("SELECT madlib.madlib_keras_predict_byom('arch_h', 1, 'houses_encoded', 'id', 'area', 'byom')")
    scale = "SELECT corr(b.prob, u.prob) FROM byom b JOIN as_usual u USING (id)"
    assert prices.value(scale) == pytest.approx(1.0)


PREDICT = "SELECT madlib.madlib_keras_predict('churn', '{}', '{}', '{}', 'p', mst_key => 1)"
PACK = "SELECT madlib.validation_preprocessor_dl('{}', 'p', '{}', '{}', 'packed')"
BAD = {
    PREDICT.format("later", "nothing", "*"): "id_col: table public.later has no column 'nothing'",
    PREDICT.format("later", "id", "age"): "independent_varname must be '*' or the columns of training, which are age,",
    PREDICT.format("without", "id", "*"): "test_table: public.without has no column 'city'",
    PREDICT.format("packed", "id", "*"): "test_table: public.packed is a packed table",
    PREDICT.format("special", "id", "*"): "column 'income' holds Infinity (row with id = 1)",
    PREDICT.format("retyped", "id", "*"): "column 'age' must be a number",
    PREDICT.format("clash", "prob", "*"): "id_col: the output table already has a column 'prob'",
    PACK.format("later", "*", "*"): "source_table: public.later has no column 'churned'",
    PACK.format("customers", "tier", "*"): "dependent_varname must be '*' or the columns of training",
    PACK.format("customers", "*", "age"): "independent_varname must be '*' or the columns of training",
    PACK.format("unlabelled", "*", "*"): "column 'churned' is a target, and it is NULL",
    PACK.format("perhaps", "*", "*"): "class 'perhaps', which no training row has",
    PACK.format("nobody_2", "*", "*"): "source_table has no rows",
    PACK.format("customers", "*", "*")[:-1] + ", image_shape => '{8,8}')": "image_shape applies to tables of",
}


@pytest.fixture(scope="module")
def wrong_tables(churn):
    rest = "active, joined, seen"
    churn.rows(f"CREATE VIEW without AS SELECT id, age, income, tier, {rest} FROM customers")
    churn.rows(
        f"CREATE VIEW special AS SELECT id, age, 'Infinity'::float8 AS income, tier, city, {rest} FROM customers"
    )
    churn.rows(f"CREATE VIEW retyped AS SELECT id, age::text AS age, income, tier, city, {rest} FROM customers")
    churn.rows("CREATE VIEW clash AS SELECT *, id AS prob FROM customers")
    churn.rows(f"CREATE VIEW unlabelled AS SELECT {COLUMNS}, NULL::text AS churned FROM customers")
    churn.rows(f"CREATE VIEW perhaps AS SELECT {COLUMNS}, 'perhaps' AS churned FROM customers")
    churn.rows("CREATE VIEW nobody_2 AS SELECT * FROM customers WHERE false")
    return churn


@pytest.mark.one_case
@pytest.mark.parametrize("query", BAD)
def test_wrong_input_has_one_clear_error(wrong_tables, query):
    assert BAD[query] in refused(wrong_tables, query)
    assert wrong_tables.value("SELECT to_regclass('p')") is None


def test_a_summary_that_was_changed_is_an_error(prices):
    prices.rows("CREATE TABLE forged AS TABLE prices; CREATE TABLE forged_info AS TABLE prices_info")
    prices.rows("CREATE TABLE forged_summary AS TABLE prices_summary")
    other = "(preprocessor_digest, preprocessor) = (SELECT preprocessor_digest, preprocessor FROM packed_summary)"
    prices.rows(f"UPDATE forged_summary SET {other}")
    query = "SELECT madlib.madlib_keras_predict('forged', 'houses', 'id', '*', 'p', mst_key => 1)"
    for call in (query, "SELECT madlib_mop.predict_number('forged', 1, h) FROM houses AS h LIMIT 1"):
        text = refused(prices, call)
        assert "the preprocessor does not belong to mst_key 1 of public.forged: it has the targets 'churned'" in text

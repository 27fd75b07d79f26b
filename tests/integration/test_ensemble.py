"""make_ensemble: its model is the weighted average of its members in every way of predicting, and never worse."""

import time
from types import SimpleNamespace

import keras
import numpy as np
import psycopg2
import pytest

from madlib_mop.driver.inference.packed_rows import MAX_BYTES, check_memory
from madlib_mop.errors import OutOfResources
from tests.helpers.columns import pack_with
from tests.helpers.inference import Dependent, ModelTable, User, weights_of
from tests.helpers.security.attacks import user as make_role
from tests.helpers.sessions import undone
from tests.helpers.training import ADAM, fit, one_thread

pytestmark = pytest.mark.one_session

N_ROWS = 120
LOGITS = "loss='SparseCategoricalCrossentropy(from_logits=True)', optimizer='sgd', metrics=['accuracy']"
CUSTOMERS = """
CREATE TABLE customers AS
SELECT i AS id, CASE WHEN i % 9 > 0 THEN 20 + i * 7 % 50 END AS age, (ARRAY['gold', 'silver', NULL])[1 + i % 3] AS tier,
       'city' || i * 13 % 40 AS city, CASE WHEN i * 7 % 50 + i % 3 * 9 > 35 THEN 'yes' ELSE 'no' END AS churned
FROM generate_series(1, 400) AS i
"""
CALL = "SELECT * FROM madlib_mop.make_ensemble(%s, %s, %s"


def classifier(seed, n_hidden=0, last="softmax", units=3):
    """Return a network that was trained for a moment, on rows of its own."""
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(n_hidden, activation="tanh", kernel_regularizer="l2")] if n_hidden else []
    model = keras.Sequential([keras.Input((3,)), *hidden, keras.layers.Dense(units, last)])
    x = np.random.default_rng(seed).normal(size=(40, 3)).astype(np.float32)
    if last == "softmax" and units == 3:
        model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", run_eagerly=True)
        labels = x.argmax(axis=1)
        x[:, seed % 3] = 0  # so that none is best alone
        model.fit(x, labels, epochs=5, verbose=0)
    return model


@pytest.fixture(scope="module")
def user(db):
    """A source table of three classes and a number, packed for validation in several ways, and a table of models."""
    one_thread()
    user = User(db.connect())
    user.database = db
    x = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    rows = [(i, row.tolist(), "abc"[int(np.argmax(row))], float(row.sum())) for i, row in enumerate(x)]
    user.table("source", "id integer, x real[], y text, t real", rows, "%s, %s::real[], %s, %s")
    user.rows("SET madlib_mop.segments = 2")
    for name, y, more in (
        ("packed", "y", ""),
        ("indexed", "y", ", labels => 'index'"),
        ("numbers", "t", ", num_classes => '{}'"),
    ):
        user.rows(f"SELECT madlib.training_preprocessor_dl('source', '{name}', '{y}', 'x', 50, 2.0{more}, seed => 1)")
    user.models = {3: classifier(1), 4: classifier(2, 5), 7: classifier(3), 9: classifier(4, 6)}
    user.facts = ModelTable(dependent=[Dependent(values=["a", "b", "c"])], normalizing_const=2.0)
    user.write_models("models", user.models, user.facts)
    yield user
    user.connection.close()


def data(user, columns="x, y"):
    rows = user.rows(f"SELECT {columns} FROM source ORDER BY id")
    return np.array([row[0] for row in rows], np.float32) / np.float32(2), [row[1] for row in rows]


def average(members, models, x):
    return sum(weight * keras.ops.convert_to_numpy(models[key](x)) for key, _, weight, _, _ in members)


def test_every_way_of_predicting_has_the_weighted_average_of_the_members(user):
    members = user.rows(CALL + ", n_members => 6)", "models", "packed", "ensemble")
    x, labels = data(user)
    expected = average(members, user.models, x)
    assert 1 < len(members) <= 4 and sum(row[1] for row in members) <= 6
    assert np.isclose(sum(row[2] for row in members), 1) and len({row[4] for row in members}) == 1
    notice = user.notices()
    best = min(row[3] for row in members)
    assert members[0][4] < best and f"{members[0][4]:.6g}" in notice and f"{best:.6g}" in notice

    found = [row[0] for row in user.rows("SELECT madlib_mop.predict('ensemble', 1, x) FROM source ORDER BY id")]
    assert np.abs(np.array(found) - expected).max() < 1e-6
    names = [row[0] for row in user.rows("SELECT madlib_mop.predict_class('ensemble', 1, x) FROM source ORDER BY id")]
    assert names == ["abc"[i] for i in expected.argmax(axis=1)]
    (named,) = user.rows("SELECT madlib_mop.predict_named('ensemble', 1, x) FROM source WHERE id = 0")[0]
    assert np.allclose([named[name] for name in "abc"], expected[0], atol=1e-6)
    user.predict("ensemble", "source", "predicted", mst_key=1)
    prob = user.rows("SELECT array_agg(prob ORDER BY class_value) FROM predicted GROUP BY id ORDER BY id")
    assert np.abs(np.array([row[0] for row in prob]) - expected).max() < 1e-6

    user.evaluate("ensemble", "packed", "evaluated", mst_key=1)
    ((loss, metric, metrics_type),) = user.rows("SELECT loss, metric, metrics_type FROM evaluated")
    index = ["abc".index(label) for label in labels]
    assert np.isclose(loss, -np.log(expected[range(N_ROWS), index]).mean(), rtol=1e-5)
    assert np.isclose(loss, members[0][4], rtol=1e-5) and metrics_type == ["accuracy"]
    assert np.isclose(metric, (expected.argmax(axis=1) == index).mean())
    info = user.rows(
        "SELECT mst_key, validation_loss_final, validation_metrics_final, ensemble_of, ensemble_mst_keys,"
        " ensemble_counts, ensemble_weights, ensemble_member_metrics, status FROM ensemble_info"
    )
    keys, counts, weights, alone, _ = (list(column) for column in zip(*members, strict=True))
    assert info == [(1, loss, metric, "public.models", keys, counts, weights, alone, "trained")]


@pytest.mark.slow
def test_the_same_call_has_the_same_result_and_replaces_it(user):
    first = user.rows(CALL + ")", "models", "packed", "again")
    weights = user.value("SELECT model_weights FROM again")
    assert "exist" in user.refused(user.rows, CALL + ")", "models", "packed", "again").message
    assert user.rows(CALL + ", replace => true)", "models", "packed", "again") == first
    assert user.value("SELECT model_weights FROM again") == weights
    user.rows("SELECT madlib_mop.drop_models('again')")


@pytest.mark.slow
def test_accuracy_can_be_what_it_is_chosen_by(user):
    members = user.rows(CALL + ", metric => 'accuracy')", "models", "packed", "accurate")
    user.evaluate("accurate", "packed", "evaluated_accurate", mst_key=1)
    accuracy = user.value("SELECT metric FROM evaluated_accurate")
    assert np.isclose(members[0][4], accuracy) and accuracy >= max(row[3] for row in members)


@pytest.mark.slow
def test_logits_are_averaged_as_probabilities(user):
    models = {1: classifier(5, last="linear"), 2: classifier(6, last="linear")}
    facts = ModelTable(compile_params=LOGITS, dependent=user.facts.dependent, normalizing_const=2.0)
    user.write_models("raw", models, facts)
    members = user.rows(CALL + ")", "raw", "indexed", "cooked")
    x, labels = data(user)
    powers = {key: np.exp(model.predict(x, verbose=0).astype(float)) for key, model in models.items()}
    expected = sum(w * powers[key] / powers[key].sum(axis=1, keepdims=True) for key, _, w, _, _ in members)
    found = [row[0] for row in user.rows("SELECT madlib_mop.predict('cooked', 1, x) FROM source ORDER BY id")]
    assert np.abs(np.array(found) - expected).max() < 1e-6
    assert "from_logits" not in user.value("SELECT compile_params FROM cooked_info")
    user.evaluate("cooked", "indexed", "evaluated_cooked", mst_key=1)
    loss = -np.log(expected[range(N_ROWS), ["abc".index(label) for label in labels]]).mean()
    assert np.isclose(user.value("SELECT loss FROM evaluated_cooked"), loss, rtol=1e-5)


@pytest.mark.slow
def test_numbers_are_averaged_as_numbers(user):
    models = {key: classifier(10 + key, last="linear", units=1) for key in (1, 2, 3)}
    facts = ModelTable(
        compile_params="loss='mse', optimizer='sgd', metrics=['mae']", metrics_type=["mae"], loss_type="mse",
        dependent=[Dependent("t", "real")], normalizing_const=2.0,
    )  # fmt: skip
    user.write_models("lines", models, facts)
    members = user.rows(CALL + ")", "lines", "numbers", "line")
    x, t = data(user, "x, t")
    errors = average(members, models, x)[:, 0] - t
    assert np.isclose(members[0][4], (errors**2).mean(), rtol=1e-5)
    user.evaluate("line", "numbers", "evaluated_line", mst_key=1)
    assert np.allclose(
        user.rows("SELECT loss, metric FROM evaluated_line")[0], [(errors**2).mean(), np.abs(errors).mean()], rtol=1e-5
    )
    error = user.refused(user.rows, CALL + ", metric => 'accuracy')", "lines", "numbers", "x")
    assert "metric 'accuracy' is for classes, but public.lines predicts numbers" in error.message


@pytest.mark.slow
def test_several_inputs_and_outputs(user):
    user.rows("CREATE VIEW both_ways AS SELECT id, x, x AS z, y, ARRAY[t] AS t FROM source")
    user.rows("SELECT madlib.training_preprocessor_dl('both_ways', 'both', 'y, t', 'x, z', 10, 2.0, seed => 1)")
    models = {}
    for key in (1, 2):
        keras.utils.set_random_seed(key)
        one, other = keras.Input((3,), name="one"), keras.Input((3,), name="other")
        joined = keras.layers.Concatenate()([one, other])
        outputs = [keras.layers.Dense(3, "softmax", name="kind")(joined), keras.layers.Dense(1, name="sum")(joined)]
        models[key] = keras.Model([one, other], outputs)
    facts = ModelTable(
        compile_params="optimizer='sgd', loss={'kind': 'categorical_crossentropy', 'sum': 'mse'}", metrics_type=None,
        independent=["x", "z"], dependent=[Dependent(values=["a", "b", "c"]), Dependent("t", "real[]")],
        normalizing_const=2.0,
    )  # fmt: skip
    user.write_models("double", models, facts)
    members = user.rows(CALL + ")", "double", "both", "double_ensemble")
    error = user.refused(user.rows, CALL + ", metric => 'accuracy')", "double", "both", "x")
    assert "is for classes, but public.double also predicts a number, 't'. Received" in error.message
    user.evaluate("double_ensemble", "both", "evaluated_double", mst_key=1)
    assert np.isclose(user.value("SELECT loss FROM evaluated_double"), members[0][4], rtol=1e-5)
    x, _ = data(user)
    found = [models[key].predict([x, x], verbose=0) for key, *_ in members]
    expected = [sum(row[2] * f[i] for row, f in zip(members, found, strict=True)) for i in (0, 1)]
    both = "ARRAY[madlib_mop.array_bytes(x), madlib_mop.array_bytes(z)]"
    rows = user.rows(f"SELECT madlib_mop.predict('double_ensemble', 1, {both}) FROM both_ways ORDER BY id")
    assert np.abs(np.array([row[0] for row in rows]) - np.concatenate(expected, axis=1)).max() < 1e-5


@pytest.mark.slow
def test_a_row_of_numbers_is_split_into_the_inputs_of_models_with_one_for_each_number(user):
    models = {}
    for key in (1, 2):
        keras.utils.set_random_seed(key)
        inputs = [keras.Input((1,), name=name) for name in "abc"]
        joined = keras.layers.Concatenate()(inputs)
        models[key] = keras.Model(inputs, keras.layers.Dense(3, "softmax")(joined))
    user.write_models("apart", models, user.facts)
    members = user.rows(CALL + ")", "apart", "packed", "apart_ensemble")
    x, labels = data(user)
    predicted = {key: model.predict([x[:, i : i + 1] for i in range(3)], verbose=0) for key, model in models.items()}
    expected = sum(row[2] * predicted[row[0]] for row in members)
    loss = -np.log(expected[range(N_ROWS), ["abc".index(label) for label in labels]]).mean()
    user.evaluate("apart_ensemble", "packed", "evaluated_apart", mst_key=1)
    assert np.allclose([members[0][4], user.value("SELECT loss FROM evaluated_apart")], loss, rtol=1e-5)


@pytest.mark.slow
def test_models_that_predict_nothing_usable_are_left_out_with_a_reason(user):
    broken = classifier(8)
    broken.set_weights([np.full(w.shape, np.nan) for w in broken.get_weights()])
    user.write_models("mixed", {1: broken, 2: classifier(9), 3: classifier(5, last="linear"), 4: classifier(10)},
                      user.facts)  # fmt: skip
    user.rows("UPDATE mixed SET model_weights = NULL WHERE mst_key = 4")
    assert [row[:2] for row in user.rows(CALL + ")", "mixed", "packed", "unmixed")] == [(2, 1)]
    notices = user.notices()
    assert "mst_key 1 of public.mixed is left out: it predicts NaN" in notices
    assert "mst_key 3 of public.mixed is left out" in notices and "its outputs are logits" in notices
    assert "mst_key 4 of public.mixed has no weights: left out" in notices
    error = user.refused(user.rows, CALL + ", mst_keys => '{1}')", "mixed", "packed", "x")
    assert (error.message, error.sqlstate) == ("make_ensemble: model_table: no model can be used", "22023")
    user.evaluate("unmixed", "packed", "evaluated_unmixed", mst_key=1)


def two_classes():
    model = classifier(1, units=2)
    return model.to_json(), weights_of(model)


LAMBDA = '{{"class_name": "Lambda", "config": {{}}}}'
OF_2 = " WHERE mst_key = 2"
PARAMS = "UPDATE {{t}}_info SET compile_params = $${}$$" + OF_2
HOSTILE = {
    "short": ("UPDATE {t} SET model_weights = '0123'" + OF_2, "mst_key 2 of public.short: the stored model_weights"),
    "strange": (f"UPDATE {{t}} SET model_arch = '{LAMBDA}'" + OF_2, "mst_key 2 of public.strange: model_arch"),
    "no_json": ("UPDATE {t} SET model_arch = '[1]'" + OF_2, "mst_key 2 of public.no_json: model_arch is not"),
    "other": ("UPDATE {t} SET model_arch = %s, model_weights = %s" + OF_2, "output 1 of mst_key 2 of public.other"),
    "loss": (PARAMS.format("loss='hinge', optimizer='sgd'"), "public.loss was trained with the loss 'hinge'"),
    "losses": (PARAMS.format("loss='mse', optimizer='sgd'"), "public.losses with mean squared error: their"),
    "params": (PARAMS.format("loss="), "mst_key 2 of public.params: compile_params"),
    "twice": ("UPDATE {t} SET mst_key = 1", "public.twice has 2 rows with mst_key 1"),
    "keyless": ("UPDATE {t} SET mst_key = NULL" + OF_2, "public.keyless has a row whose mst_key is NULL"),
    "empty": ("DELETE FROM {t}", "public.empty is empty"),
    "texts": ("ALTER TABLE {t} ALTER mst_key TYPE text", "mst_key of public.texts must be of type integer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_table_that_was_tampered_with_is_one_clear_error(user, name):
    change, message = HOSTILE[name]
    user.write_models(name, {1: user.models[3], 2: user.models[4]}, user.facts)
    user.rows(change.format(t=name), *(two_classes() if "%s" in change else ()))
    error = user.refused(user.rows, CALL + ")", name, "packed", "x")
    assert message in error.message, error
    assert error.sqlstate not in ("XX000", None) and user.value("SELECT to_regclass('x')") is None


BAD = {
    ", n_members => 0)": "n_members must be at least 1. Received: 0",
    ", n_members => 101)": "n_members must be at most 100. Received: 101",
    ", n_members => NULL)": "n_members must be at least 1. Received: NULL",
    ", metric => 'auc')": "metric must be one of loss, accuracy. Received: 'auc'",
    ", mst_keys => '{3, 5}')": "mst_key 5 is not in public.models. Received: [3, 5]",
    ", mst_keys => '{}')": "mst_keys has no element. Received: []",
    ", mst_keys => '{3, NULL}')": "mst_key NULL is not in public.models. Received: [3, NULL]",
}


@pytest.mark.parametrize("more", BAD)
def test_arguments_out_of_range_are_refused(user, more):
    assert user.refused(user.rows, CALL + more, "models", "packed", "x").message == f"make_ensemble: {BAD[more]}"


TABLES = {
    ("source", "packed", "x"): "has no column 'model_weights'",
    ("nothing", "packed", "x"): "model_table does not exist",
    ("single", "packed", "x"): "has one model, so there is nothing to combine",
    ("models", "single", "x"): "validation_table: table public.single has no column 'x'",
    ("models", "numbers", "x"): "validation_table: its column 't' has 1 values a row",
    ("models", "scaled", "x"): "validation_table: its normalizing_const is 1",
    ("models", "packed", "models"): "exist",
    ("models", "packed", None): "output_table is missing",
}


@pytest.mark.one_case
@pytest.mark.parametrize("names", TABLES, ids=str)
def test_tables_that_do_not_fit_are_refused(user, names):
    with undone(user.database, User) as mine:
        mine.write_one_model("single", user.models[3], user.facts)
        mine.rows("SELECT madlib.training_preprocessor_dl('source', 'scaled', 'y', 'x', 50, seed => 1)")
        assert TABLES[names] in mine.refused(mine.rows, CALL + ")", *names).message


def test_the_models_table_is_not_replaced_by_its_own_ensemble(user):
    user.write_models("own", {1: user.models[3], 2: user.models[4]}, user.facts)
    user.rows("ALTER TABLE own_info ADD model_id integer, ADD model_type text, ADD model_size float8")
    summary = "ADD source_table text, ADD model text, ADD madlib_version text"
    user.rows(f"ALTER TABLE own_summary {summary}")
    error = user.refused(user.rows, CALL + ", replace => true)", "own", "packed", "own")
    assert "cannot be replaced" in error.message
    assert user.value("SELECT count(*) FROM own") == 2


def test_a_registered_ensemble_has_its_metrics(user):
    user.rows(CALL + ")", "models", "packed", "to_register")
    user.rows("SELECT madlib_mop.register('averaged', 'to_register')")
    metrics = user.value("SELECT metrics FROM madlib_mop.registry WHERE name = 'averaged'")
    names = user.value("SELECT metrics_type FROM to_register_info")
    loss, metric = user.rows("SELECT validation_loss_final, validation_metrics_final FROM to_register_info")[0]
    assert metrics == pytest.approx({"validation_loss": loss, f"validation_{names[0]}": metric})


def test_it_needs_the_right_to_read_and_to_create(user):
    database, role = user.database, "caller_of_ensembles"
    make_role(database, role)
    mine = User(database.connect(role))
    refused = mine.refused(mine.rows, CALL + ")", "models", "packed", "pg_temp.x")
    assert refused.sqlstate == "42501", refused
    database.rows(f"GRANT SELECT ON models, models_info, models_summary, packed, packed_summary TO {role}")
    database.rows("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert mine.refused(mine.rows, CALL + ")", "models", "packed", "public.x").sqlstate == "42501"
    assert len(mine.rows(CALL + ")", "models", "packed", "pg_temp.x")) > 0
    assert mine.value("SELECT tableowner FROM pg_tables WHERE tablename = 'x'") == role
    mine.connection.close()


def test_predictions_beyond_the_limit_of_memory_are_refused(user):
    packed = SimpleNamespace(n_rows=10**9, relation="public.huge")
    with pytest.raises(OutOfResources, match=r"1,000,000,000 rows of public.huge take 11,444.1 MiB, but there is room"):
        check_memory(packed.n_rows * 12, MAX_BYTES // 4, packed, "Use a smaller validation table.")


@pytest.fixture(scope="module")
def churn(db):
    """A run of four models on a table of pack_columns."""
    one_thread()
    db.rows(CUSTOMERS)
    pack_with(db, 1, "pack_columns('customers', 'churn_packed', 'churned', validation => 0.2, seed => 1)")
    n_units = db.value("SELECT numbers_shape[2] FROM churn_packed LIMIT 1")
    for n_hidden in (6, 12):
        numbers, city = keras.Input((n_units,), name="numbers"), keras.Input((1,), dtype="int32", name="city")
        embedded = keras.layers.Flatten()(keras.layers.Embedding(42, 4)(city))
        x = keras.layers.Dense(n_hidden, activation="relu")(keras.layers.Concatenate()([numbers, embedded]))
        arch = keras.Model([numbers, city], keras.layers.Dense(2, activation="softmax")(x)).to_json()
        db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [arch])
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', '{1, 2}', %s::varchar[], %s::varchar[])",
        [[ADAM, ADAM.replace("0.01", "0.003")], ["batch_size=16, epochs=1"]],
    )
    fit(db, "churn", "mst", 4, source_table="churn_packed", validation_table="churn_packed_validation", seed=1)
    return db


@pytest.mark.slow
def test_an_ensemble_of_a_run_predicts_rows_and_is_no_worse_than_its_best_model(churn):
    db = churn
    members = db.rows("SELECT * FROM madlib_mop.make_ensemble('churn', 'churn_packed_validation', 'all')")
    for table, keys in (("churn", (1, 2, 3, 4)), ("all", (1,))):
        for key in keys:
            db.rows(f"SELECT madlib.madlib_keras_evaluate('{table}', 'churn_packed_validation', 'e_{table}_{key}',"
                    f" mst_key => {key})")  # fmt: skip
    losses = [db.value(f"SELECT loss FROM e_churn_{key}") for key in (1, 2, 3, 4)]
    loss = db.value("SELECT loss FROM e_all_1")
    assert loss <= min(losses) and np.isclose(loss, members[0][4], rtol=1e-5)
    assert np.allclose([row[3] for row in members], [losses[row[0] - 1] for row in members], rtol=1e-5)
    assert np.isclose(db.value("SELECT validation_loss_final FROM all_info"), loss, rtol=1e-6)

    found = db.rows(
        "SELECT madlib_mop.predict('all', 1, c), madlib_mop.predict_class('all', 1, c),"
        " madlib_mop.predict_json('all', 1, c) FROM customers AS c ORDER BY id LIMIT 60"
    )
    each = {
        key: np.array([row[0] for row in db.rows(
            f"SELECT madlib_mop.predict('churn', {key}, c) FROM customers AS c ORDER BY id LIMIT 60")])
        for key, *_ in members
    }  # fmt: skip
    expected = sum(row[2] * each[row[0]] for row in members)
    assert np.abs(np.array([row[0] for row in found]) - expected).max() < 1e-6
    assert [row[1] for row in found] == [("no", "yes")[i] for i in expected.argmax(axis=1)]
    assert all(np.allclose([row[2]["no"], row[2]["yes"]], e, atol=1e-6) for row, e in zip(found, expected, strict=True))
    names = db.value("SELECT qualified_names FROM all_summary")
    assert (names["model"], names["source_table"]) == ('public."all"', "public.churn_packed")


def test_a_validation_table_of_another_preprocessor_is_refused(churn):
    churn.rows("SELECT madlib_mop.pack_columns('customers', 'churn_two', 'churned', validation => 0.2, seed => 2)")
    with pytest.raises(psycopg2.Error, match="encoded by another preprocessor"):
        churn.rows("SELECT madlib_mop.make_ensemble('churn', 'churn_two_validation', 'x')")


def test_it_can_be_cancelled(churn):
    connection = churn.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 300")
        start = time.monotonic()
        with pytest.raises(psycopg2.Error) as caught:
            cursor.execute("SELECT madlib_mop.make_ensemble('churn', 'churn_packed_validation', 'x')")
    assert caught.value.pgcode == "57014" and time.monotonic() - start < 5
    connection.close()
    assert churn.value("SELECT to_regclass('x')") is None

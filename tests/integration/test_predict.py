"""madlib_keras_predict: its output equals plain Keras with the same weights, in every form of pred_type."""

import numpy as np
import pytest

from tests.helpers.inference import Dependent, ModelTable, User

pytestmark = pytest.mark.one_session

N_ROWS, WIDTH = 40, 4
NORMALIZING = 2.0
VALUES = [None, "cat", "dog, or {cat}"]


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=(N_ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def net(keras):
    """A classifier of three classes, with moving statistics that only inference mode uses correctly."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.5)]
        + [layers.Dense(3, "softmax")]
    )
    rng = np.random.default_rng(5)
    model.set_weights([rng.uniform(0.1, 1, array.shape) for array in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def scores(net, x):
    """Keras' scores for the rows: float32 (n_rows, 3)."""
    return net.predict(x / np.float32(NORMALIZING), verbose=0)


@pytest.fixture(scope="module")
def user(db, net, x, keras):
    user = User(db.connect())
    facts = ModelTable(normalizing_const=NORMALIZING, dependent=[Dependent(values=VALUES)])
    other = keras.models.clone_model(net)
    user.write_models("models", {1: other, 7: net}, facts)
    user.table("points", "id integer, x real[]", [(i, row.tolist()) for i, row in enumerate(x)])
    yield user
    user.connection.close()


def written(user, table, columns="class_value, prob, rank", order="id, rank"):
    """Return an output table's rows in a fixed order."""
    return user.rows(f"SELECT id, {columns} FROM {table} ORDER BY {order}")


def best_first(scores):
    return np.argsort(-scores, axis=1, kind="stable")


def test_prob_gives_every_class_of_every_row(user, scores):
    user.predict("models", "points", "out_prob", mst_key=7)
    assert user.columns("out_prob") == [
        ("id", "integer"),
        ("class_name", "text"),
        ("class_value", "text"),
        ("prob", "double precision"),
        ("rank", "integer"),
    ]
    rows = written(user, "out_prob", "class_name, class_value, prob, rank")
    order = best_first(scores)
    assert [row[:3] + row[4:] for row in rows] == [
        (i, "y", VALUES[order[i, rank]], rank + 1) for i in range(N_ROWS) for rank in range(3)
    ]
    assert np.allclose([row[3] for row in rows], np.take_along_axis(scores, order, 1).ravel(), rtol=1e-5)
    assert np.allclose([total for (total,) in user.rows("SELECT sum(prob) FROM out_prob GROUP BY id")], 1, atol=1e-6)


def test_response_is_the_best_class_without_a_rank(user, scores):
    user.rows("SELECT madlib.madlib_keras_predict('models', 'points', 'id', 'x', 'out_best', 'response', NULL, 7)")
    assert [name for name, _ in user.columns("out_best")] == ["id", "class_name", "class_value", "prob"]
    rows = written(user, "out_best", "class_value, prob", "id")
    assert [row[:2] for row in rows] == [(i, VALUES[best]) for i, best in enumerate(scores.argmax(1))]
    assert np.allclose([row[2] for row in rows], scores.max(1), rtol=1e-5)


@pytest.mark.parametrize(("given", "k"), [("2", 2), ("'9'", 3)])
def test_an_integer_is_the_worst_rank(user, scores, given, k):
    user.rows("DROP TABLE IF EXISTS out_rank")
    user.rows(f"SELECT madlib.madlib_keras_predict('models', 'points', 'id', 'x', 'out_rank', {given}, mst_key := 7)")
    rows = written(user, "out_rank")
    assert [(i, value, rank) for i, value, _, rank in rows] == [
        (i, VALUES[order[rank]], rank + 1) for i, order in enumerate(best_first(scores)) for rank in range(k)
    ]


def test_a_float_is_a_threshold(user, scores):
    user.rows("SELECT madlib.madlib_keras_predict('models', 'points', 'id', 'x', 'out_above', 0.35, false, 7)")
    order, limit = best_first(scores), 0.35
    assert [(i, value, rank) for i, value, _, rank in written(user, "out_above")] == [
        (i, VALUES[order[i, rank]], rank + 1)
        for i in range(N_ROWS)
        for rank in range(3)
        if scores[i, order[i, rank]] > limit
    ]


@pytest.mark.parametrize(
    ("arguments", "has_rank"),
    [
        ("'models', 'nothing', 'id', 'x', 'out_form', NULL, NULL, 7", True),
        ("'models', 'nothing', 'id', 'x', 'out_form', mst_key => 7", True),
        ("'models', 'nothing', 'id', 'x', 'out_form', 2, mst_key => 7", True),
        ("'models', 'nothing', 'id', 'x', 'out_form', 0.5, NULL, 7", True),
        ("'models', 'nothing', 'id', 'x', 'out_form', ' Response', mst_key := 7", False),
        ("'models', 'nothing', 'id', 'x', 'out_form', 'response'::text, false, 7", False),
        ("test_table => 'nothing', model_table => 'models', output_table => 'out_form', independent_varname => 'x',"
         " pred_type => 'response', mst_key => 7, id_col => 'id'", False),
    ],
)  # fmt: skip
def test_every_way_to_write_a_call_finds_its_function(user, arguments, has_rank):
    user.rows("CREATE OR REPLACE VIEW nothing AS SELECT * FROM points WHERE false")
    user.notices()
    user.rows(f"DROP TABLE IF EXISTS out_form; SELECT madlib.madlib_keras_predict({arguments})")
    assert ("rank" in dict(user.columns("out_form"))) == has_rank
    assert user.value("SELECT count(*) FROM out_form") == 0
    assert "WARNING:  madlib_keras_predict: test_table public.nothing has no rows" in user.notices()


def test_class_values_that_are_not_known_are_indices(user, net, scores):
    dependent = [Dependent(vartype="smallint[]", values=None, values_type="smallint[]")]
    user.write_models("hot", {7: net}, ModelTable(normalizing_const=NORMALIZING, dependent=dependent))
    user.predict("hot", "points", "out_index", pred_type=1, mst_key=7)
    rows = written(user, "out_index", "class_value")
    assert rows == [(i, str(best)) for i, best in enumerate(scores.argmax(1))]


def test_classes_beyond_the_known_ones_are_null(user, net, scores):
    dependent = [Dependent(vartype="boolean", values=[False, True, None], values_type="boolean[]")]
    user.write_models("padded", {7: net}, ModelTable(normalizing_const=NORMALIZING, dependent=dependent))
    user.predict("padded", "points", "out_padded", mst_key=7)
    labels = ["false", "true", None]
    order = best_first(scores)
    assert written(user, "out_padded", "class_value") == [(i, labels[c]) for i in range(N_ROWS) for c in order[i]]


def test_classes_of_one_score_are_ranked_in_their_order(user, net, keras):
    even = keras.models.clone_model(net)
    even.set_weights([np.zeros_like(array) for array in net.get_weights()])
    user.write_models("even", {1: even}, ModelTable(dependent=[Dependent(values=["b", "a", "c"])]))
    user.predict("even", "points", "out_even", mst_key=1)
    query = "SELECT DISTINCT array_agg(class_value ORDER BY rank) FROM out_even GROUP BY id"
    assert user.rows(query) == [(["b", "a", "c"],)]


def test_a_table_with_a_single_model(user, net, scores):
    facts = ModelTable(normalizing_const=NORMALIZING, dependent=[Dependent(values=VALUES)])
    user.write_one_model("single", net, facts)
    user.predict("single", "points", "out_single", pred_type="response")
    assert np.allclose([p for _, p in written(user, "out_single", "prob", "id")], scores.max(1), rtol=1e-5)
    refusal = user.refused(user.predict, "single", "points", "out_more", mst_key=1)
    assert (refusal.sqlstate, refusal.message) == (
        "22023",
        "madlib_keras_predict: mst_key is for tables with many models; public.single has one. Received: 1",
    )


def test_names_that_must_be_quoted(user, scores):
    user.rows('CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."Ro""ws" AS'
              ' SELECT id AS "select", x AS "X, y" FROM points')  # fmt: skip
    user.predict("models", '"My Schema"."Ro""ws"', '"My Schema"."Out"', id_col='"select"',
                 independent_varname='"X, y"', mst_key=7, pred_type=1)  # fmt: skip
    rows = user.rows('SELECT "select", prob FROM "My Schema"."Out" ORDER BY 1')
    assert np.allclose([p for _, p in rows], scores.max(1), rtol=1e-5)


def test_views_temporary_tables_and_the_callers_search_path(user, scores):
    user.rows("CREATE VIEW odd AS SELECT id, x FROM points WHERE id % 2 = 1")
    user.rows("CREATE TEMP TABLE own AS SELECT * FROM points; CREATE SCHEMA elsewhere; SET search_path = elsewhere")
    try:
        user.predict("public.models", "public.odd", "out_odd", mst_key=7, pred_type=1)
        user.predict("public.models", "own", "pg_temp.out_own", mst_key=7, pred_type=1)
    finally:
        user.rows("RESET search_path")
    assert user.rows("SELECT array_agg(id ORDER BY id) FROM elsewhere.out_odd") == [(list(range(1, N_ROWS, 2)),)]
    assert np.allclose([p for _, p in written(user, "pg_temp.out_own", "prob", "id")], scores.max(1), rtol=1e-5)


def test_all_in_one_transaction_that_is_rolled_back(db, user):
    connection = db.connect(autocommit=False)
    mine = User(connection)
    mine.rows("CREATE TABLE fresh AS SELECT * FROM points; CREATE TABLE fresh_models AS SELECT * FROM models")
    for suffix in ("_info", "_summary"):
        mine.rows(f"CREATE TABLE fresh_models{suffix} AS SELECT * FROM models{suffix}")
    mine.predict("fresh_models", "fresh", "fresh_out", mst_key=7, pred_type="response")
    assert mine.value("SELECT count(*) FROM fresh_out") == N_ROWS
    connection.rollback()
    connection.close()
    assert user.value("SELECT to_regclass('fresh_out')") is None


IDS = {
    "text": ["plain", "", "NULL", 'quo"ted', "back\\slash", "{a,b}", " blank ", "new\nline", None, "plain"],
    "varchar(7)": ["abc", "abcdefg", None],
    "timestamptz": ["2024-02-29 23:30:00.123456+05:30", "infinity", "0044-03-15 12:00:00+00 BC"],
    "double precision": ["0.1", "1e-300", "NaN", None],
    "integer[]": ["{1,2}", "{{1,2},{3,4}}", "{}"],
    "record": ['("so so","a,b",29/02/2024,"\\\\xdeadbeef")', None],
}


@pytest.mark.one_case
@pytest.mark.parametrize("kind", IDS)
def test_ids_of_every_type_come_back_as_they_were(user, kind):
    if kind == "record":
        user.rows("CREATE TYPE mood AS ENUM ('so so', 'good')")
        user.rows("CREATE TYPE record_ AS (a mood, b text, c date, d bytea)")
    type_name = kind.replace("record", "record_")
    user.rows("DROP TABLE IF EXISTS marked, marked_out; SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'")
    try:
        user.table("marked", f"id {type_name}", [(value,) for value in IDS[kind]], f"%s::text::{type_name}")
        user.rows("ALTER TABLE marked ADD x real[] DEFAULT '{1,2,3,4}'")
        user.predict("models", "marked", "marked_out", mst_key=7, pred_type="response")
        assert user.columns("marked_out")[0] == user.columns("marked")[0]
        query = "SELECT id::text, count(*) FROM {} GROUP BY id::text ORDER BY 1"
        assert user.rows(query.format("marked_out")) == user.rows(query.format("marked"))
    finally:
        user.rows("RESET DateStyle; RESET TimeZone")


def test_columns_of_every_numeric_type(user, net, keras):
    """One model with an input for each type, so one call tests all of them."""
    layers = keras.layers
    types = ["smallint[]", "integer[]", "bigint[]", "numeric[]", "double precision[]", "real", "bigint", "real[]"]
    shapes = [(2,)] * 5 + [(1,), (1,), (2, 3)]
    inputs = [keras.Input(shape) for shape in shapes]
    flat = [layers.Flatten()(tensor) for tensor in inputs]
    model = keras.Model(inputs, layers.Dense(2, "softmax")(layers.Concatenate()(flat)))
    facts = ModelTable(
        independent=[f"c{i}" for i in range(len(types))],
        dependent=[Dependent(values=["no", "yes"])],
        normalizing_const=4.0,
    )
    user.write_models("many_inputs", {1: model}, facts)
    rng = np.random.default_rng(2)
    columns = [rng.integers(-9, 9, (5, *(() if kind in ("real", "bigint") else shape)))
               for kind, shape in zip(types, shapes, strict=True)]  # fmt: skip
    names = [f"v{i}" for i in range(len(types))]
    definition = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
    rows = [(i, *(column[i].tolist() for column in columns)) for i in range(5)]
    user.table("typed", f"id integer, {definition}", rows, ", ".join(["%s", *(f"%s::{kind}" for kind in types)]))
    user.predict("many_inputs", "typed", "out_typed", independent_varname=", ".join(names), mst_key=1)
    expected = model.predict(
        [(column.reshape(5, *shape) / 4).astype(np.float32) for column, shape in zip(columns, shapes, strict=True)],
        verbose=0,
    )
    found = [p for _, p in written(user, "out_typed", "prob", "id, class_value")]
    assert np.allclose(found, expected.ravel(), rtol=1e-5)


def test_several_outputs_each_with_its_own_classes(user, keras, x):
    layers = keras.layers
    inputs = keras.Input((WIDTH,))
    outputs = [layers.Dense(n, a)(inputs) for n, a in ((2, "softmax"), (3, "softmax"), (1, None), (2, None))]
    model = keras.Model(inputs, outputs)
    facts = ModelTable(
        compile_params="optimizer='sgd', loss=['categorical_crossentropy', 'categorical_crossentropy', 'mse', 'mse']",
        dependent=[
            Dependent("sex", "text", ["f", "m"]),
            Dependent("hot", "text", [None]),
            Dependent("Age", "integer", None),
            Dependent("place", "real[]", None),
        ],
    )
    user.write_models("many_outputs", {1: model}, facts)
    sex, hot, age, place = model.predict(x, verbose=0)
    user.predict("many_outputs", "points", "out_many", pred_type=1, mst_key=1)
    rows = user.rows("SELECT class_name, class_value, prob, rank FROM out_many ORDER BY id, class_name, class_value")
    assert len(rows) == 5 * N_ROWS
    by_row = [rows[5 * i : 5 * i + 5] for i in range(N_ROWS)]
    for i, (age_row, hot_row, place_0, place_1, sex_row) in enumerate(by_row):
        assert age_row[:2] + age_row[3:] == ("Age", None, 1)
        assert np.isclose(age_row[2], age[i, 0], rtol=1e-5)
        assert hot_row[:2] == ("hot", str(hot[i].argmax()))
        assert (place_0[:2], place_1[:2]) == (("place", "0"), ("place", "1"))
        assert np.allclose([place_0[2], place_1[2]], place[i], rtol=1e-5)
        assert sex_row[:2] == ("sex", "fm"[sex[i].argmax()])


def test_many_batches_keep_rows_and_ids_together(user, keras):
    layers = keras.layers
    model = keras.Sequential([keras.Input((1,)), layers.Dense(2)])
    model.set_weights([np.array([[1.0, -1.0]]), np.array([0.0, 0.0])])
    facts = ModelTable(dependent=[Dependent(values=["plus", "minus"])])
    user.write_models("sign", {1: model}, facts)
    user.rows("CREATE TABLE long AS SELECT i AS id, (i - 12000)::integer AS x FROM generate_series(1, 25000) i")
    user.predict("sign", "long", "out_long", mst_key=1)
    wrong = user.value(
        "SELECT count(*) FROM out_long WHERE prob <> CASE class_value WHEN 'plus' THEN id - 12000 ELSE 12000 - id END"
        " OR rank <> CASE WHEN (class_value = 'plus') = (id >= 12000) THEN 1 ELSE 2 END AND id <> 12000"
    )
    assert wrong == 0
    assert user.value("SELECT count(*) FROM out_long") == 50_000


def test_encoded_images_are_scaled_to_the_models_input(user, keras):
    from io import BytesIO

    from PIL import Image

    layers = keras.layers
    model = keras.Sequential([keras.Input((4, 5, 3)), layers.Flatten(), layers.Dense(2, "softmax")])
    user.write_models("pictures", {1: model}, ModelTable(normalizing_const=255, dependent=[Dependent(values=[1, 2])]))
    rng = np.random.default_rng(4)
    right = rng.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    files = []
    for pixels, size in ((right, (5, 4)), (right, (10, 8))):
        file = BytesIO()
        Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST).save(file, "PNG")
        files.append(file.getvalue())
    user.table("photos", "id integer, x bytea", list(enumerate(files)))
    user.predict("pictures", "photos", "out_photos", mst_key=1)
    found = np.array([p for _, p in written(user, "out_photos", "prob", "id, class_value")]).reshape(2, 2)
    assert np.allclose(found[0], model.predict(right[np.newaxis] / np.float32(255), verbose=0)[0], rtol=1e-5)
    assert np.isfinite(found).all()


def test_help(user):
    assert "madlib_keras_predict('usage')" in user.value("SELECT madlib.madlib_keras_predict()")
    assert "class_value" in user.value("SELECT madlib.madlib_keras_predict('usage')")

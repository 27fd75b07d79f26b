"""madlib_keras_predict_byom: a model that was trained elsewhere predicts the same as in Keras, in each form of call."""

import numpy as np
import pytest

from tests.helpers.inference import User, weights_of

pytestmark = pytest.mark.one_session

N_ROWS, WIDTH = 30, 4
CLASSES = ["setosa", "versicolor", "virginica"]


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(2).normal(size=(N_ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def nets(keras):
    """A classifier, a regression, a sigmoid, and a model with two inputs and two outputs."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    inputs = [keras.Input((WIDTH,), name="left"), keras.Input((1,), name="right")]
    both = layers.Dense(6, "relu")(layers.Concatenate()(inputs))
    classes, height = layers.Dense(3, "softmax")(both), layers.Dense(2, "softmax")(both)
    return {
        1: keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")]),
        2: keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8, "relu"), layers.Dense(1)]),
        3: keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1), layers.Activation("sigmoid")]),
        4: keras.Model(inputs, [classes, height]),
    }


@pytest.fixture(scope="module")
def user(db, nets, x):
    user = User(db.connect())
    for net in nets.values():
        user.rows("SELECT madlib.load_keras_model('archs', %s, %s)", net.to_json(), weights_of(net))
    user.rows("SELECT madlib.load_keras_model('archs', %s)", nets[1].to_json())  # model_id 5: no weights
    # model_id 6: weights of another architecture, which loading rejects
    user.rows("SELECT madlib.load_keras_model('archs', %s)", nets[1].to_json())
    user.rows("UPDATE archs SET model_weights = %s WHERE model_id = 6", weights_of(nets[3]))
    user.table("points", "id integer, x real[], w real", [(i, row.tolist(), i / 10) for i, row in enumerate(x)])
    yield user
    user.connection.close()


def byom(user, output, *more, model_id=1, columns="x", **named):
    """Call it with positional arguments up to the output table."""
    user.rows(f"DROP TABLE IF EXISTS {output}")
    slots = ", ".join(["%s"] * len(more) + [f"{name} => %s" for name in named])
    user.rows(
        "SELECT madlib.madlib_keras_predict_byom('archs', %s, 'points', 'id', %s, %s" + (slots and f", {slots}") + ")",
        *(model_id, columns, output, *more, *named.values()),
    )
    order = "id, class_name, prob DESC"
    return user.rows(f"SELECT id, class_name, class_value, prob FROM {output} ORDER BY {order}")


def test_response_is_the_best_class_of_a_list_of_lists(user, nets, x):
    """The call of MADlib's test: use_gpus NULL, class values in a list of lists, a normalizing constant."""
    rows = byom(user, "out", "response", None, [CLASSES], 2.0)
    best = nets[1].predict(x / np.float32(2), verbose=0).argmax(axis=1)
    assert [(i, name, value) for i, name, value, _ in rows] == [
        (i, "dependent_var", CLASSES[unit]) for i, unit in enumerate(best)
    ]
    assert [name for name, _ in user.columns("out")] == ["id", "class_name", "class_value", "prob"]


def test_without_class_values_they_are_indices_and_all_probabilities_come(user, nets, x):
    rows = byom(user, "out")
    expected = nets[1].predict(x, verbose=0)
    assert [name for name, _ in user.columns("out")] == ["id", "class_name", "class_value", "prob", "rank"]
    assert len(rows) == 3 * N_ROWS
    assert np.allclose([prob for *_, prob in rows], -np.sort(-expected, axis=1).ravel(), atol=1e-6)
    assert [value for _, _, value, _ in rows] == [str(u) for u in np.argsort(-expected, axis=1, kind="stable").ravel()]
    assert abs(sum(prob for i, _, _, prob in rows if i == 0) - 1) < 1e-6  # MADlib's test only requires a sum below 1


@pytest.mark.parametrize(
    ("pred_type", "keeps"), [("2", lambda p, r: r <= 2), ("0.3", lambda p, r: p > 0.3), ("'0.3'", lambda p, r: p > 0.3)]
)
def test_ranks_and_thresholds(user, nets, x, pred_type, keeps):
    user.rows("DROP TABLE IF EXISTS out")
    user.rows(
        f"SELECT madlib.madlib_keras_predict_byom('archs', 1, 'points', 'id', 'x', 'out', {pred_type},"
        " class_values => ARRAY['a', 'b', 'c'])"
    )
    scores = nets[1].predict(x, verbose=0)
    ranks = (-scores).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1
    kept = keeps(scores, ranks)
    assert user.rows("SELECT id, class_value, rank FROM out ORDER BY id, class_value") == [
        (row, "abc"[unit], ranks[row, unit]) for row, unit in zip(*np.nonzero(kept), strict=True)
    ]


def test_a_number_is_no_class_but_a_sigmoid_is_one(user, nets, x):
    rows = byom(user, "out", "0.9", model_id=2)
    assert {(name, value) for _, name, value, _ in rows} == {("dependent_var", None)} and len(rows) == N_ROWS
    assert np.allclose([prob for *_, prob in rows], nets[2].predict(x, verbose=0)[:, 0], atol=1e-5)
    scores = nets[3].predict(x, verbose=0)[:, 0]
    assert byom(user, "out", model_id=3)[0][2] == "0"
    rows = byom(user, "out", "0.5", model_id=3, class_values=["yes"])
    assert [(i, value) for i, _, value, _ in rows] == [(i, "yes") for i in np.flatnonzero(scores > 0.5)]


def test_several_inputs_and_outputs(user, nets, x):
    """class_name counts outputs from 0; a scalar column is an input of width 1; NULL fills the shorter list."""
    values = [["a", None, "c"], ["no", "yes", None]]
    rows = byom(user, "out", model_id=4, columns="x, w", class_values=values, dependent_count=2)
    side = (np.arange(N_ROWS) / 10).astype(np.float32)[:, np.newaxis]
    first, second = nets[4].predict([x, side], verbose=0)
    for number, (scores, names) in enumerate(((first, ["a", None, "c"]), (second, ["no", "yes"]))):
        name = f"dependent_var_{number}"
        mine = {(i, value): prob for i, got, value, prob in rows if got == name}
        assert set(mine) == {(i, value) for i in range(N_ROWS) for value in names}
        assert all(abs(mine[i, value] - scores[i, u]) < 1e-6 for i in range(N_ROWS) for u, value in enumerate(names))


def test_columns_of_numbers_side_by_side_are_one_input(user, nets, x):
    columns = 'x[1] AS a, x[2]::float8 AS b, x[3]::numeric AS c, x[4] AS "D"'
    user.rows(f"CREATE TABLE wide AS SELECT id, {columns} FROM points")
    user.rows("DROP TABLE IF EXISTS out")
    user.rows("SELECT madlib.madlib_keras_predict_byom('archs', 2, 'wide', 'id', 'a, b, c, \"D\"', 'out')")
    expected = nets[2].predict(x, verbose=0)[:, 0]
    assert np.allclose([prob for (prob,) in user.rows("SELECT prob FROM out ORDER BY id")], expected, atol=1e-5)
    user.rows("UPDATE wide SET c = NULL WHERE id = 3")
    call = "SELECT madlib.madlib_keras_predict_byom('archs', 2, 'wide', 'id', 'a, b, c, \"D\"', 'never')"
    assert "column 'c' is NULL (row with id = 3)" in user.refused(user.rows, call).message


REFUSED = [
    ({"model_arch_table": None}, "22023", "model_arch_table is missing. Received: NULL"),
    ({"model_arch_table": "points"}, "42703", "is not a table of architectures: it has no column 'model_id'"),
    ({"model_id": None}, "22023", "model_id is missing"),
    ({"model_id": 77}, "22023", "model_id is not in public.archs. Received: 77"),
    ({"model_id": 5}, "0A000", "model_id 5 of public.archs has no weights: model_weights is NULL"),
    ({"model_id": 6}, "22023", "the stored model_weights have 20 bytes, the architecture needs 268"),
    ({"test_table": None}, "22023", "test_table is missing"),
    ({"independent_varname": "x, x"}, "22023", "has 2 columns, but model_id 1 of public.archs has 1 inputs"),
    ({"pred_type": "best"}, "22023", "pred_type is invalid"),
    ({"use_gpus": True}, "0A000", "use_gpus"),
    ({"class_values": ["a", "b"]}, "22023", "class_values has 2 values for dependent_var, for which model_id 1"),
    ({"class_values": [["a", "b", "c"], ["d", "e", "f"]]}, "22023", "class_values has 2 lists of values"),
    ({"normalizing_const": 0}, "22023", "normalizing_const must be a number above 0. Received: 0"),
    ({"normalizing_const": float("nan")}, "22023", "normalizing_const must be a number above 0"),
    ({"dependent_count": 2}, "22023", "dependent_count is the number of outputs, and model_id 1 of public.archs has 1"),
    ({"output_table": "points"}, "42P07", "exists already"),
]


@pytest.mark.parametrize(("arguments", "sqlstate", "message"), REFUSED, ids=[str(given) for given, *_ in REFUSED])
def test_refused_with_one_clear_error(user, arguments, sqlstate, message):
    given = {"model_arch_table": "archs", "model_id": 1, "test_table": "points", "id_col": "id"}
    given |= {"independent_varname": "x", "output_table": "refused_out"} | arguments
    slots = ", ".join(f"{name} => %s" for name in given)
    call = f"SELECT madlib.madlib_keras_predict_byom({slots})"
    refusal = user.refused(user.rows, call, *given.values())
    assert (refusal.sqlstate, message in refusal.message) == (sqlstate, True), refusal
    assert refusal.message.startswith("madlib_keras_predict_byom: ")
    assert user.value("SELECT to_regclass('refused_out')") is None


def test_help(user):
    assert "madlib_keras_predict_byom('usage')" in user.value("SELECT madlib.madlib_keras_predict_byom()")
    assert "class_values" in user.value("SELECT madlib.madlib_keras_predict_byom('usage')")

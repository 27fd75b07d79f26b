"""madlib_keras_evaluate: equal to Keras' own evaluate and to the metrics of runs, or one clear error."""

import numpy as np
import pytest

from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.no_gpu import NO_GPU

pytestmark = pytest.mark.one_session

N_ROWS = 90
REGRESSION = "loss='mse', optimizer='sgd', metrics=['mae', 'mse']"


@pytest.fixture(scope="module")
def net(keras):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def user(db, net):
    """A source table of three classes, packed on two segments of different sizes, and a model table by hand."""
    user = User(db.connect())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_ROWS, 3))
    rows = [(i, row.tolist(), "abc"[int(np.argmax(row))], float(row.sum())) for i, row in enumerate(x)]
    user.table("source", "id integer, x real[], y text, t real", rows, "%s, %s::real[], %s, %s")
    user.rows("SET madlib_mop.segments = 2")
    user.rows("SELECT madlib.training_preprocessor_dl('source', 'packed', 'y', 'x', 50, 2.0, seed => 1)")
    user.rows("CREATE VIEW held AS SELECT * FROM source WHERE id < 37")
    user.rows("SELECT madlib.validation_preprocessor_dl('held', 'test', 'y', 'x', 'packed', 10)")
    facts = ModelTable(dependent=[Dependent(values=["a", "b", "c"])], normalizing_const=2.0)
    user.write_models("models", {1: net, 4: net}, facts)
    user.write_one_model("single", net, facts)
    yield user
    user.connection.close()


def data(user, columns="x, y"):
    rows = user.rows(f"SELECT {columns} FROM held ORDER BY id")
    return np.array([row[0] for row in rows], np.float32) / np.float32(2), [row[1] for row in rows]


@pytest.mark.slow
def test_loss_and_metric_are_those_of_keras(user, net):
    x, labels = data(user)
    loss, accuracy = net.evaluate(x, np.eye(3)[["abc".index(label) for label in labels]], verbose=0)
    user.evaluate("models", "test", "found", mst_key=4)
    assert user.columns("found") == [
        ("loss", "double precision"),
        ("metric", "double precision"),
        ("metrics_type", "text[]"),
        ("loss_type", "text"),
        ("metrics", "double precision[]"),
    ]
    ((found_loss, metric, metrics_type, loss_type, metrics),) = user.rows("SELECT * FROM found")
    assert (metrics_type, loss_type, metrics) == (["accuracy"], "categorical_crossentropy", [metric])
    assert np.isclose(found_loss, loss, rtol=1e-5)
    assert np.isclose(metric, accuracy, rtol=1e-5)


def test_a_single_model_and_a_test_table_of_this_transaction(db, user, net):
    connection = db.connect(autocommit=False)
    mine = User(connection)
    mine.rows("SET LOCAL madlib_mop.segments = 3")
    mine.rows("SELECT madlib.validation_preprocessor_dl('held', 'mine', 'y', 'x', 'packed', 10)")
    mine.evaluate("single", "mine", "pg_temp.found")
    x, labels = data(mine)
    loss, _ = net.evaluate(x, np.eye(3)[["abc".index(label) for label in labels]], verbose=0)
    assert np.isclose(mine.value("SELECT loss FROM pg_temp.found"), loss, rtol=1e-5)
    connection.rollback()
    connection.close()


@pytest.mark.slow
def test_regression_has_all_its_metrics(user, keras):
    user.rows("SELECT madlib.training_preprocessor_dl('held', 'numbers', 't', 'x', 10, 2.0, '{}', seed => 1)")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae", "mse"])
    facts = ModelTable(
        compile_params=REGRESSION,
        metrics_type=["mae", "mse"],
        loss_type="mse",
        dependent=[Dependent("t", "real")],
        normalizing_const=2.0,
    )
    user.write_models("lines", {1: model}, facts)
    user.evaluate("lines", "numbers", "found_numbers", mst_key=1)
    x, t = data(user, "x, t")
    expected = model.evaluate(x, np.array(t), verbose=0)
    ((loss, metric, metrics),) = user.rows("SELECT loss, metric, metrics FROM found_numbers")
    assert np.allclose([loss, *metrics], expected, rtol=1e-5)
    assert metric == metrics[0]


@pytest.mark.slow
def test_without_metrics_and_with_several_outputs(user, keras):
    """The first output's metrics are first; a model without metrics has NULLs there."""
    user.rows("CREATE VIEW held_both AS SELECT id, x, y, ARRAY[t] AS t FROM held")
    user.rows("SELECT madlib.training_preprocessor_dl('held_both', 'both', 'y, t', 'x', 10, 2.0, seed => 1)")
    inputs = keras.Input((3,))
    outputs = [keras.layers.Dense(3, "softmax", name="first")(inputs), keras.layers.Dense(1, name="second")(inputs)]
    model = keras.Model(inputs, outputs)
    params = "optimizer='sgd', loss=['categorical_crossentropy', 'mse']"
    dependent = [Dependent(values=["a", "b", "c"]), Dependent("t", "real[]")]
    for name, more, types in (("bare", "", None), ("rich", ", metrics=[['accuracy'], ['mae']]", ["accuracy", "mae"])):
        facts = ModelTable(compile_params=params + more, metrics_type=types, loss_type="a, b", dependent=dependent,
                           normalizing_const=2.0)  # fmt: skip
        user.write_models(name, {1: model}, facts)
        user.evaluate(name, "both", f"found_{name}", mst_key=1)
    model.compile("sgd", ["categorical_crossentropy", "mse"], metrics=[["accuracy"], ["mae"]])
    x, labels = data(user)
    _, t = data(user, "x, t")
    y = np.eye(3)[["abc".index(label) for label in labels]]
    expected = model.evaluate(x, [y, np.array(t)], return_dict=True, verbose=0)
    ((loss, metric, metrics),) = user.rows("SELECT loss, metric, metrics FROM found_rich")
    assert np.allclose([loss, *metrics], [expected[k] for k in ("loss", "first_accuracy", "second_mae")], rtol=1e-5)
    assert metric == metrics[0]
    ((loss, *others),) = user.rows("SELECT loss, metric, metrics_type, metrics FROM found_bare")
    assert np.isclose(loss, expected["loss"], rtol=1e-5)
    assert others == [None, None, None]


def test_a_trained_model_is_as_good_as_its_run_said(user):
    """The complete workflow: pack, load, fit, evaluate, predict."""
    user.rows("SELECT madlib.load_keras_model('archs', %s, NULL, 'mlp', NULL)", ARCH)
    user.rows(
        "SELECT madlib.load_model_selection_table('archs', 'msts', ARRAY[1], ARRAY[%s, %s],"
        " ARRAY['batch_size=8, epochs=2'])",
        *(f"loss='categorical_crossentropy', optimizer='Adam(lr={lr})', metrics=['accuracy']" for lr in (0.05, 0.001)),
    )
    user.rows("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'run', 'msts', 2, validation_table => 'test')")
    for key in (1, 2):
        user.evaluate("run", "test", f"found_{key}", mst_key=key)
        said = user.rows("SELECT validation_loss_final, validation_metrics_final, metrics_type, loss_type"
                         " FROM run_info WHERE mst_key = %s", key)  # fmt: skip
        found = user.rows(f"SELECT loss, metric, metrics_type, loss_type FROM found_{key}")
        assert np.allclose(found[0][:2], said[0][:2], rtol=1e-5)
        assert found[0][2:] == said[0][2:]
    user.predict("run", "held", "predicted", mst_key=1, pred_type="response")
    accuracy = user.value("SELECT avg((class_value = y)::integer) FROM predicted JOIN held USING (id)")
    assert np.isclose(float(accuracy), user.value("SELECT metric FROM found_1"), rtol=1e-6)


ARCH = """
{"class_name": "Sequential", "config": {"name": "mlp", "layers": [
    {"class_name": "Dense",
     "config": {"name": "one", "units": 8, "activation": "relu", "batch_input_shape": [null, 3]}},
    {"class_name": "Dense", "config": {"name": "two", "units": 3, "activation": "softmax"}}]},
 "keras_version": "2.10.0", "backend": "tensorflow"}
"""


@pytest.fixture(scope="module")
def unlike(user):
    """Packed tables that do not match the models' training table."""
    user.rows("CREATE VIEW renamed AS SELECT x, translate(y, 'abc', 'xyz') AS y FROM held")
    user.rows("CREATE VIEW wider AS SELECT x, x AS x2, ARRAY[1, id]::real[] AS w, y FROM held")
    for arguments in (
        "'held', 'scaled', 'y', 'x', 10",
        "'renamed', 'others', 'y', 'x', 10, 2.0",
        "'held', 'four', 'y', 'x', 10, 2.0, '{4}'",
        "'wider', 'wide', 'y', 'w', 10, 2.0",
        "'wider', 'pair', 'y', 'x, x2', 10, 2.0",
    ):
        user.rows(f"SELECT madlib.training_preprocessor_dl({arguments})")


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ({"model_table": None}, "22023", "model_table is missing. Received: NULL"),
        ({"model_table": "nowhere"}, "42P01", "model_table does not exist. Received: 'nowhere'"),
        ({"test_table": None}, "22023", "test_table is missing. Received: NULL"),
        ({"test_table": "single"}, "42703", "test_table: table public.single has no column 'x'"),
        ({"output_table": "source"}, "42P07", "output_table: table public.source exists already. Received: 'source'"),
        ({"mst_key": None}, "22023", "mst_key is missing: public.models has 2 models. Received: NULL"),
        ({"mst_key": 2}, "22023", "mst_key 2 is not in public.models. Received: 2"),
        ({"model_table": "single"}, "22023", "mst_key is for tables with many models; public.single has one."),
        ({"use_gpus": True}, "0A000", f"use_gpus => true: {NO_GPU}"),
        (
            {"test_table": "scaled"},
            "22023",
            "test_table: its normalizing_const is 1, mst_key 1 of public.models was trained with 2."
            " Received: 'public.scaled'",
        ),
        (
            {"test_table": "others"},
            "22023",
            "test_table: its column 'y' has the classes {x,y,z}, mst_key 1 of public.models has {a,b,c}."
            " Received: 'public.others'",
        ),
        (
            {"test_table": "four"},
            "22023",
            "test_table: its column 'y' has 4 values a row, mst_key 1 of public.models has 3. Received: 'public.four'",
        ),
        (
            {"test_table": "wide"},
            "22023",
            "column 'w' has rows of the shape [2], but input 1 of mst_key 1 of public.models takes [3]",
        ),
        (
            {"test_table": "pair"},
            "22023",
            "test_table: it has 2 inputs, mst_key 1 of public.models has 1. Received: 'public.pair'",
        ),
    ],
)
def test_refused_before_any_work(user, unlike, arguments, sqlstate, message):
    given = {"model_table": "models", "test_table": "test", "output_table": "out", "mst_key": 1} | arguments
    tables = [given.pop(name) for name in ("model_table", "test_table", "output_table")]
    refusal = user.refused(user.evaluate, *tables, **given)
    assert refusal.sqlstate == sqlstate
    assert refusal.message.startswith(f"madlib_keras_evaluate: {message}")
    assert user.value("SELECT to_regclass('out')") is None


def test_help(user):
    assert "madlib_keras_evaluate('usage')" in user.value("SELECT madlib.madlib_keras_evaluate()")
    assert "metrics_type" in user.value("SELECT madlib.madlib_keras_evaluate('usage')")

"""AutoML: searches as runs of the hopper, on MADlib's iris example; recorded, repeatable, resumable."""

import pytest
from workbench import one_thread

pytestmark = pytest.mark.timeout(600)


def perceptron(*hidden: int) -> str:
    """Give the JSON of a perceptron for iris: 4 inputs, hidden layers, 3 classes."""
    from workbench import quiet_keras

    keras = quiet_keras()
    layers = [keras.layers.Dense(n, activation="relu") for n in hidden]
    return keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(3, activation="softmax")]
    ).to_json()


def load_iris(db, n_segments: int = 2) -> None:
    """Write, split and pack iris: 120 training rows, 30 held out; and the two perceptrons of MADlib's manual."""
    from sklearn.datasets import load_iris as iris

    data = iris()
    connection = db.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE iris (id integer, attributes float8[], class_text varchar)")
        for number, (x, y) in enumerate(zip(data.data, data.target, strict=True)):
            name = f"Iris-{data.target_names[y]}"
            cursor.execute("INSERT INTO iris VALUES (%s, %s, %s)", [number, x.tolist(), name])
        cursor.execute("CREATE TABLE iris_train AS SELECT * FROM iris WHERE id % 5 <> 0")
        cursor.execute("CREATE TABLE iris_test AS SELECT * FROM iris WHERE id % 5 = 0")
        cursor.execute(f"SET madlib_mop.segments = {n_segments}")
        cursor.execute(
            "SELECT madlib.training_preprocessor_dl('iris_train', 'train', 'class_text', 'attributes', seed := 1)"
        )
        cursor.execute(
            "SELECT madlib.validation_preprocessor_dl('iris_test', 'valid', 'class_text', 'attributes', 'train')"
        )
        for arch in (perceptron(10, 10), perceptron(10, 10, 10)):
            cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", [arch])
    connection.close()


COMPILE = """{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
              'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}"""
FIT = "{'batch_size': [4, 8], 'epochs': [1]}"


class Found:
    """A call of madlib_keras_automl that has come back."""

    def __init__(self, db, run_id, table, notices):
        self.db, self.run_id, self.table, self.notices = db, run_id, table, notices


def search(db, table: str, method: str = "hyperband", params: str | None = None, role=None, **options) -> Found:
    """Call madlib_keras_automl on iris."""
    options = {
        "source_table": "train", "model_output_table": table, "model_arch_table": "arch",
        "model_selection_table": f"{table}_mst", "model_id_list": [1, 2], "compile_params_grid": COMPILE,
        "fit_params_grid": FIT, "automl_method": method, "automl_params": params, "validation_table": "valid",
        **options,
    }  # fmt: skip
    connection = db.connect(role)
    try:
        with connection.cursor() as cursor:
            named = ", ".join(f"{name} := %s" for name in options)
            cursor.execute(f"SELECT madlib.madlib_keras_automl({named})", list(options.values()))
        run_id = db.value("SELECT max(run_id) FROM madlib_mop.run")
        return Found(db, run_id, table, "".join(connection.notices))
    finally:
        connection.close()


@pytest.fixture(scope="module")
def iris(db):
    one_thread()
    load_iris(db)
    return db


def test_hyperband(iris):
    found = search(iris, "hb", "hyperband", "R=6, eta=3", random_state=3)
    print(found.notices)
    for q in ("hb_info", "hb_summary", "hb_mst", "hb_mst_summary", "madlib_mop.search_history", "madlib_mop.progress", "madlib_mop.leaderboard"):
        for row in iris.rows(f"SELECT * FROM {q}"):
            print(q, row)
    assert 0

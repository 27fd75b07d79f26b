"""What tests of searches need: iris as MADlib's manual has it, calls of madlib_keras_automl, what a search decided."""

from dataclasses import dataclass

from workbench import quiet_keras

COMPILE = """{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
              'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}"""
FIT = "{'batch_size': [4, 8], 'epochs': [1]}"


def perceptron(*hidden: int) -> str:
    """Give the JSON of a perceptron for iris: 4 inputs, hidden layers, 3 classes."""
    keras = quiet_keras()
    layers = [keras.layers.Dense(n, activation="relu") for n in hidden]
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3, activation="softmax")]).to_json()


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


def arguments(table: str, method: str | None, params: str | None, **options) -> dict:
    """Give the arguments of a call of madlib_keras_automl on iris, by name; ``options`` go before the usual ones."""
    return {
        "source_table": "train", "model_output_table": table, "model_arch_table": "arch",
        "model_selection_table": f"{table}_mst", "model_id_list": [1, 2], "compile_params_grid": COMPILE,
        "fit_params_grid": FIT, "automl_method": method, "automl_params": params, "validation_table": "valid",
        **options,
    }  # fmt: skip


def statement(given: dict) -> str:
    """Write the call, with a placeholder for each argument."""
    return f"SELECT madlib.madlib_keras_automl({', '.join(f'{name} := %s' for name in given)})"


@dataclass(frozen=True)
class Searched:
    """A search that has come back."""

    run_id: int
    table: str
    notices: str


def search(db, table: str, method: str | None, params: str | None, role: str | None = None, **options) -> Searched:
    """Call madlib_keras_automl on iris, and wait for it."""
    given = arguments(table, method, params, **options)
    connection = db.connect(role)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement(given), list(given.values()))
    finally:
        connection.close()
    return Searched(db.value("SELECT max(run_id) FROM madlib_mop.run"), table, "".join(connection.notices))


def results(db, run_id: int) -> list[tuple]:
    """Give what a search was told: (event, mst_key, epoch, loss), whatever the order of arrival."""
    return db.rows(
        "SELECT DISTINCT event, mst_key, epoch, loss FROM madlib_mop.search_history WHERE run_id = %s ORDER BY 1, 2, 3",
        [run_id],
    )


def decisions(db, run_id: int) -> list[tuple]:
    """Give what a search decided, whatever was the last thing it was told before."""
    return db.rows(
        "SELECT action, action_mst_key, until_epoch, source_mst_key, reason, compile_params, fit_params"
        " FROM madlib_mop.search_history WHERE run_id = %s AND action IS NOT NULL"
        " ORDER BY action_mst_key, until_epoch, action",
        [run_id],
    )


def states(db, run_id: int) -> dict[int, tuple]:
    """Give state, epoch and the digest of weights and optimizer of each model."""
    rows = db.rows("SELECT mst_key, state, epoch, digest FROM madlib_mop.model WHERE run_id = %s", [run_id])
    return {row[0]: row[1:] for row in rows}

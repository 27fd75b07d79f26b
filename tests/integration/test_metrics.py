"""Metrics that are not means equal plain Keras' values for all rows, even with unequal segments."""

import numpy as np
import pytest

from tests.helpers.averaging import fit_statement
from tests.helpers.training import one_thread, script, select_configurations

pytestmark = [pytest.mark.one_session, pytest.mark.slow]

N = 331
REGRESSION = (
    "loss='mse', optimizer='SGD(lr=0.001)',"
    " metrics=[RootMeanSquaredError(), R2Score(), 'mae', R2Score(num_regressors=3)]"
)
CLASSES = (
    "loss='categorical_crossentropy', optimizer='Adam(lr=0.02)', metrics=[AUC(), 'accuracy', F1Score(average='macro'),"
    " Precision(class_id=1), OneHotMeanIoU(num_classes=3), SensitivityAtSpecificity(0.6)]"
)


@pytest.fixture(scope="module")
def tables(db):
    """Rows on three segments of very unequal sizes."""
    one_thread()
    import keras

    rng = np.random.default_rng(3)
    x = rng.normal(size=(N, 3))
    t = x.sum(1) + 20 * rng.integers(0, 3, N) + rng.normal(size=N)
    y = np.argmax(x + rng.normal(size=x.shape), 1)
    db.rows("CREATE TABLE flat (id integer, x real[], t real, y integer)")
    rows = [(i, x[i].tolist(), float(t[i]), int(y[i])) for i in range(N)]
    db.rows("INSERT INTO flat VALUES " + ", ".join(["%s"] * N), rows)
    script(
        db,
        "SET madlib_mop.segments = 3",
        "SELECT madlib.training_preprocessor_dl('flat', 'lines', 't', 'x', 17, 1.0, '{}', seed := 2)",
        "SELECT madlib.training_preprocessor_dl('flat', 'classes', 'y', 'x', 17, 1.0, seed := 2)",
        "SELECT madlib.validation_preprocessor_dl('flat', 'classes_test', 'y', 'x', 'classes', 29)",
        *(_shorten(table, segment) for table in ("lines", "classes") for segment in (1, 2)),
        _shorten("classes_test", 0),
    )
    for units, activation in ((1, None), (3, "softmax")):
        layers = [keras.Input((3,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(units, activation)]
        arch = keras.Sequential(layers).to_json()
        db.rows("SELECT madlib.load_keras_model('nets', %s::json)", [arch])
    select_configurations(db, "line", [(1, REGRESSION, "batch_size=16, epochs=1")], "nets")
    select_configurations(db, "class", [(2, CLASSES, "batch_size=16, epochs=1")], "nets")
    return db


def _shorten(table: str, segment: int) -> str:
    """Keep only a segment's first buffers: segments with higher numbers keep more."""
    first = f"SELECT min(buffer_id) + {segment} FROM {table} WHERE __dist_key__ = {segment}"
    return f"DELETE FROM {table} WHERE __dist_key__ = {segment} AND buffer_id > ({first})"


def by_keras(db, output: str, packed: str, params: str) -> list[dict[str, float]]:
    """Return plain Keras' values for all rows, with batches of several sizes."""
    import keras

    from madlib_mop.models.build import compile_model
    from madlib_mop.models.parameters.parser import parse_compile_params

    arch, blob = db.rows(f"SELECT model_arch::text, model_weights FROM {output}")[0]
    model = keras.models.model_from_json(arch)
    flat, values = np.frombuffer(bytes(blob), np.float32), []
    for w in model.get_weights():
        values.append(flat[: w.size].reshape(w.shape))
        flat = flat[w.size :]
    model.set_weights(values)
    compile_model(model, parse_compile_params(params), {})
    y = "t" if packed == "lines" else "y"
    rows = db.rows(f"SELECT x, x_shape, {y}, {y}_shape FROM {packed} ORDER BY __dist_key__, buffer_id")
    y_type = np.float32 if y == "t" else np.int16
    x = np.concatenate([np.frombuffer(row[0], np.float32).reshape(row[1]) for row in rows])
    y = np.concatenate([np.frombuffer(row[2], y_type).reshape(row[3]) for row in rows]).astype(np.float32)
    found = [model.evaluate(x, y, batch_size=size, verbose=0, return_dict=True) for size in (8, 32, N)]
    names = ["loss", *model._compile_metrics.result()]
    return [{name: float(np.mean(one[name])) for name in names} for one in found]


def recorded(db, table: str, data_set: str) -> dict[str, float]:
    rows = db.rows(
        "SELECT name, value FROM madlib_mop.metric WHERE run_id = (SELECT max(run_id) FROM madlib_mop.run WHERE"
        " model_output_table LIKE %s) AND data_set = %s AND epoch = 2 ORDER BY ordinal",
        [f"%.{table}", data_set],
    )
    return dict(rows)


def assert_same(ours: dict[str, float], keras: list[dict[str, float]]) -> None:
    for theirs in keras:
        assert list(ours) == list(theirs)
        assert ours == pytest.approx(theirs, rel=2e-5, abs=1e-6)


def test_the_hopper(tables):
    fit = "SELECT madlib.madlib_keras_fit_multiple_model('lines', 'line_out', 'line', 2, seed := 1)"
    tables.rows(fit)
    assert_same(recorded(tables, "line_out", "training"), by_keras(tables, "line_out", "lines", REGRESSION))


def test_validation_data_and_evaluate(tables):
    tables.rows(
        "SELECT madlib.madlib_keras_fit_multiple_model('classes', 'class_out', 'class', 2, seed := 1,"
        " validation_table := 'classes_test')"
    )
    expected = by_keras(tables, "class_out", "classes", CLASSES)
    assert_same(recorded(tables, "class_out", "training"), expected)
    assert_same(recorded(tables, "class_out", "validation"), by_keras(tables, "class_out", "classes_test", CLASSES))
    tables.rows("SELECT madlib.madlib_keras_evaluate('class_out', 'classes', 'found', mst_key := 1)")
    ((loss, metrics),) = tables.rows("SELECT loss, metrics FROM found")
    assert_same(dict(zip(expected[0], [loss, *metrics], strict=True)), expected)


def test_model_averaging(tables):
    statement, values = fit_statement("line_avg", 2, compile_params=REGRESSION, source_table="lines", seed=1)
    tables.rows(statement.replace("'arch'", "'nets'"), values)
    assert_same(recorded(tables, "line_avg", "training"), by_keras(tables, "line_avg", "lines", REGRESSION))

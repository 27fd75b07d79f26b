"""Custom losses and metrics in runs: the values of plain Keras, and later always the run's own functions."""

import numpy as np
import pytest

from tests.helpers.oracle import train
from tests.helpers.security.attacks import refusal_of, user
from tests.helpers.training import fit, load_digits, one_thread, pack, quiet_keras, script, weights

pytestmark = pytest.mark.one_session

ANALYST = "custom_analyst"
SEED = 4
FUNCTIONS = {
    "MyLoss": """
import keras

def MyLoss(y_true, y_pred):
    return keras.ops.sum(keras.ops.square(y_true - y_pred), axis=-1)
""",
    "spread": """
import keras

def spread(y_true, y_pred):
    return keras.ops.max(y_pred, axis=-1) - keras.ops.min(y_pred, axis=-1)
""",
    "broken": """
def broken(y_true, y_pred):
    return y_true.nothing(y_pred)
""",
    "unused": "def unused(y_true, y_pred): return y_true",
}
COMPILE = (
    "loss='MyLoss', optimizer='Adam(lr=0.01)', metrics=['accuracy', 'top_3_accuracy', 'spread']",
    "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics='top_3_accuracy'",
    "loss='broken', optimizer='Adam(lr=0.01)'",
)
FIT_CALL = "SELECT madlib.madlib_keras_fit_multiple_model('train', '{}', '{}', 1)"
FIT = ("batch_size=16, epochs=1",)


def register(db, name: str, source: str | None = None) -> None:
    """Register a function, or replace the one with its name."""
    if db.value("SELECT EXISTS (SELECT FROM madlib.functions WHERE name = %s)", [name]):
        db.rows("SELECT madlib.delete_custom_function('functions', %s)", [name])
    value = (source or FUNCTIONS[name]).encode()
    db.rows("SELECT madlib.load_custom_function('functions', %s, %s)", [value, name])


def select(db, table: str, compile_list, object_table: str | None = "functions") -> None:
    """Make a model selection table as the analyst, who is not a superuser."""
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', %s, '{1}', %s::varchar[], %s::varchar[], %s)",
        [table, list(compile_list), list(FIT), object_table], ANALYST,
    )  # fmt: skip


def softmax() -> str:
    """Return the JSON of the smallest network for the digits."""
    keras = quiet_keras()
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")]
    return keras.Sequential(layers).to_json()


def my_loss(y_true, y_pred):
    """Compute MyLoss in plain Keras."""
    import keras

    return keras.ops.sum(keras.ops.square(y_true - y_pred), axis=-1)


def evaluate(db, table: str, output: str) -> tuple:
    """Evaluate the first model; return loss, metrics and their names."""
    db.rows(f"DROP TABLE IF EXISTS {output}")
    db.rows(f"SELECT madlib.madlib_keras_evaluate('{table}', 'valid', '{output}', mst_key := 1)", role=ANALYST)
    return db.rows(f"SELECT loss, metrics, metrics_type FROM {output}")[0]


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    db.cluster.create_role(ANALYST)
    db.rows("SELECT madlib_mop.grant_use(%s)", [ANALYST])
    db.rows(f"GRANT CREATE ON SCHEMA public TO {ANALYST}")
    load_digits(db, 120, 40)
    db.rows(f"GRANT SELECT ON train_rows, valid_rows TO {ANALYST}")
    pack(db, 2, role=ANALYST)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [softmax()], ANALYST)
    db.rows("SELECT madlib.load_top_k_accuracy_function('functions', 3)")
    for name in FUNCTIONS:
        register(db, name)
    return db


@pytest.fixture(scope="module")
def fitted(bench):
    """A run of three models, one of which cannot train."""
    select(bench, "mst", COMPILE)
    return fit(bench, "out", "mst", 2, role=ANALYST, validation_table="valid", seed=SEED, schedule="rotation")


@pytest.fixture(scope="module")
def changed(bench, fitted):
    """The same, after every function was replaced by another one."""
    before = evaluate(bench, "out", "before")
    register(bench, "MyLoss", "def MyLoss(y_true, y_pred): return 0 * y_pred[:, 0]")
    register(bench, "spread", "def spread(y_true, y_pred): return 7.0")
    bench.rows("SELECT madlib.delete_custom_function('functions', 'top_3_accuracy')")
    return before


def test_a_function_that_fails_fails_its_model_only_and_is_named(bench, fitted):
    rows = bench.rows("SELECT mst_key, status, status_detail, metrics_type, loss_type FROM out_info ORDER BY mst_key")
    assert [row[:2] for row in rows] == [(1, "trained"), (2, "trained"), (3, "failed")]
    assert rows[2][2].startswith("custom function 'broken' failed in line 3: AttributeError: ")
    assert "Traceback" not in rows[2][2] + fitted.notices
    assert [row[3:] for row in rows[:2]] == [
        (["accuracy", "top_3_accuracy", "spread"], "MyLoss"),
        (["top_3_accuracy"], "categorical_crossentropy"),
    ]
    assert bench.value("SELECT object_table FROM out_summary") == "madlib.functions"


@pytest.mark.slow
def test_weights_are_those_of_plain_keras_bit_for_bit(bench, fitted):
    import keras

    expected = train(
        bench, fitted.run_id, 1, lambda: keras.optimizers.Adam(0.01), 16, 1, True, loss=my_loss
    )  # fmt: skip
    assert weights(bench, "out")[1] == expected


def test_metrics_are_right(bench, fitted):
    import keras

    kernel, bias = np.split(np.frombuffer(weights(bench, "out")[1], np.float32), [640])
    rows = bench.rows("SELECT x, y FROM valid_rows ORDER BY id")
    x = np.array([np.ravel(row[0]) for row in rows], np.float32) / np.float32(16)
    y = np.eye(10, dtype=np.float32)[[row[1] for row in rows]]
    logits = x @ kernel.reshape(64, 10) + bias
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    of_rows = keras.ops.convert_to_numpy(keras.metrics.top_k_categorical_accuracy(y, scores, k=3))
    top_3 = np.mean(of_rows, dtype=np.float64)
    loss, metrics, names = evaluate(bench, "out", "found")
    assert names == ["accuracy", "top_3_accuracy", "spread"]
    assert metrics[1] == pytest.approx(top_3, abs=1e-12)
    assert metrics[2] == pytest.approx(np.mean(scores.max(axis=1) - scores.min(axis=1)), rel=1e-5)
    assert loss == pytest.approx(np.mean(((y - scores) ** 2).sum(axis=1)), rel=1e-5)
    final = bench.rows("SELECT validation_loss_final, validation_metrics_final FROM out_info WHERE mst_key = 1")[0]
    assert final == (pytest.approx(loss, rel=1e-9), pytest.approx(metrics[0], rel=1e-9))


def test_what_the_run_uses_is_recorded_once_and_shown_to_its_owner(bench, fitted):
    recorded = "SELECT name, convert_from(object, 'UTF8') FROM madlib_mop.custom_function WHERE run_id = %s"
    rows = dict(bench.rows(recorded, [fitted.run_id], ANALYST))
    assert sorted(rows) == ["MyLoss", "broken", "spread", "top_3_accuracy"]
    assert rows["MyLoss"] == FUNCTIONS["MyLoss"]
    assert bench.rows(recorded, [fitted.run_id], user(bench, "somebody_else")) == []


def test_evaluate_uses_what_the_run_was_begun_with(bench, changed):
    assert evaluate(bench, "out", "after") == changed


@pytest.mark.slow
def test_a_replay_uses_what_the_run_was_begun_with(bench, fitted, changed):
    bench.rows("SELECT madlib_mop.replay(%s, 'again')", [fitted.run_id], ANALYST)
    assert weights(bench, "again") == weights(bench, "out")


@pytest.mark.slow
def test_a_resumed_run_uses_what_it_was_begun_with(bench, fitted, changed):
    bench.rows("DROP TABLE again, again_info, again_summary")
    run_id = bench.value("SELECT max(run_id) FROM madlib_mop.run WHERE kind = 'replay'")
    # The state of a replay that was interrupted before its first visit.
    bench.rows("DELETE FROM madlib_mop.visit WHERE run_id = %s", [run_id])
    bench.rows("DELETE FROM madlib_mop.metric WHERE run_id = %s", [run_id])
    bench.rows("DELETE FROM madlib_mop.evaluation WHERE run_id = %s", [run_id])
    bench.rows(
        "UPDATE madlib_mop.model SET state = 'waiting', epoch = 0, position = 0, digest = NULL, state_slot = NULL"
        " WHERE run_id = %s", [run_id],
    )  # fmt: skip
    bench.rows("UPDATE madlib_mop.run SET state = 'interrupted' WHERE run_id = %s", [run_id])
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id], ANALYST)
    assert weights(bench, "again") == weights(bench, "out")


@pytest.mark.slow
def test_a_warm_start_goes_on_with_the_run_s_own_functions(bench, fitted, changed):
    run = fit(bench, "out", "mst", 1, role=ANALYST, warm_start=True)
    told = "custom function MyLoss, spread, top_3_accuracy: the earlier run's version is used; madlib.functions has"
    assert told in run.notices
    recorded = "SELECT name, object FROM madlib_mop.custom_function WHERE run_id = %s ORDER BY name"
    assert bench.rows(recorded, [run.run_id]) == bench.rows(recorded, [fitted.run_id])
    assert bench.rows("SELECT DISTINCT epoch FROM madlib_mop.visit WHERE run_id = %s", [run.run_id]) == [(3,)]


def test_when_the_table_is_gone_models_are_still_evaluated(bench, fitted, changed):
    script(bench, "BEGIN", "DROP TABLE madlib.functions", "COMMIT")
    try:
        assert len(evaluate(bench, "out", "without")[1]) == 3
        error = refusal_of(bench, FIT_CALL.format("x", "mst"), None, ANALYST)
        assert error.sqlstate == "42P01" and "object_table does not exist in schema madlib" in error.message
    finally:
        bench.rows("SELECT madlib.load_top_k_accuracy_function('functions', 3)")
        for name in FUNCTIONS:
            register(bench, name)


UNKNOWN = "loss='nobodys_loss', optimizer='sgd'"


def test_a_name_that_is_nowhere_is_one_error_that_lists_what_is_there(bench):
    call = (
        "SELECT madlib.load_model_selection_table('arch', 'x', '{1}', ARRAY[%s]::varchar[], ARRAY['']::varchar[], %s)"
    )
    error = refusal_of(bench, call, [UNKNOWN, "functions"], ANALYST)
    assert error.sqlstate == "22023" and "'nobodys_loss'" in error.message
    assert "Custom functions of the object table: MyLoss, broken, spread, top_3_accuracy, unused." in error.hint
    grid = "{'loss': ['nobodys_loss'], 'optimizer_params_list': [{'optimizer': ['sgd']}]}"
    call = "SELECT madlib.generate_model_configs('arch', 'x', '{1}', %s, '{}', object_table := %s)"
    assert "'nobodys_loss'" in refusal_of(bench, call, [grid, "functions"], ANALYST).message
    assert refusal_of(bench, call, [grid, "nothing"], ANALYST).sqlstate == "42P01"


def test_grids_name_custom_functions(bench):
    grid = """{'loss': ['MyLoss', 'mse'], 'metrics': [['spread'], ['top_3_accuracy']],
               'optimizer_params_list': [{'optimizer': ['sgd']}]}"""
    call = "SELECT madlib.generate_model_configs('arch', 'grid', '{1}', %s, %s, object_table := 'functions')"
    bench.rows(call, [grid, "{'batch_size': [8]}"], ANALYST)
    assert bench.value("SELECT count(*) FROM grid WHERE compile_params LIKE '%%MyLoss%%'") == 2


def test_a_function_that_was_deleted_meanwhile_is_an_error_before_any_work(bench):
    select(bench, "mst_unused", ["loss='unused', optimizer='sgd'"])
    bench.rows("SELECT madlib.delete_custom_function('functions', 'unused')")
    n_runs = bench.value("SELECT count(*) FROM madlib_mop.run")
    error = refusal_of(bench, FIT_CALL.format("never", "mst_unused"), None, ANALYST)
    assert error.sqlstate == "22023" and "mst_key 1" in error.message and "'unused'" in error.message
    assert bench.value("SELECT count(*) FROM madlib_mop.run") == n_runs


@pytest.mark.slow
def test_a_registered_version_is_evaluated_with_the_functions_of_its_own_run(bench):
    def evaluated(output: str) -> tuple:
        bench.rows(f"SELECT madlib.madlib_keras_evaluate('versioned@1', 'valid', '{output}')", role=ANALYST)
        return bench.rows(f"SELECT loss, metrics FROM {output}")[0]

    for name in ("MyLoss", "spread"):
        register(bench, name)
    select(bench, "of_versions", ["loss='MyLoss', optimizer='Adam(lr=0.01)', metrics=['spread']"])
    fit(bench, "versioned", "of_versions", 1, role=ANALYST, seed=SEED)
    bench.rows("SELECT madlib_mop.register('versioned', 'versioned', 1)", role=ANALYST)
    before = evaluated("of_version_before")
    register(bench, "MyLoss", "def MyLoss(y_true, y_pred): return 0 * y_pred[:, 0]")
    register(bench, "spread", "def spread(y_true, y_pred): return 7.0")
    fit(bench, "versioned", "of_versions", 1, role=ANALYST, seed=SEED, replace=True)
    assert evaluated("of_version_after") == before


@pytest.mark.slow
def test_a_model_with_a_custom_weighted_metric_is_cloned(bench):
    register(bench, "weighty", FUNCTIONS["spread"].replace("def spread", "def weighty"))
    configuration = "loss='categorical_crossentropy', optimizer='sgd', weighted_metrics=['weighty']"
    select(bench, "weighted", [configuration])
    run_id = fit(bench, "weighted_out", "weighted", 1, role=ANALYST, seed=SEED).run_id
    clone = f"SELECT madlib_mop.clone_model({run_id}, 1, fit_params => 'batch_size=9, epochs=1', num_iterations => 2)"
    assert bench.value(clone, role=ANALYST) == 2

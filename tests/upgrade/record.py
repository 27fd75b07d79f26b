"""The content of a database of a released version, for the tests of updates: created at the release, as a dump.

``make release`` runs `make_record.py`, which calls `fill` on a database of that version.
"""

import contextlib
import threading
import time

import psycopg2

from tests.helpers.training import ADAM, fit, load_architectures, load_digits, pack

USER, PREDICTOR = "upgrade_user", "upgrade_predictor"
ROLES = (USER, PREDICTOR)
SEED = 3
COMPILE_GRID = """{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
                   'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}"""
SPREAD = b"""
import keras

def spread(y_true, y_pred):
    return keras.ops.max(y_pred, axis=-1) - keras.ops.min(y_pred, axis=-1)
"""


def fill(db) -> None:
    """Train runs of every kind, finished and interrupted, as a user; the interrupted run has a complete copy."""
    for role in ROLES:
        db.cluster.create_role(role)
    db.rows(f"SELECT madlib_mop.grant_use('{USER}')")
    db.rows(f"GRANT CREATE ON SCHEMA public TO {USER}")
    db.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('shard_cache_mb', '300')")
    db.rows("SELECT madlib.load_custom_function('functions', %s, 'spread')", [SPREAD])
    db.rows(f"GRANT USAGE ON SCHEMA madlib TO {USER}; GRANT SELECT ON madlib.functions TO {USER}")
    load_digits(db, 120, 40)
    load_architectures(db)
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {USER}")
    pack(db, 2, role=USER)
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', '{1,2}', %s::varchar[], %s::varchar[])",
        [[ADAM], ["batch_size=16, epochs=1"]], USER,
    )  # fmt: skip
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'custom', '{1}', %s::varchar[], %s::varchar[], 'functions')",
        [[ADAM.replace("'accuracy'", "'accuracy', 'spread'")], ["batch_size=16, epochs=1"]], USER,
    )  # fmt: skip
    fit(db, "models", "mst", 2, seed=SEED, validation_table="valid", role=USER)
    fit(db, "with_custom", "custom", 1, seed=SEED, role=USER)
    fit(db, "twin", "mst", 6, seed=SEED, schedule="rotation", role=USER)
    interrupt(db, USER, 6)
    db.rows(
        "SELECT madlib.madlib_keras_fit('train', 'averaged', 'arch', 1, %s, 'batch_size=16, epochs=1', 2, seed := 3)",
        [ADAM], USER,
    )  # fmt: skip
    db.rows(
        "SELECT madlib.madlib_keras_automl('train', 'searched', 'arch', 'searched_mst', '{1}', %s, %s, 'hyperband',"
        " 'R=3, eta=3', 4, validation_table := 'valid')",
        [COMPILE_GRID, "{'batch_size': [16], 'epochs': [1]}"], USER,
    )  # fmt: skip
    db.rows(f"SELECT madlib_mop.grant_predict('{PREDICTOR}', 'models')")


def interrupt(db, role: str, n_iterations: int) -> None:
    """Start the copied run once more, and cancel its statement after some visits."""
    connection = db.connect(role)
    call = (
        "SELECT madlib.madlib_keras_fit_multiple_model('train', 'interrupted', 'mst', %s, seed := %s,"
        " schedule := 'rotation')"
    )

    def train() -> None:
        with contextlib.suppress(psycopg2.errors.QueryCanceled), connection.cursor() as cursor:
            cursor.execute(call, [n_iterations, SEED])

    thread = threading.Thread(target=train)
    thread.start()
    kept = (
        "SELECT count(*) FROM madlib_mop.visit JOIN madlib_mop.run USING (run_id)"
        " WHERE model_output_table LIKE '%.interrupted'"
    )
    deadline = time.monotonic() + 120
    while db.value(kept) < 5:
        assert time.monotonic() < deadline and thread.is_alive(), "the run ended before it could be interrupted"
        time.sleep(0.01)
    connection.cancel()
    thread.join()
    connection.close()
    state = db.value("SELECT state FROM madlib_mop.run WHERE model_output_table LIKE '%.interrupted'")
    assert state == "interrupted", state

"""Promise 5: a model that is too large fails alone; if all models fail, the record has the reasons.

tests/helpers/engines/promises.py tests a NaN loss and a network that cannot be built, on every engine.
"""

import json

import psycopg2
import pytest

from tests.helpers.faults import assert_nothing_left, newest_run
from tests.helpers.training import (
    ADAM,
    ALIKE,
    digests,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    quiet_keras,
    store_unchecked,
)
from tests.helpers.training import select_configurations as select

pytestmark = pytest.mark.slow

GOOD = ALIKE[:2]


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db)
    load_architectures(db)
    pack(db, 2)
    keras = quiet_keras()
    wide = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 8), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
    )
    wrong = json.loads(wide.to_json())
    wrong["config"]["layers"][1]["config"]["kernel_size"] = [9, 9]  # larger than an image
    huge = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    for _ in range(3):
        huge.add(keras.layers.Dense(6_000, kernel_initializer="zeros"))  # to draw them takes long
    huge.add(keras.layers.Dense(10, activation="softmax"))
    store_unchecked(db, json.dumps(wrong))
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [huge.to_json()])
    select(db, "mst_good", GOOD)
    run = fit(db, "good", "mst_good", 2, seed=4, schedule="rotation")
    db.expected = digests(db, run.run_id)
    return db


def fit_with(db, table: str, bad: tuple[int, str, str], settings=()):
    """Train two valid configurations and an invalid one; return the run, its message and the info table."""
    select(db, f"mst_{table}", [*GOOD, bad])
    run = fit(db, table, f"mst_{table}", 2, settings, seed=4, schedule="rotation")
    found = digests(db, run.run_id)
    assert {key: found[key] for key in db.expected} == db.expected
    rows = db.rows(f"SELECT mst_key, status, status_detail, training_loss_final FROM {table}_info ORDER BY mst_key")
    assert [row[1] for row in rows] == ["trained", "trained", "failed"]
    assert rows[2][3] is None and "Traceback" not in rows[2][2]
    assert [key for (key,) in db.rows(f"SELECT mst_key FROM {table} ORDER BY 1")] == [1, 2]
    assert f"mst_key 3 failed: {rows[2][2]}" in run.notices
    assert_nothing_left(db)
    return rows[2][2]


def test_a_model_too_large_for_memory(bench):
    """Its layers of 36 million weights with Adam exceed the trainer's memory limit."""
    reason = fit_with(
        bench, "memory", (5, ADAM, "batch_size=8, epochs=1"), ("SET madlib_mop.trainer_memory_mb = 900",)
    )
    assert "memory" in reason and "trainer_memory_mb" in reason


def test_where_all_fail_it_is_an_error_and_the_record_keeps_the_reasons(bench):
    select(bench, "mst_all_bad", [(4, ADAM, "batch_size=8"), (4, ADAM, "batch_size=16")])
    with pytest.raises(psycopg2.errors.ExternalRoutineException) as caught:
        fit(bench, "all_bad", "mst_all_bad", 1, seed=4)
    run_id = newest_run(bench)
    told = caught.value.diag
    assert f"run {run_id}: all 2 models failed, so no output tables were written. mst_key 1: " in told.message_primary
    assert told.message_detail.splitlines()[1].startswith("mst_key 2: ") and "leaderboard" in told.message_hint
    assert bench.rows("SELECT 1 FROM pg_class WHERE relname LIKE 'all\\_bad%%'") == []
    reasons = "SELECT state_detail FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY mst_key"
    assert [f"mst_key {key}: {reason}" for key, (reason,) in enumerate(bench.rows(reasons, [run_id]), 1)] == (
        told.message_detail.splitlines()
    )
    assert bench.value("SELECT state FROM madlib_mop.progress WHERE run_id = %s", [run_id]) == "failed"
    with pytest.raises(psycopg2.errors.ExternalRoutineException, match="all 2 models failed"):
        bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert_nothing_left(bench)

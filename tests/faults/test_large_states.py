"""Promise 4, for states above 64 MB, which a writer writes part by part while the trainer sends them: if one of the two
ends in the middle, nothing of the lost version stays, and the run ends with the same bits."""

import contextlib
import json

import pytest

from tests.helpers.faults import (
    BackgroundFit,
    alive,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    kill,
    newest_run,
    train_undisturbed,
    trainers,
    wait_for,
    workers,
)
from tests.helpers.training import load_digits, one_thread, pack, select_configurations

N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 83
#: The weights between two layers of so many units have 74 MB, with the others more than four parts of 16 MiB.
N_UNITS, N_PARTS = 4300, 5
SGD = "loss='categorical_crossentropy', optimizer='SGD(lr=0.01)', metrics=['accuracy']"
#: A part that is not the first of a new state waits for the test.
GATE = f"""
CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared({SEED}); RETURN NEW; END$$;
CREATE TRIGGER gate BEFORE INSERT ON madlib_mop.model_state FOR EACH ROW
    WHEN (NEW.part = 2 AND NEW.version = 2) EXECUTE FUNCTION wait_at_gate()
"""
WAITING = "SELECT max(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
STATES = "SELECT version, count(*), count(DISTINCT part) FROM madlib_mop.model_state WHERE run_id = %s GROUP BY 1"


def network() -> str:
    """Return the JSON of a network; no weights are drawn here."""
    dense = {"class_name": "Dense", "config": {"units": N_UNITS, "activation": "relu"}}
    last = {"class_name": "Dense", "config": {"units": 10, "activation": "softmax"}}
    first = {"class_name": "InputLayer", "config": {"batch_shape": [None, 8, 8, 1]}}
    layers = [first, {"class_name": "Flatten", "config": {}}, dense, dense, last]
    return json.dumps({"class_name": "Sequential", "config": {"layers": layers}})


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    db.rows("INSERT INTO madlib_mop.setting VALUES ('trainer_idle_s', '0')")
    load_digits(db, 60, 20)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [network()])
    pack(db, N_SEGMENTS, suffix="_2")
    select_configurations(db, "mst", [(1, SGD, "batch_size=16, epochs=1")])
    train_undisturbed(db, N_EPOCHS, SEED)
    db.rows(GATE)
    return db


@pytest.mark.parametrize("victim", ["trainer", "writer session"])
def test_one_that_ends_in_the_middle_of_a_large_answer(bench, victim):
    db, before = bench, newest_run(bench)
    with contextlib.closing(db.connect()) as gate, gate.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [SEED])
        call = BackgroundFit(db, fit_statement(f"t_{victim.split()[0]}", "mst", N_EPOCHS, "train_2", SEED))
        run_id = wait_for(lambda: newest_run(db) != before and newest_run(db), what="the run's start")
        writer = wait_for(lambda: call.error or db.value(WAITING, [SEED]), what="the third part of a state")
        assert call.error is None and writer in workers(db), call.error
        assert [row[0] for row in db.rows(STATES, [run_id])] == [1], "the new version is not committed"
        seen = trainers(db)
        if victim == "trainer":
            # both segments have one; that of the waiting writer is in the middle of its answer
            for pid in seen:
                assert kill(pid)
            wait_for(lambda: not any(map(alive, seen)), what="the end of the trainers")
        else:
            db.rows("SELECT pg_terminate_backend(%s)", [writer])
            wait_for(lambda: writer not in workers(db), what="the end of the writer")
            assert (2,) not in [row[:1] for row in db.rows(STATES, [run_id])]
        cursor.execute("SELECT pg_advisory_unlock(%s)", [SEED])
    call.join()
    if call.error is not None:
        db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert_whole(db, run_id, db.expected, 1, N_SEGMENTS, N_EPOCHS)
    newest = db.value("SELECT state_version FROM madlib_mop.model WHERE run_id = %s", [run_id])
    states = dict((version, rest) for version, *rest in db.rows(STATES, [run_id]))
    assert states[newest] == [N_PARTS, N_PARTS] and all(rest == [N_PARTS, N_PARTS] for rest in states.values()), states
    attempts = db.value("SELECT max(attempt) FROM madlib_mop.visit WHERE run_id = %s", [run_id])
    assert call.error is not None or attempts > 1, "no visit was done again"
    assert_nothing_left(db, seen)

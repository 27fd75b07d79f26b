"""Trainers that wait after a run: the next run of the same role gets them with their compiled models, nobody else."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest

from tests.helpers.faults import BackgroundFit, alive, children, rows_files, trainers, wait_for
from tests.helpers.security.attacks import user
from tests.helpers.training import (
    digests,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    select_configurations,
)

ALICE, BOB = "waiting_alice", "waiting_bob"
SGD = "loss='categorical_crossentropy', optimizer='SGD(lr=0.05)'"
SAME_LOSS = b"""
import keras

def same_loss(y_true, y_pred):
    return keras.losses.categorical_crossentropy(y_true, y_pred)
"""


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db, 120, 40)
    load_architectures(db)
    for n_segments in (1, 2):
        pack(db, n_segments, suffix=f"_{n_segments}")
    db.rows("SELECT madlib.load_custom_function('functions', %s, 'same_loss')", [SAME_LOSS])
    select_configurations(db, "mst", [(3, SGD, "batch_size=18")])
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst_custom', '{3}', %s::varchar[], %s::varchar[],"
        " 'functions')",
        [[SGD.replace("categorical_crossentropy", "same_loss")], ["batch_size=18"]],
    )
    for role in (ALICE, BOB):
        user(db, role)
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ALICE}, {BOB}")
    db.waiting = train(db, ALICE, "waiting")
    return db


def trainers_of_call(db, name: str, output: str) -> set[int]:
    """Evaluate a model, which takes one trainer; return the trainer. A call that ended unseen is repeated."""
    seen: set[int] = set()
    while not seen:
        db.rows(f"DROP TABLE IF EXISTS {ALICE}.{output}")
        evaluate = f"SELECT madlib.madlib_keras_evaluate('{ALICE}.{name}', 'train_2', '{ALICE}.{output}', mst_key := 1)"
        call = BackgroundFit(db, evaluate, role=ALICE)
        while call.running:
            for driver in children(call.pid, "madlib_mop.driver"):
                seen.update(children(driver, "madlib_mop.trainer"))
            time.sleep(0.01)
        call.succeed()
    assert len(seen) == 1
    return seen


def train(
    db, role: str, name: str, selection: str = "mst", settings: tuple[str, ...] = (), n_segments: int = 1
) -> tuple[dict, set[int]]:
    """Train one configuration as a role; return the digests of its state, and the trainers that the run had."""
    seen: set[int] = set()
    given = {"seed": 3, "source_table": f"train_{n_segments}"}
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(fit, db, f"{role}.{name}", selection, 1, settings, role, **given)
        while not call.done():
            seen.update(trainers(db))
            time.sleep(0.02)  # the run needs the processor more
    assert len(seen) == n_segments
    return digests(db, call.result().run_id), seen


@pytest.fixture
def waiting(bench):
    """The digests of a run of Alice with one segment, and its trainers, which wait; made if they have ended."""
    if not all(map(alive, bench.waiting[1])):
        bench.waiting = train(bench, ALICE, f"waiting_{bench.value('SELECT count(*) FROM madlib_mop.run')}")
    assert all(map(alive, bench.waiting[1]))
    return bench.waiting


def end_soon(pids: set[int]) -> None:
    """Wait for the end of trainers."""
    wait_for(lambda: not any(map(alive, pids)), what="the end of the trainers")


def test_the_next_run_of_a_role_gets_its_trainers_and_the_same_bits(bench):
    first, had = train(bench, ALICE, "first", n_segments=2)
    again, had_again = train(bench, ALICE, "again", n_segments=2)
    assert had_again == had and again == first


def test_another_role_gets_trainers_of_its_own(bench, waiting):
    first, had = waiting
    again, had_again = train(bench, BOB, "other_role")
    assert again == first and not had & had_again


def test_other_start_parameters_need_other_trainers(bench, waiting):
    _, had = waiting
    _, had_again = train(bench, ALICE, "other_start_again", settings=("SET madlib_mop.shard_cache_mb = 64",))
    assert not had & had_again


ON_DISK = "SET madlib_mop.shard_cache_mb = 0"


def test_one_that_waits_has_no_rows_in_its_file_and_the_next_run_uses_the_file_with_the_same_bits(bench, waiting):
    expected, _ = waiting
    first, had = train(bench, ALICE, "on_disk", settings=(ON_DISK,))
    files = rows_files(bench, had)
    assert [file.st_blocks for file in files.values()] == [0]
    again, had_again = train(bench, ALICE, "on_disk_again", settings=(ON_DISK,))
    assert had_again == had and again == first == expected
    assert rows_files(bench, had).keys() == files.keys()


def test_another_limit_or_directory_of_files_needs_other_trainers(bench):
    _, had = train(bench, ALICE, "some_disk", settings=(ON_DISK,))
    _, less = train(bench, ALICE, "less_disk", settings=(ON_DISK, "SET madlib_mop.shard_disk_mb = 64"))
    directory = bench.value("SELECT current_setting('data_directory') || '/base'")
    bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('shard_directory', %s)", [directory])
    try:
        _, elsewhere = train(bench, ALICE, "other_directory", settings=(ON_DISK,))
    finally:
        bench.rows("DELETE FROM madlib_mop.setting WHERE name = 'shard_directory'")
    assert not (had & less or had & elsewhere or less & elsewhere)


def test_none_waits_if_the_time_is_zero(bench, waiting):
    """Nor are those used that wait."""
    _, had = waiting
    _, had_again = train(bench, ALICE, "none_waits", settings=("SET madlib_mop.trainer_idle_s = 0",))
    assert not had_again & had
    end_soon(had_again)


def test_one_waits_for_some_time_only(bench):
    _, had = train(bench, ALICE, "some_time", settings=("SET madlib_mop.trainer_idle_s = 1",))
    end_soon(had)


def test_trainers_in_which_code_of_users_ran_do_not_wait(bench):
    _, had = train(bench, ALICE, "custom", "mst_custom")
    _, had_again = train(bench, ALICE, "custom_again", "mst_custom")
    assert not had & had_again
    end_soon(had | had_again)


def test_a_killed_one_does_no_harm(bench, waiting):
    first, had = waiting
    for pid in had:
        os.kill(pid, signal.SIGKILL)
    again, had_again = train(bench, ALICE, "killed_again")
    assert again == first and not had & had_again


def test_trainers_of_a_cancelled_run_do_not_wait(bench):
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(fit, bench, f"{ALICE}.cancelled", "mst", 10_000, (), ALICE, source_table="train_2")
        had = wait_for(lambda: len(found := trainers(bench)) == 2 and set(found))
        bench.rows("SELECT madlib_mop.cancel(max(run_id)) FROM madlib_mop.run")
        with pytest.raises(psycopg2.Error, match="cancelled"):
            call.result()
    end_soon(had)


@pytest.fixture(scope="module")
def fitted(bench):
    """Trained models, without and with code of users."""
    for name, selection in (("plain", "mst"), ("with_code", "mst_custom")):
        fit(bench, f"{ALICE}.{name}", selection, 1, (), ALICE, source_table="train_1")
    return bench


def test_the_next_call_of_a_role_gets_the_trainer(fitted):
    had = trainers_of_call(fitted, "plain", "once")
    again = trainers_of_call(fitted, "plain", "twice")
    assert again == had
    once, twice = (fitted.rows(f"SELECT loss, metrics FROM {ALICE}.{name}") for name in ("once", "twice"))
    assert once == twice


def test_trainers_of_calls_in_which_code_of_users_ran_do_not_wait(fitted):
    end_soon(trainers_of_call(fitted, "with_code", "by_code"))

"""Promise 4 for model averaging: after any process is killed at any time, the run ends with the same bits."""

import os
import random

import psycopg2
import pytest

from tests.helpers.averaging import average, fit_statement, prepare
from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    kill,
    newest_run,
    pause,
    seconds_of,
    trainers,
    wait_for,
    workers,
)
from tests.helpers.training import digests

pytestmark = pytest.mark.slow

N_EPOCHS, SEED = 24, 77
TIMES = int(os.environ.get("MOP_FAULTS", "1"))  # 20 for the full test
OPTIONS = {"source_table": "uneven", "validation_table": "valid_3", "metrics_compute_frequency": 1, "seed": SEED}


@pytest.fixture(scope="module")
def bench(db):
    prepare(db)
    db.rows("INSERT INTO madlib_mop.setting VALUES ('trainer_idle_s', '0')")  # runs take as long as the undisturbed one
    run = average(db, "undisturbed", N_EPOCHS, **OPTIONS)
    db.expected = history(db, run.run_id)
    db.seconds = seconds_of(db, run.run_id)
    return db


@pytest.fixture
def chance(request):
    return random.Random(request.node.name)


def history(db, run_id: int) -> tuple:
    """Return a run's history: the digests of each visit and of the newest state, and the losses."""
    visits = db.rows(
        "SELECT epoch, segment_id, digest_in, digest_out FROM madlib_mop.visit WHERE run_id = %s ORDER BY 1, 2",
        [run_id],
    )
    metrics = db.rows(
        "SELECT epoch, data_set, ordinal, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3", [run_id]
    )
    return visits, metrics, digests(db, run_id)


def begin(db, table: str) -> tuple[BackgroundFit, int]:
    """Start a run with a known history, and wait until it is recorded."""
    before = newest_run(db)
    call = BackgroundFit(db, *fit_statement(table, N_EPOCHS, **OPTIONS))
    run_id = wait_for(lambda: (newest_run(db) != before and newest_run(db)) or call.error, what="the run's start")
    assert call.error is None, call.error
    return call, run_id


def drivers(db, run_id: int) -> list[int]:
    """Return the process that drives a run now, if there is one."""
    query = "SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s AND state = 'running' AND driver_pid IS NOT NULL"
    return [pid for (pid,) in db.rows(query, [run_id])]


def check(db, run_id: int, pids=()) -> None:
    """Assert what must hold after any fault: the same history, one state, nothing staged, no leftovers."""
    assert history(db, run_id) == db.expected
    assert (
        db.value("SELECT count(*) FROM madlib_mop.model_state WHERE run_id = %s AND segment_id IS NOT NULL", [run_id])
        == 0
    )
    assert db.value("SELECT count(DISTINCT version) FROM madlib_mop.model_state WHERE run_id = %s", [run_id]) == 1
    assert_nothing_left(db, pids)


def test_trainers_worker_sessions_and_drivers(bench, chance):
    call, run_id = begin(bench, "t_processes")
    seen = set()
    for number in range(3 * TIMES):
        pause(chance, bench.seconds / 3)
        pids = (trainers(bench), workers(bench), drivers(bench, run_id))[number % 3]
        if not call.running:
            break
        for victim in pids[:1]:
            seen.add(victim)
            if number % 3 == 1:
                bench.rows("SELECT pg_terminate_backend(%s)", [victim])
            else:
                kill(victim)
    call.succeed()
    check(bench, run_id, seen)


@pytest.mark.parametrize("how", ["server", "caller"])
def test_the_server_and_the_callers_backend(bench, chance, how):
    for number in range(TIMES):
        call, run_id = begin(bench, f"t_{how}_{number}")
        pause(chance, 0.7 * bench.seconds)
        seen = set(trainers(bench))
        if how == "server":
            bench.cluster.stop_immediate()
            bench.cluster.start()
        else:
            bench.rows("SELECT pg_terminate_backend(%s)", [call.pid])
        call.join()
        wait_for(lambda: answers(bench), what="the server")
        if call.error is not None:
            bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
        check(bench, run_id, seen)


def answers(db):
    try:
        return db.value("SELECT 1")
    except psycopg2.OperationalError:
        return None


def test_a_cancelled_run_is_resumed_where_it_was(bench):
    """Cancelled while an iteration is partly staged or just averaged."""
    call, run_id = begin(bench, "t_cancelled")
    wait_for(lambda: bench.value("SELECT count(*) >= 4 FROM madlib_mop.visit WHERE run_id = %s", [run_id]))
    # The statement of madlib_mop.cancel without its driver: this run would end before a driver has started.
    bench.rows("UPDATE madlib_mop.run SET cancelled_by = owner::text WHERE run_id = %s", [run_id])
    bench.rows("SELECT pg_notify('madlib_mop_cancel', '')")
    call.join()
    assert call.error is not None
    assert call.error.pgcode == "57014", call.error
    n_visits = bench.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s", [run_id])
    assert_nothing_left(bench)
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert 4 <= n_visits < len(bench.expected[0])
    check(bench, run_id)
    assert bench.value("SELECT count(*) FROM t_cancelled") == 1

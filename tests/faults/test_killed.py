"""Promise 4: after any process is killed at any time, the run ends with the same bits and nothing remains.

tests/helpers/engines/promises.py kills trainers and worker sessions on every engine.
"""

import os
import random

import pytest

from tests.helpers.faults import (
    BackgroundFit,
    answers,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    kill,
    kill_backend,
    newest_run,
    pause,
    trainers,
    undisturbed,
    visits,
    wait_for,
    workers,
)

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 4, 2, 6, 77
TIMES = int(os.environ.get("MOP_FAULTS", "1"))  # 20 for the full test


@pytest.fixture(scope="module")
def bench(db):
    db.rows("INSERT INTO madlib_mop.setting VALUES ('trainer_idle_s', '0')")  # runs take as long as the undisturbed one
    undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)
    db.found_at_work = []
    yield db
    assert sum(db.found_at_work) >= len(db.found_at_work) / 2, "most faults came after the run's end"


@pytest.fixture
def chance(request):
    return random.Random(request.node.name)


def begin(db, table: str) -> tuple[BackgroundFit, int]:
    """Start a run with known digests, and wait until it is recorded."""
    before = newest_run(db)
    call = BackgroundFit(db, fit_statement(table, "mst", N_EPOCHS, "train_2", SEED))
    run_id = wait_for(lambda: (newest_run(db) != before and newest_run(db)) or call.error, what="the run's start")
    assert call.error is None, call.error
    return call, run_id


def check(db, run_id: int, pids=()) -> None:
    """Assert what must hold after any fault."""
    assert_whole(db, run_id, db.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(db, pids)


def server_start(db):
    """Return the time of the server's last start or recovery, which a crash of a backend would change."""
    return db.value("SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer'")


def test_the_driver(bench, chance):
    life = server_start(bench)
    call, run_id = begin(bench, "t_driver")
    seen = set()
    for _ in range(TIMES):
        pid = wait_for(
            lambda: (
                not call.running
                or bench.value(
                    "SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s AND state = 'running'", [run_id]
                )
            ),
            what="a driver",
        )
        if pid is True:
            break
        seen |= {pid, *trainers(bench)}
        pause(chance, 0.7 * bench.seconds)
        kill(pid)
        wait_for(lambda pid=pid: not call.running or pid not in pids_of(bench, run_id), what="another driver")
    call.succeed()
    check(bench, run_id, seen)
    assert server_start(bench) == life


def pids_of(db, run_id: int) -> list:
    return [db.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id])]


@pytest.mark.one_case
@pytest.mark.parametrize("how", ["terminated", "killed"])
def test_the_callers_backend(bench, chance, how):
    """SIGKILL of a backend makes PostgreSQL restart all sessions; pg_terminate_backend does not."""
    for number in range(TIMES):
        table = f"t_caller_{how}_{number}"
        call, run_id = begin(bench, table)
        pause(chance, 0.7 * bench.seconds)
        seen = set(trainers(bench))
        if how == "terminated":
            bench.rows("SELECT pg_terminate_backend(%s)", [call.pid])
        else:
            kill_backend(bench, call.pid)
        call.join()
        finish(bench, call, run_id, seen)


def test_a_workers_backend_killed(bench, chance):
    for number in range(TIMES):
        call, run_id = begin(bench, f"t_worker_killed_{number}")
        victims = wait_for(lambda: workers(bench), what="a worker")
        pause(chance, 0.7 * bench.seconds)
        seen = set(trainers(bench))
        kill_backend(bench, chance.choice(victims))
        call.join()
        finish(bench, call, run_id, seen)


def test_the_whole_server(bench, chance):
    for number in range(TIMES):
        call, run_id = begin(bench, f"t_server_{number}")
        pause(chance, 0.7 * bench.seconds)
        seen = set(trainers(bench))
        bench.cluster.stop_immediate()
        bench.cluster.start()
        call.join()
        finish(bench, call, run_id, seen)


def finish(db, call: BackgroundFit, run_id: int, seen: set) -> None:
    """Resume a run, unless it had ended before the fault, and check it."""
    wait_for(lambda: answers(db), what="the server")
    db.found_at_work.append(call.error is not None)
    if call.error is not None:
        done = visits(db, run_id)
        db.rows("SELECT madlib_mop.resume(%s)", [run_id])
        assert visits(db, run_id) >= done
    check(db, run_id, seen)

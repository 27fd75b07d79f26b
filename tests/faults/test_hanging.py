"""Promise 6: nothing is left behind by a cancel while any one process of the run hangs, after at most ten seconds.

What hangs is a process that was stopped by SIGSTOP. Until it continues, only itself is left, with locks that it holds.
"""

import os
import signal
from contextlib import contextmanager

import psycopg2
import pytest

from tests.helpers.faults import (
    BackgroundFit,
    alive,
    assert_nothing_left,
    assert_whole,
    children,
    fit_statement,
    login_roles,
    newest_run,
    trainers,
    visits,
    wait_for,
    workers,
)
from tests.helpers.training import ALIKE, digests, fit, load_architectures, load_digits, pack, select_configurations

pytestmark = [pytest.mark.alone, pytest.mark.slow]
N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 12, 81
ANN = "ann"  # a role that is no superuser, so its runs have login roles
WITHIN_S = 10.0
SESSIONS = """
SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop%%' AND datname = current_database()
"""
LOCKS = """
SELECT pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE d.datname = current_database() AND locktype = 'advisory'
"""
NAMED = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
PROCESSES = {
    "caller": lambda db, call, run_id: [call.pid],
    "driver": lambda db, call, run_id: children(call.pid, "madlib_mop.driver"),
    "catalog session": lambda db, call, run_id: named(db, "madlib_mop driver"),
    "writer": lambda db, call, run_id: workers(db),
    "reader": lambda db, call, run_id: named(db, f"madlib_mop reader of run {run_id}"),
    "trainer": lambda db, call, run_id: trainers(db),
}
CASES = [(kind, "statement") for kind in PROCESSES if kind != "caller"] + [(kind, "number") for kind in PROCESSES]


@pytest.fixture(scope="module")
def bench(db):
    db.cluster.create_role(ANN)
    db.rows("SELECT madlib_mop.grant_use(%s)", [ANN])
    db.rows(f"GRANT CREATE ON SCHEMA public TO {ANN}")
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS, suffix="_2")
    select_configurations(db, "mst", ALIKE[:N_MODELS])
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ANN}")
    run = fit(
        db, "undisturbed", "mst", N_EPOCHS, source_table="train_2", validation_table="valid_2",
        metrics_compute_frequency=1, seed=SEED, schedule="rotation",
    )  # fmt: skip
    db.expected = digests(db, run.run_id)
    return db


def named(db, name: str) -> list[int]:
    return [pid for (pid,) in db.rows(NAMED, [name])]


@contextmanager
def hanging(pid: int):
    """Stop a process; let it continue at the end, unless it was killed."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def left(db, call, processes: set[int], but: int) -> list:
    """Return what is left of a run besides one process that hangs."""
    run_id = newest_run(db)
    sessions = [pid for (pid,) in db.rows(SESSIONS)]
    locks = [pid for (pid,) in db.rows(LOCKS)]
    return [
        *[f"state {state}" for (state,) in db.rows("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id])
          if state == "running"],
        *[f"role {role}" for (role,) in login_roles(db)],
        *[f"session {pid}" for pid in sessions if pid != but],
        *[f"lock of {pid}" for pid in locks if pid != but],
        *[f"process {pid}" for pid in processes if pid != but and alive(pid)],
        *["the call" for _ in [0] if call.running and but != call.pid],
    ]  # fmt: skip


@pytest.mark.parametrize("kind, way", CASES)
def test_nothing_is_left_but_what_hangs(bench, kind, way):
    table = f"t_{kind}_{way}".replace(" ", "_")
    before = newest_run(bench)
    call = BackgroundFit(bench, fit_statement(table, "mst", N_EPOCHS, "train_2", SEED), role=ANN)
    run_id = wait_for(lambda: newest_run(bench) != before and newest_run(bench), what="the run's start")
    wait_for(lambda: visits(bench, run_id) >= 2 or call.error, what="visits")
    assert call.error is None, call.error
    processes = {*trainers(bench), *children(call.pid, "madlib_mop.driver")}
    victim = PROCESSES[kind](bench, call, run_id)[0]
    with hanging(victim):
        if way == "statement":
            bench.rows("SELECT pg_cancel_backend(%s)", [call.pid])
        else:
            assert bench.value("SELECT madlib_mop.cancel(%s)", [run_id], ANN) is True
        wait_for(
            lambda: not left(bench, call, processes, victim),
            WITHIN_S,
            "the end of the run",
            lambda: left(bench, call, processes, victim),
        )
    call.join(10)
    assert isinstance(call.error, psycopg2.errors.QueryCanceled), call.error
    assert_nothing_left(bench, processes)
    state, detail = bench.rows("SELECT state, state_detail FROM madlib_mop.run WHERE run_id = %s", [run_id])[0]
    assert state == ("interrupted" if way == "statement" else "cancelled") and detail
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id], ANN)
    assert_whole(bench, run_id, bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(bench)

"""Direct hops: whatever is killed at either end of a hop, the run ends with the same bits, and hosts hold nothing."""

import contextlib
import os
import random
import shutil
import subprocess
import time

import pytest

from tests.conftest import run
from tests.helpers.faults import (
    BackgroundFit,
    alive,
    answers,
    children,
    fit_statement,
    kill,
    kill_backend,
    newest_run,
    pause,
    visits,
    wait_for,
    workers,
)
from tests.helpers.hosts import HOSTS
from tests.helpers.remote import (
    DIRECT,
    N_EPOCHS,
    N_MODELS,
    SEED,
    check,
    hops_allowed,
    prepare,
    processes,
    relays,
    sessions,
    trainers_at,
    wait_for_work,
)

pytestmark = [pytest.mark.slow, pytest.mark.alone]
N_VISITS = N_MODELS * len(HOSTS) * N_EPOCHS
TRIES = 4  # until a host is lost while it has the newest state of a model
TIMES = int(os.environ.get("MOP_FAULTS", "3"))
AT_HOST = "SELECT count(*) FROM madlib_mop.model WHERE run_id = %s AND state_server = %s"
_MADE_AGAIN = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'keep_again'"


@pytest.fixture(scope="module")
def bench(hosts):
    hosts.expected = prepare(hosts)
    hosts.db.rows(f"ALTER DATABASE {hosts.db.name} SET track_functions = 'pl'")
    with hops_allowed(hosts.db):
        yield hosts


@pytest.fixture
def chance(request):
    return random.Random(request.node.name)


def begin(bench, table: str, *settings: str) -> tuple[BackgroundFit, int, set[int]]:
    """Start a run with known digests; return it, its run_id, and its processes, when states hop."""
    before = newest_run(bench.db)
    statement = fit_statement(table, "mst", N_EPOCHS, "train_2", SEED)
    call = BackgroundFit(bench.db, statement, settings=(*DIRECT, *settings))
    run_id = wait_for(lambda: (newest_run(bench.db) != before and newest_run(bench.db)) or call.error)
    wait_for_work(bench, call)
    seen = processes(bench)
    wait_for(lambda: visits(bench.db, run_id) > N_MODELS or not call.running, what="states that hop")
    assert call.running, call.error
    return call, run_id, seen


def is_at_work(bench, run_id: int) -> bool:
    return visits(bench.db, run_id) < N_VISITS


def check_all(bench, run_id: int, seen=()) -> None:
    """Assert what must hold after any fault: the bits, each visit once, no leftovers, and no state at a host."""
    check(bench, run_id, bench.expected, seen)
    held = "SELECT count(*) FROM madlib_mop.held_state WHERE coordinator IS NOT NULL"
    assert [at.value(held) for at in bench.at.values()] == [0] * len(HOSTS)
    assert bench.db.value("SELECT count(*) FROM madlib_mop.state_copy") == 0


def senders(at) -> list[int]:
    """Return the sessions at a host that have no trainer: other hosts get states from them."""
    with_trainers = {pid for pid in sessions(at) if trainers_of(pid)}
    return [pid for pid in sessions(at) if pid not in with_trainers]


def receivers(at) -> list[int]:
    return [pid for pid in sessions(at) if trainers_of(pid)]


def trainers_of(pid: int) -> list[int]:
    return children(pid, "madlib_mop.trainer")


def any_host(find):
    """Return a function that finds processes at all hosts."""
    return lambda bench: [pid for at in bench.at.values() for pid in find(at)]


KINDS = {
    "trainer": any_host(trainers_at),
    "relay": lambda bench: relays(bench.db),
}


@pytest.mark.parametrize("kind", KINDS)
def test_processes_of_segments(bench, chance, kind):
    call, run_id, seen = begin(bench, f"t_{kind}")
    n_killed = 0
    while n_killed < 2 * TIMES and call.running:
        pause(chance, 0.4)
        found = KINDS[kind](bench)
        seen |= set(found)
        if found and is_at_work(bench, run_id):
            n_killed += kill(chance.choice(found))
    call.succeed()
    assert n_killed
    check_all(bench, run_id, seen)


@pytest.mark.parametrize("end", [senders, receivers])
@pytest.mark.parametrize("how", ["terminated", "killed"])
def test_a_session_at_an_end_of_a_hop(bench, chance, end, how):
    """SIGKILL of a backend makes PostgreSQL restart all sessions of that host."""
    call, run_id, seen = begin(bench, f"t_{end.__name__}_{how}")
    n_ended = 0
    while n_ended < TIMES and call.running:
        pause(chance, 0.5)
        at = bench.at[chance.choice(HOSTS)]
        with contextlib.suppress(Exception):  # the host may be restarting
            found = end(at)
            seen |= processes(bench)
            if not found or not is_at_work(bench, run_id):
                continue
            if how == "killed":
                kill_backend(at, chance.choice(found))
            else:
                at.rows("SELECT pg_terminate_backend(%s)", [chance.choice(found)])
            n_ended += 1
    call.succeed()
    assert n_ended
    check_all(bench, run_id, seen)


def test_a_writer(bench, chance):
    """The coordinator's server restarts all its sessions; resume continues the run."""
    call, run_id, seen = begin(bench, "t_writer")
    pause(chance, 0.3)
    kill_backend(bench.db, chance.choice(workers(bench.db)))
    call.join()
    wait_for(lambda: answers(bench.db), what="the server")
    if call.error is not None:
        bench.db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check_all(bench, run_id, seen)


def test_the_driver(bench, chance):
    call, run_id, seen = begin(bench, "t_driver")
    driver = "SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s AND state = 'running'"
    n_killed = 0
    while n_killed < TIMES and call.running:
        pid = bench.db.value(driver, [run_id])
        if pid is not None and kill(pid):
            n_killed += 1
            wait_for(lambda pid=pid: not call.running or bench.db.value(driver, [run_id]) not in (pid, None))
            seen |= processes(bench)
        pause(chance, 1.0)
    call.succeed()
    assert n_killed
    check_all(bench, run_id, seen)


def test_the_callers_session(bench, chance):
    call, run_id, seen = begin(bench, "t_caller")
    pause(chance, 0.3)
    bench.db.rows("SELECT pg_terminate_backend(%s)", [call.pid])
    call.join()
    wait_for(lambda: not any(map(alive, seen)), 60, "the end of all processes")
    bench.db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check_all(bench, run_id, seen)


def test_the_postmaster_of_a_host(bench, chance):
    """It is started again while the run waits."""
    call, run_id, seen = begin(bench, "t_postmaster")
    pause(chance, 0.3)
    beta = bench.at["beta"].cluster
    own = {beta.server_pid, *sessions(bench.at["beta"])}
    kill(beta.server_pid)
    wait_for(lambda: not any(map(alive, own)), 60, "the end of the host's processes")
    (beta.datadir / "postmaster.pid").unlink()  # a process that its parent has not waited for counts as running
    beta.start()
    bench.move("beta")
    call.succeed()
    check_all(bench, run_id, seen)


# Hosts that come back without the states that they held


@contextlib.contextmanager
def backup_of(cluster):
    """Have a copy of a cluster's data directory as it is now."""
    cluster.stop()
    copy = cluster.datadir.parent / "backup"
    subprocess.run(["cp", "-a", cluster.datadir, copy], check=True)
    cluster.start()
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def restore(cluster, copy) -> None:
    """Start a cluster with an empty disk and a copy of its data directory."""
    shutil.rmtree(cluster.datadir)
    subprocess.run(["cp", "-a", copy, cluster.datadir], check=True)
    cluster.start()


@pytest.mark.parametrize("lost", ["alpha", "gamma"])
def test_a_host_whose_states_are_lost(bench, lost):
    """With two copies, each model repeats at most one visit, while the call goes on."""
    at = bench.at[lost]
    with backup_of(at.cluster) as copy:
        bench.move(lost)
        for number in range(TRIES):
            before = bench.db.value(_MADE_AGAIN)
            call, run_id, seen = begin(bench, f"t_lost_{lost}_{number}")
            wait_for(lambda run=run_id: bench.db.value(AT_HOST, [run, lost]), what="a state at the host")
            at.cluster.stop_immediate()
            n_there = bench.db.value(AT_HOST, [run_id, lost])
            restore(at.cluster, copy)
            bench.move(lost)
            call.succeed()
            check_all(bench, run_id, seen)
            notices = "".join(call.connection.notices)
            n_lost = notices.count(f"host {lost} has lost a state")
            n_again = made_again(bench.db, before, n_lost)
            print(f"{n_there} states at host {lost} when it was lost, {n_again} visits made again")
            assert n_again == n_lost <= n_there
            if n_again:
                break
    assert n_again, "in no run, a host was lost with a state"


def made_again(db, before: int, at_least: int) -> int:
    """Return the number of visits that were made again; sessions report it a moment after their ends."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: db.value(_MADE_AGAIN) - before >= at_least, 3)
    time.sleep(0.2)
    return int(db.value(_MADE_AGAIN) - before)


def test_a_host_that_is_replaced(bench):
    """A new database gets the rows from a dump, and the key; then resume continues the run."""
    at = bench.at["beta"]
    dsn = at.cluster.dsn_for(at.name)
    dump = subprocess.run([at.cluster.bindir / "pg_dump", dsn], check=True, capture_output=True).stdout
    assert b"held_part" not in dump
    key = bench.db.rows("SELECT coordinator, key FROM madlib_mop.host WHERE server = 'beta'")[0]
    for number in range(TRIES):
        before = bench.db.value(_MADE_AGAIN)
        call, run_id, seen = begin(bench, f"t_replaced_{number}")
        wait_for(lambda run=run_id: bench.db.value(AT_HOST, [run, "beta"]), what="a state at the host")
        at.cluster.drop(at.name)
        call.join()
        assert call.error is not None and "beta" in str(call.error)
        n_there = bench.db.value(AT_HOST, [run_id, "beta"])
        run(at.cluster.connect(), f'CREATE DATABASE "{at.name}"')
        psql = [at.cluster.bindir / "psql", "-q", "-v", "ON_ERROR_STOP=1", dsn]
        subprocess.run(psql, input=dump, check=True, stdout=subprocess.DEVNULL)
        at.rows("INSERT INTO madlib_mop.coordinator (coordinator, key) VALUES (%s, %s)", key)
        bench.db.rows("SELECT madlib_mop.resume(%s)", [run_id])
        check_all(bench, run_id, seen)
        n_again = made_again(bench.db, before, n_there)
        print(f"{n_there} states at host beta when it was lost, {n_again} visits made again")
        assert n_again == n_there
        if n_again:
            break
    assert n_again, "in no run, a host was lost with a state"

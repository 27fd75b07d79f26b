"""Drivers forked from a process of the server: they end with their backend, and calls survive that process's end."""

import os
import pathlib
import signal
import time
from contextlib import closing

import psycopg2
import pytest

from tests.helpers.faults import (
    BackgroundFit,
    alive,
    assert_nothing_left,
    assert_whole,
    children,
    fit_statement,
    forkservers,
    kill,
    newest_run,
    undisturbed,
    visits,
    wait_for,
)

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 3, 2, 2, 79
DRIVER = "madlib_mop.driver"
VERSION = "SELECT madlib_mop.version()"


@pytest.fixture(scope="module")
def bench(db):
    return undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)


@pytest.fixture
def forkserver(bench) -> int:
    """The fork server of drivers, which runs."""
    bench.value(VERSION)
    bench.value(VERSION)
    (found,) = forkservers(bench, "mop drivers")
    return found


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def training(bench, table: str, n_epochs: int = N_EPOCHS) -> tuple[BackgroundFit, int]:
    """Begin a fit; return it and its driver as soon as it trains."""
    before = newest_run(bench)
    call = BackgroundFit(bench, fit_statement(table, "mst", n_epochs, "train_2", SEED))
    wait_for(lambda: newest_run(bench) != before and visits(bench, newest_run(bench)), what="visits")
    (driver,) = children(call.pid, DRIVER)
    return call, driver


def test_a_call_that_waits_for_a_stopped_fork_server_can_be_cancelled(bench, forkserver):
    with closing(bench.connect()) as connection, connection.cursor() as cursor:
        os.kill(forkserver, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            cursor.execute("SET statement_timeout = 500")
            with pytest.raises(psycopg2.errors.QueryCanceled):
                cursor.execute(VERSION)
            assert time.monotonic() - begun < 5
        finally:
            os.kill(forkserver, signal.SIGCONT)
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(VERSION)
    wait_for(lambda: not _children_of(forkserver), what="the end of all drivers")


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_driver_is_forked_and_ends_with_its_backend(bench, forkserver):
    call, driver = training(bench, "t_forked", n_epochs=40)
    assert parent_of(driver) == forkserver
    assert len(os.listdir(f"/proc/{forkserver}/task")) == 1, "a process with threads must not fork"
    kill(call.pid)  # the whole server restarts its sessions
    call.join()
    wait_for(lambda: not alive(driver), 3, "the end of the driver")
    wait_for(lambda: _accepts(bench), what="the server")
    assert_nothing_left(bench, [driver])
    bench.rows("SELECT madlib_mop.drop_run(%s)", [newest_run(bench)])


def _accepts(bench) -> bool:
    try:
        bench.connect().close()
    except psycopg2.OperationalError:
        return False
    return True


@pytest.mark.slow
def test_a_call_goes_on_when_the_fork_server_is_killed(bench, forkserver):
    call, driver = training(bench, "t_alone")
    kill(forkserver)
    call.succeed()
    assert_whole(bench, newest_run(bench), bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(bench, [driver])


@pytest.mark.slow
def test_without_the_fork_server_a_driver_ends_with_its_backend_too(bench, forkserver):
    call, driver = training(bench, "t_orphan", n_epochs=40)
    kill(forkserver)
    bench.rows("SELECT pg_terminate_backend(%s)", [call.pid])
    call.join()
    wait_for(lambda: not alive(driver), 3, "the end of the driver")
    assert_nothing_left(bench, [driver])
    bench.rows("SELECT madlib_mop.drop_run(%s)", [newest_run(bench)])

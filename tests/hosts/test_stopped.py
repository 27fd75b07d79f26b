"""Told to stop, a run at hosts stops within 1 s, here and there, and can be resumed."""

import pytest

from tests.faults.lab import BackgroundFit, assert_nothing_left, fit_statement, newest_run, wait_for
from tests.hosts.remote import N_EPOCHS, SEED, assert_gone, check, prepare, processes, relays, wait_for_work

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def bench(hosts):
    hosts.expected = prepare(hosts)
    return hosts


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend", "statement_timeout"])
def test_all_ends_at_both_ends(bench, how):
    """Sessions, relays and trainers are gone within 1 s after the caller's statement was told to end."""
    db, before, settings = bench.db, newest_run(bench.db), ()
    if how == "statement_timeout":
        settings = ("SET statement_timeout = '9s'",)
    call = BackgroundFit(db, fit_statement(f"t_{how}", "mst", N_EPOCHS, "train_2", SEED), settings=settings)
    seen = set()
    if how == "statement_timeout":
        wait_for(lambda: seen.update(processes(bench)) or not call.running, what="the timeout")
    else:
        wait_for_work(bench, call)
        seen = {*processes(bench), *relays(db)}
        db.rows(f"SELECT {how}(%s)", [call.pid])
    assert_gone(bench, seen, within_s=1.0)
    assert_nothing_left(db, seen)
    call.join(10)
    assert len(seen) >= 6 and call.error is not None
    run_id = newest_run(db)
    assert run_id != before
    db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check(bench, run_id, bench.expected, seen)

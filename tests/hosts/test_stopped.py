"""A run on hosts that is stopped ends within 1 s, here and on the hosts, and can be resumed."""

import signal

import psycopg2
import pytest

from tests.conftest import PASSWORD
from tests.helpers.faults import BackgroundFit, assert_nothing_left, fit_statement, kill, newest_run, wait_for
from tests.helpers.remote import N_EPOCHS, SEED, assert_gone, check, prepare, processes, relays, wait_for_work

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def bench(hosts):
    hosts.expected = prepare(hosts)
    return hosts


def timed_out(bench) -> tuple[BackgroundFit, set[int]]:
    """Return a call that statement_timeout has ended after its start and before its end, and its processes."""
    for timeout_ms in (4000, 3000, 2500, 2000, 1500):  # a fast machine trains in less than the first
        statement = fit_statement(f"t_{timeout_ms}", "mst", N_EPOCHS, "train_2", SEED)
        call = BackgroundFit(bench.db, statement, settings=(f"SET statement_timeout = {timeout_ms}",))
        seen: set[int] = set()
        wait_for(lambda call=call, seen=seen: seen.update(processes(bench)) or not call.running, what="the timeout")
        if call.error is not None:
            break
    return call, seen


@pytest.mark.parametrize("how", ["pg_terminate_backend", "statement_timeout"])
def test_all_ends_at_both_ends(bench, how):
    """Sessions, relays and trainers end within 1 s after the caller's statement is cancelled or terminated."""
    db, before = bench.db, newest_run(bench.db)
    if how == "statement_timeout":
        call, seen = timed_out(bench)
    else:
        call = BackgroundFit(db, fit_statement(f"t_{how}", "mst", N_EPOCHS, "train_2", SEED))
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


@pytest.mark.parametrize("way", ["statement", "number"])
def test_a_relay_that_hangs_ends_too(bench, way):
    """See tests/faults/test_hanging.py for the other processes."""
    db, before = bench.db, newest_run(bench.db)
    call = BackgroundFit(db, fit_statement(f"t_relay_{way}", "mst", N_EPOCHS, "train_2", SEED))
    wait_for_work(bench, call)
    run_id, seen, relay = newest_run(db), processes(bench), relays(db)[0]
    assert run_id != before and kill(relay, signal.SIGSTOP)
    if way == "statement":
        db.rows("SELECT pg_cancel_backend(%s)", [call.pid])
    else:
        assert db.value("SELECT madlib_mop.cancel(%s)", [run_id]) is True
    assert_gone(bench, seen, within_s=10.0)
    assert_nothing_left(db, seen)
    call.join(10)
    assert isinstance(call.error, psycopg2.errors.QueryCanceled), call.error
    db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check(bench, run_id, bench.expected, seen)


def test_who_is_not_let_in_any_more_is_told_at_once(bench):
    """If the user mapping was dropped or its password is wrong, a run ends at once with one clear error."""
    db, boss = bench.db, bench.db.cluster.superuser
    call = BackgroundFit(db, fit_statement("t_mapping", "mst", N_EPOCHS, "train_2", SEED))
    wait_for_work(bench, call)
    seen = processes(bench)
    db.rows("SELECT pg_cancel_backend(%s)", [call.pid])
    call.join(10)
    run_id = newest_run(db)
    db.rows(f'ALTER USER MAPPING FOR "{boss}" SERVER beta OPTIONS (SET password \'wrong secret\')')
    error = refusal_of_resume(db, run_id)
    assert "beta" in str(error) and "password authentication failed" in str(error)
    assert "wrong secret" not in str(error) and "Traceback" not in str(error)
    db.rows(f'DROP USER MAPPING FOR "{boss}" SERVER beta')
    error = refusal_of_resume(db, run_id)
    assert "has no user mapping for server beta" in error.diag.message_primary
    assert "CREATE USER MAPPING" in error.diag.message_hint
    db.rows(f"CREATE USER MAPPING FOR \"{boss}\" SERVER beta OPTIONS (user 'boss', password '{PASSWORD}')")
    db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check(bench, run_id, bench.expected, seen)
    for at in (db, *bench.at.values()):
        assert "wrong secret" not in at.cluster.log_tail(100_000)


def refusal_of_resume(db, run_id: int) -> psycopg2.Error:
    """Return the error with which resume is rejected, or the resumed run ends."""
    with pytest.raises(psycopg2.Error) as caught:
        db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    return caught.value

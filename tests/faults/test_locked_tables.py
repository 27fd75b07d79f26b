"""Promise 4: a run waits for locks, such as those of maintenance, and says which; only the caller's own is an error."""

import threading

import psycopg
import psycopg2
import pytest

from tests.helpers.faults import (
    assert_nothing_left,
    assert_whole,
    fit_statement,
    newest_run,
    prepared,
    train_undisturbed,
    visits,
    wait_for,
)

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 8, 84


@pytest.fixture(scope="module")
def bench(db):
    return prepared(db, N_MODELS, N_SEGMENTS)


class Heard:
    """A call in a thread, whose NOTICEs are known while it runs."""

    def __init__(self, db, statement: str):
        self.notices: list[str] = []
        self.error: Exception | None = None
        self._connection = psycopg.connect(db.dsn, autocommit=True)
        self._connection.add_notice_handler(lambda diagnostic: self.notices.append(diagnostic.message_primary))
        self._thread = threading.Thread(target=self._call, args=(statement,), daemon=True)
        self._thread.start()

    def _call(self, statement: str) -> None:
        try:
            self._connection.execute(statement)
        except psycopg.Error as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive() and self.error is None, self.error


@pytest.mark.slow
def test_a_lock_on_the_record_is_waited_for_and_named(bench):
    train_undisturbed(bench, N_EPOCHS, SEED)
    before = newest_run(bench)
    call = Heard(bench, fit_statement("t_maintained", "mst", N_EPOCHS, "train_2", SEED))
    run_id = wait_for(lambda: newest_run(bench) != before and newest_run(bench), what="the run's start")
    wait_for(lambda: visits(bench, run_id) >= 1, what="a visit")
    maintenance = bench.connect(autocommit=False)
    maintenance.cursor().execute("LOCK TABLE madlib_mop.visit IN ACCESS EXCLUSIVE MODE")
    holder = f"held by the session with process ID {maintenance.info.backend_pid}"
    said = f"waits for a lock on madlib_mop.visit, {holder}"
    wait_for(
        lambda: call.error or any(said in notice for notice in call.notices), 30, "the NOTICE", lambda: call.notices
    )
    maintenance.close()
    call.join()
    assert_whole(bench, run_id, bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(bench)


def test_a_lock_of_the_callers_own_transaction_is_an_error(bench):
    connection = bench.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE madlib_mop.visit IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg2.errors.LockNotAvailable) as caught:
            cursor.execute(fit_statement("t_own_lock", "mst", 1, "train_2", SEED))
    own = connection.info.backend_pid
    connection.close()
    message = caught.value.diag.message_primary
    assert "waits for a lock on madlib_mop.visit, " in message, message
    assert f"which the caller's own transaction holds (process ID {own})" in message
    assert "Commit the transaction" in caught.value.diag.message_hint
    assert_nothing_left(bench)

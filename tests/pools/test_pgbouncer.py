"""The library behind pgbouncer in transaction mode (docs/applications.md): what works, and what says that it cannot."""

import os
import socket
import threading
from contextlib import closing, contextmanager

import psycopg2
import pytest

from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.errors import NotReady
from tests.conftest import PASSWORD
from tests.helpers.commands import run
from tests.helpers.faults import assert_nothing_left, newest_run, visits, wait_for
from tests.helpers.jobs import JobWorker, state_of
from tests.helpers.pooler import NEEDS_PGBOUNCER, Pooler
from tests.helpers.security.attacks import SOFTMAX, user
from tests.helpers.sessions import Session
from tests.helpers.training import SGD, load_digits

pytestmark = NEEDS_PGBOUNCER
ALICE, MALLORY, WEB, ROOT = "alice_pooled", "mallory_pooled", "web_pooled", "superuser_pooled"
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('packed', %s, 'mst', %s, seed => 1)"
PREDICT = "SELECT madlib_mop.predict('alice_pooled.models', 1, x) FROM public.train_rows WHERE id = 1"
STATE = "SELECT state FROM madlib_mop.progress WHERE run_id = %s"


@pytest.fixture(scope="module")
def bench(db):
    """Digits that Alice may read; a stranger; and the role of a web application, which may become both."""
    load_digits(db)
    for role in (ALICE, MALLORY):
        user(db, role)
        db.rows(f'ALTER ROLE {role} IN DATABASE "{db.name}" SET search_path = {role}, public')
    db.cluster.create_role(WEB)
    db.rows(f"ALTER ROLE {WEB} NOINHERIT; GRANT {ALICE}, {MALLORY} TO {WEB}")
    db.rows(f"GRANT SELECT ON train_rows TO {ALICE}, {MALLORY}")
    db.rows(f"CREATE ROLE {ROOT} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
    yield db
    db.rows(f"REVOKE {ALICE}, {MALLORY} FROM {WEB}")
    db.rows(f"DROP ROLE {ROOT}")


@pytest.fixture(scope="module")
def pool(bench):
    with Pooler(bench.cluster, (ALICE, MALLORY, WEB), size=2) as pooler:
        yield pooler


@contextmanager
def client(bench, pool, role: str = ALICE, autocommit: bool = True):
    """Lend a session of a client of the pool."""
    with closing(psycopg2.connect(pool.dsn(bench.name, role))) as connection:
        connection.autocommit = autocommit
        yield Session(connection)


@pytest.fixture(scope="module")
def trained(bench, pool):
    """All from the architecture to a trained model, through the pool, each statement in a transaction of its own."""
    with client(bench, pool) as session:
        session.rows("SELECT madlib.load_keras_model('arch', %s)", SOFTMAX)
        session.rows(
            "BEGIN; SET LOCAL madlib_mop.segments = 2;"
            " SELECT madlib.training_preprocessor_dl('train_rows', 'packed', 'y', 'x', 37, 16.0, seed => 5); COMMIT"
        )
        session.rows(
            "SELECT madlib.load_model_selection_table('arch', 'mst', '{1}', ARRAY[%s], '{batch_size=16}')", SGD
        )
        session.rows(FIT, "models", 2)


class Call:
    """A call of fit by a client of the pool, in a thread; it has made a visit when the constructor returns."""

    def __init__(self, bench, pool, table: str):
        before = newest_run(bench)
        self.connection = psycopg2.connect(pool.dsn(bench.name, ALICE))
        self.error = None
        self._thread = threading.Thread(target=self._call, args=[table])
        self._thread.start()
        self.run_id = wait_for(lambda: (run := newest_run(bench)) != before and run, what="a run")
        wait_for(lambda: visits(bench, self.run_id) > 0, what="a visit")

    def _call(self, table):
        try:
            Session(self.connection).rows(FIT, table, 100000)
        except psycopg2.Error as error:
            self.error = error

    def end(self) -> str:
        """Wait for the end of the call; return its error."""
        self._thread.join(20)
        assert not self._thread.is_alive() and self.error is not None
        self.connection.close()
        return str(self.error)


def test_settings_of_a_transaction_hold_and_leave_no_trace(bench, pool, trained):
    assert bench.value(f"SELECT count(DISTINCT __dist_key__) FROM {ALICE}.packed") == 2
    with client(bench, pool) as session:
        assert session.value("SELECT current_setting('madlib_mop.segments', true)") in (None, "")


def test_a_run_through_a_pool_has_the_bits_of_one_without(bench, pool, trained):
    bench.rows(FIT, ["directly", 2], ALICE)
    pooled, direct = (bench.value(f"SELECT model_weights FROM {ALICE}.{table}") for table in ("models", "directly"))
    assert bytes(pooled) == bytes(direct)


def test_others_see_progress_and_cancel_while_a_run_holds_one_session(bench, pool, trained):
    call = Call(bench, pool, "cancelled")
    with client(bench, pool) as session:
        assert session.value(STATE, call.run_id) == "running"
        assert session.value("SELECT madlib_mop.cancel(%s)", call.run_id) is True
        assert "was cancelled by" in call.end()
        assert session.value(STATE, call.run_id) == "cancelled"


@pytest.mark.parametrize("goes_away", [False, True], ids=["asks for a cancel", "goes away"])
def test_a_client_that_stops_its_call_leaves_an_interrupted_run(bench, pool, trained, goes_away):
    """pgbouncer closes the server session of a client that has gone away."""
    call = Call(bench, pool, f"stopped_{goes_away}")
    if goes_away:
        with socket.socket(fileno=os.dup(call.connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
    else:
        call.connection.cancel()
    call.end()
    wait_for(lambda: bench.value(STATE, [call.run_id]) == "interrupted", what="the end of the run")
    assert_nothing_left(bench)


def test_roles_that_share_a_session_share_no_rights(bench, pool, trained):
    """An application that changes the role in each transaction, as PostgREST does."""
    with client(bench, pool, WEB, autocommit=False) as session:
        pids = set()
        for _ in range(3):
            session.rows(f"SET LOCAL ROLE {ALICE}")
            assert len(session.value(PREDICT)) == 10
            pids.add(session.value("SELECT pg_backend_pid()"))
            session.connection.commit()
            session.rows(f"SET LOCAL ROLE {MALLORY}")
            pids.add(session.value("SELECT pg_backend_pid()"))
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                session.rows(PREDICT)
            session.connection.rollback()
        assert len(pids) == 1, "both roles have used one session"


def test_jobs_are_submitted_through_a_pool_and_belong_to_the_transaction(bench, pool, trained):
    submit = (
        "SELECT madlib_mop.submit('madlib_keras_fit_multiple_model', '{\"source_table\": \"packed\","
        ' "model_output_table": "by_a_job", "model_selection_table": "mst", "num_iterations": 1}\')'
    )
    with JobWorker(bench), client(bench, pool, autocommit=False) as session:
        session.value(submit)
        session.connection.rollback()
        job = session.value(submit)
        session.connection.commit()
        wait_for(lambda: state_of(bench, job) == "finished", what="the job")
    assert bench.value(f"SELECT count(*) FROM {ALICE}.by_a_job") == 1
    assert bench.value("SELECT count(*) FROM madlib_mop.job") == 1


@pytest.mark.parametrize("ignored", ["", ", options"], ids=["startup options refused", "startup options ignored"])
def test_commands_that_need_a_session_of_their_own_say_so(bench, ignored):
    with Pooler(bench.cluster, [ROOT], size=2, ignored=ignored) as pooler:
        dsn = pooler.dsn(bench.name, ROOT)
        with pytest.raises(NotReady) as raised:
            connect_by_dsn(dsn)
        assert "not those of a pool" in raised.value.hint
        done = run(bench, "replay", "1", "again", dsn=dsn)
        assert done.returncode != 0 and "goes through a connection pool" in done.stderr

"""Waiting for a run without a server: neither a lost session that listens nor a failed query stops the training."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import psycopg2
import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from madlib_mop.catalog.live import following
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.sessions.session_settings import LIFT_NEW_TIMEOUTS
from madlib_mop.client import runs, watching
from madlib_mop.client.calling.sessions import ClientSessions
from madlib_mop.client.calling.statements import Statement
from madlib_mop.client.runs import Run
from madlib_mop.client.training import Training
from madlib_mop.errors import NotReady


def test_a_session_that_only_listens_is_not_ended_for_being_idle():
    statements = []

    @contextmanager
    def cursor():
        yield SimpleNamespace(execute=statements.append)

    raw = SimpleNamespace(cursor=cursor, notifies=[])
    connection = SimpleNamespace(
        connection=SimpleNamespace(driver_connection=raw), detach=lambda: None, close=lambda: None
    )
    sessions = SimpleNamespace(_connect=lambda: connection, raw_error=psycopg2.Error)
    ClientSessions.listen(sessions).close()
    assert statements == [LIFT_NEW_TIMEOUTS, "LISTEN madlib_mop_runs"] and raw.autocommit


class Server:
    """Sessions in which a call runs until it is released or cancelled; queries fail."""

    raw_error = psycopg2.Error

    def __init__(self, released: threading.Event, cancel):
        self._released = released
        self._raw = SimpleNamespace(cancel=cancel)
        self.statements = []
        self.begun = threading.Event()

    @contextmanager
    def begin(self):
        yield SimpleNamespace(connection=SimpleNamespace(driver_connection=self._raw), exec_driver_sql=self._execute)

    def _execute(self, statement, *_, **__):
        self.statements.append(statement)
        if "pg_backend_pid" in statement:
            return Result((7, None))
        self.begun.set()
        assert self._released.wait(60)
        return Result()

    def rows(self, statement, values=()):
        raise NotReady("too many connections")

    def listen(self):
        return Woken()


class Result(list):
    """The rows of a statement."""

    def __init__(self, *rows):
        super().__init__(rows)
        self.returns_rows = bool(rows)


class Woken:
    """A listener that is never told of anything."""

    def __init__(self):
        self._event = threading.Event()

    def wait(self, run_id, until):
        self.sleep(0.01)

    def sleep(self, timeout_s):
        found = self._event.wait(min(timeout_s, 0.01))
        self._event.clear()
        return found

    def wake(self):
        self._event.set()

    def close(self):
        pass


CALL = Statement("SELECT fit()", ())


def test_queries_that_fail_do_not_stop_a_call_whose_run_is_looked_for():
    released = threading.Event()
    server = Server(released, cancel=pytest.fail)
    training = Training(server, CALL)
    threading.Timer(0.2, released.set).start()
    with pytest.raises(NotReady, match="too many connections"):  # after the end of the call
        training.run_id()
    assert training.done.is_set()
    training.result()


def test_a_call_that_cannot_be_cancelled_is_waited_for():
    released = threading.Event()

    def cancel():
        released.set()
        raise psycopg2.OperationalError("the network is unreachable")

    server = Server(released, cancel)
    training = Training(server, CALL)
    assert server.begun.wait(60)
    training.cancel()
    assert training.done.is_set()


class Watch:
    """Reads the state of a run, after some failures."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.listener = Woken()

    def read(self):
        if self.errors:
            raise self.errors.pop(0)
        return "the state"


def of_call(**changes) -> Run:
    """Return the run of a call that trains here."""
    run = Run(SimpleNamespace(sessions=None), 7)
    run._training = SimpleNamespace(done=threading.Event(), result=lambda: None, **changes)
    return run


def test_a_failed_query_about_a_run_that_trains_here_is_asked_again():
    errors = NotReady("the connection to the server was lost"), PoolTimeoutError("QueuePool limit of size 1")
    assert of_call()._read(Watch(*errors), None) == "the state"
    with pytest.raises(PoolTimeoutError):
        of_call()._read(Watch(*reversed(errors)), 0.0)  # nobody waits so long
    with pytest.raises(NotReady):
        Run(SimpleNamespace(sessions=None), 7)._read(Watch(*errors), None)  # it trains elsewhere
    woken = Watch(*errors)
    woken.listener.wake()
    with pytest.raises(NotReady):
        of_call()._read(woken, None)
    ended = of_call()
    ended._training.done.set()
    with pytest.raises(NotReady):
        ended._read(Watch(*errors), None)


class Catalog:
    """The record of a run whose output table appears after some looks."""

    def __init__(self, *rows):
        self.left = list(rows)
        self.n_looks = 0

    def rows(self, statement, values):
        self.n_looks += 1
        return [("public", "models", *(self.left.pop(0) if len(self.left) > 1 else self.left[0]))]


def test_the_output_table_of_a_run_that_has_just_ended_is_waited_for(monkeypatch):
    monkeypatch.setattr(following, "_COMMIT_PAUSE_S", 0.01)
    appears = Catalog((False, False, True), (False, False, True), (True, True, True))
    watching.await_output(appears, 7)
    assert appears.n_looks == 3
    dropped = Catalog((False, False, False))  # long ago
    watching.await_output(dropped, 7)
    assert dropped.n_looks == 1


def test_the_handle_of_a_model_is_that_of_a_table_that_is_there():
    def model_of(*facts):
        return Run(SimpleNamespace(sessions=Catalog(facts)), 7).model(3)

    with pytest.raises(NotReady, match='run 7 has no output table "public"."models"'):
        model_of(False, False, True)
    assert model_of(True, True, True).mst_key == 3
    alone = model_of(True, False, True)  # of madlib_keras_fit
    assert alone.mst_key is None and alone.table == Relation("public", "models").sql


def test_only_an_interrupt_or_the_callers_own_function_cancels_the_call(monkeypatch):
    """Sessions that fail while a call trains are no error of the call."""
    cancelled = []

    class Trains:
        known_run_id = 7

        def __init__(self, *_):
            self.done = threading.Event()

        def run_id(self):
            return 7

        def cancel(self):
            cancelled.append(True)

        def result(self):
            pass

        attach = detach = lambda self, listener: None

    class Reads(Watch):
        def __init__(self, *_):
            super().__init__(NotReady("the connection to the server was lost"))
            self.status = SimpleNamespace(status=None)

        def read(self):
            super().read()
            training[0].done.set()
            return self.status

        def wait(self, until=None):
            pass

        def close(self):
            pass

    training = []
    monkeypatch.setattr(runs, "Training", lambda *_: training.append(Trains()) or training[-1])
    monkeypatch.setattr(runs, "RunWatch", Reads)
    calls = SimpleNamespace(sessions=None)
    assert runs.train(calls, CALL, None, True, False).run_id == 7 and cancelled == []

    def fails(status):
        training[0].done.clear()
        raise ZeroDivisionError

    training.clear()
    with pytest.raises(ZeroDivisionError) as raised:
        runs.train(calls, CALL, None, True, fails)
    assert cancelled == [True] and "db.run(7).resume()" in raised.value.__notes__[0]

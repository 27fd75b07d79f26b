"""Promise 6: a driver that is stopped within a statement keeps its catalog session for the clean-up.

A signal's exception is not one of the database. If such an exception is raised in a statement, SQLAlchemy closes the
session as if it were lost; then the driver could not drop its run's login role.
"""

import os
import signal
import threading

import pytest
from sqlalchemy import text

from madlib_mop.catalog.sessions.connection import connect_by_dsn


class Told(BaseException):
    """The exception of the signal's handler, similar to `stopping.Stopped`."""


@pytest.fixture
def told():
    def raise_told(*_):
        raise Told

    before = signal.signal(signal.SIGUSR1, raise_told)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_the_session_is_there_after_a_signal_in_a_statement(db, told):
    engine, raw = connect_by_dsn(db.dsn)
    threading.Timer(0.3, told).start()
    with pytest.raises(Told):
        with engine.connect() as session:
            session.execute(text("SELECT pg_sleep(1)"))
    with raw.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    with engine.connect() as session:
        assert session.execute(text("SELECT 2")).scalar() == 2
    raw.close()


def test_a_lost_session_is_still_told_as_lost(db):
    engine, raw = connect_by_dsn(db.dsn)
    db.rows("SELECT pg_terminate_backend(%s)", [raw.info.backend_pid])
    with pytest.raises(Exception) as lost, engine.connect() as session:
        session.execute(text("SELECT 1"))
    assert lost.value.connection_invalidated

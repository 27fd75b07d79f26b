"""Promise 6: a driver that is being stopped in the middle of a statement has its catalog session to clean up with.

A signal's exception is none of the database's. SQLAlchemy closes the session of a statement in which any such exception
is raised, as if it were lost; the driver then could not drop its run's login role.
"""

import os
import signal
import threading

import pytest
from sqlalchemy import text

from madlib_mop.catalog.connection import connect_by_dsn


class Told(BaseException):
    """What the signal's handler raises, as `stopping.Stopped` is."""


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

"""The record of runs, opened in the test's own process as in a driver."""

from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from madlib_mop.catalog.record import Record


def record_on(connection) -> Record:
    """Return the record on a superuser's connection in autocommit, as in a driver."""
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
    )
    return Record(engine, connection)

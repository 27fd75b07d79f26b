"""The record of runs as a driver has it, in the test's own process."""

from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from madlib_mop.catalog.record import Record


def record_on(connection) -> Record:
    """Return the record as a driver has it, on a superuser's connection in autocommit."""
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
    )
    return Record(engine, connection)

"""Which engine a call works on; called by the commands that pack, plan or evaluate."""

from madlib_mop.engines.greenplum import Greenplum, is_greenplum
from madlib_mop.engines.interface import Engine, Session
from madlib_mop.engines.postgres import Postgres


def engine_of(session: Session) -> Engine:
    """Give the engine of the server that a call came from."""
    if is_greenplum(session):
        return Greenplum()
    info = session.info

    def open_catalog():
        from madlib_mop.driver.runs import open_record  # it brings all of the hopper along; most calls need none of it

        return open_record(info).raw

    return Postgres(open_catalog)

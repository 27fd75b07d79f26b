"""Which engine a call works on; called by the commands that pack, plan or evaluate."""

from madlib_mop.driver.caller import SessionInfo
from madlib_mop.engines.interface import Engine
from madlib_mop.engines.postgres import Postgres


def engine_of(info: SessionInfo) -> Engine:
    """Give the engine of the server that a call came from."""

    def open_catalog():
        from madlib_mop.driver.runs import open_record  # it brings all of the hopper along; most calls need none of it

        return open_record(info).raw

    return Postgres(open_catalog)

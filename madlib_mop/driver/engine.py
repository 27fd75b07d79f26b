"""Which engine a call works on; called by the commands that pack, plan or evaluate."""

from madlib_mop.catalog.names import Relation
from madlib_mop.engines.citus import Citus, is_citus, is_distributed
from madlib_mop.engines.greenplum import Greenplum, is_greenplum
from madlib_mop.engines.interface import Engine, Session
from madlib_mop.engines.postgres import HOSTS, Postgres


def engine_of(session: Session) -> Engine:
    """Give the engine that packs tables for a call: in a Citus cluster Citus, unless the caller names hosts."""
    if is_greenplum(session):
        return Greenplum()
    if is_citus(session) and not (session.caller_setting(HOSTS) or "").strip():
        return Citus(_catalog_opener(session))
    return Postgres(_catalog_opener(session))


def engine_of_table(session: Session, relation: Relation) -> Engine:
    """Give the engine that has a packed table."""
    if is_greenplum(session):
        return Greenplum()
    if is_distributed(session, relation):
        is_citus(session)  # refuses to drive a run from another node than the coordinator
        return Citus(_catalog_opener(session))
    return Postgres(_catalog_opener(session))


def keeps_order(session: Session, relation: Relation) -> bool:
    """Tell whether two scans of a table give its rows in the same order, as they do where it lies in one place."""
    return not is_greenplum(session) and not is_distributed(session, relation)


def _catalog_opener(session: Session):
    info = session.info

    def open_catalog():
        from madlib_mop.driver.runs import open_record  # it brings all of the hopper along; most calls need none of it

        return open_record(info).raw

    return open_catalog

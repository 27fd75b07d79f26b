"""Which engine a call works on; called by the commands that pack, plan or evaluate."""

from collections.abc import Callable

from psycopg2.extensions import connection

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.engines.base.caller import EngineCaller
from madlib_mop.engines.base.interface import HOSTS, Engine
from madlib_mop.engines.citus import (
    Citus,
    has_citus,
    has_rows_elsewhere,
    is_citus,
    is_distributed,
    is_worker_node,
)
from madlib_mop.engines.cloudberry import Cloudberry
from madlib_mop.engines.greenplum import Greenplum, find_product
from madlib_mop.engines.postgres import Postgres

_CLUSTERS: tuple[type[Greenplum], ...] = (Greenplum, Cloudberry)


def engine_of(session: EngineCaller) -> Engine:
    """Return the engine that packs tables for a call: Citus in a Citus cluster, unless the caller names hosts."""
    if cluster := _cluster(session):
        return cluster
    if is_citus(session) and not (session.caller_setting(HOSTS) or "").strip():
        return Citus(_catalog_opener(session))
    return Postgres(_catalog_opener(session))


def engine_of_table(session: EngineCaller, relation: Relation) -> Engine:
    """Return the engine of a table; for a view or an undistributed table, that of the caller's server."""
    if cluster := _cluster(session):
        return cluster
    if is_distributed(session, relation):
        is_citus(session)  # refuses to drive a run from a node other than the coordinator
        return Citus(_catalog_opener(session))
    return Postgres(_catalog_opener(session))


def has_segments(session: EngineCaller) -> bool:
    """Return whether the rows of tables are at segments of Greenplum or Cloudberry."""
    return _cluster(session) is not None


def keeps_order(session: EngineCaller) -> bool:
    """Return whether the rows of tables are on this server, and all scans of a table return them in the same order."""
    if cluster := _cluster(session):
        return cluster.keeps_order
    return (Citus if has_citus(session) else Postgres).keeps_order


def is_missing_here(session: EngineCaller, relation: Relation | None) -> bool:
    """Return whether a query that Citus evaluates at this node cannot read a relation; False at a coordinator."""
    return is_worker_node(session) and (relation is None or has_rows_elsewhere(session, relation))


def table_form(session: EngineCaller, *columns: str) -> str:
    """Return the clause of CREATE TABLE after the columns: heap, regardless of the default access method.

    Only heap guarantees unique indexes and an ``xmin`` (`engines.base.system_columns`). ``columns``: see
    `distribution`.
    """
    return " USING heap" + distribution(session, *columns)


def identify_rows(session: EngineCaller, table: Relation) -> None:
    """Let rows of a table without a primary key be changed even if a publication includes the table."""
    session.execute(statement("ALTER TABLE {t} REPLICA IDENTITY FULL", t=table))


def distribution(session: EngineCaller, *columns: str) -> str:
    """Return the clause of CREATE TABLE that distributes rows by these columns, or randomly without columns."""
    return engine_of(session).distribution(columns)


def _cluster(session: EngineCaller) -> Engine | None:
    """Return the engine of a server with Greenplum's catalogs; None for other servers."""
    found = find_product(session)
    return None if found is None else next(engine for engine in _CLUSTERS if engine.product == found)()


def _catalog_opener(session: EngineCaller) -> Callable[[], connection]:
    info: SessionInfo = session.info

    def open_catalog() -> connection:
        from madlib_mop.driver.session.opening import open_record  # imports SQLAlchemy, which most calls do not need

        return open_record(info).raw

    return open_catalog

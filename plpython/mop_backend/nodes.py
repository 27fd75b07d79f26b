"""Predictions at a worker node of a Citus cluster; for `predict`, `registered` and the driver.

Citus evaluates a function of a query over distributed tables at the nodes that store the rows. There a prediction finds
a model whose tables are reference tables, which every node has. The registry is only at the coordinator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType

#: How to call a function at the coordinator. A CTE alone is not enough: if all its rows are in one shard or in one
#: distributed schema, Citus sends the whole query to that node, unless it has a table that is only at the coordinator.
AT_COORDINATOR = (
    "To predict at the coordinator: WITH rows AS MATERIALIZED (SELECT ...) SELECT ... FROM rows, pg_dist_local_group;"
)
_HAS_CITUS = "select pg_catalog.to_regclass('pg_catalog.pg_dist_local_group') is not null as yes"
_IS_WORKER = "select g.groupid <> 0 as yes from pg_catalog.pg_dist_local_group g"
# Citus has had the setting since version 11.
_SET = """
select pg_catalog.current_setting(s.name, true) as before,
       case when pg_catalog.current_setting(s.name, true) is not null then pg_catalog.set_config(s.name, $1, true) end
from (values ('citus.allow_nested_distributed_execution')) s (name)
"""

_has_citus: bool | None = None


def at_worker(plpy: ModuleType) -> bool:
    """Return whether this server is a worker node of a Citus cluster."""
    return _in_citus(plpy) and bool(plpy.execute(_IS_WORKER)[0]["yes"])


@contextlib.contextmanager
def reading_model(plpy: ModuleType) -> Iterator[None]:
    """Allow queries of reference tables in a function that Citus evaluates where a shard is.

    Citus refuses queries of all its tables there, because rows of other nodes could be read in another state. The rows
    of a reference table are at this node. At worker nodes, the driver refuses models in other tables.
    """
    if not _in_citus(plpy):
        yield
        return
    before = _allow(plpy, "on")
    try:
        yield
    finally:
        _allow(plpy, before)


def _in_citus(plpy: ModuleType) -> bool:
    """Return whether the extension citus is in this database; found out once a session."""
    global _has_citus
    if _has_citus is None:
        _has_citus = bool(plpy.execute(_HAS_CITUS)[0]["yes"])
    return _has_citus


def _allow(plpy: ModuleType, value: str | None) -> str | None:
    before: str | None = plpy.execute(plpy.prepare(_SET, ["text"]), [value])[0]["before"]
    return before

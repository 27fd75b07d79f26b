"""Check of a Citus cluster: whether each node that holds shards was added as a host; `hosts` checks the hosts."""

from collections.abc import Iterator

from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import Finding, State
from madlib_mop.engines.citus import ADDED, NODES
from madlib_mop.engines.citus_nodes import Added, Node, servers_of
from madlib_mop.errors import NotReady


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield one finding; none without Citus, or without nodes that hold shards."""
    if context.extension_version is None or context.value("SELECT pg_catalog.to_regclass('pg_dist_node')") is None:
        return
    with context.session.cursor() as cursor:
        cursor.execute(NODES)
        nodes = [Node(*row) for row in cursor.fetchall()]
        cursor.execute(ADDED)
        added = [Added(*row) for row in cursor.fetchall()]
    if not nodes:
        return
    try:
        servers_of(nodes, added, context.database)
    except NotReady as error:
        yield Finding("Citus", State.FAIL, error.message, error.hint)
        return
    yield Finding("Citus", State.OK, f"each of the {len(nodes)} nodes that hold shards is a host, or this server")

"""Check of a Citus cluster: whether each node that holds shards was added as a host; `hosts` checks the hosts."""

from collections.abc import Iterator

from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState, Finding
from madlib_mop.engines.citus import ADDED, NODES
from madlib_mop.engines.citus_nodes import Added, Node, servers_of
from madlib_mop.errors import NotReady


def check(context: CheckContext) -> Iterator[Finding]:
    """Yield one finding; none without Citus, or without nodes that hold shards."""
    nodes = _nodes(context)
    if not nodes:
        return
    try:
        servers_of(nodes, _added(context), context.database)
    except NotReady as error:
        yield Finding("Citus", CheckState.FAIL, error.message, error.hint)
        return
    yield Finding("Citus", CheckState.OK, f"each of the {len(nodes)} nodes that hold shards is a host, or this server")


def n_segments(context: CheckContext) -> int | None:
    """Return the segments of a packed table at the other nodes by default; None without Citus, or other nodes that hold
    shards and are hosts."""
    nodes, added = _nodes(context), _added(context)
    try:
        servers = {*servers_of(nodes, added, context.database).values()} - {None}
    except NotReady:
        return None
    return sum(one.n_segments for one in added if one.server in servers) if servers else None


def has_shards_here(context: CheckContext) -> bool:
    """Return whether Citus places shards on this server too."""
    return any(node.is_here for node in _nodes(context))


def _nodes(context: CheckContext) -> list[Node]:
    if context.extension_version is None or context.value("SELECT pg_catalog.to_regclass('pg_dist_node')") is None:
        return []
    with context.session.cursor() as cursor:
        cursor.execute(NODES)
        return [Node(*row) for row in cursor.fetchall()]


def _added(context: CheckContext) -> list[Added]:
    if context.extension_version is None or context.product:
        return []
    with context.session.cursor() as cursor:
        cursor.execute(ADDED)
        return [Added(*row) for row in cursor.fetchall()]

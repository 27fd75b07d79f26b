"""Finds the foreign server of each node of a Citus cluster; called by the engine `citus` and by the doctor.

Pure, but for asking for the addresses of names.
"""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.errors import NotReady

_DEFAULT_PORT = "5432"
_SHOWN = 5


@dataclass(frozen=True)
class Node:
    """A node as pg_dist_node has it; ``is_here`` marks the caller's own server."""

    host: str
    port: int
    is_here: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Added:
    """A foreign server that was added as a host, with its options (None where it has none)."""

    server: str
    host: str | None
    port: str | None
    dbname: str | None
    n_segments: int


Resolve = Callable[[str], frozenset[str]]  # host name -> its addresses


def addresses(host: str) -> frozenset[str]:
    """Return the addresses of a name; none where it has none, or is a socket's directory."""
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return frozenset()


def servers_of(
    nodes: Iterable[Node], added: Sequence[Added], database: str, resolve: Resolve = addresses
) -> Mapping[Node, str | None]:
    """Find each node's foreign server: its host and port are the node's, and its dbname is this database's.

    Parameters
    ----------
    nodes : iterable of Node
    added : sequence of Added
    database : str
        The caller's; a cluster has one of that name at each node.
    resolve : callable
        Returns the addresses of a name, for nodes and servers with different names.

    Returns
    -------
    mapping of Node to (str or None)
        None for the caller's own server.

    Raises
    ------
    NotReady
        If there is none for some of them.
    """
    found: dict[Node, str | None] = {}
    missing = []
    for node in dict.fromkeys(nodes):
        server = None if node.is_here else _server_of(node, added, database, resolve)
        if server is None and not node.is_here:
            missing.append(node)
        found[node] = server
    if missing:
        names = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        first = missing[0]
        raise NotReady(
            f"Citus has or would place shards on nodes that were not added as hosts: {names}",
            hint=f"For each of them, a superuser must run CREATE SERVER ... FOREIGN DATA WRAPPER postgres_fdw OPTIONS"
            f" (host '{first.host}', port '{first.port}', dbname '{database}'); CREATE USER MAPPING ...;"
            " SELECT madlib_mop.add_host('...');",
        )
    return found


def _server_of(node: Node, added: Sequence[Added], database: str, resolve: Resolve) -> str | None:
    near = [
        (one.host, one)
        for one in added
        if one.host and (one.port or _DEFAULT_PORT) == str(node.port) and one.dbname == database
    ]
    for host, one in near:
        if host.lower() == node.host.lower():
            return one.server
    if near:
        own = resolve(node.host)
        for host, one in near:
            if own & resolve(host):
                return one.server
    return None

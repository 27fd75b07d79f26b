"""A database of a Citus cluster: MOP_TEST_CITUS is a superuser's URI, with password, of a coordinator's database.

The database lists the nodes (pg_dist_node). The tests create their own databases on the coordinator and on each node,
where the same login must work. The cluster must have this clone's extension, and run on this machine, because the tests
look for trainers among its processes.
"""

import contextlib
import os
import uuid
from dataclasses import dataclass, field

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from tests.conftest import PASSWORD
from tests.helpers.database import SqlSessions

URI = os.environ.get("MOP_TEST_CITUS")
ANALYST = "mop_citus_analyst"
#: Marks of tests that use the fixture.
NEEDS_CITUS = [pytest.mark.engine, pytest.mark.skipif(not URI, reason="MOP_TEST_CITUS names no coordinator")]
_NODES = "SELECT nodename, nodeport::text FROM pg_dist_node WHERE groupid <> 0 ORDER BY nodename, nodeport"


class Node(SqlSessions):
    """One database of one node, with the calls that `tests.conftest.Database` has."""

    def __init__(self, host: str, port: str, name: str):
        self.host, self.port, self.name = host, port, name

    def dsn(self, role: str | None = None) -> str:
        """Return the DSN: the superuser's, or a role's by the tests' password."""
        parts = {**parse_dsn(URI), "host": self.host, "port": self.port, "dbname": self.name}
        if role is not None:
            parts |= {"user": role, "password": PASSWORD}
        return make_dsn(**parts, options="-c citus.override_table_visibility=off")

    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a psycopg2 connection, as the superuser or as a role."""
        connection = psycopg2.connect(self.dsn(role), connect_timeout=10)
        connection.autocommit = autocommit
        return connection


@dataclass
class CitusCluster:
    """A database of the coordinator, and those of its nodes by the names of their foreign servers."""

    db: Node
    at: dict[str, Node] = field(default_factory=dict)

    @property
    def everywhere(self) -> list[Node]:
        """The databases, the coordinator's first."""
        return [self.db, *self.at.values()]

    def let_in(self, role: str, password: str) -> None:
        """Let the nodes log in to each other as a role."""
        for node in self.everywhere:
            node.rows("INSERT INTO pg_dist_authinfo VALUES (0, %s, %s)", [role, f"password='{password}'"])

    def map_role(self, here: str, there: str, password: str) -> None:
        """Create user mappings of a role for all nodes."""
        for server in self.at:
            self.db.rows(
                f"CREATE USER MAPPING FOR {here} SERVER {server} OPTIONS (user %s, password %s)", [there, password]
            )

    def make_analyst(self) -> None:
        """Create the ordinary role on all nodes, through Citus, with the rights of docs/citus.md."""
        self.db.rows(f"CREATE ROLE {ANALYST} LOGIN PASSWORD '{PASSWORD}'")
        self.let_in(ANALYST, PASSWORD)
        self.db.rows(f"SELECT run_command_on_all_nodes($$SELECT madlib_mop.grant_use('{ANALYST}')$$)")
        self.db.rows(f"CREATE SCHEMA {ANALYST} AUTHORIZATION {ANALYST}")
        for server in self.at:  # Citus accepts one at a time
            self.db.rows(f"GRANT USAGE ON FOREIGN SERVER {server} TO {ANALYST}")
        self.map_role(ANALYST, ANALYST, PASSWORD)


@contextlib.contextmanager
def fresh_cluster():
    """Create a database on the coordinator and on each node, joined by Citus, without our extension."""
    name = f"mop_test_{uuid.uuid4().hex[:8]}"
    parts = parse_dsn(URI)
    asked = Node(parts["host"], parts["port"], parts["dbname"])
    places = [(asked.host, asked.port), *asked.rows(_NODES)]
    cluster = CitusCluster(Node(*places[0], name))
    for number, place in enumerate(places[1:]):
        cluster.at[f"node_{number}"] = Node(*place, name)
    try:
        for node in cluster.everywhere:
            Node(node.host, node.port, "postgres").rows(f"CREATE DATABASE {name}")
            node.rows("CREATE EXTENSION citus")
        cluster.let_in(parts["user"], parts["password"])
        cluster.db.rows("SELECT citus_set_coordinator_host(%s, %s)", [cluster.db.host, int(cluster.db.port)])
        for node in cluster.at.values():
            cluster.db.rows("SELECT citus_add_node(%s, %s)", [node.host, int(node.port)])
        yield cluster
    finally:
        for node in cluster.everywhere:
            server = Node(node.host, node.port, "postgres")
            server.rows(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            server.rows(f"DROP ROLE IF EXISTS {ANALYST}")


@pytest.fixture(scope="module")
def citus():
    """A cluster's fresh database with the extension, whose nodes are hosts; dropped afterwards."""
    with fresh_cluster() as cluster:
        parts = parse_dsn(URI)
        cluster.db.rows("CREATE EXTENSION madlib_mop CASCADE")
        cluster.db.rows("CREATE EXTENSION postgres_fdw")
        for server, node in cluster.at.items():
            options = f"host '{node.host}', port '{node.port}', dbname '{node.name}'"
            cluster.db.rows(f"CREATE SERVER {server} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({options})")
        cluster.map_role("CURRENT_USER", parts["user"], parts["password"])
        for server in cluster.at:
            cluster.db.rows("SELECT madlib_mop.add_host(%s, 2)", [server])
        yield cluster

"""Several clusters on loopback: a coordinator, and hosts with segments; tests/conftest.py has their fixtures.

The hosts' clusters exist for the test session, databases for a module. Roles log in to hosts over 127.0.0.1 with a
password, as over a network.
"""

import contextlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from madlib_mop.engines.hosts.relay import Relay
from tests.conftest import PASSWORD, TEMPLATE, Cluster, Database, run
from tests.helpers.certificates import make_certificate
from tests.helpers.training import script

HOSTS = ("alpha", "beta", "gamma")
BOSS, ANALYST = "boss", "analyst"  # roles on hosts: a superuser, and a role that may use the extension


@dataclass
class Hosts:
    """A database of the coordinator, and one on each host, by the names of their foreign servers.

    Attributes
    ----------
    db : Database
        The coordinator's.
    at : dict of str to Database
    """

    db: Database
    at: dict[str, Database] = field(default_factory=dict)

    def define(self, name: str, at: Database, roles: dict[str, str], **options: str) -> None:
        """Create a foreign server with user mappings: role here -> role there, with the tests' password."""
        options = {"host": "127.0.0.1", "port": str(at.cluster.port), "dbname": at.name, **options}
        listed = ", ".join(f"{key} '{value}'" for key, value in options.items())
        statements = [f"CREATE SERVER {name} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({listed})"]
        for here, there in roles.items():
            statements.append(
                f"CREATE USER MAPPING FOR {here} SERVER {name} OPTIONS (user '{there}', password '{PASSWORD}')"
            )
        script(self.db, *statements)
        self.at[name] = at

    def move(self, name: str) -> None:
        """Update the foreign server with the address of a host that was restarted."""
        self.db.rows(f"ALTER SERVER {name} OPTIONS (SET port '{self.at[name].cluster.port}')")

    def pair(self, name: str, n_segments: int) -> None:
        """Do the same as `add` without its checks, which start a trainer and would slow each module down."""
        key = uuid.uuid4().bytes * 2
        coordinator = uuid.uuid4().hex
        self.at[name].rows("INSERT INTO madlib_mop.coordinator (coordinator, key) VALUES (%s, %s)", [coordinator, key])
        self.db.rows(
            "INSERT INTO madlib_mop.host (server, n_segments, coordinator, key) VALUES (%s, %s, %s, %s)",
            [name, n_segments, coordinator, key],
        )

    def add(self, name: str, n_segments: int | None = None) -> None:
        """Add a server as a host of segments."""
        self.db.rows("SELECT madlib_mop.add_host(%s, %s)", [name, n_segments])

    def log_tails(self) -> str:
        """Return the ends of the hosts' server logs."""
        return "\n".join(f"{name}:\n{at.cluster.log_tail(30)}" for name, at in self.at.items())


def start_cluster(name: str, *settings: str, within: Sequence[str] = (), lets_in: str | None = None) -> Cluster:
    """Start one more cluster of this test session, with the extension in its template database.

    Parameters
    ----------
    name : str
    *settings : str
        Lines of postgresql.conf.
    within : sequence of str
        See `Cluster`.
    lets_in : str, optional
        Addresses besides 127.0.0.1 that may log in by password, as in pg_hba.conf.
    """
    cluster = Cluster(f"test-{os.getpid()}-{name}", "shared_buffers = 32MB", *settings, within=within)
    try:
        cluster.start()
        if lets_in is not None:
            with (cluster.datadir / "pg_hba.conf").open("a") as file:
                file.write(f"host all all {lets_in} scram-sha-256\n")
            run(cluster.connect(), "SELECT pg_reload_conf()")
        run(cluster.connect(), f"CREATE DATABASE {TEMPLATE}")
        run(cluster.connect(TEMPLATE), "CREATE EXTENSION madlib_mop CASCADE")
        for role in (BOSS, ANALYST):
            cluster.create_role(role)
        run(cluster.connect(), f"ALTER ROLE {BOSS} SUPERUSER")
    except BaseException:
        cluster.destroy()
        raise
    return cluster


@contextlib.contextmanager
def serving_tls(cluster: Cluster):
    """Have a cluster accept TLS, with a certificate of its own for 127.0.0.1; yield the certificate's file."""
    files = dict(zip(("cert", "key"), make_certificate(cluster.datadir), strict=True))
    owner = cluster.datadir.stat()
    for name, file in files.items():
        os.chown(file, owner.st_uid, owner.st_gid)
        file.chmod(0o600)
        run(cluster.connect(), f"ALTER SYSTEM SET ssl_{name}_file = '{file}'")
    try:
        run(cluster.connect(), "ALTER SYSTEM SET ssl = on")
        run(cluster.connect(), "SELECT pg_reload_conf()")
        yield files["cert"]
    finally:
        for name in ("ssl", "ssl_cert_file", "ssl_key_file"):
            run(cluster.connect(), f"ALTER SYSTEM RESET {name}")
        run(cluster.connect(), "SELECT pg_reload_conf()")


def new_database(cluster: Cluster, name: str) -> Database:
    """Create a database with the extension, in which the analyst may pack and train."""
    name = f"{name}_{uuid.uuid4().hex[:8]}"
    run(cluster.connect(), f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE} STRATEGY file_copy')
    database = Database(cluster, name)
    cluster.create_role(ANALYST)
    script(database, f"SELECT madlib_mop.grant_use('{ANALYST}')", f"CREATE SCHEMA {ANALYST} AUTHORIZATION {ANALYST}")
    return database


def drop_database(database: Database) -> None:
    """Drop a database despite its sessions; start its cluster if it is not running."""
    database.cluster.drop(database.name)


@contextlib.contextmanager
def joined(coordinator: Cluster, clusters: dict[str, Cluster], ways: dict[str, dict[str, str]] | None = None):
    """Create a database in each cluster, and servers of one segment each that the analyst may use.

    Parameters
    ----------
    coordinator : Cluster
    clusters : dict of str to Cluster
        The hosts'.
    ways : dict of str to dict, optional
        Options of the foreign servers that differ from the usual ones.
    """
    ours = Hosts(new_database(coordinator, "coordinator"))
    superuser = coordinator.superuser
    try:
        script(ours.db, "CREATE EXTENSION postgres_fdw")
        for name, host in clusters.items():
            options = (ways or {}).get(name, {})
            ours.define(name, new_database(host, name), {f'"{superuser}"': BOSS, ANALYST: ANALYST}, **options)
            ours.db.rows(f"GRANT USAGE ON FOREIGN SERVER {name} TO {ANALYST}")
            ours.pair(name, 1)
        yield ours
    finally:
        drop_database(ours.db)
        for at in ours.at.values():
            drop_database(at)


def relay_to(hosts: Hosts, name: str = "alpha", **changes) -> Relay:
    """Return a relay that has logged in at a host."""
    at = hosts.at[name]
    coordinator, key = hosts.db.rows("SELECT coordinator, key FROM madlib_mop.host WHERE server = %s", [name])[0]
    way = {"host": "127.0.0.1", "port": str(at.cluster.port), "dbname": at.name, "user": ANALYST, "password": PASSWORD}
    access = {"needs_password": True, "coordinator": coordinator, "key": bytes(key).hex()}
    relay = Relay()
    relay.do({"op": "connect", "server": name, "run_id": 1, "options": {**way, **changes}, **access}, [])
    return relay

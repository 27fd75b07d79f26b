"""A database of a Greenplum cluster for the tests here: MOP_TEST_GREENPLUM is a superuser's URI of its coordinator.

The cluster must have this clone's extension: ``make install PG_CONFIG=...``. Its segments and we must be on one
machine, for the tests look for trainers among its processes.
"""

import contextlib
import os
import uuid

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from tests.helpers.database import SqlSessions

URI = os.environ.get("MOP_TEST_GREENPLUM")
PASSWORD = "a password for tests"


def pytest_collection_modifyitems(items):
    """Skip what is here where there is no Greenplum."""
    for item in items:
        if "greenplum" in item.fixturenames:
            item.add_marker(pytest.mark.engine)
            if not URI:
                item.add_marker(pytest.mark.skip(reason="MOP_TEST_GREENPLUM names no coordinator"))


class Coordinator(SqlSessions):
    """One database of the cluster, with the calls that `tests.conftest.Database` has."""

    def __init__(self, name: str):
        self.name = name
        self._roles: set[str] = set()

    def dsn(self, role: str | None = None) -> str:
        """Return the DSN: the superuser's, or a role's over 127.0.0.1."""
        parts = {**parse_dsn(URI), "dbname": self.name}
        if role is not None:
            parts |= {"user": role, "password": PASSWORD, "host": "127.0.0.1"}
        return make_dsn(**parts)

    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a session, as the superuser or as a role that is made when there is none."""
        if role is not None and role not in self._roles:
            self.rows(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
            self._roles.add(role)
        connection = psycopg2.connect(self.dsn(role), connect_timeout=10)
        connection.autocommit = autocommit
        return connection

    def drop(self) -> None:
        """Drop the database and the roles."""
        ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        postgres = Coordinator("postgres")
        while postgres.rows(ours, [self.name]):
            pass
        postgres.rows(f"DROP DATABASE {self.name}")
        for role in self._roles:
            postgres.rows(f"DROP ROLE {role}")


@contextlib.contextmanager
def database(*settings: str):
    """Make a database with the extension, and with settings of its own; drop it afterwards."""
    coordinator = Coordinator(f"mop_test_{uuid.uuid4().hex[:8]}")
    postgres = Coordinator("postgres")
    postgres.rows(f"CREATE DATABASE {coordinator.name}")
    try:
        for setting in settings:
            postgres.rows(f"ALTER DATABASE {coordinator.name} SET {setting}")
        coordinator.rows("CREATE EXTENSION madlib_mop CASCADE")
        yield coordinator
    finally:
        coordinator.drop()


@pytest.fixture(scope="module")
def greenplum():
    """A fresh database with the extension, dropped afterwards."""
    with database() as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def greenplum_with(greenplum):
    """What makes a database with settings of its own, as a context."""
    return database

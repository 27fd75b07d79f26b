"""A database of each cluster for the tests here; variables contain the superuser's URI of each coordinator.

A cluster must have this clone's extension: ``make install PG_CONFIG=...``. Its segments must be on this machine: the
tests look for trainers among its processes.
"""

import contextlib
import functools
import os
import uuid

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from madlib_mop.engines.greenplum import CLOUDBERRY, GREENPLUM, Product
from tests.helpers.database import SqlSessions
from tests.helpers.training import one_thread

#: The matrix: the tests of this folder run on each server whose variable is set.
MATRIX = {
    GREENPLUM: "MOP_TEST_GREENPLUM",
    CLOUDBERRY: "MOP_TEST_CLOUDBERRY",
}
PASSWORD = "a password for tests"


def pytest_collection_modifyitems(items):
    """Mark the tests that use a cluster, and skip those without a cluster; pytest calls this for all folders."""
    for item in items:
        if {"greenplum", "greenplum_with"} & set(item.fixturenames):
            item.add_marker(pytest.mark.engine)
            variable = MATRIX[item.callspec.params["product"]]
            if not os.environ.get(variable):
                item.add_marker(pytest.mark.skip(reason=f"{variable} names no coordinator"))


class Coordinator(SqlSessions):
    """One database of a product's cluster, with the calls that `tests.conftest.Database` has."""

    def __init__(self, product: Product, name: str):
        self.product = product
        self.name = name
        self._roles: set[str] = set()

    def dsn(self, role: str | None = None) -> str:
        """Return the DSN: the superuser's, or a role's over 127.0.0.1."""
        parts = {**parse_dsn(os.environ[MATRIX[self.product]]), "dbname": self.name}
        if role is not None:
            parts |= {"user": role, "password": PASSWORD, "host": "127.0.0.1"}
        return make_dsn(**parts)

    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a session, as the superuser or as a role, which is created if it does not exist."""
        if role is not None and role not in self._roles:
            self.rows(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
            self._roles.add(role)
        connection = psycopg2.connect(self.dsn(role), connect_timeout=10)
        connection.autocommit = autocommit
        return connection

    def drop(self) -> None:
        """Drop the database and the roles."""
        ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        postgres = Coordinator(self.product, "postgres")
        while postgres.rows(ours, [self.name]):
            pass
        postgres.rows(f"DROP DATABASE {self.name}")
        for role in self._roles:
            postgres.rows(f"DROP ROLE {role}")


@contextlib.contextmanager
def database(product: Product, *settings: str):
    """Create a database with the extension and its own settings; drop it afterwards."""
    one_thread()  # a test here may use Keras before one that compares bits
    coordinator = Coordinator(product, f"mop_test_{uuid.uuid4().hex[:8]}")
    postgres = Coordinator(product, "postgres")
    postgres.rows(f"CREATE DATABASE {coordinator.name}")
    try:
        for setting in settings:
            postgres.rows(f"ALTER DATABASE {coordinator.name} SET {setting}")
        coordinator.rows("CREATE EXTENSION madlib_mop CASCADE")
        yield coordinator
    finally:
        coordinator.drop()


@pytest.fixture(scope="module", params=MATRIX, ids=lambda product: product.name)
def product(request) -> Product:
    """Return the product whose cluster is tested."""
    return request.param


@pytest.fixture(scope="module")
def greenplum(product):
    """A new database with the extension, dropped afterwards."""
    with database(product) as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def greenplum_with(product):
    """A context manager for a database with its own settings."""
    return functools.partial(database, product)

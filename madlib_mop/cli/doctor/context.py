"""The server under examination: one connection, and the facts that several checks need."""

import json
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from typing import Any

import psycopg2
from mop_backend.frames import Header, Json
from psycopg2.extensions import connection

from madlib_mop.catalog.rows.base import one_row
from madlib_mop.engines.greenplum import PRODUCT, Product, product_of
from madlib_mop.errors import read_server_error


class CheckContext:
    """A server and one of its databases.

    Parameters
    ----------
    session : psycopg2 connection
        In autocommit; most checks need a superuser.
    """

    def __init__(self, session: connection):
        self.session = session

    def row(self, query: str, parameters: Sequence[Any] | None = None) -> tuple[Any, ...] | None:
        """Run one statement and return its first row."""
        with self.session.cursor() as cursor:
            cursor.execute(query, parameters)
            return cursor.fetchone() if cursor.description else None

    def value(self, query: str, parameters: Sequence[Any] | None = None) -> Any:
        """Run one statement and return the first value of its first row; None without a row."""
        row = self.row(query, parameters)
        return row[0] if row else None

    def setting(self, name: str) -> str | None:
        """Return a setting of the server; None if it does not exist."""
        value: str | None = self.value("SELECT pg_catalog.current_setting(%s, true)", [name])
        return value

    def number(self, name: str) -> int:
        """Return a setting that every server has, as a whole number."""
        return int(self.value("SELECT pg_catalog.current_setting(%s)", [name]))

    @cached_property
    def database(self) -> str:
        """The database's name."""
        return self.session.info.dbname

    @cached_property
    def role(self) -> str:
        """The role that the doctor logged in as."""
        return self.session.info.user

    @cached_property
    def is_superuser(self) -> bool:
        """Whether that role is a superuser."""
        return self.session.info.parameter_status("is_superuser") == "on"

    @cached_property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        host = self.session.info.host or "/"
        return host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")

    @cached_property
    def major(self) -> int:
        """The server's major version."""
        return self.session.server_version // 10000

    @cached_property
    def product(self) -> Product | None:
        """Which product with Greenplum's catalogs it is the coordinator of; None where it is PostgreSQL."""
        row = self.row(PRODUCT)
        return product_of(*row) if row else None

    @cached_property
    def extension_version(self) -> str | None:
        """Version of the extension installed in this database; None if it is not installed."""
        query = "SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'madlib_mop'"
        version: str | None = self.value(query)
        return version

    @cached_property
    def probe(self) -> "Probe":
        """Facts that the server's own operating system user can see; queried once, and only as a superuser."""
        if not self.is_superuser:
            return Probe(refusal=f"role {self.role} is not a superuser")
        try:
            with self.session.cursor() as cursor:
                cursor.execute(resources.files(__package__).joinpath("probe.sql").read_text())
                cursor.execute("SELECT pg_catalog.current_setting('madlib_mop.doctor')")
                return Probe(facts=json.loads(one_row(cursor)[0]))
        except psycopg2.Error as error:
            return Probe(error=message_of(error))


def message_of(error: psycopg2.Error) -> str:
    """Return the message of an error, without its detail and context."""
    return read_server_error(error).message.strip()


class Probe:
    """Facts gathered inside the server; ``refusal`` or ``error`` is the reason if there are none."""

    def __init__(self, facts: Header | None = None, refusal: str | None = None, error: str | None = None):
        self.facts = facts or {}
        self.refusal = refusal
        self.error = error

    def get(self, name: str) -> Json:
        """Return one fact, or None."""
        return self.facts.get(name)

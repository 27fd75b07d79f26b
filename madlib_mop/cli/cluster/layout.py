"""What a Greenplum or Cloudberry cluster is to an installation: its hosts, and where things lie, the same on each."""

import fcntl
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg2.extensions import connection as Connection

from madlib_mop import __version__
from madlib_mop.cli.cluster.remote import Host, is_this_machine
from madlib_mop.engines.greenplum import PRODUCT, Product, product_of
from madlib_mop.errors import InsufficientPrivilege, NotReady, Unsupported

_HOSTS = """
SELECT hostname::pg_catalog.text, pg_catalog.min(content) < 0,
       pg_catalog.array_agg(content::pg_catalog.int4 ORDER BY content) FILTER (WHERE role = 'p' AND content >= 0)
FROM pg_catalog.gp_segment_configuration GROUP BY 1 ORDER BY pg_catalog.min(content), 1
"""
_HERE = "SELECT hostname::pg_catalog.text FROM pg_catalog.gp_segment_configuration WHERE content = -1 AND role = 'p'"
_PATHS = "SELECT name, setting FROM pg_catalog.pg_config WHERE name IN ('BINDIR', 'PKGLIBDIR', 'SHAREDIR')"
_WORKERS = "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE application_name LIKE 'madlib_mop writer%'"
_DATA = "SELECT pg_catalog.current_setting('data_directory')"
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")  # no name that ssh would read as an option


@dataclass(frozen=True)
class Layout:
    """Paths that are the same at all hosts.

    Attributes
    ----------
    product : Product
        What the cluster is of.
    bin : str
        Of its programs.
    library : str
        Directory of the library, with ``venv`` and ``backend``.
    extension : str
        Directory of the extensions' control files and SQL.
    python : str
        The base interpreter of the library's virtual environment; each host has its own.
    """

    product: Product
    bin: str
    library: str
    extension: str
    python: str


@dataclass(frozen=True)
class Cluster:
    """A cluster to install on: its hosts and the target paths."""

    hosts: tuple[Host, ...]
    layout: Layout


def read_cluster(session: Connection) -> Cluster:
    """Read the hosts and paths from the coordinator, and check the running library against them.

    Raises
    ------
    Unsupported
        If the server has no segments.
    InsufficientPrivilege
        If the role is not a superuser, or this process does not run as the operating system user that owns the cluster.
    NotReady
        If this is not the coordinator's host, or this library is not the server's.
    """
    product = product_of(*_rows(session, PRODUCT)[0])
    if product is None:
        raise Unsupported(
            "the server is no Greenplum or Cloudberry",
            hint="One PostgreSQL server is installed on by make install PG_CONFIG=...",
        )
    if session.info.parameter_status("is_superuser") != "on":
        raise InsufficientPrivilege(f"role {session.info.user} is not a superuser of the cluster")
    host = session.info.host or "/"
    if not (host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")):
        raise NotReady(
            f"the coordinator is at {host}", hint="Run this command there: its library is copied to the other hosts."
        )
    _check_owner(_value(session, _DATA))
    paths = dict(_rows(session, _PATHS))
    library = Path(sys.prefix).parent
    expected = Path(paths["PKGLIBDIR"], "madlib_mop")
    if library.resolve() != expected.resolve():
        raise NotReady(
            f"this is the library in {library}, but the cluster's library must be in {expected}",
            hint=f"On this host: make install PG_CONFIG={paths['BINDIR']}/pg_config; then run"
            f" {expected}/venv/bin/madlib-mop install --{product.name}",
        )
    extension = Path(paths["SHAREDIR"], "extension")
    if not (extension / f"madlib_mop--{__version__}.sql").exists():
        raise NotReady(
            f"{extension} has no madlib_mop--{__version__}.sql",
            hint=f"On this host: make install PG_CONFIG={paths['BINDIR']}/pg_config",
        )
    # The virtual environment links to this path, which each host resolves to its own Python.
    python: str = sys._base_executable  # type: ignore[attr-defined] # CPython has it, typeshed does not
    return Cluster(_hosts(session), Layout(product, paths["BINDIR"], str(expected), str(extension), python))


@contextmanager
def claim(session: Connection) -> Iterator[None]:
    """Exclude other installations and check that no run is in progress, because its trainers would lose their files.

    The lock is on the coordinator's data directory, which only the cluster's operating system user can open; any
    role could take an advisory lock of the server.

    Raises
    ------
    NotReady
        If another installation or a run is in progress.
    """
    directory = os.open(_value(session, _DATA), os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotReady("another installation on this cluster is in progress", hint="Wait until it ends.") from None
        if n_workers := _value(session, _WORKERS):
            raise NotReady(
                f"runs are in progress ({n_workers} workers), and their trainers use the library",
                hint="Wait until they end, or cancel them (madlib-mop cancel) and resume them afterwards.",
            )
        yield
    finally:
        os.close(directory)


def _check_owner(data_directory: str) -> None:
    try:
        is_owner = os.stat(data_directory).st_uid == os.geteuid()
    except OSError:
        is_owner = False
    if not is_owner:
        raise InsufficientPrivilege(
            "run this command as the operating system user that owns the cluster",
            hint="For instance: sudo -u gpadmin -i. That user can log in to all hosts without a password.",
        )


def _hosts(session: Connection) -> tuple[Host, ...]:
    here = _value(session, _HERE)
    hosts = []
    for name, _, segments in _rows(session, _HOSTS):
        if not _HOST_NAME.fullmatch(name):
            raise NotReady(f"gp_segment_configuration has a host with an unusable name. Received: {name!r}")
        hosts.append(Host(name, tuple(segments or ()), name == here or is_this_machine(name)))
    return tuple(hosts)


def _rows(session: Connection, query: str) -> list[tuple[Any, ...]]:
    with session.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def _value(session: Connection, query: str) -> Any:
    return _rows(session, query)[0][0]

"""Fixtures for all tests: a private cluster of the test session, and a new database for each module.

Unit tests use neither and need no server. ``make/cluster.sh`` creates the cluster with the name ``test-<pid>``
(others of the session: ``test-<pid>-<name>``). It is removed at the end; the next session removes the clusters of a
killed one. They are in memory if it is large enough. With pytest-xdist, each process has a cluster of its own.

The environment variable ``MOP_TEST_BACKEND`` names another backend of Keras than TensorFlow: then it is the default of
the clusters' trainers, and plain Keras in the tests' process has it too. Tests marked ``tensorflow`` are skipped, and
on PyTorch those marked ``fused``.
"""

import fcntl
import functools
import gc
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg2
import pytest
from hypothesis import settings
from mop_backend.keras_backends import FACTS, BackendName
from mop_backend.machine import available_bytes
from psycopg2 import sql

from madlib_mop.trainer.backends import choice
from tests.helpers.database import OneSession, SqlSessions
from tests.helpers.training import one_thread, quiet_keras

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = "madlib_mop_template"
PASSWORD = "a password for tests"
# What the clusters of a session may need. On disks, creating and dropping the databases of modules takes far longer.
MEMORY_OF_CLUSTERS = 8 << 30
BACKEND = BackendName(os.environ.get("MOP_TEST_BACKEND", choice.DEFAULT))
#: Files that one process of pytest-xdist runs: the clusters of hosts are started once, the library is parsed once.
TOGETHER = {
    "hosts": ("tests/engines/test_hosts.py", "tests/hosts/"),
    "sources": (
        "tests/unit/driver/test_records.py", "tests/unit/engines/test_engines.py", "tests/unit/test_imports.py",
        "tests/unit/test_references.py", "tests/unit/test_texts.py",
    ),
}  # fmt: skip
if BACKEND != choice.DEFAULT:
    os.environ.update(choice.environment_of(BACKEND))  # before a test imports Keras

# the duration of an example depends on the other load of the machine
settings.register_profile("madlib_mop", deadline=None)
settings.load_profile("madlib_mop")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave the tests, and what they import, to no collection of garbage: to look at it all takes two seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config, items):
    """Mark all cases but one as slow where a test is marked ``one_case``; skip what another backend does not do."""
    # The order of all processes is the same. The short files of units come last, so that none is alone for long.
    items.sort(key=lambda item: ("unit" in item.path.parts, item.path.parts))
    seen = set()
    for item in items:
        is_other = BACKEND != BackendName.TENSORFLOW and item.get_closest_marker("tensorflow")
        if is_other or (not FACTS[BACKEND].trains_together and item.get_closest_marker("fused")):
            item.add_marker(pytest.mark.skip(reason=f"not on {BACKEND}"))
        if item.get_closest_marker("one_case") and not item.get_closest_marker("slow"):
            name = item.nodeid.partition("[")[0]
            if name in seen:
                item.add_marker("slow")
            seen.add(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test that is marked ``alone`` while the other processes of pytest-xdist run none.

    Each test holds the lock ``room``, shared or exclusively. A second lock, ``door``, keeps the order of waiting tests.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with open(ROOT / "pyproject.toml") as door, open(ROOT / "Makefile") as room:  # any two files serve as locks
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Have one process of pytest-xdist run the files of a group (`TOGETHER`)."""
    from xdist.scheduler import LoadFileScheduling

    class GroupsTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((group for group, files in TOGETHER.items() if file.startswith(files)), file)

    return GroupsTogether(config, log) if config.getoption("dist") == "loadfile" else None


@functools.cache
def fits_into_memory() -> bool:
    """Return whether this machine has so much memory that the clusters can be in it."""
    folder = Path("/dev/shm")
    return (
        folder.is_dir()
        and shutil.disk_usage(folder).free >= MEMORY_OF_CLUSTERS
        and (available_bytes() or 0) >= 3 * MEMORY_OF_CLUSTERS // 2
    )


class Cluster:
    """A running PostgreSQL cluster, with methods to stop it, start it and log in to it.

    ``within`` is a prefix of the command that starts it, such as that of tests/helpers/network.py.
    """

    def __init__(self, name: str, *settings: str, within: Sequence[str] = ()):
        self.name = name
        self._within = within
        of_all = ["fsync = off", "jit = off"]  # to compile takes more than a second where rows are estimated too high
        of_all += [] if BACKEND == choice.DEFAULT else [f"madlib_mop.backend = '{BACKEND}'"]
        self._settings = [word for setting in (*of_all, *settings) for word in ("--set", setting)]
        self._settings += ["--in-memory"] if fits_into_memory() else []
        self._roles: set[str] = set()
        self._answers: dict[tuple[str, ...], str] = {}
        self._starting = threading.RLock()

    def control(self, *arguments: str) -> str:
        """Run ``make/cluster.sh`` on this cluster and return its output."""
        command = [*self._within, ROOT / "make" / "cluster.sh", "--name", self.name, *self._settings, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"cluster.sh {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def tell(self, *arguments: str) -> str:
        """Return a value of ``make/cluster.sh`` that only a start can change; cached, because the call takes 0.1 s.

        It waits until a start in another thread has ended: that may change the port.
        """
        with self._starting:
            if arguments not in self._answers:
                self._answers[arguments] = self.control(*arguments)
            return self._answers[arguments]

    def start(self) -> None:
        """Start the cluster and wait until it answers."""
        self._start("start")

    def stop(self) -> None:
        """Stop it and end its sessions."""
        self.control("stop")

    def stop_immediate(self) -> None:
        """Stop it as a power failure does; ``start()`` then recovers it."""
        self.control("kill")

    def restart(self) -> None:
        """Stop and start it."""
        self._start("restart")

    def _start(self, command: str) -> None:
        with self._starting:
            self.control(command)
            self._answers.clear()

    def destroy(self) -> None:
        """Stop it and remove it."""
        self.control("destroy")

    def drop(self, database: str) -> None:
        """Drop a database despite its sessions; start the cluster if a test has left it stopped."""
        try:
            self._drop(database)
        except psycopg2.OperationalError:
            self.start()
            self._drop(database)

    def _drop(self, database: str) -> None:
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            until = time.monotonic() + 0.1
            while time.monotonic() < until:  # DROP itself would look again only after 0.1 s
                cursor.execute(end, [database])
                time.sleep(0.003)  # also after the last one, which leaves the view a moment before it is gone
                if cursor.rowcount == 0:
                    break
            cursor.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    def log_tail(self, n_lines: int = 50) -> str:
        """Return the end of the server's log."""
        return "\n".join(Path(self.tell("logfile")).read_text(errors="replace").splitlines()[-n_lines:])

    @property
    def datadir(self) -> Path:
        """The data directory."""
        return Path(self.tell("datadir"))

    @property
    def bindir(self) -> Path:
        """The directory of this server's programs, such as psql and pg_dump."""
        return Path(self.tell("bindir"))

    @property
    def server_pid(self) -> int:
        """The server's first process."""
        return int((self.datadir / "postmaster.pid").read_text().splitlines()[0])

    @property
    def superuser(self) -> str:
        """The superuser, and the operating system user that the server runs as."""
        return self.tell("owner")

    @property
    def port(self) -> int:
        """The port, also of 127.0.0.1."""
        return int(self.tell("port"))

    @property
    def dsn(self) -> str:
        """The superuser's URI for database ``postgres``."""
        return self.tell("dsn", "postgres")

    def dsn_for(self, dbname: str, role: str | None = None) -> str:
        """Return the URI for a database: the superuser's by the socket, or a role's by password over 127.0.0.1."""
        if role is None:
            return self.dsn.replace("@/postgres?", f"@/{quote(dbname, safe='')}?")
        return f"postgresql://{quote(role)}:{quote(PASSWORD)}@127.0.0.1:{self.port}/{quote(dbname)}"

    def connect(self, dbname: str = "postgres", role: str | None = None, autocommit: bool = True):
        """Open a psycopg2 connection, as the superuser or as a login role, which is created if it does not exist."""
        if role is not None:
            self.create_role(role)
        connection = psycopg2.connect(self.dsn_for(dbname, role), connect_timeout=10)
        connection.autocommit = autocommit
        return connection

    def create_role(self, role: str) -> str:
        """Create a login role with the tests' password, unless this session has created it; return its name."""
        if role not in self._roles:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
                if cursor.fetchone() is None:
                    statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                    cursor.execute(statement.format(sql.Identifier(role), sql.Literal(PASSWORD)))
            connection.close()
            self._roles.add(role)
        return role


class Database(SqlSessions):
    """One database of the cluster, with the extension in it."""

    def __init__(self, cluster: Cluster, name: str):
        self.cluster = cluster
        self.name = name

    @property
    def dsn(self) -> str:
        """The superuser's URI."""
        return self.cluster.dsn_for(self.name)

    def dsn_of(self, role: str) -> str:
        """Return a role's URI, by password over 127.0.0.1."""
        return self.cluster.dsn_for(self.name, role)

    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a psycopg2 connection; see ``Cluster.connect``."""
        return self.cluster.connect(self.name, role, autocommit)


@pytest.fixture(scope="session", autouse=True)
def bundled_figures():
    """Reports of this process have the JavaScript that `make setup` has bundled: that takes more than a second."""
    bundled = Path(sysconfig.get_path("purelib"), "madlib_mop", "reports", "vega.js")
    if (assets := sys.modules.get("madlib_mop.reports.assets")) is not None and bundled.exists():
        assets._BUNDLED = bundled


@pytest.fixture(scope="session")
def state() -> Path:
    """The state directory after set-up: ``library/``, the PostgreSQL tree and the extension's files."""
    setup = subprocess.run([ROOT / "make" / "setup.sh", "test"], stderr=subprocess.PIPE, text=True)
    if setup.returncode:
        pytest.fail(f"make setup: {setup.stderr}", pytrace=False)
    ask = ["bash", "-c", '. "$0" && echo "$STATE"', ROOT / "make" / "common.sh"]
    return Path(subprocess.run(ask, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


@pytest.fixture(scope="session")
def cluster(state):
    """A running cluster of this test session, with the extension in a template database."""
    for directory in state.glob("clusters/test-*"):  # clusters of sessions that have ended
        if not Path("/proc", directory.name.split("-")[1]).exists():
            Cluster(directory.name).destroy()
    cluster = Cluster(f"test-{os.getpid()}")
    try:
        cluster.start()
        run(cluster.connect(), f"CREATE DATABASE {TEMPLATE}")
        for statement in made_by():
            run(cluster.connect(TEMPLATE), statement)
        yield cluster
    finally:
        cluster.destroy()


def made_by() -> list[str]:
    """Return the statements that create the extension; MOP_TEST_UPDATED_FROM may name a released version to update."""
    released = os.environ.get("MOP_TEST_UPDATED_FROM")
    if released is None:
        return ["CREATE EXTENSION madlib_mop CASCADE"]
    return [f"CREATE EXTENSION madlib_mop VERSION '{released}' CASCADE", "ALTER EXTENSION madlib_mop UPDATE"]


def run(connection, statement: str) -> None:
    """Run one statement and close the connection."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


@contextmanager
def new_database(cluster: Cluster, name: str, template: str = TEMPLATE):
    """Return a new database that is a copy of another one; it is dropped in the end."""
    name = f"{name[:40]}_{uuid.uuid4().hex[:8]}"
    # copies of files take half the time of a copy by WAL
    run(cluster.connect(), f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
    yield Database(cluster, name)
    cluster.drop(name)


def name_of(module) -> str:
    """Return the name of a module of tests in names of its databases."""
    return re.sub(r"\W", "_", module.__name__.rpartition(".")[2])


@pytest.fixture(scope="module")
def db(cluster, request):
    """A new database with the extension, for one module of tests; dropped after it."""
    with new_database(cluster, name_of(request.module)) as db, in_one_session(db, request) as sessions:
        yield sessions


@contextmanager
def in_one_session(db: Database, request):
    """Yield a database; its statements share a session if the module is marked so."""
    if request.node.get_closest_marker("one_session") is None:
        yield db
        return
    with closing(OneSession(db)) as in_one:
        yield in_one


@pytest.fixture(scope="session")
def trained_churn(cluster):
    """The name of a database in which `train_churn` was called, and what that has returned."""
    from tests.helpers.columns import train_churn

    with new_database(cluster, "trained_churn") as db:
        found = train_churn(db, 8)
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        with closing(cluster.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(ended, [db.name])
        yield db.name, found


@pytest.fixture(scope="module")
def churn_db(cluster, request, trained_churn):
    """A new database with the customers and their model ``churn``, for one module; ``run`` is what `fit` returned."""
    name, found = trained_churn
    with new_database(cluster, name_of(request.module), name) as db, in_one_session(db, request) as sessions:
        sessions.run = found
        yield sessions


@pytest.fixture(scope="session")
def host_clusters(cluster):
    """The clusters of alpha, beta and gamma."""
    from tests.helpers.hosts import HOSTS, start_cluster

    clusters = {}

    def start(name: str) -> None:
        clusters[name] = start_cluster(name)

    try:
        with ThreadPoolExecutor(len(HOSTS)) as threads:
            for started in [threads.submit(start, name) for name in HOSTS]:
                started.result()
        yield {name: clusters[name] for name in HOSTS}  # in this order, whichever was first
    finally:
        for host in clusters.values():
            host.destroy()


@pytest.fixture(scope="module")
def hosts(cluster, host_clusters):
    """A coordinator with three servers of one segment each, which the analyst may use."""
    from tests.helpers.hosts import joined

    with joined(cluster, host_clusters) as ours:
        yield ours


@pytest.fixture(scope="session")
def keras():
    """Keras with one thread, as in trainers: after TensorFlow has used more, no later test can reduce the number."""
    one_thread()
    return quiet_keras()

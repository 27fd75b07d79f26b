"""A pgbouncer of the tests' own, in transaction mode: each transaction of a client goes to any free server session."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg2
import pytest

from tests.conftest import PASSWORD
from tests.helpers.faults import wait_for

PROGRAM = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
#: Marks of tests that use it.
NEEDS_PGBOUNCER = [pytest.mark.engine, pytest.mark.skipif(not PROGRAM, reason="package pgbouncer is not installed")]
_CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {size}
logfile = {folder}/log
ignore_startup_parameters = extra_float_digits{ignored}
"""


class Pooler:
    """A running pgbouncer for some roles of a cluster; the context manager ends it."""

    def __init__(self, cluster, roles, size: int, ignored: str = ""):
        self._folder = tempfile.TemporaryDirectory(prefix="mop_pgbouncer_")
        folder = Path(self._folder.name)
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            self.port = chosen.getsockname()[1]
        text = _CONFIGURATION.format(
            server_port=cluster.port, port=self.port, folder=folder, size=size, ignored=ignored
        )
        (folder / "pgbouncer.ini").write_text(text)
        (folder / "users").write_text("".join(f'"{role}" "{PASSWORD}"\n' for role in roles))
        command = [PROGRAM, "--quiet", str(folder / "pgbouncer.ini")]
        if os.geteuid() == 0:  # pgbouncer does not run as root
            owner = pwd.getpwnam(cluster.superuser)
            for path in (folder, *folder.iterdir()):
                os.chown(path, owner.pw_uid, owner.pw_gid)
            command[1:1] = ["--user", cluster.superuser]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def __enter__(self):
        wait_for(self._answers, what="pgbouncer")
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        self._folder.cleanup()

    def dsn(self, dbname: str, role: str) -> str:
        """Return a role's DSN for a database."""
        return psycopg2.extensions.make_dsn(
            host="127.0.0.1", port=self.port, dbname=dbname, user=role, password=PASSWORD
        )

    def _answers(self) -> bool:
        assert self._process.poll() is None, "pgbouncer has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

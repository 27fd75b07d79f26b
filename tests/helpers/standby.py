"""A streaming replica of the tests' cluster."""

import os
import shutil
import socket
import subprocess

import psycopg2

from tests.helpers.faults import wait_for
from tests.helpers.inference import User


class Standby:
    """A streaming replica of the tests' cluster, in a neighbouring directory, with its own port and the same socket
    directory."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.folder = cluster.datadir.parent / "standby"
        self.log = self.folder / "standby.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.sockets = cluster.dsn.partition("host=")[2].partition("&")[0].replace("%2F", "/")

    def start(self) -> None:
        """Create a base backup of the primary and start it."""
        cluster = self._cluster
        self.folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(self.folder, cluster.superuser)
        with open(cluster.datadir / "pg_hba.conf", "a") as rules:
            rules.write("local replication all peer map=owner\n")
        self._run("pg_ctl", "-D", cluster.datadir, "reload")
        where = f"host={self.sockets} port={cluster.port} user={cluster.superuser}"
        self._run("pg_basebackup", "-D", self.folder, "-d", where, "-R", "-X", "stream", "-c", "fast")
        # Other tests leave a tablespace within the cluster's directory, with which recovery otherwise ends.
        address = f"port = {self.port}\nunix_socket_directories = '{self.sockets}'\nallow_in_place_tablespaces = on\n"
        (self.folder / "address.conf").write_text(address)
        self._run("pg_ctl", "-D", self.folder, "-l", self.log, "-w", "-t", "60", "-s", "start")

    def promote(self) -> None:
        """Make it a server of its own."""
        self._run("pg_ctl", "-D", self.folder, "-w", "-t", "60", "-s", "promote")

    def stop(self) -> None:
        """Stop it and remove it."""
        self._run("pg_ctl", "-D", self.folder, "-m", "immediate", "-w", "stop", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, dbname: str, role: str | None = None):
        """Log in as a role of the primary, by password, or as its superuser."""
        connection = psycopg2.connect(self._cluster.dsn_for(dbname, role), port=self.port)
        connection.autocommit = True
        return connection

    def _run(self, program, *arguments, check=True):
        prefix = ["runuser", "-u", self._cluster.superuser, "--"] if os.geteuid() == 0 else []
        command = [*prefix, self._cluster.bindir / program, *arguments]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        log = self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
        assert done.returncode == 0 or not check, done.stderr + log


def replayed(primary: User, reader: User) -> None:
    """Wait until the standby has replayed what the primary has committed."""
    place = primary.value("SELECT pg_current_wal_lsn()::text")
    query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
    wait_for(lambda: reader.value(query, place), what="the standby")

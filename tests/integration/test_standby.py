"""madlib_mop.predict on a real standby: no writes, and new models of the primary are used as soon as replayed."""

import os
import shutil
import socket
import subprocess
import threading

import numpy as np
import pytest

from tests.helpers.faults import wait_for
from tests.helpers.inference import User, weights_of

pytestmark = pytest.mark.slow
#: Returns how often it has predicted the same in one statement of the client.
UNTIL_OTHER = """
CREATE FUNCTION until_other() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    n integer := 0;
    before real[] := (SELECT madlib_mop.predict('kept@champion', NULL, ARRAY[0.5, -1, 2]));
BEGIN
    WHILE (SELECT madlib_mop.predict('kept@champion', NULL, ARRAY[0.5, -1, 2])) = before AND n < 1000 LOOP
        n := n + 1;
        PERFORM pg_sleep(0.02);
    END LOOP;
    RETURN n;
END $$;
"""


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

    def stop(self) -> None:
        """Stop it and remove it."""
        self._run("pg_ctl", "-D", self.folder, "-m", "immediate", "-w", "stop", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, dbname: str, role: str):
        """Log in as a role of the primary, by password."""
        import psycopg2

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


def test_predictions_on_a_standby(db, keras):
    layers = keras.layers
    nets = [keras.Sequential([keras.Input((3,)), layers.Dense(2, "softmax")]) for _ in range(2)]
    x = np.array([[0.5, -1, 2]], np.float32)
    primary = User(db.connect())
    primary.write_models("models", {1: nets[0]})
    db.connect("analyst").close()
    primary.rows("SELECT madlib_mop.grant_use('analyst');"
                 " GRANT SELECT ON models, models_info, models_summary TO analyst")  # fmt: skip
    primary.rows("SELECT madlib_mop.register('kept', 'models'); SELECT madlib_mop.register('kept', 'models');"
                 " SELECT madlib_mop.set_alias('kept', 'champion', 1);"
                 " SELECT madlib_mop.set_challenger('kept', 'champion', 2, 1);"
                 " SELECT madlib_mop.grant_model('kept', 'analyst', 'predict')")  # fmt: skip
    standby = Standby(db.cluster)
    call = "SELECT madlib_mop.predict('models', 1, ARRAY[0.5, -1, 2])"
    try:
        standby.start()
        reader = User(standby.connect(db.name, "analyst"))
        assert reader.value("SELECT pg_is_in_recovery()")
        assert np.allclose(reader.value(call), nets[0].predict(x, verbose=0)[0], atol=1e-6)
        registered = call.replace("'models', 1", "'kept@champion', NULL")
        assert reader.value(registered) == reader.value(call)
        assert reader.value("SELECT madlib_mop.predict_version('kept@champion')") == 1
        primary.rows("UPDATE models SET model_weights = %s", weights_of(nets[1]))
        replayed(primary, reader)
        assert np.allclose(reader.value(call), nets[1].predict(x, verbose=0)[0], atol=1e-6)
        writes = "SELECT madlib.madlib_keras_predict('models', 'models', 'mst_key', 'mst_key', 'out', mst_key => 1)"
        refusal = reader.refused(reader.rows, writes)
        assert (refusal.sqlstate, "read-only transaction" in refusal.message) == ("25006", True)
        _switch_during_a_loop(db, primary, standby, reader)
        reader.connection.close()
    finally:
        standby.stop()
        primary.connection.close()


def _switch_during_a_loop(db, primary, standby, reader):
    """A loop in one statement sees the switch of an alias, though a transaction that began earlier still runs and one
    that began later has committed: so the text of the snapshots stays the same."""
    primary.rows("SELECT madlib_mop.register('kept', 'models')")  # another answer
    primary.rows(UNTIL_OTHER)
    earlier, switch = User(db.connect()), User(db.connect())
    earlier.rows("BEGIN; SELECT txid_current()")
    switch.rows("BEGIN; SELECT madlib_mop.set_alias('kept', 'champion', 3)")
    primary.rows("CREATE TABLE later ()")
    replayed(primary, reader)
    seen = []
    loop = threading.Thread(target=lambda: seen.append(reader.value("SELECT until_other()")))
    watch = User(standby.connect(db.name, "analyst"))
    loop.start()
    try:
        sleeps = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND usename = 'analyst'"
        wait_for(lambda: watch.rows(sleeps), what="the loop")
        switch.rows("COMMIT")
        replayed(primary, watch)
        loop.join(6)  # it predicts every 20 ms; later, another transaction may change the text
        has_ended = not loop.is_alive()
    finally:
        loop.join()
        for session in (earlier, switch, watch):
            session.connection.close()
    assert has_ended and seen[0] > 0

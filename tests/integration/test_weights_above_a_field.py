"""A model with 1.2 GB of weights trains, hops, is evaluated, predicted with, registered, built by Keras, dumped and
restored; no server process holds its weights. `MOP_TEST_WEIGHTS_GB=3` makes it larger.

It takes some minutes, 10 GB of memory and 15 GB of disk; with 3 GB of weights, 2.5 times as much.
"""

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from madlib_mop.client import connect
from madlib_mop.client.exported.weights import read_safetensors
from tests.conftest import TEMPLATE, Cluster, Database, made_by, run
from tests.helpers.security.attacks import refusal_of
from tests.helpers.training import fit, load_digits, one_thread, pack, script, select_configurations

pytestmark = [pytest.mark.slow, pytest.mark.alone]

GB = float(os.environ.get("MOP_TEST_WEIGHTS_GB", "1.2"))
#: Units of two equal layers, between which most of the weights are.
N_UNITS = int((GB * 1e9 / 4) ** 0.5)
N_BYTES = 4 * (64 * N_UNITS + N_UNITS + N_UNITS * N_UNITS + N_UNITS + 10 * N_UNITS + 10)
#: Memory of its own that a server process may have, whatever the weights: some parts of a state, and Python.
MOST_MB = 250
X = "array_fill(0.5::real, ARRAY[8, 8, 1])"
SGD = "loss='categorical_crossentropy', optimizer='SGD(lr=0.001)', metrics=['accuracy']"


def network(n_units: int) -> str:
    """Return the JSON of a network; only its shape is drawn here, and no weights."""
    dense = {"class_name": "Dense", "config": {"units": n_units, "activation": "relu"}}
    last = {"class_name": "Dense", "config": {"units": 10, "activation": "softmax"}}
    first = {"class_name": "InputLayer", "config": {"batch_shape": [None, 8, 8, 1]}}
    layers = [first, {"class_name": "Flatten", "config": {}}, dense, dense, last]
    return json.dumps({"class_name": "Sequential", "config": {"layers": layers}})


class Memory:
    """The most memory of its own that a server process has had, in MB, by what it did."""

    def __init__(self, server_pid: int, stop: threading.Event):
        self._server_pid, self._stop = server_pid, stop
        self.most: dict[str, int] = {}
        self.what = ""

    def watch(self) -> None:
        while not self._stop.wait(0.05):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                    if self.what and int(fields["PPid"]) == self._server_pid:
                        used = int(fields["RssAnon"].split()[0]) >> 10
                        self.most[self.what] = max(self.most.get(self.what, 0), used)
                except (OSError, KeyError, ValueError):
                    continue  # it has ended

    @contextmanager
    def of(self, what: str):
        """Watch while something is done, and report its time and memory."""
        self.what, started = what, time.monotonic()
        yield
        self.what = ""  # a binary COPY of the tests themselves holds all rows
        print(f"{what}: {time.monotonic() - started:.1f} s, server processes {self.most.get(what, 0)} MB")


@pytest.fixture(scope="module")
def large(state):
    """A database on disk with the model."""
    one_thread()
    cluster = Cluster(f"test-{os.getpid()}-weights", "max_wal_size = 1GB", "shared_buffers = 64MB", on_disk=True)
    stop = threading.Event()
    try:
        cluster.start()
        run(cluster.connect(), f"CREATE DATABASE {TEMPLATE}")
        for statement in made_by():
            run(cluster.connect(TEMPLATE), statement)
        db = Database(cluster, TEMPLATE)
        memory = db.memory = Memory(cluster.server_pid, stop)
        threading.Thread(target=memory.watch).start()
        load_digits(db, 80, 20)
        for n_units in (N_UNITS, 30):
            script(db, f"SELECT madlib.load_keras_model('arch', $x${network(n_units)}$x$)")
        pack(db, 2)
        params = "batch_size=16, epochs=1"
        select_configurations(db, "mst", [(1, SGD, params), (2, SGD, params), (2, SGD, "batch_size=8, epochs=1")])
        with memory.of("training"):
            db.fitted = fit(db, "models", "mst", 1, seed=3, validation_table="valid")
        yield db
    finally:
        stop.set()
        cluster.destroy()


def test_it_trains_and_hops(large):
    db = large
    rows = db.rows("SELECT mst_key, state FROM madlib_mop.model ORDER BY mst_key")
    assert rows == [(1, "trained"), (2, "trained"), (3, "trained")]
    assert db.rows("SELECT segment_id FROM madlib_mop.visit WHERE mst_key = 1 ORDER BY segment_id") == [(0,), (1,)]
    ((n_bytes, n_parts),) = db.rows("SELECT sum(length(data))::bigint, count(*) FROM models_weights")
    assert n_bytes == N_BYTES and n_parts == -(-N_BYTES // (16 << 20))
    in_field = db.rows("SELECT mst_key FROM models WHERE model_weights IS NOT NULL ORDER BY mst_key")
    assert in_field == [(2,), (3,)]
    written = db.value("SELECT weights_digest FROM models WHERE mst_key = 1")
    assert written == db.value("SELECT weights_digest FROM madlib_mop.model WHERE mst_key = 1")


def moving_s(db, mst_key: int) -> list[float]:
    """Return the seconds outside computing of each visit of a model."""
    rows = db.rows(
        "SELECT extract(epoch FROM ended_at - started_at)::float8, (timing ->> 'compute_s')::float8,"
        " coalesce((timing ->> 'trace_s')::float8, 0), coalesce((timing ->> 'build_s')::float8, 0) FROM"
        " madlib_mop.visit WHERE mst_key = %s ORDER BY visit_id",
        [mst_key],
    )
    return [whole - compute - trace - build for whole, compute, trace, build in rows]


def test_a_visit_moves_it_in_at_most_twice_the_time_of_a_copy(large, tmp_path):
    db, file = large, tmp_path / "copied"
    with closing(db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE copied (LIKE madlib_mop.model_state INCLUDING STORAGE)")
        started = time.monotonic()
        with open(file, "wb") as out:
            query = "COPY (SELECT * FROM madlib_mop.model_state WHERE mst_key = 1) TO STDOUT (FORMAT binary)"
            cursor.copy_expert(query, out)
        with open(file, "rb") as source:
            cursor.copy_expert("COPY copied FROM STDIN (FORMAT binary)", source)
        copied_s = time.monotonic() - started
        cursor.execute("DROP TABLE copied")
    file.unlink()
    found = moving_s(db, 1)
    print(f"moving {[round(seconds, 1) for seconds in found]} s, a copy {copied_s:.1f} s")
    assert max(found) <= 2 * copied_s + 1


def test_it_is_evaluated_and_predicted_with(large):
    db = large
    with db.memory.of("evaluate"):
        db.rows("SELECT madlib.madlib_keras_evaluate('models', 'valid', 'sums', mst_key := 1)")
    loss, recorded = db.value("SELECT loss FROM sums"), db.value(
        "SELECT validation_loss_final FROM models_info WHERE mst_key = 1"
    )
    assert abs(loss - recorded) <= 1e-9 * abs(recorded)
    with db.memory.of("predict a table"):
        db.rows("SELECT madlib.madlib_keras_predict('models', 'valid_rows', 'id', 'x', 'predicted', mst_key := 1)")
    assert db.value("SELECT count(DISTINCT id) FROM predicted") == 20
    with db.memory.of("predict in a query"), closing(db.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET madlib_mop.predict_memory_mb = {int(6 * N_BYTES) >> 20}")
        first = "WHERE id = (SELECT min(id) FROM valid_rows)"
        cursor.execute(f"SELECT madlib_mop.predict('models', 1, x) FROM valid_rows {first}")
        (values,) = cursor.fetchone()
        cursor.execute(f"SELECT prob FROM predicted {first} ORDER BY class_value::integer")
        assert np.allclose(values, [p for (p,) in cursor.fetchall()], rtol=1e-5)


def test_it_is_registered(large):
    db = large
    with db.memory.of("register"):
        db.rows("SELECT madlib_mop.register('huge', 'models', 1)")
    assert db.value("SELECT sum(length(data))::bigint FROM madlib_mop.version_part") == N_BYTES
    digest = db.value("SELECT weights_digest FROM models WHERE mst_key = 1")
    assert db.value("SELECT digest FROM madlib_mop.registry") == digest
    with db.memory.of("evaluate a version"):
        db.rows("SELECT madlib.madlib_keras_evaluate('huge@1', 'valid', 'sums_of_version')")
    assert db.rows("TABLE sums_of_version") == db.rows("TABLE sums")


def test_it_is_built_by_keras(large):
    db = large
    error = refusal_of(db, "SELECT madlib_mop.export_model('models', 1, 'keras')")
    assert error.sqlstate == "0A000" and "export_parts" in error.hint
    found = hashlib.sha256()
    with connect(db.dsn) as client:
        for weight in client.model("models", 1).to_keras().weights:
            found.update(np.ascontiguousarray(weight.numpy(), np.float32))
    assert found.hexdigest() == db.value("SELECT weights_digest FROM models WHERE mst_key = 1")


def test_it_is_exported(large, tmp_path):
    db = large
    digest = db.value("SELECT weights_digest FROM models WHERE mst_key = 1")
    with db.memory.of("export"), connect(db.dsn) as client:
        client.model("models", 1).export(tmp_path / "exported", "safetensors")
    arch, weights = read_safetensors((tmp_path / "exported" / "model.safetensors").read_bytes())
    assert json.loads(arch) and hashlib.sha256(weights).hexdigest() == digest
    shutil.rmtree(tmp_path / "exported")


def test_it_is_dumped_and_restored(large):
    db, cluster = large, large.cluster
    run(cluster.connect(), "CREATE DATABASE restored")
    with db.memory.of("dump and restore"):
        dump = subprocess.Popen([cluster.bindir / "pg_dump", "-d", db.dsn], stdout=subprocess.PIPE)
        restore = [cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn_for("restored")]
        done = subprocess.run(restore, stdin=dump.stdout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert dump.wait() == 0 and done.returncode == 0, done.stderr
    restored = Database(cluster, "restored")
    for table in ("models_weights", "madlib_mop.version_part", "madlib_mop.model_state"):
        query = f"SELECT md5(string_agg(md5(data), '' ORDER BY part)) FROM {table}"
        if table == "madlib_mop.model_state":
            query += " WHERE mst_key = 1"
        assert restored.value(query) == db.value(query)
    restored.rows("SELECT madlib.madlib_keras_evaluate('models', 'valid', 'again', mst_key := 1)")
    assert restored.rows("TABLE again") == restored.rows("TABLE sums")
    cluster.drop("restored")


def test_a_warm_start_goes_on(large):
    db = large
    options = {"seed": 3, "validation_table": "valid", "warm_start": True}
    with db.memory.of("warm start"):
        again = fit(db, "models", "mst", 1, **options)
    assert "weights only" not in again.notices
    assert db.value("SELECT count(*) FROM models_weights") == -(-N_BYTES // (16 << 20))


def test_no_server_process_has_held_the_weights(large):
    most = large.memory.most
    assert most and max(most.values()) <= MOST_MB, most

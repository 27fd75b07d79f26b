"""Promise 15: a copy of the database that is made during a run is whole: it is resumed there to the same bits."""

import random
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.conftest import Database, run
from tests.helpers.faults import BackgroundFit, assert_whole, newest_run, pause, visits, wait_for
from tests.helpers.inference import User
from tests.helpers.standby import Standby, replayed
from tests.helpers.training import (
    ADAM,
    digests,
    fit,
    load_architectures,
    load_digits,
    mlp,
    pack,
    select_configurations,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 4, 2, 6, 3
FIT = (
    "SELECT madlib.madlib_keras_fit_multiple_model('train', %s, 'mst', 6, validation_table := 'valid',"
    " metrics_compute_frequency := 1, seed := 3, schedule := 'rotation')"
)


@pytest.fixture(scope="module")
def bench(db):
    """Configurations whose states have slots of their own, trained once without a copy."""
    load_architectures(db)
    load_digits(db, 120, 40)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(3000)])
    pack(db, N_SEGMENTS)
    rates = (0.01, 0.02, 0.003, 0.005)
    fits = ("batch_size=18, epochs=1", "batch_size=32, epochs=1", "batch_size=7, epochs=1", "batch_size=50, epochs=1")
    select_configurations(
        db, "mst", [(4, ADAM.replace("0.01", str(rate)), text) for rate, text in zip(rates, fits, strict=True)]
    )
    options = {"validation_table": "valid", "metrics_compute_frequency": 1, "seed": SEED, "schedule": "rotation"}
    undisturbed = fit(db, "undisturbed", "mst", N_EPOCHS, **options)
    db.expected = digests(db, undisturbed.run_id)
    return db


def dump(db, folder, how: str):
    """Dump a database; return the folder, file or error."""
    pg_dump = [db.cluster.bindir / "pg_dump", "-d", db.dsn]
    if how == "plain":
        options = ["-f", folder / "dump.sql"]
    elif how == "jobs":
        options = ["-Fd", "-j", "3", "-f", folder / "dump"]
    else:
        exporter = db.connect(autocommit=False)
        with exporter.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT pg_export_snapshot()")
            (name,) = cursor.fetchone()
        # each model is visited meanwhile, so each state that the snapshot sees is replaced
        run_id = newest_run(db)
        last = min(visits(db, run_id) + 2 * N_MODELS, N_MODELS * N_SEGMENTS * N_EPOCHS)
        wait_for(lambda: visits(db, run_id) >= last, what="more visits")
        options = ["-f", folder / "dump.sql", f"--snapshot={name}"]
    folder.mkdir()
    done = subprocess.run([*pg_dump, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if how == "snapshot":
        exporter.close()


def restore(db, folder) -> Database:
    """Restore a dump into another database."""
    restored = Database(db.cluster, f"copied_{uuid.uuid4().hex[:8]}")
    run(db.cluster.connect(), f'CREATE DATABASE "{restored.name}"')
    bindir = db.cluster.bindir
    if (folder / "dump.sql").exists():
        program = [bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", folder / "dump.sql", "-d", restored.dsn]
    else:
        program = [bindir / "pg_restore", "--exit-on-error", "-d", restored.dsn, folder / "dump"]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return restored


# five dumps of each of four runs: twenty
@pytest.mark.parametrize("how, seed", [("plain", 1), ("jobs", 2), ("snapshot", 3), ("plain", 4)])
def test_dumps_at_random_moments_are_resumed_to_the_same_bits(bench, tmp_path, how, seed):
    chance, n_resumed = random.Random(seed), 0
    dumps: list[tuple[Path, int]] = []
    while len(dumps) < 5:
        before = newest_run(bench)
        call = BackgroundFit(bench, FIT, [f"out_{seed}_{len(dumps)}"])
        while call.running and len(dumps) < 5:
            if newest_run(bench) != before and visits(bench, newest_run(bench)):
                pause(chance, 0.5)
                dumps.append((tmp_path / str(len(dumps)), newest_run(bench)))
                dump(bench, dumps[-1][0], how)
        call.succeed()
        assert digests(bench, newest_run(bench)) == bench.expected, "the dumps disturb nothing"
    for folder, run_id in dumps:
        copy = restore(bench, folder)
        try:
            state = copy.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id])
            n_resumed += state == "running"
            copy.rows("SELECT madlib_mop.resume(%s)", [run_id])
            assert_whole(copy, run_id, bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
        finally:
            run(bench.cluster.connect(), f'DROP DATABASE "{copy.name}" WITH (FORCE)')
    assert n_resumed, "no dump was made during the run"


def test_a_standby_promoted_during_a_run_resumes_it_to_the_same_bits(bench):
    standby, before = Standby(bench.cluster), newest_run(bench)
    primary = User(bench.connect())
    try:
        standby.start()
        reader = User(standby.connect(bench.name))
        call = BackgroundFit(bench, FIT, ["out_standby"])
        while newest_run(bench) == before or visits(bench, newest_run(bench)) < N_MODELS * N_SEGMENTS * 2:
            assert call.running
        replayed(primary, reader)
        standby.promote()
        run_id = newest_run(bench)
        assert reader.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", run_id) == "running"
        reader.rows(f"SELECT madlib_mop.resume({run_id})")
        keys = reader.rows("SELECT mst_key, digest FROM madlib_mop.model WHERE run_id = %s", run_id)
        assert {tuple(row) for row in keys} == set(bench.expected.items())
        call.succeed()
        assert digests(bench, run_id) == bench.expected
        reader.connection.close()
    finally:
        standby.stop()
        primary.connection.close()

"""Promise 15: a publication can have every table of ours; a subscriber gets the output tables and their changes."""

import os
import subprocess
import uuid

import pytest

from madlib_mop.catalog.state_slots import create_slot, drop_slots
from tests.conftest import Cluster, Database, run
from tests.helpers.direct import record_on
from tests.helpers.faults import wait_for
from tests.helpers.security.attacks import user
from tests.helpers.training import (
    ALIKE,
    digests,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    select_configurations,
    weights,
)

#: Tables whose rows a publication could not let be changed.
WITHOUT_IDENTITY = """
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relkind = 'r' AND c.relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema')
      AND CASE c.relreplident WHEN 'f' THEN false WHEN 'n' THEN true
          ELSE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                           AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END) END
ORDER BY 1
"""


def test_every_table_of_the_extension_has_a_replica_identity(db):
    session, slot = db.connect(), 900 * 1000
    create_slot(record_on(session), slot)
    try:
        assert db.rows(WITHOUT_IDENTITY) == []
    finally:
        drop_slots(record_on(session), [slot], ("SELECT 1", {}))
        session.close()


@pytest.fixture(scope="module")
def published(db):
    """A database whose tables are all published."""
    one_thread()
    db.rows("CREATE PUBLICATION everything FOR ALL TABLES")
    load_digits(db, 80, 20)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", ALIKE[2:4])
    return db


@pytest.mark.slow
def test_runs_and_their_outputs_are_changed_although_all_tables_are_published(published):
    db = published
    stops = "patience=1, metric=val_loss, restore_best=true"
    first = fit(db, "out", "mst", 2, seed=3, validation_table="valid", early_stopping=stops,
                metrics_compute_frequency=1)  # fmt: skip
    again = fit(db, "out", "mst", 1, seed=3, warm_start=True)
    db.rows("SELECT madlib.madlib_keras_fit('train', 'one', 'arch', 3, $$loss='categorical_crossentropy',"
            " optimizer='SGD()'$$, $$batch_size=16$$, 2)")  # fmt: skip
    db.rows("SELECT madlib.madlib_keras_fit('train', 'one', 'arch', 3, $$loss='categorical_crossentropy',"
            " optimizer='SGD()'$$, $$batch_size=16$$, 1, warm_start := true)")  # fmt: skip
    db.rows("SELECT madlib_mop.register('kept', 'out', 1); SELECT madlib_mop.set_alias('kept', 'champion', 1);"
            " SELECT madlib_mop.drop_alias('kept', 'champion')")  # fmt: skip
    user(db, viewer := f"viewer_{uuid.uuid4().hex[:8]}")
    db.rows(f"SELECT madlib_mop.grant_read('{viewer}')")
    db.rows("SELECT madlib.delete_keras_model('arch', 1)")
    db.rows("SELECT madlib_mop.drop_run(%s)", [first.run_id])
    assert len(digests(db, again.run_id)) == 2
    # the test's own tables, and packed tables, which no function changes
    own = ("train_", "valid_", "mst")
    assert [table for (table,) in db.rows(WITHOUT_IDENTITY) if not table.startswith(own)] == []


@pytest.fixture(scope="module")
def publisher(state):
    cluster = Cluster(f"test-{os.getpid()}-publisher", "wal_level = logical")
    cluster.start()
    database = Database(cluster, "published")
    run(cluster.connect(), "CREATE DATABASE published")
    database.rows("CREATE EXTENSION madlib_mop CASCADE")
    yield database
    cluster.destroy()


@pytest.mark.slow
def test_a_subscriber_gets_the_output_tables_and_their_changes(publisher):
    db, cluster = publisher, publisher.cluster
    one_thread()
    load_digits(db, 80, 20)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", ALIKE[2:4])
    db.rows("CREATE PUBLICATION everything FOR ALL TABLES")
    fit(db, "out", "mst", 1, seed=3)
    run(cluster.connect(), "CREATE DATABASE subscriber")
    subscriber = Database(cluster, "subscriber")
    outputs = ["-t", "out", "-t", "out_info", "-t", "out_summary"]
    pg_dump = [cluster.bindir / "pg_dump", "-d", db.dsn, "--schema-only", *outputs]
    dump = subprocess.run(pg_dump, capture_output=True, text=True, check=True)
    subprocess.run([cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", subscriber.dsn],
                   input=dump.stdout, capture_output=True, text=True, check=True)  # fmt: skip
    db.rows("CREATE PUBLICATION outputs FOR TABLE out, out_info, out_summary")
    db.rows("SELECT pg_create_logical_replication_slot('copies', 'pgoutput')")
    subscriber.rows(f"CREATE SUBSCRIPTION copies CONNECTION '{db.dsn}' PUBLICATION outputs"
                    " WITH (create_slot = false, slot_name = 'copies')")  # fmt: skip
    try:
        for _ in range(2):
            wait_for(lambda: _rows(subscriber) == _rows(db), what="the subscriber", log=cluster.log_tail)
            assert weights(subscriber, "out") == weights(db, "out") != {}
            fit(db, "out", "mst", 1, seed=3, warm_start=True)
        wait_for(lambda: _rows(subscriber) == _rows(db), what="the subscriber", log=cluster.log_tail)
    finally:
        subscriber.rows("DROP SUBSCRIPTION copies")


def _rows(db) -> list:
    return [
        db.rows(f"SELECT md5(string_agg(t::text, ',' ORDER BY t::text)), count(*) FROM {table} t")
        for table in ("out", "out_info", "out_summary")
    ]

"""Greenplum: the bits of a run are those of PostgreSQL, trainers are at the segments, and faults change nothing."""

import signal
from pathlib import Path

import psycopg2
import pytest
from lab import BackgroundFit, alive, assert_whole, fit_statement, kill, wait_for
from workbench import MIXED, digests, fit, load_architectures, load_digits, pack, script, select_configurations

pytestmark = pytest.mark.slow
N_MODELS, N_EPOCHS, SEED = 4, 2, 77
OPTIONS = {
    "source_table": "train", "validation_table": "valid", "metrics_compute_frequency": 1,
    "seed": SEED, "schedule": "rotation",
}  # fmt: skip


def n_segments(db) -> int:
    return db.value("SELECT count(*) FROM gp_segment_configuration WHERE content >= 0 AND role = 'p'")


def prepare(db, segments: int) -> None:
    load_digits(db)
    load_architectures(db)
    pack(db, segments)
    select_configurations(db, "mst", MIXED[:N_MODELS])


@pytest.fixture(scope="module")
def bench(greenplum):
    """A packed table, and a run that nothing disturbed."""
    prepare(greenplum, n_segments(greenplum))
    greenplum.run = fit(greenplum, "undisturbed", "mst", N_EPOCHS, **OPTIONS)
    greenplum.expected = digests(greenplum, greenplum.run.run_id)
    return greenplum


def trainers(db) -> dict[int, int]:
    """Give the trainers of this database's sessions, each with the segment whose process started it (-1: none's)."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            kind, _, owner = (entry / "comm").read_text().strip().partition(" ")
            if kind == "trainer":
                title = Path(f"/proc/{owner}/cmdline").read_text()
                if db.name in title:
                    words = [word for word in title.replace("\0", " ").split() if word.startswith("seg")]
                    found[int(entry.name)] = int(words[0].removeprefix("seg")) if words else -1
        except (OSError, ValueError):
            continue
    return found


def begin(db, table: str) -> BackgroundFit:
    """Begin the run whose digests are known; wait until all its trainers are there."""
    statement = fit_statement(table, "mst", N_EPOCHS, "train", SEED).replace("'valid_2'", "'valid'")
    call = BackgroundFit(db, statement)
    wait_for(lambda: call.error or len(trainers(db)) == n_segments(db), what="the trainers")
    assert call.error is None, call.error
    return call


def check(db, table: str) -> None:
    run_id = db.value("SELECT max(run_id) FROM madlib_mop.run WHERE model_output_table LIKE %s", [f"%.{table}"])
    assert_whole(db, run_id, db.expected, N_MODELS, n_segments(db), N_EPOCHS)
    nothing_left(db)


def nothing_left(db, within_s: float = 3.0) -> None:
    def left():
        roles = db.rows("SELECT rolname FROM pg_roles WHERE rolname LIKE 'madlib\\_mop\\_run\\_%%'")
        sessions = db.rows(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop%%'"
            " AND datname = current_database()"
        )
        return [*roles, *sessions, *trainers(db)]

    wait_for(lambda: not left(), within_s, "the end of all that belongs to the run")


def test_same_bits_as_on_postgresql(bench, db):
    """Promises 1 and 2: where segments are does not show in the weights, nor in the metrics on training data."""
    prepare(db, n_segments(bench))
    run = fit(db, "undisturbed", "mst", N_EPOCHS, **OPTIONS)
    assert digests(db, run.run_id) == bench.expected
    metrics = (
        "SELECT mst_key, epoch, ordinal, value FROM madlib_mop.metric WHERE run_id = %s AND data_set = 'training'"
        " ORDER BY 1, 2, 3"
    )
    assert db.rows(metrics, [run.run_id]) == bench.rows(metrics, [bench.run.run_id])


def test_a_segment_has_one_key_and_its_own_rows(bench):
    """Packing: DISTRIBUTED BY (__dist_key__), one value a segment, rows dealt evenly."""
    shards = bench.rows(
        "SELECT gp_segment_id, count(DISTINCT __dist_key__), sum(x_shape[1]) FROM train GROUP BY 1 ORDER BY 1"
    )
    assert [(segment, keys) for segment, keys, _ in shards] == [(i, 1) for i in range(n_segments(bench))]
    assert max(n for *_, n in shards) - min(n for *_, n in shards) <= 1
    assert bench.rows("SELECT DISTINCT engine FROM madlib_mop.segment") == [("greenplum",)]


def test_trainers_are_at_the_segments_and_one_that_is_killed_is_replaced(bench):
    """Promise 4 for a trainer: each segment's process has one; after a kill -9 the run ends with the same bits."""
    call = begin(bench, "trainer_killed")
    found = trainers(bench)
    assert sorted(found.values()) == list(range(n_segments(bench)))
    kill(next(iter(found)))
    call.succeed()
    check(bench, "trainer_killed")


def test_after_a_segments_restart_the_run_is_resumed(bench):
    """Promise 4 for a segment: its server restarts, and the caller's transaction is lost with it, but not the run."""
    call = begin(bench, "segment_killed")
    victim = next(pid for pid, segment in trainers(bench).items() if segment == 0)
    parent = int(Path(f"/proc/{victim}/comm").read_text().split()[1])
    kill(parent, signal.SIGKILL)
    call.join()
    wait_for(lambda: not alive(victim), what="the trainer's end")
    if call.error is not None:  # the caller's own session had a process there too
        call.connection.close()
        nothing_left(bench, within_s=60)  # the segment recovers first, and gangs are tried again
        bench.rows("SELECT madlib_mop.resume(%s)", [bench.value("SELECT max(run_id) FROM madlib_mop.run")])
    check(bench, "segment_killed")


def test_cancel_stops_everything(bench):
    """Promise 6: a cancelled call leaves no trainer at any segment, and the run can be resumed to the same bits."""
    call = begin(bench, "cancelled")
    bench.rows("SELECT pg_cancel_backend(%s)", [call.pid])
    call.join(10)
    assert call.error.pgcode == "57014"
    nothing_left(bench)
    run_id = bench.value("SELECT max(run_id) FROM madlib_mop.run")
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check(bench, "cancelled")


def test_ordinary_roles(bench):
    """Promise 7: a role trains with its own rights, sees its own runs, and cannot give a segment's process work."""
    bench.connect("mop_anna").close()
    bench.connect("mop_berta").close()
    script(
        bench,
        "SELECT madlib_mop.grant_use('mop_anna'), madlib_mop.grant_use('mop_berta')",
        "GRANT SELECT ON train, train_summary, arch, mst, mst_summary TO mop_anna",
        "CREATE SCHEMA anna AUTHORIZATION mop_anna",
    )
    fit(bench, "anna.models", "mst", 1, role="mop_anna", source_table="train", seed=SEED, schedule="rotation")
    run_id = bench.value("SELECT max(run_id) FROM madlib_mop.run")
    for view in ("madlib_mop.progress", "madlib_mop.leaderboard", "madlib_mop.timeline"):
        assert bench.rows(f"SELECT DISTINCT run_id FROM {view}", role="mop_anna") == [(run_id,)], view
        assert bench.rows(f"SELECT run_id FROM {view}", role="mop_berta") == [], view
    for call in ("dispatch_send(1, 'seal', '{}')", "dispatch_receive(1, 'seal', 0)", "dispatch_put(1, 'seal', '')"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            bench.rows(f"SELECT madlib_mop.{call} FROM madlib_mop.segment_key WHERE __dist_key__ = 1", role="mop_anna")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        bench.rows("INSERT INTO madlib_mop.segment_key VALUES (1)", role="mop_anna")
    bench.rows("SELECT madlib_mop.drop_run(%s)", [run_id], role="mop_anna")
    for table in ("run", "model", "visit", "segment", "metric"):
        assert not bench.rows(f"SELECT 1 FROM madlib_mop.{table} WHERE run_id = %s", [run_id]), table
    script(bench, "DROP SCHEMA anna CASCADE", "DROP OWNED BY mop_anna, mop_berta")


def test_what_is_not_possible_is_said(bench):
    """Promise 8: a function that reads tables at a segment, and a table that is not distributed by its key."""
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match="cannot run at a segment"):
        bench.rows("SELECT madlib_mop.drop_run(run_id) FROM madlib_mop.run")
    script(
        bench,
        "CREATE TABLE elsewhere AS SELECT * FROM train DISTRIBUTED BY (buffer_id)",
        "CREATE TABLE elsewhere_summary AS SELECT * FROM train_summary DISTRIBUTED RANDOMLY",
    )
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="DISTRIBUTED BY"):
        fit(bench, "not_made", "mst", 1, source_table="elsewhere")


def test_distribution_rules_name_segments_by_their_dbid(bench):
    """distribution_rules: a table of dbids of gp_segment_configuration; the other segments get no rows."""
    script(
        bench,
        "CREATE TABLE chosen AS SELECT dbid::integer FROM gp_segment_configuration"
        " WHERE content IN (0, 2) AND role = 'p' DISTRIBUTED RANDOMLY",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train_of_two', 'y', 'x', 37, 16.0,"
        " distribution_rules := 'chosen')",
    )
    assert bench.rows("SELECT DISTINCT gp_segment_id FROM train_of_two ORDER BY 1") == [(0,), (2,)]

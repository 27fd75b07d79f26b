"""The guarantees on Greenplum and Cloudberry with segments on this machine, and tests of these products only."""

import signal

import psycopg2
import pytest

from madlib_mop import __version__
from madlib_mop.cli.doctor import examine
from madlib_mop.cli.doctor.findings import CheckState
from tests.helpers.engines.promises import Promises
from tests.helpers.engines.tables import N_EPOCHS, N_MODELS, RUN, Bench, prepare, prepared
from tests.helpers.faults import alive, kill, wait_for, workers
from tests.helpers.gates import held_at_outputs
from tests.helpers.greenplum import at_work, backends, n_segments, owner, trainers
from tests.helpers.training import digests, fit, script, weights

pytestmark = pytest.mark.slow


class Cluster(Bench):
    """A database of the cluster; its trainers run on the segments."""

    def trainers(self) -> list[int]:
        return list(trainers(self.db))

    def processes(self) -> set[int]:
        return {*workers(self.db), *self.trainers()}

    def observe(self) -> None:
        self.places = sorted(trainers(self.db).values())
        self.n_sessions, self.backends = backends(self.db)

    def assert_exact(self, database) -> None:
        """As for other engines, but validation rows have another order, so the last bits of their metrics differ."""
        one_server = Bench(database, self.n_segments)
        prepare(one_server)
        there = fit(database, "undisturbed", "mst", N_EPOCHS, source_table="train", **RUN)
        assert self.expected == digests(database, there.run_id)
        assert weights(self.db, "undisturbed") == weights(database, "undisturbed")
        ours, theirs = (
            [row for row in bench.metrics(run_id) if row[2] == "training"]
            for bench, run_id in ((self, self.run_id), (one_server, there.run_id))
        )
        assert ours == theirs and len(ours) == N_MODELS * N_EPOCHS * 2


@pytest.fixture(scope="module")
def bench(greenplum):
    return prepared(Cluster(greenplum, n_segments(greenplum)))


class TestGreenplum(Promises):
    """All of them."""


def test_a_segment_has_one_key_and_its_own_rows(bench):
    """Packing: DISTRIBUTED BY (__dist_key__), one value per segment, rows distributed evenly."""
    db = bench.db
    shards = db.rows(
        "SELECT gp_segment_id, count(DISTINCT __dist_key__), sum(x_shape[1]) FROM train GROUP BY 1 ORDER BY 1"
    )
    assert [(segment, keys) for segment, keys, _ in shards] == [(i, 1) for i in range(bench.n_segments)]
    assert max(n for *_, n in shards) - min(n for *_, n in shards) <= 1
    assert db.rows("SELECT DISTINCT engine FROM madlib_mop.segment") == [(db.product.name,)]


def test_trainers_are_at_the_segments(bench):
    """Each segment's process has a trainer; the coordinator's sessions have none."""
    assert bench.places == list(range(bench.n_segments))


def test_a_run_takes_the_sessions_that_the_page_says(bench):
    """At most 2 N + 2 with the caller's, each with at most one process on each segment while they load rows
    (docs/greenplum.md). `test_hops` has those of later."""
    n = bench.n_segments
    assert n < bench.n_sessions <= 2 * n + 1
    assert len(bench.backends) == n and max(bench.backends.values()) <= 2 * n + 1


def test_after_a_segments_restart_the_run_is_resumed(bench):
    """Promise 4 for a segment: its server restarts; the caller's transaction is lost, but not the run."""
    db = bench.db
    call, run_id = bench.begin("segment_killed")
    victim = next(pid for pid, segment in trainers(db).items() if segment == 0)
    kill(owner(victim), signal.SIGKILL)
    call.join()
    wait_for(lambda: not alive(victim), what="the trainer's end")
    if call.error is not None:  # the caller's own session had a process there too
        call.connection.close()
        # The segment recovers first, and gangs are retried. A driver whose own session was lost cannot drop its login
        # role; the next driver does.
        wait_for(lambda: not at_work(db), 100, "the driver's end")
        detail = db.value("SELECT coalesce(state_detail, '') FROM madlib_mop.run WHERE run_id = %s", [run_id])
        assert "internal error" not in detail
        db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    bench.check(run_id)


def test_a_driver_killed_while_it_writes_tables_ends_the_call(bench):
    """Promise 4: its writes cannot be undone separately; the error says how to get the tables, with the same bits."""
    named = ", ".join(f"{name} := '{value}'" for name, value in RUN.items())
    call = f"SELECT madlib.madlib_keras_fit_multiple_model('train', 'half', 'mst', {N_EPOCHS}, {named})"
    with held_at_outputs(bench.db, call) as (call, run_id, pid):
        assert kill(pid)
        call.join()
    assert call.error.pgcode == "58000" and "while it wrote the output tables" in str(call.error)
    assert f"madlib_mop.resume({run_id})" in call.error.diag.message_hint
    bench.db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert weights(bench.db, "half") == weights(bench.db, "undisturbed")
    bench.check(run_id)


def test_ordinary_roles(bench):
    """Promise 7: a role trains with its own rights, sees its own runs, and cannot use a segment's trainer."""
    db = bench.db
    db.connect("mop_anna").close()
    db.connect("mop_berta").close()
    script(
        db,
        "SELECT madlib_mop.grant_use('mop_anna'), madlib_mop.grant_use('mop_berta')",
        "GRANT SELECT ON train, train_summary, arch, mst, mst_summary TO mop_anna",
        "CREATE SCHEMA anna AUTHORIZATION mop_anna",
    )
    fit(db, "anna.models", "mst", 1, role="mop_anna", source_table="train", seed=RUN["seed"], schedule="rotation")
    run_id = db.value("SELECT max(run_id) FROM madlib_mop.run")
    for view in ("madlib_mop.progress", "madlib_mop.leaderboard", "madlib_mop.pareto", "madlib_mop.timeline"):
        assert db.rows(f"SELECT DISTINCT run_id FROM {view}", role="mop_anna") == [(run_id,)], view
        assert db.rows(f"SELECT run_id FROM {view}", role="mop_berta") == [], view
    calls = (
        "open()", "send('{}')", "ask('{}', 0)", "receive(0)", "put('')", "keep(1, 0, '')", "get(0)", "listen()",
        "forward()",
    )  # fmt: skip
    for call in calls:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            at = "FROM madlib_mop.segment_key WHERE __dist_key__ = 1"
            db.rows(f"SELECT madlib_mop_internal.dispatch_{call} {at}", role="mop_anna")
    inbox = "INSERT INTO madlib_mop.state_inbox VALUES (1, 1, 0, '')", "SELECT * FROM madlib_mop.state_inbox"
    for statement in ("INSERT INTO madlib_mop.segment_key VALUES (1)", *inbox):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            db.rows(statement, role="mop_anna")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="does not belong to a writer"):
        db.rows(inbox[0])  # a superuser's session has no trainer either
    db.rows("SELECT madlib_mop.drop_run(%s)", [run_id], role="mop_anna")
    for table in ("run", "model", "visit", "segment", "metric", "evaluation"):
        assert not db.rows(f"SELECT 1 FROM madlib_mop.{table} WHERE run_id = %s", [run_id]), table
    script(db, "DROP SCHEMA anna CASCADE", "DROP OWNED BY mop_anna, mop_berta")


def test_what_is_not_possible_is_said(bench):
    """Promise 8: a function that reads tables on a segment, and a table that is not distributed by its key."""
    db = bench.db
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match="cannot run on a segment"):
        db.rows("SELECT madlib_mop.drop_run(run_id) FROM madlib_mop.run")
    script(
        db,
        "CREATE TABLE elsewhere AS SELECT * FROM train DISTRIBUTED BY (buffer_id)",
        "CREATE TABLE elsewhere_summary AS SELECT * FROM train_summary DISTRIBUTED RANDOMLY",
    )
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="DISTRIBUTED BY"):
        fit(db, "not_made", "mst", 1, source_table="elsewhere")


def test_distribution_rules_name_segments_by_their_dbid(bench):
    """distribution_rules: a table of dbids of gp_segment_configuration; the other segments get no rows."""
    db = bench.db
    script(
        db,
        "CREATE TABLE chosen AS SELECT dbid::integer FROM gp_segment_configuration"
        " WHERE content IN (0, 2) AND role = 'p' DISTRIBUTED RANDOMLY",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train_of_two', 'y', 'x', 37, 16.0,"
        " distribution_rules := 'chosen')",
    )
    assert db.rows("SELECT DISTINCT gp_segment_id FROM train_of_two ORDER BY 1") == [(0,), (2,)]


def test_the_doctor_looks_at_the_segments_hosts(bench):
    """The doctor finds no problem, and checks each host with a query that runs on its segments."""
    findings = {finding.check: finding for finding in examine(bench.db.dsn())}
    assert not [finding for finding in findings.values() if finding.state in (CheckState.FAIL, CheckState.SKIP)]
    hosts = [
        row[0] for row in bench.db.rows("SELECT DISTINCT hostname FROM gp_segment_configuration WHERE content >= 0")
    ]
    for host in hosts:
        assert f"library {__version__}, TensorFlow 2." in findings[f"host {host}"].found
    assert "gp_enable_global_deadlock_detector" in findings["deadlock detector"].found
    assert findings["server"].found.startswith(f"{bench.db.product.title}, PostgreSQL")

"""The password of a run's role is valid for a minute: it is renewed for each session that opens later."""

import threading

import pytest

from tests.helpers.faults import newest_run, visits, wait_for
from tests.helpers.security.attacks import user
from tests.helpers.training import ALIKE, fit, load_architectures, load_digits, pack, select_configurations

pytestmark = pytest.mark.slow

ALICE = "alice"
READERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'madlib_mop reader of run ' || %s"
#: Of its readers, those that read the view ``slow``: sessions of a run's role do not show their statements.
READING = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE application_name = 'madlib_mop reader of run ' || %s AND wait_event = 'PgSleep'"
)


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, 2, suffix="_2")
    select_configurations(db, "mst", ALIKE[:1])
    user(db, ALICE)
    db.rows("CREATE VIEW slow AS SELECT t.* FROM train_2 AS t, LATERAL (SELECT pg_sleep(0.5 + 0 * buffer_id)) AS s")
    db.rows("CREATE TABLE slow_summary AS TABLE train_2_summary")
    for table in ("train_2", "train_2_summary", "slow", "slow_summary", "arch", "mst", "mst_summary"):
        db.rows(f"GRANT SELECT ON {table} TO {ALICE}")
    return db


class LateRun:
    """A run of Alice's in a thread, whose role expires as soon as its readers are logged in."""

    def __init__(self, db, name: str, n_iterations: int, **options):
        before = newest_run(db)
        self.fitted, self._db = [], db
        options = {"source_table": "train_2", "seed": 3, "role": ALICE, **options}
        self._thread = threading.Thread(
            target=lambda: self.fitted.append(fit(db, f"alice.{name}", "mst", n_iterations, **options))
        )
        self._thread.start()
        wait_for(lambda: newest_run(db) != before and db.value(READERS, [newest_run(db)]) == 2, what="readers")
        self.run_id = newest_run(db)

    def expire(self) -> None:
        """Let the password of the run's role be too old."""
        role = self._db.value("SELECT login_role FROM madlib_mop.run WHERE run_id = %s", [self.run_id])
        self._db.rows(f"ALTER ROLE {role} VALID UNTIL '2001-01-01'")

    def finish(self) -> str:
        """Wait for the end of the call; return its notices."""
        self._thread.join(120)
        assert self.fitted, "the call failed"
        return self.fitted[0].notices


def test_a_policy_whose_first_metrics_come_late_can_log_in(bench):
    policy = "SELECT 1 AS mst_key, current_user::text AS action"
    run = LateRun(bench, "late", 1, policy=policy, metrics_every="visit", metrics_sample_rows=10)
    run.expire()
    assert "Received: 'alice'" in run.finish()


def test_readers_log_in_again_after_a_long_pause(bench):
    run = LateRun(bench, "paused", 40)
    wait_for(lambda: visits(bench, run.run_id) > 1, what="visits")
    bench.rows("SELECT madlib_mop.pause(%s)", [run.run_id])
    wait_for(lambda: bench.value(READERS, [run.run_id]) == 0, what="the end of the sessions")
    run.expire()
    bench.rows("SELECT madlib_mop.unpause(%s)", [run.run_id])
    run.finish()
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run.run_id]) == "finished"


def test_a_reader_that_is_opened_after_a_failed_load_can_log_in(bench):
    run = LateRun(bench, "reloaded", 1, source_table="slow")
    found = wait_for(lambda: bench.rows(READING, [run.run_id]), what="a reader at work")
    run.expire()
    for (pid,) in found:
        bench.rows("SELECT pg_cancel_backend(%s)", [pid])
    run.finish()
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run.run_id]) == "finished"

"""The guarantees of design section 6 that depend on the engine, as a class of tests that every engine's module runs.

A module subclasses `Promises` and gives it a fixture ``bench`` (`tests.helpers.engines.tables.Bench`, scope module).
Features and failures of a single engine (a whole host fails, a segment's process) are tested in the engine's module.
"""

import os
import random

import psycopg2
import pytest

from tests.helpers.columns import CUSTOMERS, OF_CUSTOMERS, content, load_churn_network, pack_with
from tests.helpers.engines.bad_calls import CALLS, BadCall
from tests.helpers.engines.tables import CONFIGURATIONS, N_EPOCHS, RUN, SEED, UNBUILDABLE, Bench
from tests.helpers.faults import BackgroundFit, kill, newest_run, pause, visits, wait_for, workers
from tests.helpers.training import ADAM, digests, fit, select_configurations, weights

TIMES = int(os.environ.get("MOP_FAULTS", "1"))  # 20 for the full test
NAN = (1, ADAM.replace("Adam(lr=0.01)", "SGD(lr=1e30)"), "batch_size=8, epochs=1")
NOT_BUILT = (UNBUILDABLE, ADAM, "batch_size=8, epochs=1")
_SAMPLED = (
    "SELECT mst_key, visits, n_rows, ordinal, name, value FROM madlib_mop.visit_metric"
    " WHERE run_id = %s ORDER BY mst_key, visits, ordinal"
)


class Promises:
    """Tests of guarantees that hold on every engine."""

    def test_exact(self, bench: Bench, db):
        """Promise 1: the same bits as on one server, or as plain Keras; each visit once, and no processes remain."""
        bench.check(bench.run_id)
        bench.assert_exact(db)

    @pytest.mark.slow
    def test_reproducible(self, bench: Bench):
        """Promise 2: a replay gives the same bits."""
        bench.db.rows("SELECT madlib_mop.replay(%s, 'again')", [bench.run_id])
        assert weights(bench.db, "again") == weights(bench.db, "undisturbed")
        bench.check(newest_run(bench.db))

    @pytest.mark.slow
    def test_any_size(self, bench: Bench):
        """Promise 14: rows in the trainers' files, because none may stay in memory, give the same bits."""
        settings = ("SET madlib_mop.shard_cache_mb = 0",)
        run = fit(bench.db, "on_disk", "mst", N_EPOCHS, settings, source_table="train", **RUN)
        assert digests(bench.db, run.run_id) == bench.expected
        bench.check(run.run_id)

    @pytest.mark.slow
    def test_ordinary_tables(self, bench: Bench, db):
        """Promise 10: a table is packed, trained on and predicted with the same bits as on one server.

        So are the metrics after each visit; and a policy's command is obeyed. On one server it is done twice.
        """
        found = []
        for at in (bench.db, db):
            at.rows(f"DROP TABLE IF EXISTS {', '.join(OF_CUSTOMERS)}")
            at.rows(CUSTOMERS)
            call = "pack_columns('customers', 'packed', 'churned', validation => 0.2, seed => 1)"
            pack_with(at, bench.n_segments, call)
            load_churn_network(at, "arch_of_columns", "mst_of_columns")
            run = fit(at, "churn", "mst_of_columns", 2, source_table="packed", seed=SEED, schedule="rotation",
                      validation_table="packed_validation", metrics_every="visit", metrics_sample_rows=20,
                      policy="SELECT 1 AS mst_key, 'pin_model' AS action")  # fmt: skip
            score = "SELECT madlib_mop.predict('churn', 1, (SELECT c FROM customers AS c WHERE id = %s))"
            found.append((
                at.value("SELECT preprocessor_digest FROM packed_summary"),
                {name: sorted(map(bytes, rows)) for name, rows in content(at, "packed").items()},
                digests(at, run.run_id),
                [at.value(score, [key]) for key in range(1, 6)],
                at.rows(_SAMPLED, [run.run_id]),
                at.rows("SELECT source, state FROM madlib_mop.steering WHERE run_id = %s", [run.run_id]),
            ))  # fmt: skip
        assert found[0] == found[1] and len(found[0][3][0]) == 2
        assert len(found[0][4]) >= 2 * 2 * bench.n_segments and found[0][5] == [("policy", "obeyed")]

    @pytest.mark.slow
    def test_killed(self, bench: Bench, request):
        """Promise 4: after trainers and worker sessions are killed at any time, the run ends with the same bits.

        The call's success shows that the server has not restarted its sessions.
        """
        chance = random.Random(request.node.nodeid)
        call, run_id = bench.begin("killed")
        seen = bench.processes()
        for number in range(2 * TIMES):
            pause(chance, 1.0 if number else 0.0)
            pids = (bench.trainers, lambda: workers(bench.db))[number % 2]
            victims = wait_for(lambda pids=pids: pids() or not call.running, what="somebody to kill")
            if victims is True:
                break
            seen.add(victim := chance.choice(victims))
            if number % 2:
                bench.db.rows("SELECT pg_terminate_backend(%s)", [victim])
            else:
                assert kill(victim) or number
        call.succeed()
        assert bench.db.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "finished"
        bench.check(run_id, seen)

    @pytest.mark.slow
    def test_stopped(self, bench: Bench):
        """Promise 6: a run cancelled by its number or its caller's statement ends everywhere; resume has the same bits.

        Its output tables exist only at the end, and drop_run removes everything.
        """
        db = bench.db
        call, run_id = bench.begin("stopped")
        seen = bench.processes()
        db.rows("SELECT madlib_mop.cancel(%s)", [run_id])
        self._has_stopped(bench, call, run_id, "cancelled", seen)
        call = BackgroundFit(db, "SELECT madlib_mop.resume(%s)", [run_id])
        bench.wait_for_trainers(call)
        seen = bench.processes()
        wait_for(lambda: visits(db, run_id) >= 2 or not call.running, what="visits")
        db.rows("SELECT pg_cancel_backend(%s)", [call.pid])
        self._has_stopped(bench, call, run_id, "interrupted", seen)
        done = visits(db, run_id)
        assert done >= 2
        db.rows("SELECT madlib_mop.resume(%s)", [run_id])
        assert weights(db, "stopped") == weights(db, "undisturbed")
        bench.check(run_id)
        db.rows("SELECT madlib_mop.drop_run(%s)", [run_id])
        assert db.rows("SELECT 1 FROM madlib_mop.visit WHERE run_id = %s", [run_id]) == []
        # a session that holds a snapshot at this moment lets the empty tables of states stay until a later call
        assert db.rows("SELECT 1 FROM madlib_mop.model_state WHERE run_id = %s", [run_id]) == []

    def _has_stopped(self, bench: Bench, call: BackgroundFit, run_id: int, state: str, seen) -> None:
        """Assert that a cancelled run has ended with the right error to its caller, and that nothing of it remains."""
        bench.assert_nothing_left(seen)
        call.join(10)
        assert isinstance(call.error, psycopg2.Error) and call.error.pgcode == "57014", call.error
        assert "Traceback" not in str(call.error)
        assert bench.db.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == state
        assert bench.db.rows("SELECT relname FROM pg_class WHERE relname ~ '^stopped'") == []

    @pytest.mark.slow
    def test_alone(self, bench: Bench):
        """Promise 5: only a model with a NaN loss and one that cannot be built fail; the others keep their bits."""
        db = bench.db
        select_configurations(db, "mst_bad", [*CONFIGURATIONS, NAN, NOT_BUILT])
        run = fit(db, "alone", "mst_bad", N_EPOCHS, source_table="train", **RUN)
        found = digests(db, run.run_id)
        assert {key: found[key] for key in bench.expected} == bench.expected
        rows = db.rows("SELECT mst_key, status, status_detail, training_loss_final FROM alone_info ORDER BY mst_key")
        assert [row[1] for row in rows] == ["trained"] * len(CONFIGURATIONS) + ["failed"] * 2
        assert [key for (key,) in db.rows("SELECT mst_key FROM alone ORDER BY 1")] == sorted(bench.expected)
        for key, _, reason, loss in rows[-2:]:
            assert loss is None and "Traceback" not in reason and f"mst_key {key} failed: {reason}" in run.notices
        nan, not_built = rows[-2][2], rows[-1][2]
        assert "loss" in nan and ("NaN" in nan or "nan" in nan or "infinite" in nan) and "learning" in nan
        assert "does not build" in not_built and "negative" in not_built and "(9, 9, 1, 2)" in not_built
        bench.assert_nothing_left()

    @pytest.mark.slow
    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_bad_input(self, bench: Bench, call: BadCall):
        """Promise 8: one clear error before any work, with the problem, the value received and the solution."""
        before = bench.traces()
        with pytest.raises(psycopg2.Error) as caught:
            bench.db.rows(call.statement)
        error = caught.value
        message, hint = error.diag.message_primary, error.diag.message_hint or ""
        assert (error.pgcode, message[: len(call.message)]) == (call.sqlstate, call.message)
        assert call.hint in hint and "\n" not in message and len(message) < 600 and "Traceback" not in str(error)
        assert bench.traces() == before
        bench.assert_nothing_left()

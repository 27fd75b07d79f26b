"""max_seconds of the functions that train, and of resume: runs end in good order, and go on when somebody asks."""

import psycopg2
import pytest

from tests.helpers.averaging import average
from tests.helpers.faults import assert_nothing_left
from tests.helpers.training import ALIKE, fit, load_architectures, load_digits, pack, select_configurations, weights

MANY = 100_000
STATE = "SELECT state, state_detail FROM madlib_mop.progress WHERE run_id = %s"
INFO = "SELECT status, status_detail, array_length(metrics_elapsed_time, 1) FROM {}_info ORDER BY mst_key"
DECISIONS = "SELECT change, work, mst_keys FROM madlib_mop.change WHERE run_id = %s AND source = 'time limit'"


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db, 72, 20)
    load_architectures(db)
    pack(db, 2)
    pack(db, 2, suffix="_2")
    select_configurations(db, "mst", ALIKE[:2])
    return db


@pytest.fixture(scope="module")
def ended(bench):
    """A run whose time was over when it began: nothing is trained, however slow the machine is."""
    return fit(bench, "ended", "mst", 3, seed=1, schedule="rotation", max_seconds=0.001)


def newest_run(bench) -> int:
    return bench.value("SELECT max(run_id) FROM madlib_mop.run")


def test_a_run_whose_time_is_over_ends_in_good_order(bench, ended):
    why = "max_seconds (0.001 s) was over"
    assert bench.rows(STATE, [ended.run_id]) == [("finished", why)]
    stopped = ("stopped", f"{why} before its first epoch was complete", None)
    assert bench.rows(INFO.format("ended")) == [stopped] * 2 and weights(bench, "ended") == {}
    assert bench.rows(DECISIONS, [ended.run_id]) == [("finish", {"reason": why, "limit_s": 0.001}, [1, 2])]
    assert f"run {ended.run_id}: {why}; the models complete their current iterations" in ended.notices
    assert_nothing_left(bench)


@pytest.mark.slow
def test_what_is_asked_for_later_has_time_of_its_own_or_the_given_one(bench, ended):
    """The weights are those of a run without a limit; a replay of it makes the same visits."""
    run_id = ended.run_id
    for key in (1, 2):
        bench.rows("SELECT madlib_mop.resume_model(%s, %s)", [run_id, key])
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert bench.rows(INFO.format("ended")) == [("trained", None, 1)] * 2
    fit(bench, "whole", "mst", 3, seed=1, schedule="rotation")
    assert weights(bench, "ended") == weights(bench, "whole")
    bench.rows("SELECT madlib_mop.extend(%s, %s)", [run_id, MANY])
    bench.rows("SELECT madlib_mop.resume(%s, max_seconds => 1)", [run_id])
    (state, why), rows = bench.rows(STATE, [run_id])[0], bench.rows(INFO.format("ended"))
    assert state == "finished" and why.startswith("max_seconds (") and len(bench.rows(DECISIONS, [run_id])) == 2
    made = bench.rows("SELECT epoch, last_epoch FROM madlib_mop.model WHERE run_id = %s ORDER BY mst_key", [run_id])
    assert all(3 <= epoch == last_epoch < MANY for epoch, last_epoch in made)
    details = [f"ended after iteration {epoch} of {MANY + 3}: {why}" for epoch, _ in made]
    assert [row[:2] for row in rows] == [("trained", detail) for detail in details]
    bench.rows("SELECT madlib_mop.replay(%s, 'ended_again')", [run_id])
    again = newest_run(bench)
    assert weights(bench, "ended_again") == weights(bench, "ended") and len(weights(bench, "ended")) == 2
    assert bench.rows(STATE, [again]) == [("finished", None)] and bench.rows(DECISIONS, [again]) == []


@pytest.mark.slow
def test_a_run_that_was_interrupted_has_what_was_left_of_its_time(bench):
    """Its time was over when its driver died, which had written this and not yet ended the run."""
    run_id = fit(bench, "left_over", "mst", MANY, seed=1, max_seconds=0.001).run_id
    bench.rows("DROP TABLE left_over, left_over_info, left_over_summary")
    bench.rows("UPDATE madlib_mop.run SET state = 'interrupted', training_s = 5 WHERE run_id = %s", [run_id])
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert bench.rows(STATE, [run_id]) == [("finished", "max_seconds (0.001 s) was over")]
    assert len(bench.rows(DECISIONS, [run_id])) == 1 and {row[0] for row in bench.rows(INFO.format("left_over"))} == {
        "stopped"
    }


@pytest.mark.slow
def test_model_averaging_completes_its_first_iteration(bench):
    run = average(bench, "averaged", MANY, max_seconds=0.001, seed=1)
    why = "max_seconds (0.001 s) was over"
    assert bench.rows(STATE, [run.run_id]) == [("finished", why)]
    (row,) = bench.rows("SELECT num_iterations, metrics_iters, training_loss_final FROM averaged_summary")
    assert row[:2] == (MANY, [1]) and row[2] > 0
    detail = bench.value("SELECT state_detail FROM madlib_mop.model WHERE run_id = %s", [run.run_id])
    assert detail == f"ended after iteration 1 of {MANY}: {why}"
    average(bench, "averaged_once", 1, seed=1)
    one, other = (bench.value(f"SELECT model_weights FROM {table}") for table in ("averaged", "averaged_once"))
    assert bytes(one) == bytes(other)
    bench.rows("SELECT madlib_mop.replay(%s, 'averaged_again')", [run.run_id])
    assert bytes(bench.value("SELECT model_weights FROM averaged_again")) == bytes(one)


@pytest.mark.slow
def test_the_time_of_a_replay_cannot_be_limited(bench):
    run_id = fit(bench, "repeated", "mst", 1, seed=1).run_id
    bench.rows("SELECT madlib_mop.replay(%s, 'repeated_again')", [run_id])
    bench.rows("UPDATE madlib_mop.run SET state = 'interrupted' WHERE run_id = %s", [newest_run(bench)])
    with pytest.raises(psycopg2.Error, match=rf"is a replay, which makes all visits of run {run_id}") as caught:
        bench.rows("SELECT madlib_mop.resume(%s, max_seconds => 9)", [newest_run(bench)])
    assert caught.value.pgcode == "0A000"

"""The estimate of a run's remaining time: graphs are built once for a network and a segment, not in each visit."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.helpers.security.attacks import insert, record_run

RUN, START = 9, datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def run(db):
    """A run of ten iterations on two segments, with two models of each of two networks, and no visit."""
    record_run(db, RUN, db.cluster.superuser, state="running", n_segments=2, n_models=4, num_iterations=10)
    db.rows("DELETE FROM madlib_mop.model; DELETE FROM madlib_mop.visit; DELETE FROM madlib_mop.evaluation")
    for mst_key in (1, 2, 3, 4):
        insert(
            db, "model", run_id=RUN, mst_key=mst_key, ordinal=mst_key, model_id=1 + mst_key % 2, compile_params="c",
            fit_params="f", model_arch={}, last_epoch=10, state="training", epoch=0, position=0,
        )  # fmt: skip
    yield db
    db.rows("DELETE FROM madlib_mop.run")
    db.rows(f"DROP TABLE madlib_mop.model_state_{RUN}_0")


def visit(db, mst_key: int, epoch: int, segment: int, seconds: float, timing: dict) -> None:
    """Record a visit; the model made the other segment's before or makes it after."""
    position = 1 + db.value("SELECT count(*) FROM madlib_mop.visit WHERE mst_key = %s AND epoch = %s", [mst_key, epoch])
    insert(
        db, "visit", run_id=RUN, mst_key=mst_key, epoch=epoch, position=position, segment_id=segment, started_at=START,
        ended_at=START + timedelta(seconds=seconds), n_rows=1, state_bytes=1, digest_in="a", digest_out="d", attempt=1,
        timing=timing,
    )  # fmt: skip
    db.rows("UPDATE madlib_mop.model SET epoch = %s, position = %s WHERE mst_key = %s", [epoch, position, mst_key])


def left(db) -> float | None:
    return db.value("SELECT EXTRACT(epoch FROM time_left)::float8 FROM madlib_mop.progress WHERE run_id = %s", [RUN])


def test_building_is_the_price_of_a_network_on_a_segment(run):
    """80 visits of 1 s on two segments; a graph takes 20 s to build, four of them are built."""
    assert left(run) is None
    steady = {"state_in_s": 0.25, "compute_s": 0.5, "state_out_s": 0.25}
    visit(run, 1, 1, 0, 21.0, {**steady, "trace_s": 20.0})
    assert left(run) == pytest.approx((79 * 1 + 3 * 20) / 2, abs=0.5), "not 79 * 21 / 2"
    visit(run, 2, 1, 1, 21.0, {**steady, "trace_s": 20.0})
    visit(run, 3, 1, 0, 1.0, steady)
    assert left(run) == pytest.approx((77 * 1 + 2 * 20) / 2, abs=0.5)
    run.rows("UPDATE madlib_mop.run SET paused_by = 'somebody' WHERE run_id = %s", [RUN])
    assert left(run) is None


def test_building_is_the_price_of_a_network_where_models_stay_with_a_trainer(run):
    """Two graphs are built, whatever the shard: the second visit of a model is made by the same trainer."""
    run.rows("""UPDATE madlib_mop.run SET plan = plan || '{"any_trainer": true}'""")
    steady = {"state_in_s": 0.25, "compute_s": 0.5, "state_out_s": 0.25}
    visit(run, 1, 1, 0, 21.0, {**steady, "trace_s": 20.0})
    assert left(run) == pytest.approx((79 * 1 + 1 * 20) / 2, abs=0.5)
    visit(run, 1, 1, 1, 1.0, {**steady, "trainer": 0})
    assert left(run) == pytest.approx((78 * 1 + 1 * 20) / 2, abs=0.5)
    visit(run, 2, 1, 1, 21.0, {**steady, "trace_s": 20.0})
    assert left(run) == pytest.approx(77 / 2, abs=0.5)


def test_fused_visits_begin_and_end_together(run):
    for mst_key in (1, 3):
        visit(run, mst_key, 1, 0, 4.0, {"compute_s": 2.0, "fused": 2})
    assert left(run) == (78 * 2) / 2


def test_visits_without_the_times_of_their_parts_and_evaluations_count(run):
    visit(run, 1, 1, 0, 3.0, {})
    assert left(run) == pytest.approx(79 * 3 / 2, abs=0.5)
    insert(
        run, "evaluation", run_id=RUN, mst_key=1, epoch=1, data_set="training", shard=0, segment_id=0, started_at=START,
        ended_at=START + timedelta(seconds=7), n_rows=1, timing={"compute_s": 1.0, "trace_s": 6.0},
    )  # fmt: skip
    assert left(run) == 79 * 4 / 2


def test_fewer_models_than_segments_train_at_once(run):
    run.rows("UPDATE madlib_mop.model SET state = 'trained', epoch = 10, position = 2 WHERE mst_key > 1")
    visit(run, 1, 1, 0, 3.0, {})
    assert left(run) == 19 * 3

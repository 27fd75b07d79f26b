"""The scheduler's contract, tested with random events on every schedule."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.errors import InvalidParameter
from madlib_mop.schedule import SCHEDULES, EpochDone, Evaluation, ModelWork, Visit, make_scheduler
from tests.helpers.unit.referee import Chances, Referee

CALM = Chances()
STORMY = Chances(requeue=0.15, fail=0.01, segment=0.1, hold=0.1, evaluate=True)


def referee(schedule, n, p, n_epochs, seed, chances, any_trainer):
    """Return a referee of n units, some of several models: irregular keys, other epochs, uneven and empty shards."""
    rng = random.Random(seed)
    units = [(100 + c, 200 + c, 50 + c) if c % 3 == 1 else (100 + c,) for c in range(n)]
    graphs = [None, "a", "b"]
    models = [ModelWork(u, c, max(0, n_epochs - c % 2), graph=graphs[c % 3]) for c, u in enumerate(units)]
    rows = {7 * number + 3: rng.randrange(0, 50) for number in range(p)}
    scheduler = make_scheduler(schedule, models, rows, n_at_once=rng.choice([None, 1, 2]), any_trainer=any_trainer)
    return Referee(scheduler, models, list(rows), rng, chances, any_trainer)


runs = given(
    schedule=st.sampled_from(sorted(SCHEDULES)),
    n=st.integers(0, 9),
    p=st.integers(1, 6),
    n_epochs=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    any_trainer=st.booleans(),
)


@runs
def test_every_visit_exactly_once(schedule, n, p, n_epochs, seed, any_trainer):
    done = referee(schedule, n, p, n_epochs, seed, CALM, any_trainer).run()
    done.check_whole()
    assert len(done.kept) == p * sum(model.last_epoch for model in done.models)
    assert len(done.epochs_done) == sum(model.last_epoch for model in done.models)


@settings(max_examples=300)
@runs
def test_exactly_once_and_alone_through_faults_holds_and_evaluations(schedule, n, p, n_epochs, seed, any_trainer):
    done = referee(schedule, n, p, n_epochs, seed, STORMY, any_trainer).run()
    done.check_whole()
    for epoch in done.epochs_done:
        evaluated = sorted(s for m, s, payload in done.evaluated if (m, payload) == (epoch.unit, epoch.epoch))
        assert evaluated == sorted(done.segments) or epoch.unit in done.dropped


@settings(max_examples=200)
@runs
def test_models_may_come_go_on_and_end_early_at_any_time(schedule, n, p, n_epochs, seed, any_trainer):
    """For any actions of a search, each model makes each visit of its epochs exactly once, and the run ends."""
    chances = Chances(requeue=0.1, fail=0.01, segment=0.05, hold=0.05, change=0.4, evaluate=True)
    done = referee(schedule, n, p, n_epochs, seed, chances, any_trainer).run()
    done.check_whole()
    for model in done.models:
        if model.unit not in done.dropped:
            assert sum(visit.unit == model.unit for visit in done.kept) == p * model.last_epoch


@runs
def test_same_events_same_plan(schedule, n, p, n_epochs, seed, any_trainer):
    one, two = (referee(schedule, n, p, n_epochs, seed, STORMY, any_trainer).run() for _ in range(2))
    assert one.started == two.started


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_failed_model_leaves_the_others_alone(schedule):
    scheduler = make_scheduler(schedule, [ModelWork((c,), c, 2) for c in range(4)], {0: 10, 1: 10})
    kept = []
    while not scheduler.done:
        for task in scheduler.next_tasks():
            if task.unit == (2,):
                scheduler.failed(task)
            else:
                scheduler.finished(task, 1.0)
                kept.append(task)
    assert {visit.unit for visit in kept} == {(0,), (1,), (3,)}
    assert len(kept) == 3 * 2 * 2


def test_a_report_twice_is_refused():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1)], {0: 10, 1: 10})
    (visit,) = scheduler.next_tasks()
    assert visit == Visit(unit=(0,), segment=0, epoch=1, position=1)
    scheduler.finished(visit, 1.0)
    with pytest.raises(ValueError, match="not in flight"):
        scheduler.finished(visit, 1.0)
    with pytest.raises(ValueError, match="not in flight"):
        scheduler.requeue(visit)
    with pytest.raises(ValueError, match="not in flight"):
        scheduler.failed(visit)


def test_a_visit_of_a_dropped_model_still_occupies_its_segment():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1), ModelWork((1,), 1, 1)], {0: 10})
    (visit,) = scheduler.next_tasks()
    scheduler.drop((0,))
    assert scheduler.next_tasks() == [] and not scheduler.done
    assert scheduler.finished(visit, 1.0) is None
    assert [task.unit for task in scheduler.next_tasks()] == [(1,)]


def test_evaluations_come_first_and_side_by_side_and_hold_back_training():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 2), ModelWork((1,), 1, 2)], {0: 10, 1: 10})
    first = scheduler.next_tasks()
    assert [(visit.unit, visit.segment) for visit in first] == [((0,), 0), ((1,), 1)]
    scheduler.finished(first[0], 1.0)
    assert scheduler.next_tasks() == []
    scheduler.finished(first[1], 1.0)
    second = {visit.unit: visit for visit in scheduler.next_tasks()}
    assert scheduler.finished(second[(0,)], 1.0) == EpochDone((0,), 1, last=False)
    queued = [scheduler.add_evaluation((0,), segment, "validation") for segment in (0, 1)]
    assert scheduler.next_tasks() == [Evaluation((0,), 1, "validation")]
    scheduler.finished(second[(1,)], 1.0)
    assert scheduler.next_tasks() == [Evaluation((0,), 0, "validation")], "before model 1's next visit to segment 1"
    scheduler.finished(queued[0], 0.1)
    assert scheduler.next_tasks() == [] and scheduler.evaluations_left((0,)) == 1
    scheduler.finished(queued[1], 0.1)
    assert sorted(task.unit for task in scheduler.next_tasks()) == [(0,), (1,)]


def test_a_finished_model_can_be_evaluated_and_that_must_end():
    scheduler = make_scheduler("auto", [ModelWork((0,), 0, 1)], {0: 10})
    (visit,) = scheduler.next_tasks()
    with pytest.raises(ValueError, match="in a visit"):
        scheduler.add_evaluation((0,), 0)
    assert scheduler.finished(visit, 1.0) == EpochDone((0,), 1, last=True)
    assert scheduler.done
    evaluation = scheduler.add_evaluation((0,), 0)
    assert not scheduler.done
    assert scheduler.next_tasks() == [evaluation]
    scheduler.requeue(evaluation)
    assert scheduler.next_tasks() == [evaluation] and not scheduler.done
    scheduler.finished(evaluation, 0.1)
    assert scheduler.done


def test_a_held_model_waits_and_is_not_done():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1)], {0: 10})
    scheduler.hold((0,))
    assert scheduler.next_tasks() == [] and not scheduler.done
    scheduler.release((0,))
    assert [task.unit for task in scheduler.next_tasks()] == [(0,)]


def test_a_segment_that_is_down_gets_nothing():
    scheduler = make_scheduler("longest_first", [ModelWork((0,), 0, 1)], {0: 10, 1: 10})
    scheduler.segment_down(0)
    (visit,) = scheduler.next_tasks()
    assert visit.segment == 1
    scheduler.finished(visit, 1.0)
    assert scheduler.next_tasks() == [] and not scheduler.done
    scheduler.segment_up(0)
    assert scheduler.next_tasks() == [Visit((0,), 0, 1, 2)]


def test_a_segment_that_comes_up_again_with_its_task_still_in_flight_is_busy():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1), ModelWork((1,), 1, 1)], {0: 10})
    (visit,) = scheduler.next_tasks()
    scheduler.segment_down(0)
    scheduler.segment_up(0)
    assert scheduler.next_tasks() == [] and scheduler.in_flight(0) == visit
    scheduler.requeue(visit)
    assert scheduler.next_tasks() == [visit]


def test_an_evaluation_done_again_keeps_its_place():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1)], {0: 10})
    training, validation = (scheduler.add_evaluation((0,), 0, data) for data in ("training", "validation"))
    assert scheduler.next_tasks() == [training]
    scheduler.requeue(training)
    assert scheduler.next_tasks() == [training]
    scheduler.finished(training, 0.1)
    assert scheduler.next_tasks() == [validation]


def test_seconds_left_is_the_lower_bound_of_what_is_left():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1), ModelWork((1,), 1, 1)], {0: 10, 1: 30})
    assert scheduler.seconds_left() is None
    visits = scheduler.next_tasks()
    scheduler.finished(visits[0], 2.0)  # 0.2 s a row: model 0 has 6 s left; model 1, which is not measured, 8 s
    assert scheduler.seconds_left() == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("schedule", "models", "rows", "message"),
    [
        ("random", [ModelWork((0,), 0, 1)], {0: 1}, "unknown schedule, received 'random'"),
        ("auto", [ModelWork((0,), 0, 1)], {}, "at least one segment"),
        ("auto", [ModelWork((5,), 0, 1), ModelWork((5,), 1, 1)], {0: 1}, "same mst_key, received model 5, model 5$"),
        ("auto", [ModelWork((5,), 2, 1), ModelWork((6,), 2, 1)], {0: 1}, r"same index, received \[2, 2\]"),
        ("auto", [ModelWork((5,), 0, 2, 1, (0, 0))], {0: 1, 1: 1}, "a segment twice"),
        ("auto", [ModelWork((5,), 0, 2, 3, (0,))], {0: 1, 1: 1}, "one too many"),
        ("auto", [ModelWork((5,), 0, 2, 1, (9,))], {0: 1, 1: 1}, r"no longer has, received \[9\]"),
    ],
)
def test_bad_input_is_named(schedule, models, rows, message):
    with pytest.raises(InvalidParameter, match=message):
        make_scheduler(schedule, models, rows)

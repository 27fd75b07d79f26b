"""The order of each model's visits: rotation's formula, resumed runs, and repeated records."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.errors import InvalidParameter
from madlib_mop.schedule import SCHEDULES, ModelWork, Visit, make_scheduler
from tests.helpers.unit.referee import Chances, Referee

STORMY = Chances(requeue=0.2, segment=0.15, hold=0.1, evaluate=True)
sizes = {"n": st.integers(1, 8), "p": st.integers(1, 6), "seed": st.integers(0, 10_000)}


def run(schedule, models, segments, seed, chances=STORMY, recorded=None, kept=(), max_steps=100_000):
    scheduler = make_scheduler(schedule, models, dict.fromkeys(segments, 10), recorded)
    return Referee(scheduler, models, segments, random.Random(seed), chances, kept=list(kept)).run(max_steps)


def resumed(models, kept, p):
    """Return the models' work as the driver reads it from the record after a crash."""
    works = []
    for model in models:
        made = [visit.segment for visit in kept if visit.unit == model.unit]
        n_epochs = len(made) // p
        visited = tuple(made[n_epochs * p :])
        works.append(ModelWork(model.unit, model.index, model.last_epoch, 1 + n_epochs, visited, 0.1 * model.index))
    return works


@given(**sizes)
def test_rotation_visits_segment_c_plus_k_whatever_the_timing(n, p, seed):
    models, segments = [ModelWork((10 + c,), c, 2) for c in range(n)], [5 * number for number in range(p)]
    done = run("rotation", models, segments, seed)
    for model in models:
        assert done.visits_in_order()[model.unit] == [
            (epoch, k + 1, segments[(model.index + k) % p]) for epoch in (1, 2) for k in range(p)
        ]


@given(schedule=st.sampled_from(sorted(SCHEDULES)), **sizes)
def test_an_order_that_does_not_depend_on_timing_is_the_same_for_any_events(schedule, n, p, seed):
    models, segments = [ModelWork((c,), c, 2) for c in range(n)], list(range(p))
    if not SCHEDULES[schedule].depends_on_timing(n, p):
        first, second = (run(schedule, models, segments, seed + k).visits_in_order() for k in (0, 1))
        assert first == second


def test_rotation_keeps_its_order_when_failed_models_are_left_out_of_a_resume():
    models, segments = [ModelWork((c,), c, 1) for c in range(6)], [0, 1, 2, 3]
    survivors = [model for model in models if model.index not in (1, 3)]
    with_all, without_two = run("rotation", models, segments, 1), run("rotation", survivors, segments, 2)
    assert without_two.visits_in_order()[(4,)] == with_all.visits_in_order()[(4,)]


def test_a_free_segment_takes_the_model_with_fewest_visits_then_the_lowest_index():
    models = [ModelWork((7,), 2, 2, epoch=2), ModelWork((8,), 1, 2), ModelWork((9,), 0, 2)]
    scheduler = make_scheduler("rotation", models, {0: 10})
    order = []
    while not scheduler.done:
        (visit,) = scheduler.next_tasks()
        scheduler.finished(visit, 1.0)
        order.append((visit.unit, visit.epoch))
    assert order == [((9,), 1), ((8,), 1), ((9,), 2), ((8,), 2), ((7,), 2)]


@given(schedule=st.sampled_from(sorted(SCHEDULES)), n_steps=st.integers(0, 60), **sizes)
def test_a_resume_from_any_point_makes_a_whole(schedule, n, p, seed, n_steps):
    models, segments = [ModelWork((c,), c, 1 + c % 3) for c in range(n)], list(range(p))
    before = run(schedule, models, segments, seed, max_steps=n_steps).kept
    after = run(schedule, resumed(models, before, p), segments, seed + 1, kept=before)
    after.check_whole()
    assert len(after.kept) == p * sum(model.last_epoch for model in models)
    if not SCHEDULES[schedule].depends_on_timing(n, p):
        assert after.visits_in_order() == run(schedule, models, segments, seed + 2).visits_in_order()


def test_a_resume_may_give_an_epoch_as_wholly_visited():
    models = [ModelWork((0,), 0, 2, 1, (0, 1)), ModelWork((1,), 1, 1, 1, (1, 0))]
    scheduler = make_scheduler("rotation", models, {0: 1, 1: 1})
    assert scheduler.next_tasks() == [Visit((0,), 0, 2, 1)]


def test_rotation_goes_on_after_visits_in_another_order():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 1, 1, 1, (2, 1))], {0: 1, 1: 1, 2: 1, 3: 1})
    left = []
    while not scheduler.done:
        (visit,) = scheduler.next_tasks()
        left.append((visit.position, visit.segment))
        scheduler.finished(visit, 1.0)
    assert left == [(3, 3), (4, 0)]


@given(schedule=st.sampled_from(sorted(SCHEDULES)), n_steps=st.integers(0, 60), **sizes)
def test_a_record_is_repeated_exactly_also_in_two_parts(schedule, n, p, seed, n_steps):
    models, segments = [ModelWork((c,), c, 2) for c in range(n)], list(range(p))
    recorded = run(schedule, models, segments, seed).kept
    part = run("recorded", models, segments, seed + 1, recorded=recorded, max_steps=n_steps).kept
    whole = run("recorded", resumed(models, part, p), segments, seed + 2, recorded=recorded, kept=part)
    by_model = {m.unit: [(v.epoch, v.position, v.segment) for v in recorded if v.unit == m.unit] for m in models}
    assert whole.visits_in_order() == by_model


def test_a_record_that_ends_within_an_epoch_ends_there():
    visits = [((0,), 2, 1, 1), ((0,), 0, 1, 2), ((0,), 1, 1, 3), ((0,), 1, 2, 1), ((1,), 1, 1, 1)]
    recorded = [Visit(*visit) for visit in visits]
    done = run("recorded", [ModelWork((c,), c, 2) for c in range(3)], [0, 1, 2], 1, Chances(), recorded=recorded[::-1])
    assert done.visits_in_order() == {
        (0,): [(1, 1, 2), (1, 2, 0), (1, 3, 1), (2, 1, 1)], (1,): [(1, 1, 1)], (2,): []
    }  # fmt: skip
    assert [(done.unit, done.epoch, done.last) for done in done.epochs_done] == [((0,), 1, False)]


@pytest.mark.parametrize(
    "recorded",
    [
        [Visit((0,), 0, 1, 2)],  # no position 1
        [Visit((0,), 0, 1, 1), Visit((0,), 1, 1, 3)],  # no position 2
        [Visit((0,), 0, 1, 1), Visit((0,), 0, 1, 2)],  # a segment twice
        [Visit((0,), 0, 1, 1), Visit((0,), 1, 1, 1)],  # a position twice
        [Visit((0,), 9, 1, 1)],  # an unknown segment
        [Visit((0,), 0, 1, 1), Visit((0,), 0, 2, 1)],  # epoch 1 not complete
        [Visit((0,), 0, 1, 1), Visit((0,), 1, 1, 2), Visit((0,), 0, 3, 1)],  # no epoch 2
    ],
)
def test_a_record_with_gaps_is_refused(recorded):
    with pytest.raises(InvalidParameter, match=r"the record cannot be replayed: model 0, epoch \d, position \d"):
        make_scheduler("recorded", [ModelWork((0,), 0, 3)], {0: 1, 1: 1}, recorded)


def test_a_replay_that_went_another_way_is_refused():
    recorded = [Visit((0,), 0, 1, 1), Visit((0,), 1, 1, 2)]
    with pytest.raises(InvalidParameter, match="the visits of model 0 in epoch 1 differ from the recorded ones"):
        make_scheduler("recorded", [ModelWork((0,), 0, 1, 1, (1,))], {0: 1, 1: 1}, recorded)

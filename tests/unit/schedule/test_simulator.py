"""The simulator: exact times of small cases, and runs that are large enough to show the cost of an event."""

import random
import time

import pytest

from madlib_mop.schedule import ModelWork, Visit, efficiency, make_scheduler
from madlib_mop.schedule.forecast.comparisons import barrier_rounds, shuffled
from madlib_mop.schedule.forecast.simulator import simulate


def test_two_models_swap_segments_and_pay_for_hops():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1), ModelWork((1,), 1, 1)], {0: 10, 1: 10})
    simulation = simulate(scheduler, lambda model, segment, epoch: 2.0 + model, hop_s=0.5)
    assert [(span.chain, span.segment, span.started_s, span.ended_s) for span in simulation.spans] == [
        (0, 0, 0.0, 2.5),
        (1, 1, 0.0, 3.5),
        (0, 1, 3.5, 6.0),
        (1, 0, 3.5, 7.0),
    ]
    visits = ((0,), 0, 1, 1), ((1,), 1, 1, 1), ((1,), 0, 1, 2), ((0,), 1, 1, 2)
    assert simulation.visits == tuple(Visit(*visit) for visit in visits)
    assert simulation.efficiency.makespan_s == 7.0


def test_evaluations_take_their_time_on_every_segment():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 2)], {0: 10, 1: 10})
    simulation = simulate(scheduler, lambda *_: 1.0, evaluation=lambda *_: 0.25)
    assert simulation.efficiency.makespan_s == 2 * (2 * 1.0 + 0.25)
    assert sum(span.evaluation for span in simulation.spans) == 4


def test_a_deadlock_is_an_error_and_no_endless_loop():
    class Stuck:
        done = False

        def next_tasks(self):
            return []

    with pytest.raises(RuntimeError, match="starts nothing"):
        simulate(Stuck(), lambda *_: 1.0)


def test_published_orders_visit_everything_once():
    models, segments = list(range(5)), [0, 1, 2]
    everything = sorted((m, s, e) for m in models for s in segments for e in (1, 2))
    for spans in (
        barrier_rounds(models, segments, 2, lambda m, s, e: 1.0 + m),
        barrier_rounds(segments, models, 2, lambda m, s, e: 1.0 + m),
        shuffled(models, segments, 2, lambda m, s, e: 1.0 + m, seed=3),
    ):
        visits = sorted((span.chain, span.segment, span.epoch) for span in spans)
        assert visits in (everything, sorted((s, m, e) for m, s, e in everything))
        for span in spans:
            overlapping = [o for o in spans if o.started_s < span.ended_s and o.ended_s > span.started_s and o != span]
            assert not any(other.chain == span.chain or other.segment == span.segment for other in overlapping)


def test_barrier_rounds_take_their_longest_visit():
    spans = barrier_rounds([0, 1], [0, 1], 1, lambda model, segment, epoch: 1.0 + 7 * model)
    assert efficiency(spans).makespan_s == 16.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "sigma"),
    [
        pytest.param(schedule, sigma, marks=() if (schedule, sigma) == ("longest_first", 1.0) else pytest.mark.slow)
        for schedule in ("rotation", "longest_first", "auto") for sigma in (0.0, 1.0)
    ],
)  # fmt: skip
def test_a_thousand_models_on_a_hundred_segments_in_seconds(schedule, sigma):
    """100,000 visits: 1 s on one core of 2026; a scan of all pairs in each event would take over an hour."""
    rng = random.Random(7)
    rates = [rng.lognormvariate(0, sigma) for _ in range(1000)]
    segments = list(range(100))
    scheduler = make_scheduler(schedule, [ModelWork((c,), c, 1) for c in range(1000)], dict.fromkeys(segments, 64))
    began = time.process_time()
    result = simulate(scheduler, lambda model, *_: rates[model] * rng.uniform(0.97, 1.03), keep=False)
    assert time.process_time() - began < 30
    assert result.visits == () and result.efficiency.ratio < 1.02


def test_evaluations_are_spans_but_no_visits():
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1)], {0: 10})
    simulation = simulate(scheduler, lambda *_: 1.0, evaluation=lambda model, segment, epoch: 10.0 * epoch)
    assert [(span.evaluation, span.epoch, span.ended_s) for span in simulation.spans] == [
        (False, 1, 1.0),
        (True, 1, 11.0),
    ]
    assert simulation.visits == (Visit((0,), 0, 1, 1),)


def test_a_listener_hears_of_epochs_when_they_are_evaluated_and_may_ask_for_more():
    """Models that it adds and extends are trained like the others; ended ones stop after their epoch."""
    scheduler = make_scheduler("rotation", [ModelWork((0,), 0, 1), ModelWork((1,), 1, 5)], {0: 10, 1: 10})
    heard = []

    def listen(model, epoch):
        assert scheduler.evaluations_left((model,)) == 0
        heard.append((model, epoch))
        if (model, epoch) == (0, 1):
            scheduler.extend((0,), 2)
            scheduler.add_model(ModelWork((2,), 2, 1))
            scheduler.finish_early((1,))

    simulation = simulate(scheduler, lambda *_: 1.0, evaluation=lambda *_: 0.1, epoch_over=listen)
    assert sorted(heard) == [(0, 1), (0, 2), (1, 1), (2, 1)]
    assert {(*visit.unit, visit.epoch) for visit in simulation.visits} == set(heard)

"""The derived figures of runs that are small enough for calculation by hand."""

import pytest
from report import figures
from report.figures import Point, Range
from report.measurement import Measurement
from ways.contract import Epoch, Outcome, Span

BEGUN_AT = 1000.0
# (mst_key, epoch, seconds since the begin, test error): two configurations, two epochs
CURVE = ((1, 1, 4, 0.5), (2, 1, 6, 0.7), (1, 2, 8, 0.6), (2, 2, 10, 0.3))


def run_of(curve=CURVE, spans=(), makespan_s=12.0, seed=1, repetition=1, n_workers=2, startup_s=2.0, **told):
    outcome = Outcome(
        ready_at=BEGUN_AT + startup_s,
        spans=[Span(key, worker, BEGUN_AT + b, BEGUN_AT + e, kind) for key, worker, b, e, kind in spans],
        epochs=[Epoch(key, epoch, BEGUN_AT + at, error, 0.0) for key, epoch, at, error in curve],
        digests=told.pop("digests", {"1": "a"}),
        data_bytes=100,
        versions={},
        **told,
    )
    return Measurement("images", "hopper", repetition, seed, n_workers, makespan_s, None, outcome, BEGUN_AT)


def test_makespan_is_the_median_with_the_extremes():
    assert figures.makespan([run_of(makespan_s=s) for s in (9.0, 5.0, 6.0)]) == Range(6.0, 5.0, 9.0)


def test_startup_is_apart_from_what_follows():
    """Of 2 workers x (12 - 2) s, 11 s are spans; the start-up does not count as idle."""
    spans = ((1, 0, 2, 8, "train"), (1, 0, 8, 9, "evaluate"), (2, 1, 3, 7, "train"))
    run = run_of(spans=spans)
    assert figures.startup_s(run) == 2
    assert figures.compute_s(run) == 11
    assert (figures.compute_s(run, "train"), figures.compute_s(run, "evaluate")) == (10, 1)
    assert figures.idle_share(run) == pytest.approx(1 - 11 / 20)
    assert figures.idle_share(run_of(startup_s=12.0)) is None


def test_medians_leave_out_what_is_not_known():
    runs = [run_of(written_bytes=n) for n in (None, 3, 9, 4)]
    assert figures.known_median(runs, lambda run: run.outcome.written_bytes) == 4
    assert figures.known_median(runs[:1], lambda run: run.outcome.written_bytes) is None


@pytest.mark.parametrize(
    "numerator, denominator, found", [(3.0, 2.0, 1.5), (None, 2.0, None), (3.0, None, None), (3, 0, None)]
)
def test_ratios_of_what_is_known(numerator, denominator, found):
    assert figures.ratio(numerator, denominator) == found


def test_final_errors_are_those_of_the_last_epoch():
    """Not the least ones: configuration 1 was better before. The order of epochs does not matter."""
    run = run_of(tuple(reversed(CURVE)))
    assert figures.final_errors(run) == {1: 0.6, 2: 0.3}
    assert (figures.best_error(run), figures.mean_error(run)) == (0.3, pytest.approx(0.45))
    assert figures.best_error(run_of(())) is figures.mean_error(run_of(())) is None


def test_errors_by_epoch_are_means_of_the_runs():
    better = run_of(tuple((key, epoch, at, error - 0.1) for key, epoch, at, error in CURVE), seed=2)
    found = figures.errors_by_epoch([run_of(), better])
    assert [(point.at, round(point.best, 9), round(point.mean, 9)) for point in found] == [
        (1, 0.45, 0.55),
        (2, 0.25, 0.4),
    ]


def test_errors_by_time_are_the_best_so_far_and_the_mean_of_the_latest():
    """The mean starts when all configurations have an error."""
    found = figures.errors_by_time(run_of())
    assert found[0] == Point(4, 0.5, None)
    assert [(p.at, p.best) for p in found] == [(4, 0.5), (6, 0.5), (8, 0.5), (10, 0.3)]
    assert [p.mean for p in found[1:]] == [pytest.approx(e) for e in (0.6, 0.65, 0.45)]


def test_a_search_is_as_good_as_its_configurations_are_on_average_once_all_are_known():
    """The least error of a configuration counts, even if it has increased since."""
    assert figures.errors_of_search(run_of()) == [(at, pytest.approx(e)) for at, e in ((6, 0.6), (8, 0.6), (10, 0.4))]
    assert figures.time_to_error(run_of(), 0.65) == 6
    assert figures.time_to_error(run_of(), 0.4 + 1e-9) == 10
    assert figures.time_to_error(run_of(), 0.2) is None


def test_time_to_the_same_error_is_at_one_that_both_reach():
    """The other's search ends at 0.62; the run reaches it after 6 s, the other after 5."""
    other = run_of(((1, 1, 3, 0.8), (1, 2, 5, 0.62)))
    assert figures.same_error_ratio([run_of()], [other]) == 1.2
    assert figures.same_error_ratio([other], [run_of()]) == pytest.approx(1 / 1.2)
    assert figures.same_error_ratio([run_of()], [run_of(seed=2)]) is None, "nothing to be paired with"


def test_same_bits_are_asked_of_runs_with_one_seed():
    a, b = {"1": "a", "2": "b"}, {"1": "a", "2": "x"}
    first, again, other = run_of(digests=a), run_of(digests=dict(a), repetition=2), run_of(digests=b, repetition=3)
    another_seed = run_of(digests=b, seed=2)
    assert figures.same_bits([first, again, another_seed]) is True
    assert figures.same_bits([first, again, other]) is False
    assert figures.same_bits([first, another_seed]) is None
    assert figures.same_bits([run_of(digests={}), run_of(digests={}, repetition=2)]) is None


def test_each_seed_counts_once():
    """Seed 1 ran three times with a mean error of 0.45, seed 2 once with 0.65."""
    worse = run_of(tuple((key, epoch, at, error + 0.2) for key, epoch, at, error in CURVE), seed=2)
    runs = [run_of(repetition=r) for r in (1, 2, 3)] + [worse]
    assert figures.mean_error_over_seeds(runs) == pytest.approx(0.55)
    assert figures.points_above(runs, [run_of(seed=2)]) == pytest.approx(20), "seed 1 has nothing to be held against"
    assert figures.points_above(runs, []) is None


def test_stages_and_what_is_outside_of_computing():
    known = {"evaluating": 2.0, "training": 6.0, "tracing": 2.0}, {"training": 8.0, "evaluating": 0.0}, {}
    runs = [run_of(stages=stages, steady_stages={"training": 1.0, "evaluating": 2.0}) for stages in known]
    stages = figures.stage_seconds(runs)
    assert list(stages.items()) == [("training", 7.0), ("evaluating", 1.0), ("tracing", 1.0)], "most first"
    assert figures.outside_share(stages) == pytest.approx(1 / 9)
    assert figures.outside_share(figures.stage_seconds(runs, "steady_stages")) == 0
    assert figures.outside_share({}) is None


def test_the_typical_run_is_the_median_s():
    runs = [run_of(makespan_s=s, repetition=r) for r, s in enumerate((5.0, 9.0, 6.0))]
    assert figures.typical(runs) is runs[2]

"""The figures that are derived from measurements, each a pure function of them; called by `summary` and the plots."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from breakdown import Breakdown

from report.measurement import Measurement


@dataclass(frozen=True)
class Range:
    """The median of several runs' figures, and the least and the greatest of them."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """The test errors (shares of rows) of all configurations, at an epoch or at a time: the best, and their mean."""

    at: float  # epochs, or seconds since the start
    best: float
    mean: float | None  # None while a configuration has no evaluation


def makespan(runs: Sequence[Measurement]) -> Range:
    """Return the time from the begin to the end of the work, in seconds."""
    seconds = [run.makespan_s for run in runs]
    return Range(median(seconds), min(seconds), max(seconds))


def startup_s(run: Measurement) -> float:
    """Return the time until everything was loaded and started."""
    return run.outcome.ready_at - run.begun_at


def compute_s(run: Measurement, kind: str | None = None) -> float:
    """Return the workers' time in training and evaluation (or in one of them), the sum of all workers'."""
    return sum(span.end - span.begin for span in run.outcome.spans if kind in (None, span.kind))


def idle_share(run: Measurement) -> float | None:
    """Return the share of the workers' time after the start-up that was in no span."""
    available_s = run.n_workers * (run.makespan_s - startup_s(run))
    return 1 - compute_s(run) / available_s if available_s > 0 else None


def known_median(runs: Iterable[Measurement], figure: Callable[[Measurement], float | None]) -> float | None:
    """Return the median of a figure over the runs for which it is known."""
    known = [value for run in runs if (value := figure(run)) is not None]
    return median(known) if known else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Divide what is known; None where it is not, or nothing is to be divided by."""
    return numerator / denominator if numerator is not None and denominator else None


def final_errors(run: Measurement) -> dict[int, float]:
    """Return each configuration's test error after its last epoch."""
    last = {}
    for epoch in sorted(run.outcome.epochs, key=lambda epoch: epoch.epoch):
        last[epoch.mst_key] = epoch.test_error
    return last


def best_error(run: Measurement) -> float | None:
    """Return the least test error after the last epoch."""
    return min(final_errors(run).values(), default=None)


def mean_error(run: Measurement) -> float | None:
    """Return the mean over the configurations of the test error after the last epoch."""
    errors = final_errors(run).values()
    return fmean(errors) if errors else None


def errors_by_epoch(runs: Sequence[Measurement]) -> list[Point]:
    """Return best and mean test error at each epoch, the mean of those of the runs."""
    best, mean = defaultdict(list), defaultdict(list)
    for run in runs:
        errors = defaultdict(list)
        for epoch in run.outcome.epochs:
            errors[epoch.epoch].append(epoch.test_error)
        for number, found in errors.items():
            best[number].append(min(found))
            mean[number].append(fmean(found))
    return [Point(number, fmean(best[number]), fmean(mean[number])) for number in sorted(best)]


def errors_by_time(run: Measurement) -> list[Point]:
    """Give, after each evaluation, the least test error so far, and the mean of the configurations' latest ones."""
    n_configurations = len({epoch.mst_key for epoch in run.outcome.epochs})
    latest, least, points = {}, float("inf"), []
    for epoch in sorted(run.outcome.epochs, key=lambda epoch: epoch.at):
        latest[epoch.mst_key] = epoch.test_error
        least = min(least, epoch.test_error)
        mean = fmean(latest.values()) if len(latest) == n_configurations else None
        points.append(Point(epoch.at - run.begun_at, least, mean))
    return points


def errors_of_search(run: Measurement) -> list[tuple[float, float]]:
    """Give, for each evaluation once all configurations are known, its time and the mean of their least errors so far.

    A search compares all of its configurations: which of them will be good nobody knows before, so that a way gains
    nothing by training a good one first.
    """
    n_configurations = len({epoch.mst_key for epoch in run.outcome.epochs})
    least, points = {}, []
    for epoch in sorted(run.outcome.epochs, key=lambda epoch: epoch.at):
        least[epoch.mst_key] = min(epoch.test_error, least.get(epoch.mst_key, 1.0))
        if len(least) == n_configurations:
            points.append((epoch.at - run.begun_at, fmean(least.values())))
    return points


def time_to_error(run: Measurement, error: float) -> float | None:
    """Return the seconds from the begin until the search (`errors_of_search`) was at or below a test error."""
    return next((at for at, mean in errors_of_search(run) if mean <= error), None)


def same_error_ratio(runs: Sequence[Measurement], others: Sequence[Measurement]) -> float | None:
    """Return how many times as long the runs took as the others to the same test error.

    Runs are paired by seed and repetition; a pair's error is the worse one of those that their searches end with
    (`errors_of_search`), which both reach. The median of the pairs is given.
    """
    ratios = []
    for run, other in _pairs(runs, others):
        searches = errors_of_search(run), errors_of_search(other)
        if all(searches):
            error = max(search[-1][1] for search in searches)
            ratios.append(ratio(time_to_error(run, error), time_to_error(other, error)))
    known = [value for value in ratios if value is not None]
    return median(known) if known else None


def same_bits(runs: Sequence[Measurement]) -> bool | None:
    """Return whether runs with one seed ended in the same weights, bit by bit; None where no seed was repeated."""
    repeated = [alike for alike in _by_seed(runs).values() if len(alike) > 1 and alike[0].outcome.digests]
    if not repeated:
        return None
    return all(run.outcome.digests == alike[0].outcome.digests for alike in repeated for run in alike)


def mean_error_over_seeds(runs: Sequence[Measurement]) -> float | None:
    """Return the mean over seeds of the mean test error after the last epoch; each seed counts once."""
    errors = _error_by_seed(runs).values()
    return fmean(errors) if errors else None


def points_above(runs: Sequence[Measurement], others: Sequence[Measurement]) -> float | None:
    """Return by how many percentage points the runs' mean test error is above the others', over the seeds of both."""
    errors, against = _error_by_seed(runs), _error_by_seed(others)
    differences = [errors[seed] - against[seed] for seed in errors if seed in against]
    return 100 * fmean(differences) if differences else None


def stage_seconds(runs: Sequence[Measurement], which: str = "stages") -> dict[str, float]:
    """Return the workers' seconds in each of `Outcome.stages` or its ``steady_stages``.

    Of each stage it is the median of the runs that know their stages; most first.
    """
    known = [stages for run in runs if (stages := getattr(run.outcome, which))]
    names = {name for stages in known for name in stages}
    seconds = {name: median(stages.get(name, 0.0) for stages in known) for name in names}
    return dict(sorted(seconds.items(), key=lambda stage: (-stage[1], stage[0])))


def outside_share(stages: dict[str, float]) -> float | None:
    """Return the share of the stages' time in which no model was computed, to train or to evaluate it."""
    return Breakdown(stages).outside_share if stages else None


def typical(runs: Sequence[Measurement]) -> Measurement:
    """Return the run whose makespan is the median's nearest, for plots of one run."""
    middle = makespan(runs).median
    return min(runs, key=lambda run: (abs(run.makespan_s - middle), run.seed, run.repetition))


def _by_seed(runs: Iterable[Measurement]) -> dict[int, list[Measurement]]:
    found = defaultdict(list)
    for run in runs:
        found[run.seed].append(run)
    return found


def _error_by_seed(runs: Iterable[Measurement]) -> dict[int, float]:
    found = {seed: [mean_error(run) for run in alike] for seed, alike in _by_seed(runs).items()}
    return {seed: fmean(errors) for seed, errors in found.items() if None not in errors}


def _pairs(runs: Iterable[Measurement], others: Iterable[Measurement]) -> list[tuple[Measurement, Measurement]]:
    found = {(other.seed, other.repetition): other for other in others}
    return [(run, found[key]) for run in runs if (key := (run.seed, run.repetition)) in found]

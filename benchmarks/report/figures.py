"""Figures derived from measurements, each by a pure function; called by `summary` and the plots."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from breakdown import Breakdown

from report.measurement import Measurement


@dataclass(frozen=True)
class Range:
    """Median, minimum and maximum of a figure over several runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """Test errors (fractions of rows) over all configurations, at an epoch or a time: the best one and the mean."""

    at: float  # epochs, or seconds since the start
    best: float
    mean: float | None  # None while a configuration has no evaluation


def makespan(runs: Sequence[Measurement]) -> Range:
    """Return the time from the start to the end of the work, in seconds."""
    seconds = [run.makespan_s for run in runs]
    return Range(median(seconds), min(seconds), max(seconds))


def startup_s(run: Measurement) -> float:
    """Return the time until everything was loaded and started."""
    return run.outcome.ready_at - run.begun_at


def compute_s(run: Measurement, kind: str | None = None) -> float:
    """Return the time of all workers in training and evaluation (or in one of them), in seconds."""
    return sum(span.end - span.begin for span in run.outcome.spans if kind in (None, span.kind))


def idle_share(run: Measurement) -> float | None:
    """Return the fraction of the workers' time after start-up that is in no span."""
    available_s = run.n_workers * (run.makespan_s - startup_s(run))
    return 1 - compute_s(run) / available_s if available_s > 0 else None


def known_median(runs: Iterable[Measurement], figure: Callable[[Measurement], float | None]) -> float | None:
    """Return the median of a figure over the runs for which it is known."""
    known = [value for run in runs if (value := figure(run)) is not None]
    return median(known) if known else None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return a quotient; None if a value is unknown or the divisor is 0."""
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
    """Return best and mean test error at each epoch, averaged over the runs."""
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
    """Return after each evaluation the least test error until then, and the mean of the configurations' latest ones."""
    n_configurations = len({epoch.mst_key for epoch in run.outcome.epochs})
    latest, least, points = {}, float("inf"), []
    for epoch in sorted(run.outcome.epochs, key=lambda epoch: epoch.at):
        latest[epoch.mst_key] = epoch.test_error
        least = min(least, epoch.test_error)
        mean = fmean(latest.values()) if len(latest) == n_configurations else None
        points.append(Point(epoch.at - run.begun_at, least, mean))
    return points


def errors_of_search(run: Measurement) -> list[tuple[float, float]]:
    """Return (time, mean of the least errors until then) at each evaluation since all configurations have one.

    A search compares all its configurations. Their quality is unknown in advance, so a way must not gain from training
    a good one first.
    """
    n_configurations = len({epoch.mst_key for epoch in run.outcome.epochs})
    least, points = {}, []
    for epoch in sorted(run.outcome.epochs, key=lambda epoch: epoch.at):
        least[epoch.mst_key] = min(epoch.test_error, least.get(epoch.mst_key, 1.0))
        if len(least) == n_configurations:
            points.append((epoch.at - run.begun_at, fmean(least.values())))
    return points


def time_to_error(run: Measurement, error: float) -> float | None:
    """Return the seconds from the start until the search (`errors_of_search`) was at or below a test error."""
    return next((at for at, mean in errors_of_search(run) if mean <= error), None)


def same_error_ratio(runs: Sequence[Measurement], others: Sequence[Measurement]) -> float | None:
    """Return the ratio of the runs' time to the others' time until the same test error.

    Runs are paired by seed and repetition; a pair's error is the greater of the two final errors of their searches
    (`errors_of_search`), which both reach. The result is the median of the pairs.
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
    """Return whether runs with equal seeds have the same final weights, bit by bit; None if no seed was repeated."""
    repeated = [alike for alike in _by_seed(runs).values() if len(alike) > 1 and alike[0].outcome.digests]
    if not repeated:
        return None
    return all(run.outcome.digests == alike[0].outcome.digests for alike in repeated for run in alike)


def mean_error_over_seeds(runs: Sequence[Measurement]) -> float | None:
    """Return the mean over seeds of the mean test error after the last epoch; each seed counts once."""
    errors = _error_by_seed(runs).values()
    return fmean(errors) if errors else None


def points_above(runs: Sequence[Measurement], others: Sequence[Measurement]) -> float | None:
    """Return the difference of the runs' and the others' mean test errors in percentage points, over common seeds."""
    errors, against = _error_by_seed(runs), _error_by_seed(others)
    differences = [errors[seed] - against[seed] for seed in errors if seed in against]
    return 100 * fmean(differences) if differences else None


def stage_seconds(runs: Sequence[Measurement], which: str = "stages") -> dict[str, float]:
    """Return the workers' seconds in each of `Outcome.stages` or its ``steady_stages``.

    Each value is the median of the runs with known stages; longest stage first.
    """
    known = [stages for run in runs if (stages := getattr(run.outcome, which))]
    names = {name for stages in known for name in stages}
    seconds = {name: median(stages.get(name, 0.0) for stages in known) for name in names}
    return dict(sorted(seconds.items(), key=lambda stage: (-stage[1], stage[0])))


def outside_share(stages: dict[str, float]) -> float | None:
    """Return the fraction of the stages' time in which no model was trained or evaluated."""
    return Breakdown(stages).outside_share if stages else None


def typical(runs: Sequence[Measurement]) -> Measurement:
    """Return the run with the makespan nearest to the median, for plots of one run."""
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

"""The quality of a schedule: makespan against its lower bound, and idle time; for reports and tests."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One finished visit or evaluation: ``started_s`` and ``ended_s`` are seconds from any common origin.

    ``chain`` is equal for visits that can only follow each other: those of a unit, or in model averaging of a segment.
    """

    chain: Hashable
    segment: int
    epoch: int
    started_s: float
    ended_s: float
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The sums of a run's spans; durations in seconds.

    Attributes
    ----------
    makespan_s : float
        From the first start to the last end.
    work_s : float
        All spans together.
    busiest_segment_s, longest_chain_s : float
        The work of the segment, and of the chain, that have most. Where each trainer can do all work, the former is an
        equal share of all work.
    """

    n_segments: int
    makespan_s: float
    work_s: float
    busiest_segment_s: float
    longest_chain_s: float

    @property
    def lower_bound_s(self) -> float:
        """Return the lower bound of the makespan of any schedule of the same tasks."""
        return max(self.busiest_segment_s, self.longest_chain_s)

    @property
    def ratio(self) -> float:
        """Return makespan / lower bound, 1.0 at best; 1.0 also for no work at all."""
        return self.makespan_s / self.lower_bound_s if self.lower_bound_s > 0 else 1.0

    @property
    def idle_share(self) -> float:
        """Return the share of the segments' time in which nothing ran, 0 to 1."""
        available = self.n_segments * self.makespan_s
        return max(0.0, 1.0 - self.work_s / available) if available > 0 else 0.0


class SpanSums:
    """Adds up spans one at a time, in any order, and keeps sums only.

    A chain has the sum of its visits and, after each epoch, the longest of its evaluations, which run in parallel.
    """

    def __init__(self) -> None:
        self._segments: dict[int, float] = {}
        self._chains: dict[Hashable, float] = {}
        self._evaluations: dict[tuple[Hashable, int], float] = {}
        self._start, self._end = float("inf"), float("-inf")

    def add(self, span: Span) -> None:
        """Add one span."""
        seconds = span.ended_s - span.started_s
        self._segments[span.segment] = self._segments.get(span.segment, 0.0) + seconds
        longer_s = seconds
        if span.evaluation:
            longest = self._evaluations.get((span.chain, span.epoch), 0.0)
            longer_s = max(0.0, seconds - longest)
            self._evaluations[span.chain, span.epoch] = max(longest, seconds)
        self._chains[span.chain] = self._chains.get(span.chain, 0.0) + longer_s
        self._start = min(self._start, span.started_s)
        self._end = max(self._end, span.ended_s)

    def efficiency(self, n_segments: int | None = None, any_trainer: bool = False) -> Efficiency:
        """Return the sums.

        ``n_segments`` counts the run's segments where some may have had no span; ``any_trainer`` is whether each
        trainer could do all work.
        """
        n_segments, work_s = n_segments or len(self._segments), sum(self._segments.values())
        return Efficiency(
            n_segments=n_segments,
            makespan_s=max(0.0, self._end - self._start),
            work_s=work_s,
            busiest_segment_s=work_s / n_segments if any_trainer else max(self._segments.values(), default=0.0),
            longest_chain_s=max(self._chains.values(), default=0.0),
        )


def efficiency(spans: Iterable[Span], n_segments: int | None = None) -> Efficiency:
    """Add up the spans of a run, finished ones only, in any order."""
    account = SpanSums()
    for span in spans:
        account.add(span)
    return account.efficiency(n_segments)

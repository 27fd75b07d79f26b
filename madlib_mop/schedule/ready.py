"""The models that wait for a segment, and which of them starts where; used by the scheduler."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice

from .progress import Entry, ModelProgress, Rank, bits

Choice = Callable[[ModelProgress, int], int]  # (model, set of segments that it may start on) -> segment number


class KnownGraphs:
    """Which graphs each segment's trainer has traced, as far as visits have started there; see `ModelWork.graph`.

    ``n_at_once`` is how many visits can compute at the same time; None if that is not known.
    """

    def __init__(self, n_segments: int, n_at_once: int | None = None):
        self._n_at_once = n_at_once
        self._known: list[set[str | None]] = [set() for _ in range(n_segments)]
        self._spread: Counter[str | None] = Counter()  # graph -> number of segments that know it
        self._n_first_visits = 0  # in flight
        self._n_visits, self._visits_s = 0, 0.0
        self._once_s = 0.0  # the longest time of a trainer's start, of building and tracing, in a visit

    def measured(self, seconds: float, once_s: float) -> None:
        """Add the measure of a visit: its cost, and what was paid once beside it."""
        self._n_visits += 1
        self._visits_s += seconds
        self._once_s = max(self._once_s, once_s)

    def pick(
        self, number: int, first: Sequence[ModelProgress], others: Sequence[ModelProgress], n_busy: int
    ) -> ModelProgress | None:
        """Return the model that starts on a segment.

        That is one of the ``first``, the models of the best rank: one whose graph is known there, else one of the graph
        known to the fewest segments. If these segments will have started all of its models sooner than this one could
        trace the graph, one of the ``others`` starts: one whose graph is known, or if the first visits are not made
        yet, any. Return None if there is no other to start, or if a graph would have to be traced for or during a
        model's first visit while the ``n_busy`` tasks in flight use all processors.
        """
        known = self._known[number]
        model = min(first, key=lambda m: (m.graph not in known, self._spread[m.graph]))
        if model.graph in known:
            return model
        is_first = not model.n_visits
        is_left = self._is_left_to_others(sum(m.graph == model.graph for m in first), self._spread[model.graph])
        if is_left and (quick := next((m for m in others if m.graph in known), None)):
            return quick
        all_compute = self._n_at_once is not None and n_busy >= self._n_at_once
        if all_compute and (is_first or self._n_first_visits):
            return None
        if is_left and is_first and (others or n_busy):
            return others[0] if others else None
        return model

    def started(self, model: ModelProgress, number: int) -> None:
        """Note that a visit starts on a segment: its trainer will know the model's graph."""
        self._n_first_visits += not model.n_visits
        if model.graph not in self._known[number]:
            self._known[number].add(model.graph)
            self._spread[model.graph] += 1

    def ended(self, model: ModelProgress) -> None:
        """Note that a visit has ended, before the model's visits are counted anew."""
        self._n_first_visits -= not model.n_visits

    def forget(self, number: int) -> None:
        """Note that a segment has lost its trainer."""
        self._spread.subtract(self._known[number])
        self._known[number].clear()

    def _is_left_to_others(self, n_models: int, n_segments: int) -> bool:
        if not n_segments or not self._n_visits:
            return False
        return n_models / n_segments * self._visits_s / self._n_visits < self._once_s


class ReadyModels:
    """Models whose next visit may start, in two kinds.

    A *bound* model waits for one segment: there, the model with the fewest visits is the first. A *roaming* model waits
    for any segment left in its epoch, in one list sorted by the schedule's rank. An event looks at this list until a
    model fits, and at all models bound to a free segment.
    """

    # how many of the models that fit a segment are compared by their graphs
    _N_COMPARED = 64

    def __init__(
        self, n_segments: int, choose: Choice, rank: Callable[[ModelProgress], Rank], graphs: KnownGraphs | None = None
    ):
        self._choose = choose
        self._rank = rank
        self._graphs = graphs
        self._bound: list[dict[int, ModelProgress]] = [{} for _ in range(n_segments)]  # by index
        self._roaming: list[Entry] = []  # sorted

    @property
    def n_bound(self) -> int:
        """The number of bound models."""
        return sum(map(len, self._bound))

    def add(self, model: ModelProgress) -> None:
        """Add a ready model; ``bound_to`` is the segment that it waits for, or None if it roams."""
        model.entry = (*self._rank(model), model)
        if model.bound_to is None:
            insort(self._roaming, model.entry)
        else:
            self._bound[model.bound_to][model.index] = model

    def remove(self, model: ModelProgress) -> None:
        """Remove a waiting model: it starts, or may not start now."""
        assert model.entry is not None, "it waits"
        if model.bound_to is None:
            del self._roaming[bisect_left(self._roaming, model.entry)]
        else:
            del self._bound[model.bound_to][model.index]
        model.entry = None

    def ended(self, model: ModelProgress) -> None:
        """Note that a visit has ended, before the model's visits are counted anew."""
        if self._graphs is not None:
            self._graphs.ended(model)

    def bound(self) -> list[ModelProgress]:
        """Return the bound models, by index."""
        return sorted((model for models in self._bound for model in models.values()), key=lambda model: model.index)

    def match(self, free: int, fresh: int, n_busy: int) -> list[tuple[ModelProgress, int]]:
        """Return the visits that start now, as (model, segment number), and remove their models.

        Pairs are chosen in the order of the models' ranks until no further pair can start. A model takes a segment
        that no earlier model wanted, if it may, rather than a fresh segment.

        Parameters
        ----------
        free : int
            The set of free segments.
        fresh : int
            The free segments that became free, or got a bound model, since the last match.
        n_busy : int
            Number of segments with a task in flight.
        """
        if self._graphs is not None:
            return self._match_by_graph(self._graphs, free, fresh, n_busy)
        pairs: list[tuple[ModelProgress, int]] = []
        for model in self._by_rank(free):
            may_start = model.left if model.bound_to is None else 1 << model.bound_to
            if fits := may_start & free & ~fresh or may_start & fresh:
                number = self._choose(model, fits)
                pairs.append((model, number))
                free &= ~(1 << number)
                fresh &= free
                if not free:
                    break
        for model, _ in pairs:
            self.remove(model)
        return pairs

    def first(self, accepts: Callable[[ModelProgress], bool]) -> ModelProgress | None:
        """Return the first model by rank that is accepted, whatever its segment."""
        bound = (model for models in self._bound for model in models.values() if accepts(model))
        waiting = min(bound, key=_by_visits, default=None)
        roaming = next((entry[-1] for entry in self._roaming if accepts(entry[-1])), None)
        if waiting is None or roaming is None:
            return waiting or roaming
        return min(waiting, roaming, key=self._rank)

    def start(self, model: ModelProgress) -> int:
        """Let a model start, on any segment that it may; return the segment's number."""
        number = self._choose(model, model.left) if model.bound_to is None else model.bound_to
        self.remove(model)
        return number

    def _match_by_graph(
        self, graphs: KnownGraphs, free: int, fresh: int, n_busy: int
    ) -> list[tuple[ModelProgress, int]]:
        """Do the same for models that all roam, by their graphs."""
        pairs: list[tuple[ModelProgress, int]] = []
        # a segment that was left free because all were busy is no longer fresh, and comes after those that are
        for number in [*bits(fresh), *bits(free & ~fresh)]:
            if fitting := list(islice(self._by_rank(1 << number), self._N_COMPARED)):
                best = self._rank(fitting[0])[:2]
                n_first = sum(self._rank(model)[:2] == best for model in fitting)
                model = graphs.pick(number, fitting[:n_first], fitting[n_first:], n_busy + len(pairs))
                if model is not None:
                    self.remove(model)
                    graphs.started(model, number)
                    pairs.append((model, number))
        return pairs

    def _by_rank(self, free: int) -> Iterator[ModelProgress]:
        """Return the roaming models that may start on these segments, and the first bound one of each, by rank."""
        bound = [min(waiting, key=_by_visits) for number in bits(free) if (waiting := self._bound[number].values())]
        if not self._roaming:
            yield from bound  # each of them starts, in the order of the segments
            return
        roaming = (entry for entry in self._roaming if entry[-1].left & free)
        for entry in merge(sorted((*self._rank(model), model) for model in bound), roaming):
            yield entry[-1]


def _by_visits(model: ModelProgress) -> tuple[int, int]:
    return model.n_visits, model.index

"""The models that wait for a segment, indexed so that an event does not require a scan of all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import islice

from .progress import BoundEntry, ModelProgress, RoamingEntry, bits

Choice = Callable[[ModelProgress, int], int]  # (model, set of segments that it may start on) -> segment number
Rank = tuple[bool, float, int, int]


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
    """Models whose next visit may start, in two kinds; used by the scheduler.

    A *bound* model waits for one segment, in that segment's heap: fewest visits first, then index. A *roaming* model
    waits for any segment left in its epoch, in one list sorted by the schedule's rank.

    With n models and p segments, a bound model costs O(log n) a visit. A roaming model costs O(log n) comparisons and a
    memory move of at most 8n bytes to add and to remove. Each segment has the set of the models that have yet to visit
    it, as bits, so one AND of n bits returns the models that fit. If these are few, only they are examined; if they are
    many, a scan in the order of ranks finds one soon. A segment that no model wanted is later matched against new
    models only.
    """

    # up to this number, the models that fit are sorted; otherwise a scan in the order of ranks finds the first
    _FEW = 64

    def __init__(
        self, n_segments: int, choose: Choice, rank: Callable[[ModelProgress], Rank], graphs: KnownGraphs | None = None
    ):
        self._choose = choose
        self._rank = rank
        self._graphs = graphs
        self._bound: list[list[BoundEntry]] = [[] for _ in range(n_segments)]
        self._roaming: list[RoamingEntry] = []
        self._numbered: list[ModelProgress] = []  # every model that has ever roamed, by the number that it has here
        self._roaming_set = 0  # the roaming models, as bits by number
        # by segment: models with a visit left there, as bits by number; valid while they wait
        self._wanted_by = [0] * n_segments
        self._new: dict[int, ModelProgress] = {}  # index -> roaming model added since the last match
        self.n_bound = 0

    def add(self, model: ModelProgress) -> None:
        """Add a ready model; ``bound_to`` is the segment that it waits for, or None if it roams."""
        if model.bound_to is not None:
            place = model.entry = (model.n_visits, model.index, model)
            heappush(self._bound[model.bound_to], place)
            self.n_bound += 1
        else:
            entry = model.entry = (*self._rank(model), model)
            insort(self._roaming, entry)
            self._new[model.index] = model
            self._list_left(model)

    def remove(self, model: ModelProgress) -> None:
        """Remove a waiting model: it starts, or may not start now."""
        if model.bound_to is not None:
            self.n_bound -= 1  # its entry stays in the heap and is skipped later
        else:
            del self._roaming[bisect_left(self._roaming, _roaming_entry(model))]
            self._roaming_set ^= 1 << model.number
            self._new.pop(model.index, None)
        model.entry = None

    def ended(self, model: ModelProgress) -> None:
        """Note that a visit has ended, before the model's visits are counted anew."""
        if self._graphs is not None:
            self._graphs.ended(model)

    def bound(self) -> list[ModelProgress]:
        """Return the bound models, by index."""
        waiting = (entry[-1] for heap in self._bound for entry in heap if entry[-1].entry is entry)
        return sorted(waiting, key=lambda model: model.index)

    def match(self, free: int, fresh: int, n_busy: int) -> list[tuple[ModelProgress, int]]:
        """Return the visits that start now, as (model, segment number), and remove their models.

        Pairs are chosen in the order of the models' ranks until no further pair can start. A new model takes a segment
        that no earlier model wanted, if there is one, rather than a fresh segment.

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

        def try_to_start(model: ModelProgress, fits: int) -> int:
            number = self._choose(model, fits)
            pairs.append((model, number))
            return ~(1 << number)

        if fresh:
            for model in self._by_rank(fresh):
                if model.bound_to is not None:
                    fits = fresh & (1 << model.bound_to)
                else:
                    unwanted = model.left & free & ~fresh if model.index in self._new else 0
                    fits = unwanted or model.left & fresh
                if fits:
                    free &= try_to_start(model, fits)
                    fresh &= free
                    if not fresh:
                        break
        if free and self._new:  # free segments that no model wanted before
            started = {model.index for model, _ in pairs}
            for model in sorted(self._new.values(), key=self._rank):
                fits = model.left & free
                if fits and model.index not in started:
                    free &= try_to_start(model, fits)
        for model, _ in pairs:
            self.remove(model)
        self._new.clear()
        return pairs

    def _match_by_graph(
        self, graphs: KnownGraphs, free: int, fresh: int, n_busy: int
    ) -> list[tuple[ModelProgress, int]]:
        """Do the same for models that all roam, by their graphs."""
        pairs: list[tuple[ModelProgress, int]] = []
        # a segment that was left free because all were busy is no longer fresh, and comes after those that are
        for number in [*bits(fresh), *bits(free & ~fresh)]:
            if fitting := self._first_fitting(number):
                best = self._rank(fitting[0])[:2]
                n_first = sum(self._rank(model)[:2] == best for model in fitting)
                model = graphs.pick(number, fitting[:n_first], fitting[n_first:], n_busy + len(pairs))
                if model is not None:
                    self.remove(model)
                    graphs.started(model, number)
                    pairs.append((model, number))
        self._new.clear()
        return pairs

    def _first_fitting(self, number: int) -> list[ModelProgress]:
        """Return the first models, at most `_FEW`, that may start on a segment, by rank."""
        fitting = (model for model in self._by_rank(1 << number) if model.left & (1 << number))
        return list(islice(fitting, self._FEW))

    def _list_left(self, model: ModelProgress) -> None:
        """Update the segments' sets of models for a model that begins to roam."""
        if model.number < 0:
            model.number = len(self._numbered)
            self._numbered.append(model)
        bit = 1 << model.number
        for number in bits(model.left ^ model.listed_left):
            self._wanted_by[number] ^= bit
        model.listed_left = model.left
        self._roaming_set |= bit

    def _by_rank(self, fresh: int) -> Iterator[ModelProgress]:
        """Return the models that may fit, in the order of their ranks.

        These are the first bound model of each fresh segment, every roaming model that is new or has a visit left on a
        fresh segment, and possibly other roaming models.
        """
        bound = [first for number in bits(fresh) if (first := self._first_bound(number))]
        if not self._roaming:
            return iter(bound)
        waiting = self._roaming
        if len(waiting) > self._FEW:
            wanting = 0
            for number in bits(fresh):
                wanting |= self._wanted_by[number]
            wanting &= self._roaming_set
            if wanting.bit_count() <= self._FEW:
                fitting = {self._numbered[number] for number in bits(wanting)}
                waiting = sorted(_roaming_entry(model) for model in fitting.union(self._new.values()))
        return (entry[-1] for entry in merge(sorted((*self._rank(model), model) for model in bound), waiting))

    def _first_bound(self, number: int) -> ModelProgress | None:
        heap = self._bound[number]
        while heap and heap[0][-1].entry is not heap[0]:
            heappop(heap)
        return heap[0][-1] if heap else None


def _roaming_entry(model: ModelProgress) -> RoamingEntry:
    assert model.entry is not None and len(model.entry) == 5, "the model does not roam"
    return model.entry

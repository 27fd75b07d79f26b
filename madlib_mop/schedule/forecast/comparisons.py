"""The schedules of published systems, simulated for comparison in reports and tests; nothing here runs a database."""

from __future__ import annotations

import random
from heapq import heappop, heappush

from ..bounds import Span
from .simulator import Cost


def barrier_rounds(models: list[int], segments: list[int], n_epochs: int, cost: Cost) -> list[Span]:
    """Rotate with a barrier after each hop, as Apache MADlib's fit_multiple does.

    A round takes as long as its longest visit. An epoch has max(n, p) rounds; with n > p, n - p models sit out each.
    """
    spans, now = [], 0.0
    n_slots = max(len(models), len(segments))
    for epoch in range(1, n_epochs + 1):
        for turn in range(n_slots):
            visits = [(models[(number + turn) % n_slots], segment) for number, segment in enumerate(segments)
                      if (number + turn) % n_slots < len(models)]  # fmt: skip
            costs = [cost(model, segment, epoch) for model, segment in visits]
            spans += [Span(m, s, epoch, now, now + c) for (m, s), c in zip(visits, costs, strict=True)]
            now += max(costs, default=0.0)
    return spans


def shuffled(models: list[int], segments: list[int], n_epochs: int, cost: Cost, seed: int) -> list[Span]:
    """Start on a free segment the first idle model of a shuffled list, as Cerebro does (Nakandala et al., VLDB 2020).

    The models that a segment has still to see are shuffled again each epoch; all models complete an epoch before the
    next one starts.
    """
    rng = random.Random(seed)
    spans, now = [], 0.0
    for epoch in range(1, n_epochs + 1):
        lists = {segment: rng.sample(models, len(models)) for segment in segments}
        busy: set[int] = set()
        free = set(segments)
        ends: list[tuple[float, int, int]] = []
        while ends or any(lists.values()):
            for segment in sorted(free, key=segments.index):
                model = next((model for model in lists[segment] if model not in busy), None)
                if model is not None:
                    lists[segment].remove(model)
                    busy.add(model)
                    free.discard(segment)
                    end = now + cost(model, segment, epoch)
                    spans.append(Span(model, segment, epoch, now, end))
                    heappush(ends, (end, segment, model))
            now, segment, model = heappop(ends)
            busy.discard(model)
            free.add(segment)
    return spans

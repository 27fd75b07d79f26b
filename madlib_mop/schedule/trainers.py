"""Which trainer makes a model's visits, where each trainer of a server can hold the rows of all segments.

A trainer's first visit of a graph takes seconds. So a model stays with the trainer that has its graph, and only the
rows that it trains on change. Which trainer makes a visit changes neither its rows nor their order, so it changes no
bit. Used by the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from .progress import ModelProgress, bits
from .ready import ReadyModels


class Trainers:
    """The trainers of a run, by the numbers of their segments, and the graphs that each has traced.

    Parameters
    ----------
    n_trainers : int
    models : callable
        Returns the run's models.
    seconds_left : callable
        Returns the work left of a model, in seconds; 0 before the first measure of any model.
    """

    def __init__(
        self,
        n_trainers: int,
        models: Callable[[], Iterable[ModelProgress]],
        seconds_left: Callable[[ModelProgress], float],
    ):
        self._models = models
        self._seconds_left = seconds_left
        self._known: list[set[Hashable]] = [set() for _ in range(n_trainers)]
        self._homes: dict[ModelProgress, int] = {}  # the trainer of each model that was at one
        self._free = self._up = (1 << n_trainers) - 1
        self._once_s: float | None = None  # the longest time of a start, of building and tracing, in a visit

    def measured(self, once_s: float) -> None:
        """Add what a visit paid once: for the trainer's start, for building and tracing."""
        self._once_s = max(self._once_s or 0.0, once_s)

    @property
    def free(self) -> list[int]:
        """The trainers that are there and have no task."""
        return list(bits(self._free))

    def down(self, number: int) -> None:
        """Note that a trainer is lost, with its graphs: its models may go to any."""
        self._up &= ~(1 << number)
        self._free &= self._up
        self._known[number].clear()
        self._homes = {model: home for model, home in self._homes.items() if home != number}

    def up(self, number: int) -> None:
        """Note that a trainer is there; it has no task."""
        self._up |= 1 << number
        self._free |= 1 << number

    def ended(self, number: int) -> None:
        """Note that a trainer has no task any more."""
        self._free |= (1 << number) & self._up

    def next_visit(self, ready: ReadyModels, number: int) -> ModelProgress | None:
        """Return the model that now makes its next visit in a trainer, if there is one."""
        model = ready.first(lambda m: self._is_its_own(m, number)) or self._taken_from_others(ready, number)
        if model is not None:
            self._begin(model, number)
        return model

    def for_evaluation(self, model: ModelProgress) -> int | None:
        """Return the trainer that evaluates a model now, or None if it has another task."""
        home = self._homes.get(model)
        if home is None:
            home = next((n for n in bits(self._free) if _graph(model) in self._known[n]), None)
        if home is None:
            home = next(bits(self._free), None)
        if home is None or not self._free & (1 << home):
            return None
        self._begin(model, home)
        return home

    def _begin(self, model: ModelProgress, number: int) -> None:
        self._free &= ~(1 << number)
        self._homes[model] = number
        self._known[number].add(_graph(model))

    def _is_its_own(self, model: ModelProgress, number: int) -> bool:
        """Return whether a model is at this trainer, or at none and its graph is known here or nowhere."""
        home = self._homes.get(model)
        if home is not None:
            return home == number
        graph = _graph(model)
        return graph in self._known[number] or not any(graph in known for known in self._known)

    def _taken_from_others(self, ready: ReadyModels, number: int) -> ModelProgress | None:
        """Return a model that another trainer would make later than this one, although this one must trace its graph."""
        if self._once_s is None:  # nothing is measured: trace at once what nobody has begun
            return ready.first(lambda m: m not in self._homes)
        loads = self._loads()
        once_s = self._once_s

        def is_sooner_here(model: ModelProgress) -> bool:
            there = self._homes.get(model)
            if there is None:
                there = min(self._knowing(model), key=loads.__getitem__)
            return loads[number] + self._seconds_left(model) + once_s < loads[there]

        return ready.first(is_sooner_here)

    def _loads(self) -> Sequence[float]:
        """Return the seconds of work left of each trainer's models; models that are at none go where there is least."""
        loads = [0.0] * len(self._known)
        others = []
        for model in self._models():
            if model.over:
                continue
            home = self._homes.get(model)
            if home is None:
                others.append(model)
            else:
                loads[home] += self._seconds_left(model)
        for model in others:
            numbers = self._knowing(model) or range(len(loads))
            loads[min(numbers, key=loads.__getitem__)] += self._seconds_left(model)
        return loads

    def _knowing(self, model: ModelProgress) -> list[int]:
        return [number for number, known in enumerate(self._known) if _graph(model) in known]


def _graph(model: ModelProgress) -> Hashable:
    return model.unit if model.graph is None else model.graph

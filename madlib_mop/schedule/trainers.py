"""Which trainer makes a model's visits, where each trainer of a server can hold the rows of all segments.

A trainer's first visit of a graph takes seconds. So a model stays with the trainer that has its graph, and only the
rows that it trains on change. Which trainer makes a visit changes neither its rows nor their order, so it changes no
bit. Used by the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from .costs import MeasuredCosts
from .progress import ModelProgress, Rank, bits
from .ready import ReadyModels
from .rules import Rotation

#: About how many evaluations of a shard take as long as a visit of it.
_EVALUATIONS_OF_A_VISIT = 3


class Trainers:
    """The graphs that each trainer of a run has traced, and the trainer that each model is at, its home.

    Trainers have the numbers of their segments; a set of them is an int, as in `ModelProgress`.

    Parameters
    ----------
    n_trainers : int
    models : callable
        Returns the run's models.
    costs : MeasuredCosts
    n_at_once : int or None
        At how many trainers graphs may be traced for the first visits of models, and during these; None: at all.
    """

    def __init__(
        self,
        n_trainers: int,
        models: Callable[[], Iterable[ModelProgress]],
        costs: MeasuredCosts,
        n_at_once: int | None = None,
    ):
        self._models = models
        self._costs = costs
        self._n_at_once = n_at_once
        self._known: list[set[Hashable]] = [set() for _ in range(n_trainers)]
        self._homes: dict[ModelProgress, int] = {}
        self._once_s: float | None = None  # the longest time of a start, of building and tracing, in a visit

    def measured(self, once_s: float) -> None:
        """Add what a visit paid once: for the trainer's start, for building and tracing."""
        self._once_s = max(self._once_s or 0.0, once_s)

    def early_rank(self, rule: Rotation, model: ModelProgress) -> Rank:
        """Return a rank by which all models can be compared early, without a later end of the run.

        As by the rule, models that are not measured come first. Then those whose work left is a trainer's share of all
        work left: the run would wait for them at its end. Then those with the fewest visits: the work of a trainer
        takes equally long in any order.
        """
        is_measured, work, n_visits, index = rule.rank(model)
        if is_measured:
            all_left = sum(self._costs.left(other) for other in self._models() if not other.over)
            if self._costs.left(model) * len(self._known) < all_left:
                work = float(n_visits)  # the work of the others is negative
        return is_measured, work, n_visits, index

    def forget(self, number: int) -> None:
        """Note that a trainer is lost, with its graphs: its models may go to any."""
        self._known[number].clear()
        self._homes = {model: home for model, home in self._homes.items() if home != number}

    def next_visit(self, ready: ReadyModels, number: int, n_busy: int) -> ModelProgress | None:
        """Return the model that now makes its next visit in a trainer without a task, if there is one.

        ``n_busy`` trainers have a task.
        """
        is_full = self._n_at_once is not None and n_busy >= self._n_at_once
        first_visits = is_full and any(m.in_flight and not m.n_visits for m in self._models())

        def may_be_here(model: ModelProgress) -> bool:
            return _graph(model) in self._known[number] or not is_full or not (first_visits or not model.n_visits)

        following = ready.first(lambda _: True) if is_full else None
        if following is not None and not following.n_visits and not self._knowing(following):
            return None  # or later visits would keep all trainers busy, and it would never begin
        model = ready.first(lambda m: may_be_here(m) and self._is_its_own(m, number))
        if model is None:
            is_sooner_here = self._sooner_at(number)
            model = ready.first(lambda m: may_be_here(m) and is_sooner_here(m))
        if model is not None:
            self._homes[model] = number
            self._known[number].add(_graph(model))
        return model

    def for_evaluation(self, model: ModelProgress, free: int) -> int | None:
        """Return the trainer that evaluates a model now, one of those ``free`` of tasks, or None if it has to wait.

        That is one that has the model's graph, its home first. Another one traces the graph only if the model has no
        home, or if evaluations take longer than that.
        """
        home, graph = self._homes.get(model), _graph(model)
        if home is not None and free & (1 << home):
            return home
        at = next((number for number in bits(free) if graph in self._known[number]), None)
        if at is None and (home is None or self._evaluates_long(model)):
            at = next(bits(free), None)
        if at is not None:
            self._homes.setdefault(model, at)
            self._known[at].add(graph)
        return at

    def _evaluates_long(self, model: ModelProgress) -> bool:
        return self._once_s is not None and self._costs.visit_s(model) > _EVALUATIONS_OF_A_VISIT * self._once_s

    def _is_its_own(self, model: ModelProgress, number: int) -> bool:
        """Return whether a model is at this trainer, or at none and its graph is known here or nowhere."""
        home = self._homes.get(model)
        if home is not None:
            return home == number
        graph = _graph(model)
        return graph in self._known[number] or not any(graph in known for known in self._known)

    def _sooner_at(self, number: int) -> Callable[[ModelProgress], bool]:
        """Return whether a model is completed sooner here than elsewhere, although its graph may have to be traced."""
        if self._once_s is None:  # nothing is measured: trace at once what nobody has begun
            return lambda model: model not in self._homes
        loads, once_s = self._loads(), self._once_s

        def is_sooner_here(model: ModelProgress) -> bool:
            there = self._homes.get(model)
            if there is None:
                there = min(self._knowing(model), key=loads.__getitem__)
            more_s = 0.0 if _graph(model) in self._known[number] else once_s
            return loads[number] + self._costs.left(model) + more_s < loads[there]

        return is_sooner_here

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
                loads[home] += self._costs.left(model)
        for model in others:
            numbers = self._knowing(model) or range(len(loads))
            loads[min(numbers, key=loads.__getitem__)] += self._costs.left(model)
        return loads

    def _knowing(self, model: ModelProgress) -> list[int]:
        return [number for number, known in enumerate(self._known) if _graph(model) in known]


def _graph(model: ModelProgress) -> Hashable:
    return model.unit if model.graph is None else model.graph

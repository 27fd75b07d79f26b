"""Population based training (Jaderberg et al., 2017): the worst copy the best and continue with changed parameters."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.changes import Exploit, Extend, Stop
from madlib_mop.models.parameters.calls import is_number
from madlib_mop.search.base import Action, Search
from madlib_mop.search.parameters import (
    MAX_CONFIGURATIONS,
    MAX_EPOCHS,
    N_ITERATIONS,
    SearchParams,
    parameter,
    whole,
)
from madlib_mop.search.perturbation import perturbed
from madlib_mop.search.space import Point, derived


@dataclass(frozen=True, kw_only=True)
class PbtParams(SearchParams):
    """``population`` models of ``num_iterations`` each; every ``interval`` the worst ``quantile`` copies the best."""

    population: int = parameter(8, "number of models, which all train for `num_iterations` iterations")
    num_iterations: int = parameter(10, N_ITERATIONS)
    interval: int = parameter(2, "number of iterations between two comparisons of the population")
    quantile: float = parameter(0.25, "share of the models that count as the worst, and as the best; at most 0.5")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.population, "population", 2, MAX_CONFIGURATIONS)
        whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)
        whole(self.interval, "interval", 1)
        if not is_number(self.quantile) or not 0 < self.quantile <= 0.5:
            raise InvalidParameter(f"quantile must be above 0 and at most 0.5. Received: {self.quantile!r}")


class Pbt(Search):
    """Generations of ``interval`` epochs; each generation is complete before the next one starts.

    After a generation (truncation selection, section 3 and appendix A of the paper), each model of the worst quantile
    copies the state and the architecture of a model drawn from the best quantile, and its parameters, changed by
    `perturbation.perturbed`. All models are at the same epoch at that time. A quantile has at least one model. Every
    model without a finite loss, whatever their number, copies another model, and is never copied; if no model has a
    finite loss, all are stopped. Failed models leave the population.
    """

    params_class = PbtParams
    summary = (
        "population based training: at regular intervals, the worst models copy the weights and the optimizer variables"
        " of the best ones, and change their parameters"
    )
    repeatable = True
    params: PbtParams

    @property
    def max_epochs(self) -> int:
        return self.params.num_iterations

    @property
    def n_configurations(self) -> int:
        return self.params.population

    def _begin(self, n_slots: int) -> list[Action]:
        points = itertools.islice(self._points_from_first(), self.params.population)
        last_epoch = min(self.params.interval, self.params.num_iterations)
        added = [(self._propose(point, last_epoch), point) for point in points]
        self._points: dict[int, Point] = {one.proposal.mst_key: point for one, point in added}
        self._awaited = set(self._points)
        self._generation = 1
        return [one for one, _ in added]

    def _result(self, mst_key: int) -> list[Action]:
        self._awaited.discard(mst_key)
        return [] if self._awaited else self._next_generation()

    def _next_generation(self) -> list[Action]:
        reached = self._generation * self.params.interval
        if reached >= self.params.num_iterations:
            return []
        last_epoch = min(reached + self.params.interval, self.params.num_iterations)
        alive = self._ranked([key for key in self._points if not self._models[key].failed])
        able = [key for key in alive if self._may_continue(key)]
        if not able:
            return [Stop(key, "no model of the population has a finite loss") for key in sorted(alive)]
        n = max(1, int(len(alive) * self.params.quantile))
        best = able[:n]
        worst = {key for key in alive[-n:] if key not in best} | (set(alive) - set(able))
        rng = np.random.default_rng(derived(self.random_state, self._generation))
        actions: list[Action] = []
        for key in sorted(worst):
            source = best[int(rng.integers(len(best)))]
            point = self._points[key] = perturbed(self._points[source], self.space, rng)
            actions.append(Exploit(key, source, *point.texts, last_epoch, point.model_id))
        self._generation += 1
        self._awaited = set(alive)
        return actions + [Extend(key, last_epoch) for key in sorted(alive) if key not in worst]

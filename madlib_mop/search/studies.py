"""Optuna's studies, in memory, of the sampled searches: without and with past experience; called by `sampled`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState, create_trial

from madlib_mop.search.objectives import Costs
from madlib_mop.search.past import WORST, PastTrial
from madlib_mop.search.space import Point, SearchSpace
from madlib_mop.search.suggestions import fixed_trial, suggest

#: By so much, configurations of earlier runs come after the search's own: the best of them counts as much as the one
#: that ends the best tenth of the search's own.
HANDICAP = 0.1


class Study(Protocol):
    """Chooses points, and learns from their losses; ``number`` counts them from 0."""

    def ask(self) -> Point:
        """Choose the next point."""

    def tell(self, number: int, loss: float) -> None:
        """Report the loss of the point with a number; infinite if its model has failed."""


class NewStudy:
    """A study that knows only its own trials.

    Parameters
    ----------
    sampler : optuna.samplers.BaseSampler
    space : SearchSpace
    costs : mapping of int to tuple of int
        Of each architecture; empty with one objective.
    """

    def __init__(self, sampler: optuna.samplers.BaseSampler, space: SearchSpace, costs: Mapping[int, Costs]):
        self._space = space
        self._costs = costs
        self._study = _create_study(sampler, costs)
        self._trials: list[optuna.Trial] = []
        self._model_ids: list[int] = []

    def ask(self) -> Point:
        """Let the sampler choose."""
        self._trials.append(self._study.ask())
        point = suggest(self._trials[-1], self._space)
        self._model_ids.append(point.model_id)
        return point

    def tell(self, number: int, loss: float) -> None:
        """Report a loss, and the costs of the architecture, to Optuna."""
        self._study.tell(self._trials[number], _values(loss, loss, self._costs, self._model_ids[number]))


def _create_study(sampler: optuna.samplers.BaseSampler, costs: Mapping[int, Costs]) -> optuna.Study:
    n_costs = len(next(iter(costs.values()), ()))
    return optuna.create_study(sampler=sampler, directions=["minimize"] * (1 + n_costs))


def _values(loss: float, figure: float, costs: Mapping[int, Costs], model_id: int) -> list[float]:
    """Return what is to be small: a figure for the loss, and costs; a model without a finite loss is bad in all."""
    return [figure, *(cost if math.isfinite(loss) else math.inf for cost in costs.get(model_id, ()))]


@dataclass
class _Chosen:
    """What Optuna has of a point: its parameters and their distributions; ``loss`` is None until it is known."""

    model_id: int
    parameters: dict[str, Any]
    distributions: dict[str, BaseDistribution]
    loss: float | None = None

    @classmethod
    def by(cls, point: Point, trial: optuna.trial.BaseTrial) -> Self:
        """Copy them from a trial, which would keep its whole study in memory."""
        return cls(point.model_id, trial.params, trial.distributions)

    def as_trial(self, values: list[float] | None) -> optuna.trial.FrozenTrial:
        """Return it as a trial with these values; without them, its model is in training."""
        state = TrialState.RUNNING if values is None else TrialState.COMPLETE
        return create_trial(state=state, values=values, params=self.parameters, distributions=self.distributions)


class ExperiencedStudy:
    """A study that begins with trials of earlier runs.

    Losses on other tables cannot be compared with the search's own, and the Tree-structured Parzen Estimator uses only
    the order of losses. So each trial has its place in the order as its value, from 0 to 1: own trials among the own
    ones, earlier trials among those of their run. The places of earlier trials are reduced to the range from
    `HANDICAP` to 1, so that they count less than own results. Their share of the model also decreases with each own
    result. Places change with every result, so each choice is made in a new study of all trials, by one sampler. With
    several objectives, places stand for losses only.

    Parameters
    ----------
    sampler : optuna.samplers.BaseSampler
    space : SearchSpace
    past : sequence of PastTrial
    first : sequence of Point
        What it chooses first, without the sampler.
    costs : mapping of int to tuple of int
        Of each architecture; empty with one objective.
    """

    def __init__(
        self,
        sampler: optuna.samplers.BaseSampler,
        space: SearchSpace,
        past: Sequence[PastTrial],
        first: Sequence[Point],
        costs: Mapping[int, Costs],
    ):
        self._sampler = sampler
        self._space = space
        self._costs = costs
        self._past = []
        for one in past:
            loss = math.inf if one.place == WORST else 0.0
            values = _values(loss, HANDICAP + (1 - HANDICAP) * one.place, costs, one.point.model_id)
            self._past.append(_Chosen.by(one.point, fixed_trial(one.point, space)).as_trial(values))
        self._first = list(first)
        self._own: list[_Chosen] = []

    def ask(self) -> Point:
        """Return the next one of those to choose first, else let the sampler choose."""
        if self._first:
            point = self._first.pop(0)
            self._own.append(_Chosen.by(point, fixed_trial(point, self._space)))
            return point
        study = _create_study(self._sampler, self._costs)
        study.add_trials([*self._past, *self._own_trials()])
        trial = study.ask()
        point = suggest(trial, self._space)
        self._own.append(_Chosen.by(point, trial))
        return point

    def tell(self, number: int, loss: float) -> None:
        """Keep a loss for the choices that follow."""
        self._own[number].loss = loss

    def _own_trials(self) -> list[optuna.trial.FrozenTrial]:
        known = sorted(own.loss for own in self._own if own.loss is not None)
        places = {loss: (n + 0.5) / len(known) for n, loss in enumerate(known)}
        return [
            own.as_trial(None if own.loss is None else _values(own.loss, places[own.loss], self._costs, own.model_id))
            for own in self._own
        ]

"""The base of the searches whose configurations Optuna's samplers choose: hyperopt, in batches, and tpe, one by one."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import optuna

from madlib_mop.search.base import Action, Search
from madlib_mop.search.parameters import (
    MAX_CONFIGURATIONS,
    MAX_EPOCHS,
    N_CONFIGURATIONS,
    N_ITERATIONS,
    SearchParams,
    parameter,
    whole,
)
from madlib_mop.search.past import spread
from madlib_mop.search.studies import ExperiencedStudy, NewStudy, Study

#: The model learns from so many earlier trials, or from as many as the search has configurations. More of them teach a
#: short search more, but keep a long one from its own optimum where their tables have another one.
_MOST_PAST = 64
_BITS_OF_A_SEED = 32  # width of a seed of NumPy's RandomState

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, kw_only=True)
class SampledParams(SearchParams):
    """``num_configs`` models of ``num_iterations`` each."""

    num_configs: int = parameter(20, N_CONFIGURATIONS)
    num_iterations: int = parameter(5, N_ITERATIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)


class Sampled(Search):
    """A search with a study in memory: it requests configurations from the study and reports their results.

    Without past experience, the study gives the configurations that earlier versions gave, so that their searches can
    be resumed.
    """

    params: SampledParams

    @property
    def max_epochs(self) -> int:
        return self.params.num_iterations

    @property
    def usual_frequency(self) -> int | None:
        return self.max_epochs

    @property
    def n_configurations(self) -> int:
        return self.params.num_configs

    @property
    def has_model(self) -> bool:
        return True

    @property
    def sampler_version(self) -> str:
        return f"optuna {optuna.__version__}"

    def _sampler(self) -> optuna.samplers.BaseSampler:
        seed = self.random_state % 2**_BITS_OF_A_SEED
        if not self.has_model:
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():  # Optuna 4 warns that constant_liar is experimental
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # One dimension at a time: Optuna 4.9 and 5.0 then draw alike. Jointly, the default of 5.0, they do not.
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True, multivariate=False)

    def _begin(self, n_slots: int) -> list[Action]:
        self._n_slots = n_slots
        self._study = self._new_study()
        return self._ask(self._first())

    def _new_study(self) -> Study:
        if not self.past:
            return NewStudy(self._sampler(), self.space, self.costs)
        most = max(_MOST_PAST, self.n_configurations)
        past = spread(sorted(self.past, key=lambda trial: trial.place), most)
        return ExperiencedStudy(self._sampler(), self.space, past, self.tried_first, self.costs)

    def _first(self) -> int:
        return self._n_slots

    def _ask(self, n: int) -> list[Action]:
        """Propose ``n`` configurations, or as many as are left."""
        actions: list[Action] = []
        for _ in range(min(n, self.params.num_configs - len(self._models))):
            actions.append(self._propose(self._study.ask(), self.params.num_iterations))
        return actions

    def _tell(self, mst_key: int) -> None:
        self._study.tell(mst_key - 1, self._loss(mst_key))

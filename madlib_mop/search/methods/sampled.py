"""Searches whose configurations Optuna's samplers choose: hyperopt (rand and tpe, in batches) and tpe (one by one)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import optuna

from madlib_mop.errors import InvalidParameter
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

_BITS_OF_A_SEED = 32  # width of a seed of NumPy's RandomState

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, kw_only=True)
class HyperoptParams(SearchParams):
    """``num_configs`` models of ``num_iterations`` each; ``algorithm`` 'tpe' or 'rand'."""

    num_configs: int = parameter(20, N_CONFIGURATIONS)
    num_iterations: int = parameter(5, N_ITERATIONS)
    algorithm: str = parameter(
        "tpe",
        "`tpe`: Tree-structured Parzen Estimator, which learns from earlier results. `rand`: random draws."
        " Both are samplers of Optuna",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)
        if not isinstance(self.algorithm, str) or self.algorithm.lower() not in ("tpe", "rand"):
            raise InvalidParameter(f"algorithm must be tpe or rand. Received: {self.algorithm!r}")
        object.__setattr__(self, "algorithm", self.algorithm.lower())


@dataclass(frozen=True, kw_only=True)
class TpeParams(SearchParams):
    """``num_configs`` models of ``num_iterations`` each."""

    num_configs: int = parameter(20, N_CONFIGURATIONS)
    num_iterations: int = parameter(5, N_ITERATIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)


class _Sampled(Search):
    """A search with a study in memory: it requests configurations from the study and reports their results.

    Without past experience, the study gives the configurations that earlier versions gave, so that their searches can
    be resumed.
    """

    params: HyperoptParams | TpeParams

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
        return getattr(self.params, "algorithm", "tpe") == "tpe"

    def _sampler(self) -> optuna.samplers.BaseSampler:
        seed = self.random_state % 2**_BITS_OF_A_SEED
        if not self.has_model:
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():  # Optuna warns that constant_liar is experimental, which it has been since 2021
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _begin(self, n_slots: int) -> list[Action]:
        self._n_slots = n_slots
        self._study = self._new_study()
        return self._ask(self._first())

    def _new_study(self) -> Study:
        if not self.past:
            return NewStudy(self._sampler(), self.space)
        past = spread(sorted(self.past, key=lambda trial: trial.place), self.n_configurations)
        return ExperiencedStudy(self._sampler(), self.space, past, self.tried_first)

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


class Hyperopt(_Sampled):
    """MADlib's hyperopt: batches of as many configurations as there are segments, each known whole before the next.

    So the search does not depend on the order in which a batch's models end. As in MADlib, a rest of less than half
    a batch joins the last one. The samplers are Optuna's, not the package hyperopt's: of the Tree-structured Parzen
    Estimator (Bergstra et al., NeurIPS 2011) with the first ten configurations drawn at random, and of independent
    draws.

    Otherwise than MADlib's: 'log_near_one' ranges can be searched too; a range of a fit parameter gives a number, and
    a whole one where it must be (there a list of one float); a configuration may be proposed twice, where MADlib
    fails if that happens within a batch.
    """

    name = "hyperopt"
    params_class = HyperoptParams
    summary = (
        "it proposes as many configurations as there are segments, trains all of them to the end, and proposes the"
        " next ones from the results; algorithm is tpe or rand"
    )
    repeatable = True

    def _first(self) -> int:
        self._awaited: set[int] = set()
        n, size = self.params.num_configs, self._n_slots
        n_batches = max(1, (2 * n + size) // (2 * size))  # n / size, halves rounded up
        self._sizes = [size] * (n_batches - 1) + [n - size * (n_batches - 1)]
        return self._sizes.pop(0)

    def _ask(self, n: int) -> list[Action]:
        n_before = len(self._models)
        actions = super()._ask(n)
        self._batch = list(range(n_before + 1, len(self._models) + 1))
        self._awaited = set(self._batch)
        return actions

    def _result(self, mst_key: int) -> list[Action]:
        self._awaited.discard(mst_key)
        if self._awaited:
            return []
        for key in self._batch:
            self._tell(key)
        return self._ask(self._sizes.pop(0)) if self._sizes else []


class Tpe(_Sampled):
    """Hyperopt's tpe without batches: as soon as a model ends, the next configuration is requested.

    Models in training count as bad ones (constant liar), so the sampler explores elsewhere.
    """

    name = "tpe"
    params_class = TpeParams
    summary = "as hyperopt, but when one model ends, the next configuration is proposed at once"
    repeatable = False

    def _result(self, mst_key: int) -> list[Action]:
        self._tell(mst_key)
        return self._ask(1)

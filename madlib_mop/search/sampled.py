"""Searches whose configurations Optuna's samplers choose: hyperopt (rand and tpe, in batches) and tpe (one by one)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import optuna

from madlib_mop.errors import InvalidParameter
from madlib_mop.search.base import Action, Search
from madlib_mop.search.parameters import MAX_CONFIGURATIONS, MAX_EPOCHS, SearchParams, whole
from madlib_mop.search.suggestions import suggest

_BITS_OF_A_SEED = 32  # width of a seed of NumPy's RandomState

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, kw_only=True)
class HyperoptParams(SearchParams):
    """``num_configs`` models of ``num_iterations`` each; ``algorithm`` 'tpe' or 'rand'."""

    num_configs: int = 20
    num_iterations: int = 5
    algorithm: str = "tpe"

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

    num_configs: int = 20
    num_iterations: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)


class _Sampled(Search):
    """A search with a study in memory: it requests configurations from the sampler and reports their results."""

    params: HyperoptParams | TpeParams

    @property
    def max_epochs(self) -> int:
        return self.params.num_iterations

    @property
    def usual_frequency(self) -> int | None:
        return self.max_epochs

    def _sampler(self) -> optuna.samplers.BaseSampler:
        seed = self.random_state % 2**_BITS_OF_A_SEED
        if getattr(self.params, "algorithm", "tpe") == "rand":
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():  # Optuna warns that constant_liar is experimental, which it has been since 2021
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def _begin(self, n_slots: int) -> list[Action]:
        self._n_slots = n_slots
        self._study = optuna.create_study(sampler=self._sampler())
        self._trials: dict[int, optuna.Trial] = {}
        return self._ask(self._first())

    def _first(self) -> int:
        return self._n_slots

    def _ask(self, n: int) -> list[Action]:
        """Propose ``n`` configurations, or as many as are left."""
        actions: list[Action] = []
        for _ in range(min(n, self.params.num_configs - len(self._models))):
            trial = self._study.ask()
            added = self._propose(suggest(trial, self.space), self.params.num_iterations)
            self._trials[added.proposal.mst_key] = trial
            actions.append(added)
        return actions

    def _tell(self, mst_key: int) -> None:
        self._study.tell(self._trials.pop(mst_key), self._loss(mst_key))


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
        actions = super()._ask(n)
        self._awaited = set(self._trials)
        self._batch = sorted(self._trials)
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

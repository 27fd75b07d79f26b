"""MADlib's hyperopt: batches of configurations that a sampler of Optuna chooses."""

from __future__ import annotations

from dataclasses import dataclass

from madlib_mop.errors import InvalidParameter
from madlib_mop.search.base import Action
from madlib_mop.search.parameters import parameter
from madlib_mop.search.sampled import Sampled, SampledParams


@dataclass(frozen=True, kw_only=True)
class HyperoptParams(SampledParams):
    """``num_configs`` models of ``num_iterations`` each; ``algorithm`` 'tpe' or 'rand'."""

    algorithm: str = parameter(
        "tpe",
        "`tpe`: Tree-structured Parzen Estimator, which learns from earlier results. `rand`: random draws."
        " Both are samplers of Optuna",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.algorithm, str) or self.algorithm.lower() not in ("tpe", "rand"):
            raise InvalidParameter(f"algorithm must be tpe or rand. Received: {self.algorithm!r}")
        object.__setattr__(self, "algorithm", self.algorithm.lower())


class Hyperopt(Sampled):
    """MADlib's hyperopt: batches of as many configurations as there are segments, each known whole before the next.

    So the search does not depend on the order in which a batch's models end. As in MADlib, a rest of less than half
    a batch joins the last one. The samplers are Optuna's, not the package hyperopt's: of the Tree-structured Parzen
    Estimator (Bergstra et al., NeurIPS 2011) with the first ten configurations drawn at random, and of independent
    draws.

    Otherwise than MADlib's: 'log_near_one' ranges can be searched too; a range of a fit parameter gives a number, and
    a whole one where it must be (there a list of one float); a configuration may be proposed twice, where MADlib
    fails if that happens within a batch.
    """

    params_class = HyperoptParams
    summary = (
        "it proposes as many configurations as there are segments, trains all of them to the end, and proposes the"
        " next ones from the results; algorithm is tpe or rand"
    )
    repeatable = True
    params: HyperoptParams

    @property
    def has_model(self) -> bool:
        return self.params.algorithm == "tpe"

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

"""TPE: the next configuration is chosen as soon as a model ends, by a sampler of Optuna."""

from __future__ import annotations

from madlib_mop.search.base import Action
from madlib_mop.search.sampled import Sampled, SampledParams


class Tpe(Sampled):
    """Hyperopt's tpe without batches: as soon as a model ends, the next configuration is requested.

    Models in training count as bad ones (constant liar), so the sampler explores elsewhere.
    """

    params_class = SampledParams
    summary = "as hyperopt, but when one model ends, the next configuration is proposed at once"
    repeatable = False

    def _result(self, mst_key: int) -> list[Action]:
        self._tell(mst_key)
        return self._ask(1)

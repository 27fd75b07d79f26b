"""Rows of `madlib_mop.model` for what a search proposes, from its run's plan alone: no user's table is read again."""

import json

from madlib_mop.models.parameters.class_weights import written_out
from madlib_mop.models.parameters.functions import flat_names
from madlib_mop.models.parameters.parser import CompileParams, parse_compile_params
from madlib_mop.search.base import Proposal


class SearchModels:
    """Makes the rows of one run.

    Parameters
    ----------
    plan : dict
        ``plan.search`` of the run: ``archs`` and ``start_weights`` by model_id, ``custom_names``.
    class_weight : dict of int to float, or None
        What ``class_weight='balanced'`` stands for.
    """

    def __init__(self, plan: dict, class_weight: dict[int, float] | None = None):
        self._class_weight = class_weight
        self._archs = plan["archs"]
        self._start_weights = plan["start_weights"]
        self._custom_names = frozenset(plan["custom_names"])

    def added(self, proposal: Proposal) -> dict:
        """Return the row of a new model, but its run_id."""
        return {
            "mst_key": proposal.mst_key,
            "ordinal": proposal.mst_key - 1,
            "start_weights": self._start_weights.get(str(proposal.model_id)),
            "first_epoch": 1,
            "last_epoch": proposal.last_epoch,
            "epoch": 0,
            **self.parameters(proposal.model_id, proposal.compile_params, proposal.fit_params),
        }

    def parameters(self, model_id: int, compile_params: str, fit_params: str) -> dict:
        """Return the columns that say how a model is built and trained."""
        parsed = self._parse(compile_params)
        return {
            "model_id": model_id,
            "compile_params": compile_params,
            "fit_params": written_out(fit_params, self._class_weight) if self._class_weight else fit_params,
            "model_arch": json.loads(self._archs[str(model_id)]),
            "loss_type": ", ".join(flat_names(parsed.loss)),
            "metrics_type": list(parsed.metric_names) or None,
        }

    def same_optimizer(self, one: str, other: str) -> bool:
        """Return whether two compile parameters name the same optimizer, whatever its arguments."""
        return self._parse(one).optimizer.name == self._parse(other).optimizer.name

    def _parse(self, compile_params: str) -> CompileParams:
        return parse_compile_params(compile_params, self._custom_names)

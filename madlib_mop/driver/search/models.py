"""The models that a search proposes, from its run's plan only: users' tables are not read again."""

import json
from collections.abc import Mapping

from madlib_mop.catalog.rows.model import ModelRow, Parameters
from madlib_mop.catalog.rows.plan import SearchPlan
from madlib_mop.models.parameters.class_weights import written_out
from madlib_mop.models.parameters.functions import flat_names
from madlib_mop.models.parameters.hyper_parameters import hyper_parameters
from madlib_mop.models.parameters.parser import CompileParams, parse_compile_params, parse_fit_params
from madlib_mop.search.base import Proposal


class SearchModels:
    """Makes the models of one run.

    Parameters
    ----------
    plan : SearchPlan
    class_weight : mapping of int to float, or None
        The value of ``class_weight='balanced'``.
    """

    def __init__(self, plan: SearchPlan, class_weight: Mapping[int, float] | None = None):
        self._class_weight = class_weight
        self._archs = plan.archs
        self._start_weights = plan.start_weights
        self._custom_names = frozenset(plan.custom_names)

    def added(self, proposal: Proposal) -> ModelRow:
        """Return a new model."""
        parameters = self.parameters(proposal.model_id, proposal.compile_params, proposal.fit_params)
        return ModelRow(
            mst_key=proposal.mst_key,
            ordinal=proposal.mst_key - 1,
            start_weights=self._start_weights.get(str(proposal.model_id)),
            last_epoch=proposal.last_epoch,
            **parameters.columns(),
        )

    def parameters(self, model_id: int, compile_params: str, fit_params: str) -> Parameters:
        """Return how a model is built and trained."""
        parsed, arch = self._parse(compile_params), json.loads(self._archs[str(model_id)])
        fit_params = written_out(fit_params, self._class_weight) if self._class_weight else fit_params
        return Parameters(
            model_id=model_id,
            compile_params=compile_params,
            fit_params=fit_params,
            model_arch=arch,
            loss_type=", ".join(flat_names(parsed.loss)),
            metrics_type=list(parsed.metric_names) or None,
            hyper_parameters=hyper_parameters(model_id, parsed, parse_fit_params(fit_params), arch),
        )

    def same_optimizer(self, one: str, other: str) -> bool:
        """Return whether two compile parameters name the same optimizer, with any arguments."""
        return self._parse(one).optimizer.name == self._parse(other).optimizer.name

    def _parse(self, compile_params: str) -> CompileParams:
        return parse_compile_params(compile_params, self._custom_names)

"""The models that a search proposes, from its run's plan only: users' tables are not read again."""

import json
from collections.abc import Mapping

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import SearchPlan
from madlib_mop.models.changes import (
    Proposal,
)
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.class_weights import written_out


class ProposedModels:
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
        configuration = self.configuration(proposal.model_id, proposal.compile_params, proposal.fit_params)
        return ModelRow(
            mst_key=proposal.mst_key,
            ordinal=proposal.mst_key - 1,
            start_weights=self._start_weights.get(str(proposal.model_id)),
            last_epoch=proposal.last_epoch,
            **configuration.columns(),
        )

    def configuration(self, model_id: int, compile_params: str, fit_params: str) -> Configuration:
        """Return how a model is built and trained."""
        fit_params = written_out(fit_params, self._class_weight) if self._class_weight else fit_params
        arch = json.loads(self._archs[str(model_id)])
        return Configuration(model_id, compile_params, fit_params, arch, self._custom_names)

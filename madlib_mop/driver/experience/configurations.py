"""The configurations of earlier runs in the space of a search: found when it is planned, and read from its plan."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import PastConfiguration
from madlib_mop.catalog.rows.run import Metric, RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.errors import MopError
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.class_weights import as_given
from madlib_mop.models.stored import without_names
from madlib_mop.search import WORST, Locator, PastTrial, SearchSpace
from madlib_mop.search.past import spread

#: The most configurations of one run that are compared with the space. They keep their spread from good to bad.
MAX_OF_RUN = 500


@dataclass(frozen=True)
class Tally:
    """Numbers of configurations: those with a loss, those of another architecture, those with other parameters."""

    n_compared: int = 0
    n_other_architecture: int = 0
    n_outside: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.n_compared + other.n_compared,
            self.n_other_architecture + other.n_other_architecture,
            self.n_outside + other.n_outside,
        )


class PastConfigurations:
    """Finds the configurations of earlier runs that lie in the space of a search.

    Parameters
    ----------
    record : Record
    space : SearchSpace
    archs : mapping of int to dict
        The architectures of the search by model_id.
    functions : mapping of str to bytes
        Its custom functions; those of an earlier run with the same name count only if they have the same code.
    """

    def __init__(self, record: Record, space: SearchSpace, archs: Mapping[int, Node], functions: Mapping[str, bytes]):
        self._record = record
        self._locator = Locator(space)
        self._functions = functions
        self._model_ids: dict[str, int] = {}
        for model_id, arch in archs.items():
            self._model_ids.setdefault(without_names(arch), model_id)

    def of_run(self, run: RunRow) -> tuple[list[PastConfiguration], Tally]:
        """Return the configurations of a run in the space, best first, and how many others it has.

        A configuration's loss is the one at its newest epoch with metrics: on the validation table, or without one on
        the training table. Models that have failed or have no metrics are not compared.
        """
        losses = newest_losses(self._record.metrics(run.run_id))
        models = [
            m for m in self._record.models(run.run_id) if m.mst_key in losses and m.state is not ModelState.FAILED
        ]
        models.sort(key=lambda model: (losses[model.mst_key], model.mst_key))
        n_finite = sum(math.isfinite(losses[model.mst_key]) for model in models)
        recorded = self._record.custom_functions(run.run_id)
        same = [name for name, code in self._functions.items() if recorded.get(name) == code]
        places = {m.mst_key: (n + 0.5) / n_finite if n < n_finite else WORST for n, m in enumerate(models)}
        model_ids: dict[tuple[int, int | None], int | None] = {}
        found, n_other, n_outside = [], 0, 0
        compared = spread(models, MAX_OF_RUN)
        for model in compared:
            model_id = self._model_id(model, model_ids)
            if model_id is None:
                n_other += 1
                continue
            weights = run.plan.class_weight
            fit_params = as_given(model.fit_params, weights) if weights else model.fit_params
            point = self._locator.find(model_id, model.compile_params, fit_params, same)
            if point is None:
                n_outside += 1
                continue
            key = model.mst_key
            loss = losses[key] if math.isfinite(losses[key]) else None
            found.append(PastConfiguration(run.run_id, key, model_id, *point.texts, loss, places[key]))
        return found, Tally(len(compared), n_other, n_outside)

    def _model_id(self, model: ModelRow, known: dict[tuple[int, int | None], int | None]) -> int | None:
        """Return the model_id of a model's architecture in the search; None if the search does not have it."""
        key = model.model_id, model.command_id  # a command may take its architectures from another table
        if key not in known:
            try:
                known[key] = self._model_ids.get(without_names(model.model_arch))
            except MopError:
                known[key] = None
        return known[key]


def newest_losses(metrics: Iterable[Metric]) -> dict[int, float]:
    """Return the loss of each model at its newest epoch, infinite if it is not a number.

    Parameters
    ----------
    metrics : iterable of Metric
        Of a run. Losses on validation data are used if there are any.
    """
    newest: dict[int, tuple[int, bool, float]] = {}
    for metric in metrics:
        if metric.ordinal == 0:
            is_number = metric.value is not None and not math.isnan(metric.value)
            this = metric.epoch, metric.data_set == "validation", metric.value if is_number else math.inf
            newest[metric.mst_key] = max(this, newest.get(metric.mst_key, this), key=lambda one: one[:2])
    return {mst_key: loss for mst_key, (_, _, loss) in newest.items()}


def past_trials(
    configurations: Sequence[PastConfiguration], space: SearchSpace, custom_names: Iterable[str]
) -> list[PastTrial]:
    """Return the recorded configurations of a plan as a search takes them.

    Parameters
    ----------
    configurations : sequence of PastConfiguration
    space : SearchSpace
        Of the same plan.
    custom_names : iterable of str
    """
    locator, names = Locator(space), list(custom_names)
    trials = []
    for one in configurations:
        point = locator.find(one.model_id, one.compile_params, one.fit_params, names)
        if point is None:
            raise MopError(
                f"internal error: the plan of a search has a configuration of run {one.run_id} that does not lie in its"
                f" space: {one.compile_params}, {one.fit_params}",
                hint="Please report it.",
            )
        trials.append(PastTrial(point, one.place))
    return trials

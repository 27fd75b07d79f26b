"""A search in simulated time: it decides on models whose losses are drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import Metric, RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.changes.deciders import Decision
from madlib_mop.driver.changes.proposed import ProposedModels
from madlib_mop.driver.changes.search import Searcher, SearchHistory, search_of
from madlib_mop.models.changes import Add, Exploit, Extend, Finish, Stop
from madlib_mop.models.configuration import Configuration
from madlib_mop.schedule import ModelWork, Scheduler, Unit

#: How far a model's loss falls from its first epoch on, and how far models differ, in the same unit.
_FALL, _SPREAD = 1.0, 0.5


class SimulatedSearch:
    """The search of a run that is planned.

    Parameters
    ----------
    run : RunRow
        Of a search.
    seed : int
        Of the losses.
    elapsed_s : callable
        Returns the seconds of training so far.
    graph_of : callable
        Returns the graph of a configuration for the scheduler.

    Attributes
    ----------
    configurations : dict of int to Configuration
        Those that were proposed, by mst_key.
    """

    def __init__(
        self,
        run: RunRow,
        seed: int,
        elapsed_s: Callable[[], float],
        graph_of: Callable[[Configuration], str | None],
    ):
        self.configurations: dict[int, Configuration] = {}
        plan = run.search_plan
        self._run, self._graph_of = run, graph_of
        self._proposed = ProposedModels(plan, run.plan.class_weight)
        self._chance = random.Random(seed)
        self._models: dict[int, ModelRow] = {}
        self._levels: dict[int, float] = {}
        self._data_set = "validation" if run.validation_table else "training"
        search = search_of(plan)
        self._searcher = Searcher(run, search, SearchHistory(), elapsed_s, search.params.budget_s)
        self.scheduler: Scheduler | None = None

    def begin(self) -> list[ModelWork]:
        """Return the first models."""
        works: list[ModelWork] = []
        self._apply(self._searcher.begin(self._models), works.append)
        return works

    def is_due(self, unit: Unit, epoch: int) -> bool:
        """Return whether a model is evaluated after an epoch."""
        frequency = self._run.metrics_compute_frequency
        return epoch == self._models[unit[0]].last_epoch or (frequency is not None and epoch % frequency == 0)

    def epoch_over(self, unit: Unit, epoch: int, _now_s: float) -> None:
        """Let the search decide after an epoch of a model."""
        (key,) = unit
        scheduler = self.scheduler
        assert scheduler is not None, "a model has trained"
        self._models[key] = replace(self._models[key], epoch=epoch)
        self._apply(self._searcher.tick(), scheduler.add_model)
        if epoch == self._models[key].last_epoch:
            self._models[key] = replace(self._models[key], state=ModelState.TRAINED)
            loss = self._levels[key] + _FALL / epoch
            metric = Metric(
                run_id=0, mst_key=key, epoch=epoch, data_set=self._data_set, ordinal=0, name="loss", value=loss,
                elapsed_s=0.0, work_s=0.0,
            )  # fmt: skip
            self._apply(self._searcher.reached(key, epoch, [metric]), scheduler.add_model)

    def _apply(self, decisions: Iterable[Decision], add: Callable[[ModelWork], None]) -> None:
        for decision in decisions:
            for change in decision.changes:
                if isinstance(change, Add):
                    add(self._added(change))
                elif isinstance(change, Extend | Exploit):
                    assert change.mst_key is not None and change.last_epoch is not None, "a search says both"
                    self._extend(change.mst_key, change.last_epoch)
                elif isinstance(change, Stop):
                    self._end(change.mst_key)
                elif isinstance(change, Finish):
                    for key in [key for key, m in self._models.items() if m.state is not ModelState.TRAINED]:
                        self._end(key)

    def _added(self, change: Add) -> ModelWork:
        key = change.proposal.mst_key
        model = replace(self._proposed.added(change.proposal), state=ModelState.TRAINING)
        self._levels[key] = self._chance.gauss(0.0, _SPREAD)
        self._models[key], self.configurations[key] = model, model.configuration
        return ModelWork((key,), model.ordinal, model.last_epoch, graph=self._graph_of(model.configuration))

    def _extend(self, key: int, last_epoch: int) -> None:
        assert self.scheduler is not None, "a model has trained"
        self.scheduler.extend((key,), last_epoch)
        self._models[key] = replace(self._models[key], last_epoch=last_epoch, state=ModelState.TRAINING)

    def _end(self, key: int) -> None:
        assert self.scheduler is not None, "a model has trained"
        last_epoch = self.scheduler.finish_early((key,))
        self._models[key] = replace(self._models[key], last_epoch=max(1, last_epoch))

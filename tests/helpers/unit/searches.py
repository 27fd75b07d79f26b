"""Drives searches to their ends, alone or with a scheduler, and asserts that they keep their contract."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from madlib_mop.models.parameters.parser import parse_compile_params
from madlib_mop.models.parameters.search_grid import iterate_random
from madlib_mop.schedule import ModelWork, Visit, make_scheduler
from madlib_mop.schedule.forecast.simulator import Simulation, simulate
from madlib_mop.search import (
    WORST,
    Action,
    Add,
    Exploit,
    Extend,
    Finish,
    PastTrial,
    Search,
    SearchSpace,
    Stop,
    make_search,
    search_class,
)

COMPILE_GRID = """{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
    'optimizer_params_list': [{'optimizer': ['Adam', 'AdamW'], 'lr': [0.0001, 0.1, 'log'], 'amsgrad': [False]},
                              {'optimizer': ['SGD'], 'lr': [0.01, 0.1, 0.5], 'momentum': [0.5, 0.99, 'log_near_one']}]}
"""
FIT_GRID = "{'batch_size': [4, 64, 'log'], 'epochs': [1]}"
METHODS = {  # small searches of every kind
    "hyperband": "R=9",
    "hyperopt": "num_configs=16, num_iterations=2",  # more than the ten that TPE first draws at random
    "asha": "R=8, eta=2, num_configs=9",
    "tpe": "num_configs=16, num_iterations=2",
    "pbt": "population=5, num_iterations=5, interval=2",
}
SMALLEST = {  # for tests that kill a driver at each of its writes
    "hyperband": "R=4, eta=2",
    "hyperopt": "num_configs=5, num_iterations=2, algorithm=rand",
    "asha": "R=4, eta=2, num_configs=7",
    "tpe": "num_configs=5, num_iterations=2",
    "pbt": "population=5, num_iterations=4, interval=1, quantile=0.4",
}
SYNCHRONOUS = tuple(method for method in METHODS if search_class(method).repeatable)

Loss = Callable[[str, int, int], float]  # (compile_params, mst_key, epoch) -> loss


def space(compile_grid: str = COMPILE_GRID, fit_grid: str = FIT_GRID, model_ids=(1, 2)) -> SearchSpace:
    """Return a space of two architectures and conditional dimensions."""
    return SearchSpace.read(list(model_ids), compile_grid, fit_grid)


def earlier(n: int = 12, random_state: int = 99, grid=None) -> list[PastTrial]:
    """Return earlier trials, the best one last; the last but one had no finite loss."""
    searched = space(grid) if grid else space()
    points = list(itertools.islice(searched.draw(random_state), n))
    places = [1 - (k + 0.5) / n for k in range(n)]
    places[-2] = WORST
    return [PastTrial(point, place) for point, place in zip(points, places, strict=True)]


def draw_random(compile_grid: str, fit_grid: str, n: int, random_state: int | None) -> list[tuple[str, str]]:
    """Return the first configurations of a random search."""
    return list(itertools.islice(iterate_random(compile_grid, fit_grid, random_state), n))


def search_of(method: str, params: str | None = None, random_state: int = 1) -> Search:
    """Return a small search."""
    return make_search(method, METHODS[method] if params is None else params, space(), random_state)


def toy_loss(compile_params: str, mst_key: int, epoch: int) -> float:
    """Return a loss that decreases with epochs, is lowest for a learning rate of 0.01, and differs for all models."""
    rate = parse_compile_params(compile_params).learning_rate
    return (math.log10(rate) + 2) ** 2 + 1 / epoch + 1e-6 * mst_key


@dataclass
class Laboratory:
    """A driver's view of one search: the models in training, their last epochs, and all calls and actions.

    ``calls`` are (method, arguments) and ``said`` the actions that followed each of them.
    """

    search: Search
    loss: Loss = toy_loss
    calls: list[tuple] = field(default_factory=list)
    said: list[list[Action]] = field(default_factory=list)
    awaited: dict[int, int] = field(default_factory=dict)  # models in training -> last epoch
    reached: dict[int, int] = field(default_factory=dict)
    params_of: dict[int, str] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)

    @property
    def actions(self) -> list[Action]:
        """All actions in their order."""
        return [action for actions in self.said for action in actions]

    def of_model(self) -> dict[int, list[Action]]:
        """Return the actions of each model."""
        found: dict[int, list[Action]] = {}
        for action in self.actions:
            key = action.proposal.mst_key if isinstance(action, Add) else getattr(action, "mst_key", None)
            found.setdefault(key, []).append(action)
        return found

    def call(self, method: str, *arguments) -> list[Action]:
        """Call the search, then check and execute its actions."""
        actions = getattr(self.search, method)(*arguments)
        self.calls.append((method, arguments))
        self.said.append(actions)
        for action in actions:
            self._apply(action)
        return actions

    def result(self, key: int, loss: float | None = None) -> list[Action]:
        """End the training of a model successfully."""
        epoch = self.awaited.pop(key)
        self.reached[key] = epoch
        self.losses[key] = self.loss(self.params_of[key], key, epoch) if loss is None else loss
        return self.call("result", key, epoch, self.losses[key])

    def failed(self, key: int) -> list[Action]:
        """Report the failure of a model."""
        del self.awaited[key]
        self.losses[key] = math.inf
        self.dead.add(key)
        return self.call("failed", key)

    def run(
        self, n_slots: int, rng: random.Random, fail: float = 0.0, nan: float = 0.0, hurry: float = 0.0
    ) -> Laboratory:
        """Start the search and end its models in a random order until it is done; ``hurry`` reports times left."""
        self.call("start", n_slots)
        while not self.search.done:
            if hurry and rng.random() < hurry:
                assert self.call("time_left", rng.randint(0, self.search.enough_iterations)) == []
            key = rng.choice(sorted(self.awaited))
            if rng.random() < fail:
                self.failed(key)
            else:
                self.result(key, math.nan if rng.random() < nan else None)
        assert not self.awaited, "done with models in training"
        return self

    def _apply(self, action: Action) -> None:
        match action:
            case Add((p,)):
                assert p.mst_key == len(self.params_of) + 1 and p.model_id in self.search.space.model_ids
                self._train(p.mst_key, p.last_epoch, p.compile_params)
            case Extend(key, last_epoch):
                self._train(key, last_epoch, self.params_of[key])
            case Exploit(key, source, compile_params, _, last_epoch):
                assert source not in self.dead and self.reached[source] == self.reached[key]
                assert source not in self.awaited, "the source is told to go on before it is copied"
                self._train(key, last_epoch, compile_params)
            case Stop(key, reason):
                assert key not in self.awaited and key not in self.dead | self.stopped and reason
                self.stopped.add(key)
            case Finish(reason):
                assert reason

    def _train(self, key: int, last_epoch: int, compile_params: str) -> None:
        assert key not in self.awaited and key not in self.dead | self.stopped
        assert self.reached.get(key, 0) < last_epoch <= self.search.max_epochs
        self.awaited[key] = last_epoch
        self.params_of[key] = compile_params


def train_on_scheduler(
    lab: Laboratory, schedule: str, n_segments: int, cost, budget: int | None = None
) -> tuple[Simulation, dict[int, int]]:
    """Run a search over a simulated database as the driver does; return the simulation and each model's last epoch.

    With a ``budget``, the search is finished after this number of results.
    """
    scheduler = make_scheduler(schedule, [], dict.fromkeys(range(n_segments), 10))
    ends: dict[int, int] = {}

    def apply(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Add):
                key = action.proposal.mst_key
                scheduler.add_model(ModelWork((key,), key - 1, action.proposal.last_epoch))
                ends[key] = action.proposal.last_epoch
            elif isinstance(action, Extend | Exploit):
                scheduler.extend((action.mst_key,), action.last_epoch)
                ends[action.mst_key] = action.last_epoch
            elif isinstance(action, Finish):
                for key in ends:
                    ends[key] = scheduler.finish_early((key,))

    def epoch_over(key: int, epoch: int) -> None:
        if lab.awaited.get(key) == epoch:
            apply(lab.result(key))
        if budget is not None and len(lab.calls) > budget:
            apply(lab.call("finish"))

    apply(lab.call("start", n_segments))
    simulation = simulate(scheduler, cost, evaluation=lambda *_: 0.1, epoch_over=epoch_over)
    return simulation, ends


def epochs_made(visits: tuple[Visit, ...], n_segments: int) -> dict[int, float]:
    """Return the number of epochs that each model was trained."""
    keys = {key for visit in visits for key in visit.unit}
    return {key: sum(visit.unit == (key,) for visit in visits) / n_segments for key in keys}

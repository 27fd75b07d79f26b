"""The base class of searches: results in, proposals and actions out; created by `by_name.make_search`, used by the
driver."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

from madlib_mop.models.changes import Add, Exploit, Extend, Finish, Proposal, Stop
from madlib_mop.search.objectives import Costs, in_order
from madlib_mop.search.parameters import SearchParams
from madlib_mop.search.past import PastTrial, best_points, count_first
from madlib_mop.search.space import GivenPoint, Point, SearchSpace

#: The changes that a search proposes.
Action = Add | Extend | Stop | Exploit | Finish


@dataclass(slots=True)
class _Standing:
    """A model in a search: its target epoch, and its newest epoch with the loss."""

    last_epoch: int
    in_training: bool = True
    failed: bool = False
    epoch: int = 0
    loss: float = math.inf


class Search(ABC):
    """A running search; it owns its models' target epochs (``last_epoch``), the driver owns the models.

    It has no clock, and no other randomness than ``random_state``: the same calls in the same order give the same
    actions. So it is never stored. The driver records each call of :meth:`result`, :meth:`failed`, :meth:`time_left`
    and :meth:`finish` before it applies the actions; a resume creates the search again and repeats the recorded calls.

    The driver calls :meth:`start` once, then, for every model in training, either :meth:`result` once when its
    ``last_epoch`` has been evaluated, or :meth:`failed`. A model in training is one that was added, extended or told
    to exploit after its last result. Any other call raises ValueError and changes nothing.

    Parameters
    ----------
    params : SearchParams
    space : SearchSpace
    random_state : int
        Of all chance; the driver draws one where the user gave none, and records it.
    past : sequence of PastTrial
        Configurations of earlier runs. The driver records them, and gives the same ones after a resume.
    can_pace : bool
        False for a search that an earlier version began, which began all its configurations.
    given : sequence of GivenPoint
        Configurations that a method with the parameter ``try_first`` tries first, each to its last iteration.
    costs : mapping of int to tuple of int
        With several objectives: what each architecture costs, by model_id.

    Attributes
    ----------
    is_paced : bool
        Whether there is a time budget, and a method that can begins no more configurations than it allows.
    notices : list of str
        What the caller is told of the last decision; the driver empties it.
    """

    def __init__(
        self,
        params: SearchParams,
        space: SearchSpace,
        random_state: int,
        past: Sequence[PastTrial] = (),
        can_pace: bool = True,
        given: Sequence[GivenPoint] = (),
        costs: Mapping[int, Costs] = MappingProxyType({}),
    ):
        self.params = params
        self.space = space
        self.random_state = random_state
        self.past = tuple(past)
        self.given = tuple(given)
        self.costs = costs
        self.is_paced = can_pace and params.budget_s is not None
        self.notices: list[str] = []
        self._models: dict[int, _Standing] = {}
        self._costs: dict[int, Costs] = {}  # of the models, with several objectives
        self._n_in_training = 0
        self._iterations_left: float = math.inf  # as `time_left` was told
        self._started = self._finished = False

    # Called by the driver

    def start(self, n_slots: int) -> list[Action]:
        """Return the first actions; ``n_slots`` models must be in training to keep all segments busy."""
        if self._started or n_slots < 1:
            raise ValueError(f"a search is started once, with at least one slot, received {n_slots}")
        self._started = True
        return self._noted(self._begin(n_slots))

    def result(self, mst_key: int, epoch: int, loss: float) -> list[Action]:
        """Process the loss of a model at its ``last_epoch``; return the next actions.

        ``loss`` is the validation loss if there are validation data, else the training loss. Not a number counts as
        infinite. After :meth:`finish`, losses of earlier epochs are taken too; they matter to :meth:`best` only.
        """
        standing = self._in_training(mst_key)
        if epoch != standing.last_epoch and not (self._finished and standing.epoch < epoch < standing.last_epoch):
            raise ValueError(f"model {mst_key} must be evaluated at {standing.last_epoch}, received {epoch}")
        standing.epoch, standing.loss = epoch, math.inf if math.isnan(loss) else loss
        if epoch == standing.last_epoch:
            self._end_of_training(standing)
        return [] if self._finished else self._noted(self._result(mst_key))

    def failed(self, mst_key: int) -> list[Action]:
        """Record that a model has failed, which counts as an infinite loss; return the next actions."""
        standing = self._in_training(mst_key)
        standing.failed, standing.loss = True, math.inf
        self._end_of_training(standing)
        return [] if self._finished else self._noted(self._result(mst_key))

    def time_left(self, n_iterations: int) -> list[Action]:
        """Record how many iterations a new model can make before the time budget ends; return the next actions, none.

        The driver reports it before a result when it differs from the last report. More than
        :attr:`enough_iterations` are reported as that number.
        """
        if not 0 <= n_iterations <= self.enough_iterations:
            raise ValueError(f"a number from 0 to {self.enough_iterations} is reported, received {n_iterations}")
        self._iterations_left = n_iterations
        return []

    def finish(self, reason: str = "the time budget is used up") -> list[Action]:
        """End the search with the best so far; idempotent."""
        if self._finished:
            return []
        self._finished = True
        return [Finish(reason)]

    @property
    def done(self) -> bool:
        """Return whether all proposals are trained and no more will follow."""
        return self._finished or (self._started and not self._n_in_training)

    def best(self) -> int | None:
        """Return the model with the lowest loss at its newest epoch, the smaller key of equals; None without any.

        Infinite losses and failed models are none.
        """
        finite = [(m.loss, key) for key, m in self._models.items() if math.isfinite(m.loss)]
        return min(finite)[1] if finite else None

    def is_given(self, mst_key: int) -> bool:
        """Return whether a model is one of the configurations that were written by hand."""
        return mst_key <= len(self.given)

    @cached_property
    def tried_first(self) -> tuple[Point, ...]:
        """The best configurations of earlier runs, its first proposals: one, or at most half of all proposals."""
        return best_points(self.past, count_first(len(self.past), self.n_configurations))

    # Defined by each method

    #: The class of its parameters.
    params_class: ClassVar[type[SearchParams]]
    #: The method in one line, for the help text and the manual.
    summary: ClassVar[str]
    #: Whether the actions are independent of the order of results within a round.
    repeatable: ClassVar[bool]

    @property
    def name(self) -> str:
        """Return the method's name in automl_method: that of its module."""
        return type(self).__module__.rpartition(".")[2]

    @property
    @abstractmethod
    def max_epochs(self) -> int:
        """Return the most epochs that a model of it can be trained."""

    @property
    @abstractmethod
    def n_configurations(self) -> int:
        """Return the number of configurations that it tries."""

    @property
    def has_model(self) -> bool:
        """Return whether a model of earlier results chooses its configurations."""
        return False

    @property
    def sampler_version(self) -> str | None:
        """Return name and version of the library that draws its configurations; None if the search draws them."""
        return None

    @property
    def usual_frequency(self) -> int | None:
        """Return the default of metrics_compute_frequency in MADlib's summary, or None."""
        return None

    @property
    def enough_iterations(self) -> int:
        """Return for how many iterations of a new model the time must be enough; 0 if the search has no use for it."""
        return 0

    @abstractmethod
    def _begin(self, n_slots: int) -> list[Action]:
        """Return the first actions."""

    @abstractmethod
    def _result(self, mst_key: int) -> list[Action]:
        """Return the actions that follow from a model's newest loss or failure, already noted."""

    def _end(self) -> list[Action]:
        """Return the last actions, when no model is in training any more."""
        return []

    # For use by each method

    def _points_from_first(self) -> Iterator[Point]:
        """Yield the configurations of earlier runs to try first, then draws without end."""
        yield from self.tried_first
        yield from self.space.draw(self.random_state, {point.key for point in self.tried_first})

    def _propose(self, point: Point | GivenPoint, last_epoch: int, s: int | None = None, i: int | None = None) -> Add:
        """Create a proposal with the next key."""
        key = len(self._models) + 1
        self._models[key] = _Standing(last_epoch)
        self._note_costs(key, point.model_id)
        self._n_in_training += 1
        return Add((Proposal(key, point.model_id, *point.texts, last_epoch, s, i),))

    def _loss(self, mst_key: int) -> float:
        """Return a model's newest loss; infinite if it has failed."""
        return self._models[mst_key].loss

    def _ranked(self, mst_keys: Sequence[int]) -> list[int]:
        """Sort models by their newest losses, best first."""
        return [key for _, key in self._in_order([(self._loss(key), key) for key in mst_keys])]

    def _in_order(self, results: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
        """Sort results (loss, key), best first: by loss and key, or with several objectives by fronts."""
        return in_order(results, self._costs)

    def _may_continue(self, mst_key: int) -> bool:
        """Return whether a model can be continued: not failed, and with a finite loss."""
        return math.isfinite(self._loss(mst_key))

    # Internal

    def _note_costs(self, mst_key: int, model_id: int) -> None:
        if self.costs:
            self._costs[mst_key] = self.costs[model_id]

    def _in_training(self, mst_key: int) -> _Standing:
        standing = self._models.get(mst_key)
        if standing is None or not standing.in_training:
            raise ValueError(f"model {mst_key} is not in training")
        return standing

    def _end_of_training(self, standing: _Standing) -> None:
        standing.in_training = False
        self._n_in_training -= 1

    def _noted(self, actions: list[Action]) -> list[Action]:
        """Record the continued models."""
        for action in actions:
            if isinstance(action, Extend | Exploit):
                assert action.mst_key is not None and action.last_epoch is not None, "a search says both"
                standing = self._models[action.mst_key]
                if standing.in_training or standing.failed or action.last_epoch <= standing.epoch:
                    raise AssertionError(f"{self.name} extends a model that cannot continue: {action}")
                standing.last_epoch, standing.in_training = action.last_epoch, True
                if isinstance(action, Exploit):
                    self._note_costs(action.mst_key, action.model_id)
                self._n_in_training += 1
        return actions if self._n_in_training else actions + self._end()

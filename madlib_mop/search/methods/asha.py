"""ASHA, asynchronous successive halving (Li et al., MLSys 2020): promotes a model as soon as its rung allows it."""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.changes import Extend, Stop
from madlib_mop.models.parameters.literals import shorten
from madlib_mop.search.base import Action, Search
from madlib_mop.search.parameters import (
    MAX_CONFIGURATIONS,
    MAX_EPOCHS,
    N_CONFIGURATIONS,
    SearchParams,
    floor_log,
    parameter,
    whole,
)

_TRY_FIRST = re.compile(r"\s*(?:(\d{1,9}(?:\s*,\s*\d{1,9})*)\s+of\s+)?(\S.*?)\s*\Z", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class AshaParams(SearchParams):
    """Models are compared at rungs of ``r``, ``r * eta``, ... epochs, none above ``R``."""

    R: int = parameter(9, "maximum number of iterations of a model")
    eta: int = parameter(3, "1 / `eta` is the share of the models that continue after a comparison")
    r: int = parameter(1, "number of iterations before a model is first compared with others")
    num_configs: int = parameter(27, N_CONFIGURATIONS)
    try_first: str | None = parameter(
        None,
        "the configurations to try first, each to its last iteration: a model selection table, or some of its"
        " `mst_key`, such as `'1, 4 of configs'`",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.try_first is not None and not (isinstance(self.try_first, str) and self.try_first.strip()):
            raise InvalidParameter(
                f"try_first must be the name of a model selection table. Received: {shorten(self.try_first)}",
                hint="Write e.g. try_first=configs, or try_first='1, 4 of configs'.",
            )
        whole(self.eta, "eta", 2)
        whole(self.R, "R", 1, MAX_EPOCHS)
        whole(self.r, "r", 1)
        whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        if self.r > self.R:
            raise InvalidParameter(f"r must not be more than R. Received: r={self.r}, R={self.R}")

    @property
    def given(self) -> tuple[str, tuple[int, ...]] | None:
        """The table that ``try_first`` names, and the keys."""
        found = _TRY_FIRST.match(self.try_first or "")
        return None if found is None else (found[2], tuple(map(int, found[1].split(","))) if found[1] else ())


class _Rung:
    """The models at one rung, those with the lowest losses first; failed models count, and come last."""

    def __init__(self, last_epoch: int):
        self.last_epoch = last_epoch
        self.members: list[tuple[float, int]] = []  # (loss, key), sorted
        self.promoted: set[int] = set()


class Asha(Search):
    """Models are evaluated at rungs of r, r eta, r eta^2, ... epochs, the last of them at R or below.

    Whenever a place is free, the highest rung that has a candidate gives it: one among the best 1/eta of those that
    have come to the rung so far, not yet promoted. If no rung has one, a new configuration takes the place, while
    there are any left (algorithm 2 of the paper, `get_job`). So nothing ever waits for the end of a round. A model
    that is not promoted waits at its rung without taking a place; those that still wait at the end of the search are
    stopped then.

    A new model is only worth its place if it can come to the second rung. Near the end of a time budget, when none can,
    the place is given to the waiting model with the lowest loss, and to a new one only if none waits. (The paper's
    algorithm has no end.) Otherwise a short search ends with models that all wait at the first rung.

    Configurations are those of generate_model_configs' random search, in its order, whatever the order of results.
    Those of ``try_first`` come before them. They are no members of the rungs, so they are compared with others at the
    end only, and a simple model that needs many iterations is not stopped early.
    The promotions do depend on that order, as they must. Models that failed, or have no finite loss, count as
    members of their rung and are never promoted.
    """

    params_class = AshaParams
    summary = (
        "successive halving without rounds: models are compared after r, r * eta, r * eta * eta, ... iterations."
        " When a segment is free, the best waiting model continues, or a new one begins"
    )
    repeatable = False
    params: AshaParams

    @property
    def max_epochs(self) -> int:
        last: int = self.params.r * self.params.eta ** floor_log(self.params.R // self.params.r, self.params.eta)
        return last

    @property
    def n_configurations(self) -> int:
        return self.params.num_configs

    @property
    def enough_iterations(self) -> int:
        second = self.params.r * self.params.eta
        return second if second <= self.params.R else 0

    def _begin(self, n_slots: int) -> list[Action]:
        r, eta = self.params.r, self.params.eta
        self._rungs = [_Rung(r * eta**k) for k in range(floor_log(self.params.R // r, eta) + 1)]
        self._rung_of: dict[int, int] = {}
        self._left_given = list(self.given)
        self._points = self._points_from_first()
        self._n_free = n_slots
        self._is_told = False
        return self._fill()

    def time_left(self, n_iterations: int) -> list[Action]:
        """Record how many iterations a new model can make; say it when a new model cannot go on."""
        said = super().time_left(n_iterations)
        if not self._is_told and n_iterations < self.enough_iterations:
            self._is_told = True
            self.notices.append(
                "the rest of the time budget is too short for a new model to go on after its first comparison; as long"
                " as that is so, the best models that wait go on in place of new ones"
            )
        return said

    def _result(self, mst_key: int) -> list[Action]:
        if not self.is_given(mst_key):
            insort(self._rungs[self._rung_of[mst_key]].members, (self._loss(mst_key), mst_key))
        self._n_free += 1
        return self._fill()

    def _fill(self) -> list[Action]:
        """Fill every free slot with a model, while there are any."""
        actions: list[Action] = []
        while self._n_free and (action := self._promotion() or self._new()):
            actions.append(action)
            self._n_free -= 1
        return actions

    def _promotion(self) -> Extend | None:
        for k in range(len(self._rungs) - 2, -1, -1):
            rung = self._rungs[k]
            members = self._in_order(rung.members) if self.costs else rung.members
            for _, key in members[: len(members) // self.params.eta]:
                if self._waits(key, k):
                    return self._promoted(key)
        return None

    def _waits(self, key: int, k: int) -> bool:
        """Return whether a model at rung ``k``, not the last one, can be promoted."""
        return key not in self._rungs[k].promoted and self._may_continue(key)

    def _promoted(self, key: int) -> Extend:
        k = self._rung_of[key]
        self._rungs[k].promoted.add(key)
        self._rung_of[key] = k + 1
        return Extend(key, self._rungs[k + 1].last_epoch)

    def _best_waiting(self) -> Extend | None:
        waiting = [
            one for k, rung in enumerate(self._rungs[:-1]) for one in rung.members if self._waits(one[1], k)
        ]
        return self._promoted(self._in_order(waiting)[0][1]) if waiting else None

    def _new(self) -> Action | None:
        if len(self._models) == self.params.num_configs:
            return None
        if self._left_given:
            return self._propose(self._left_given.pop(0), self.max_epochs)
        if self._iterations_left < self.enough_iterations and (instead := self._best_waiting()):
            return instead
        added = self._propose(next(self._points), self._rungs[0].last_epoch)
        self._rung_of[added.proposal.mst_key] = 0
        return added

    def _end(self) -> list[Action]:
        return [
            Stop(key, f"not among the best 1/{self.params.eta} at epoch {self._rungs[k].last_epoch}")
            for key, k in sorted(self._rung_of.items())
            if k < len(self._rungs) - 1 and not self._models[key].failed
        ]

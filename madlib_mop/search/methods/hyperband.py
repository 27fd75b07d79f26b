"""Hyperband (Li et al., JMLR 2018) with MADlib's schedule: brackets of successive halving, side by side in one run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.changes import Add, Extend, Stop
from madlib_mop.search.base import Action, Search
from madlib_mop.search.parameters import (
    MAX_CONFIGURATIONS,
    MAX_EPOCHS,
    SearchParams,
    floor_log,
    parameter,
    whole,
)
from madlib_mop.search.space import Point, derived


@dataclass(frozen=True, kw_only=True)
class HyperbandParams(SearchParams):
    """Brackets of up to ``R`` iterations, of which each has its last ``skip_last`` rounds left out."""

    R: int = parameter(6, "maximum number of iterations of a round")
    eta: int = parameter(3, "1 / `eta` is the share of the models that continue after a round")
    skip_last: int = parameter(0, "number of rounds that each bracket leaves out at its end")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(self.eta, "eta", 2)
        whole(self.R, "R", 1, MAX_EPOCHS)
        whole(self.skip_last, "skip_last", 0)
        if self.R < self.eta:
            raise InvalidParameter(f"R must not be less than eta. Received: R={self.R}, eta={self.eta}")
        if self.skip_last > floor_log(self.R, self.eta):
            raise InvalidParameter(
                f"skip_last must be at most {floor_log(self.R, self.eta)}, the integer part of log R to the base"
                f" eta, or no rounds remain. Received: {self.skip_last}"
            )


@dataclass(frozen=True, slots=True)
class Round:
    """Round ``i`` of bracket ``s``: ``n_i`` configurations are trained for another ``r_i`` iterations."""

    s: int
    i: int
    n_i: int
    r_i: int


def hyperband_rounds(params: HyperbandParams) -> list[Round]:
    """Return the schedule, brackets from ``s_max`` down to 0, each with its rounds in order.

    ``s_max = floor(log_eta R)``, ``n = floor((s_max + 1) / (s + 1)) eta^s``, ``n_i = floor(n / eta^i)``,
    ``r_i = round(R eta^(i - s))``, halves to the even number. The arithmetic uses integers. MADlib's floats lose a
    bracket at R=243, eta=3, and a configuration where 49 / 7^2 is rounded to less than 1.

    Raises
    ------
    InvalidParameter
        The brackets have more than 100,000 configurations.
    """
    R, eta, skip_last = params.R, params.eta, params.skip_last
    s_max = floor_log(R, eta)
    rounds = []
    for s in range(s_max, -1, -1):
        n = (s_max + 1) // (s + 1) * eta**s
        for i in range(s + 1 - skip_last):
            rounds.append(Round(s, i, n // eta**i, round(Fraction(R, eta ** (s - i)))))
    if (n_configs := sum(one.n_i for one in rounds if one.i == 0)) > MAX_CONFIGURATIONS:
        raise InvalidParameter(
            f"R={R} and eta={eta} result in more than {MAX_CONFIGURATIONS:,} configurations. Received: {n_configs:,}",
            hint="Use a smaller R or a larger eta.",
        )
    return rounds


class Hyperband(Search):
    """Brackets of successive halving; a round ends when all of its models have been evaluated or have failed.

    A round trains ``r_i`` *additional* iterations, as MADlib's warm starts do: a model that completes round i has made
    ``r_0 + ... + r_i`` iterations, up to 1.5 R. (In the paper, ``r_i`` counts from the start.)

    Differences from MADlib: all brackets run at the same time, with no barrier between them (MADlib runs the rounds of
    equal length of several brackets together, diagonal by diagonal); each bracket has its own random stream; a
    duplicate configuration is replaced by another draw; epochs are counted for each model; models that failed or have
    no finite loss never continue.

    With a time budget, one configuration begins for each free segment, and the brackets one after the other, so that
    the first results show the price of an iteration. A bracket begins another configuration only if the rest of the
    budget is also enough for the rounds that it could complete without this one. So its first round leaves time for the
    later ones, and a bracket that could not complete all its rounds with one configuration does not begin.
    """

    params_class = HyperbandParams
    summary = "successive halving, several times with different numbers of configurations (brackets)"
    repeatable = True
    params: HyperbandParams

    @property
    def max_epochs(self) -> int:
        rounds = hyperband_rounds(self.params)
        return max(sum(one.r_i for one in rounds if one.s == s) for s in {one.s for one in rounds})

    @property
    def n_configurations(self) -> int:
        return sum(one.n_i for one in hyperband_rounds(self.params) if one.i == 0)

    @property
    def usual_frequency(self) -> int | None:
        return max(one.r_i for one in hyperband_rounds(self.params))

    @property
    def enough_iterations(self) -> int:
        if not self.is_paced or (self._started and not self._open):
            return 0
        return sum(one.n_i * one.r_i for one in hyperband_rounds(self.params))

    def _begin(self, n_slots: int) -> list[Action]:
        brackets = itertools.groupby(hyperband_rounds(self.params), key=lambda one: one.s)
        self._rounds = {s: list(rounds) for s, rounds in brackets}
        self._n_slots = n_slots
        self._n_free: float = n_slots if self.is_paced else math.inf
        self._open = list(self._rounds)  # brackets that may begin further configurations; the first one does
        self._told: set[int] = set()  # brackets that the caller knows not to begin yet
        self._bracket_of: dict[int, int] = {}
        self._n_begun = dict.fromkeys(self._rounds, 0)
        self._now = dict.fromkeys(self._rounds, 0)  # bracket -> index of its current round
        self._awaited: dict[int, set[int]] = {s: set() for s in self._rounds}  # its models that are in training
        self._members: dict[int, list[int]] = {s: [] for s in self._rounds}
        first, seen = iter(self.tried_first), {point.key for point in self.tried_first}
        self._points: dict[int, Iterator[Point]] = {
            s: itertools.chain(first, self.space.draw(derived(self.random_state, s), seen)) for s in self._rounds
        }
        return self._fill()

    def _result(self, mst_key: int) -> list[Action]:
        s = self._bracket_of[mst_key]
        self._awaited[s].discard(mst_key)
        self._n_free += 1
        actions = [] if self._awaited[s] or s in self._open else self._next_round(s)
        return actions + self._fill()

    def _fill(self) -> list[Action]:
        """Begin configurations, while segments are free and the time is enough."""
        actions: list[Action] = []
        while self._open and self._n_free > 0:
            s = self._open[0]
            is_full = self._n_begun[s] == self._rounds[s][0].n_i
            if not is_full and self._is_time_for_another(s):
                actions.append(self._add(s))
            elif is_full or (self._n_begun[s] and not self._awaited[s]):
                actions += self._close(s)
            else:  # later results may show a lower price
                self._tell_of(s)
                break
        return actions

    def _add(self, s: int) -> Add:
        added = self._propose(next(self._points[s]), self._rounds[s][0].r_i, s, 0)
        key = added.proposal.mst_key
        self._bracket_of[key] = s
        self._members[s].append(key)
        self._awaited[s].add(key)
        self._n_begun[s] += 1
        self._n_free -= 1
        return added

    def _close(self, s: int) -> list[Action]:
        """End the first round of a bracket, as far as configurations begin in it."""
        self._open.remove(s)
        n_begun, n = self._n_begun[s], self._rounds[s][0].n_i
        if n_begun < n:
            self.notices.append(
                f"the time budget is too short for all configurations: bracket {s} begins {n_begun} of {n}, and the"
                " best of them go on in the rest of the time"
            )
        return [] if self._awaited[s] else self._next_round(s)

    def _tell_of(self, s: int) -> None:
        if not self._n_begun[s] and s not in self._told:
            self._told.add(s)
            self.notices.append(
                f"the rest of the time budget is too short for all rounds of bracket {s}; as long as that is so, it"
                " does not begin"
            )

    def _is_time_for_another(self, s: int) -> bool:
        """Return whether the rest of the time is enough for another configuration, and the rounds that follow."""
        left, last = self._iterations_left, len(self._rounds[s]) - 1
        if left == math.inf:
            return True
        if not self._n_begun[s]:
            return self._n_needed(s, 1, last) <= left
        complete = max((i for i in range(last + 1) if self._n_needed(s, 0, i) <= left), default=-1)
        return complete >= min(1, last) and self._n_needed(s, 1, complete) <= left

    def _n_needed(self, s: int, n_more: int, last: int) -> float:
        """Return after how many iterations of one model a bracket, with so many more models, has completed a round.

        The models of a round train side by side, as many as there are segments. Other brackets come first.
        """
        rounds, n_begun = self._rounds[s], self._n_begun[s] + n_more
        needed = rounds[0].r_i * math.ceil((len(self._awaited[s]) + n_more) / self._n_slots)
        for one in rounds[1 : last + 1]:
            needed += one.r_i * math.ceil(self._n_in_round(n_begun, one.i) / self._n_slots)
        others = 0
        for other in self._rounds.keys() - set(self._open):
            now = self._now[other]
            others += len(self._awaited[other]) * self._rounds[other][now].r_i
            if self._awaited[other]:
                later = self._rounds[other][now + 1 :]
                others += sum(self._n_in_round(self._n_begun[other], one.i) * one.r_i for one in later)
        return needed + others / self._n_slots

    def _n_in_round(self, n_begun: int, i: int) -> int:
        """Return how many models of a bracket train in a round; at least one, also if few have begun."""
        n: int = n_begun // self.params.eta**i
        return max(1, n)

    def _next_round(self, s: int) -> list[Action]:
        members, rounds, i = self._ranked(self._members[s]), self._rounds[s], self._now[s] + 1
        if i == len(rounds):
            return []
        n = self._n_in_round(self._n_begun[s], i)
        continued = {key for key in members[:n] if self._may_continue(key)}
        last_epoch = sum(one.r_i for one in rounds[: i + 1])
        actions: list[Action] = []
        for key in sorted(members):
            if key in continued:
                actions.append(Extend(key, last_epoch, i))
            elif not self._models[key].failed:
                actions.append(Stop(key, f"not among the best {n} of {len(members)} in bracket {s}"))
        self._now[s], self._members[s], self._awaited[s] = i, sorted(continued), set(continued)
        self._n_free -= len(continued)
        return actions

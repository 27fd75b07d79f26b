"""Hyperband (Li et al., JMLR 2018) with MADlib's schedule: brackets of successive halving, side by side in one run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.changes import Extend, Stop
from madlib_mop.search.base import Action, Search
from madlib_mop.search.parameters import (
    MAX_CONFIGURATIONS,
    MAX_EPOCHS,
    SearchParams,
    floor_log,
    parameter,
    whole,
)
from madlib_mop.search.space import derived


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

    def _begin(self, n_slots: int) -> list[Action]:
        brackets = itertools.groupby(hyperband_rounds(self.params), key=lambda one: one.s)
        self._rounds = {s: list(rounds) for s, rounds in brackets}
        self._bracket_of: dict[int, int] = {}
        self._now: dict[int, int] = {}  # bracket -> index of its current round
        self._awaited: dict[int, set[int]] = {}  # bracket -> models of its current round that are in training
        self._members: dict[int, list[int]] = {}
        actions: list[Action] = []
        first, seen = iter(self.tried_first), {point.key for point in self.tried_first}
        for s, rounds in self._rounds.items():
            points = itertools.chain(first, self.space.draw(derived(self.random_state, s), seen))
            added = [self._propose(point, rounds[0].r_i, s, 0) for point in itertools.islice(points, rounds[0].n_i)]
            keys = [one.proposal.mst_key for one in added]
            self._bracket_of |= dict.fromkeys(keys, s)
            self._now[s], self._members[s], self._awaited[s] = 0, keys, set(keys)
            actions += added
        return actions

    def _result(self, mst_key: int) -> list[Action]:
        s = self._bracket_of[mst_key]
        self._awaited[s].discard(mst_key)
        return [] if self._awaited[s] else self._next_round(s)

    def _next_round(self, s: int) -> list[Action]:
        members, rounds, i = self._ranked(self._members[s]), self._rounds[s], self._now[s] + 1
        if i == len(rounds):
            return []
        continued = {key for key in members[: rounds[i].n_i] if self._may_continue(key)}
        last_epoch = sum(one.r_i for one in rounds[: i + 1])
        actions: list[Action] = []
        for key in sorted(members):
            if key in continued:
                actions.append(Extend(key, last_epoch, i))
            elif not self._models[key].failed:
                actions.append(Stop(key, f"not among the best {rounds[i].n_i} of {len(members)} in bracket {s}"))
        self._now[s], self._members[s], self._awaited[s] = i, sorted(continued), set(continued)
        return actions

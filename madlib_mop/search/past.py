"""Past experience: configurations of earlier runs, which a search tries first and from which its model learns.

The driver makes them (`driver.experience`); `base.Search` and the study of the sampled searches use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from madlib_mop.search.space import Point

#: One of so many configurations of a search is taken from earlier runs, and tried first. If there are many earlier
#: ones, more are: one of so many of these, but at most one of so many of the search's own.
ONE_OF, ONE_OF_PAST, MOST_ONE_OF = 4, 10, 2
#: The place of a configuration without a finite loss.
WORST = 1.0
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class PastTrial:
    """A configuration of an earlier run that lies in the space of a search.

    Attributes
    ----------
    point : Point
    place : float
        Its place among the configurations of its run in the order of their losses, from 0 (the best) to 1 (the worst).
        Losses themselves cannot be compared, because the tables differ.
    """

    point: Point
    place: float


def count_first(n_past: int, n_configurations: int) -> int:
    """Return how many configurations of a search may be taken from a number of earlier ones, at least one."""
    most = max(1, n_configurations // MOST_ONE_OF)
    return min(most, max(1, n_configurations // ONE_OF, n_past // ONE_OF_PAST))


def best_points(past: Sequence[PastTrial], n: int) -> tuple[Point, ...]:
    """Return at most ``n`` distinct configurations, the best of all runs, best first; none that had no finite loss."""
    distinct: dict[tuple[int, str, str], Point] = {}
    for trial in sorted(past, key=lambda trial: trial.place):  # of equal places, the first of the list is the first
        if trial.place < WORST:
            distinct.setdefault(trial.point.key, trial.point)
    return tuple(distinct.values())[:n]


def spread(items: Sequence[_Item], n: int) -> list[_Item]:
    """Return at most ``n`` items, spread evenly from the first to the last, in their order."""
    if len(items) <= n:
        return list(items)
    return [items[i * (len(items) - 1) // max(1, n - 1)] for i in range(n)]

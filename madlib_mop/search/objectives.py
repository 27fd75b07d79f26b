"""Searches with several objectives: their texts, which the driver reads, and the order of models, which searches use.

The loss is the first objective. The others are costs of an architecture, known before a model is trained: its size and
its multiplications, which stand for the time of a prediction. A measured time would differ from call to call, and a
search that depends on it could not be repeated.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.literals import shorten
from madlib_mop.models.sizes import NetworkSize

LOSS = "loss"
_COSTS = {
    "multiplications": lambda size: size.n_multiplications,
    "size_bytes": lambda size: size.weight_bytes,
}
#: The costs of an architecture that can be objectives, and that constraints can limit.
COSTS = tuple(_COSTS)
_OBJECTIVE_HINT = f"Write e.g. objective => 'loss, multiplications'. Objectives: {', '.join((LOSS, *COSTS))}."
_CONSTRAINT_HINT = f"Write {' or '.join(COSTS)}, then <= and a whole number, with a comma between two constraints."
_CONSTRAINT = re.compile(r"\s*(\w+)\s*<=\s*(\d{1,18})\s*")

#: The costs of a network, in the order of the search's objectives; infinite where they are not known.
Costs = tuple[float, ...]


def read_objective(text: str | None) -> tuple[str, ...]:
    """Return the costs that a search minimizes besides the loss; none for NULL, '' and 'loss'.

    Raises
    ------
    InvalidParameter
        A word is no objective, or occurs twice, or there is no loss.
    """
    words = [word.strip().lower() for word in (text or LOSS).split(",")]
    for word in words:
        if word not in (LOSS, *COSTS):
            raise InvalidParameter(f"objective is unknown. Received: {shorten(word)}", hint=_OBJECTIVE_HINT)
    if len(set(words)) < len(words):
        raise InvalidParameter(f"objective has a word twice. Received: {shorten(text)}", hint=_OBJECTIVE_HINT)
    if LOSS not in words:
        raise InvalidParameter(
            f"objective must name the loss: without it, the smallest network is the best. Received: {shorten(text)}",
            hint=_OBJECTIVE_HINT,
        )
    return tuple(word for word in words if word != LOSS)


def read_constraints(text: str | None) -> dict[str, int]:
    """Return the greatest value that each limited cost may have; none for NULL and ''.

    Raises
    ------
    InvalidParameter
        The text is no list of constraints, or one cost has two of them.
    """
    limits: dict[str, int] = {}
    for part in (text or "").split(",") if (text or "").strip() else ():
        found = _CONSTRAINT.fullmatch(part)
        name = found[1].lower() if found else None
        if found is None or name not in COSTS:
            raise InvalidParameter(
                f"constraints must be a list such as 'size_bytes <= 100000'. Received: {shorten(text)}",
                hint=_CONSTRAINT_HINT,
            )
        if name in limits:
            raise InvalidParameter(f"constraints limit {name} twice. Received: {shorten(text)}", hint=_CONSTRAINT_HINT)
        limits[name] = int(found[2])
    return limits


def costs_of(size: NetworkSize, names: Iterable[str]) -> tuple[int, ...]:
    """Return the costs of a network with these names."""
    return tuple(_COSTS[name](size) for name in names)


def in_order(results: Sequence[tuple[float, int]], costs: Mapping[int, Costs]) -> list[tuple[float, int]]:
    """Sort results, best first.

    Without costs, the one with the lowest loss is the best; of equal ones, that with the smaller key. With costs, those
    that no other one surpasses come first, then those that only these surpass, and so on (non-dominated sorting; Deb et
    al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", 2002, section III.A), each by loss and key.
    Infinite losses are the last ones, whatever their costs.

    Parameters
    ----------
    results : sequence of (float, int)
        Loss and mst_key.
    costs : mapping of int to tuple of int
        The costs of the models by mst_key; empty with one objective.
    """
    ordered = sorted(results)
    if not costs:
        return ordered
    infinite = [one for one in ordered if not math.isfinite(one[0])]
    fronts: list[list[tuple[float, int]]] = []
    surpassing: list[list[Costs]] = []  # of each front, the costs of its models
    finite = ordered[: len(ordered) - len(infinite)]
    for result in sorted(finite, key=lambda one: (one[0], costs[one[1]], one[1])):
        own = costs[result[1]]
        # What surpasses it is before it here. If nothing in a front surpasses it, nothing in a later one does.
        n = bisect_left(surpassing, True, key=lambda front: not any(_is_below(other, own) for other in front))
        if n == len(fronts):
            fronts.append([])
            surpassing.append([])
        fronts[n].append(result)
        surpassing[n].append(own)
    return [one for front in fronts for one in sorted(front)] + infinite


def first_front(results: Sequence[tuple[float, int]], costs: Mapping[int, Costs]) -> list[int]:
    """Return the models that no other one surpasses, those with the lowest losses first; see `in_order`.

    With empty costs, it is the best one.
    """
    found: list[tuple[float, int]] = []
    for loss, key in sorted(results, key=lambda one: (one[0], costs[one[1]], one[1])):
        if not any(_is_below(costs[other], costs[key]) for _, other in found):
            found.append((loss, key))
    return [key for _, key in sorted(found)]


def _is_below(one: Costs, other: Costs) -> bool:
    """Return whether no cost of the one is above that of the other one."""
    return all(a <= b for a, b in zip(one, other, strict=True))

"""Unbalanced classes: when they are, how it is said, and their shares; called by networks, learn and metrics."""

import math
from collections.abc import Sequence

#: Classes are unbalanced if the most frequent one has more than so many times the rows of the rarest.
MOST_TIMES = 4
_LONGEST_LABEL = 60


def rarest_class(counts: Sequence[int]) -> int | None:
    """Return the number of the rarest class, of equal ones the first; None if the classes are not unbalanced.

    Parameters
    ----------
    counts : sequence of int
        The rows of each class. Classes without rows do not count.
    """
    occurring = [number for number, count in enumerate(counts) if count > 0]
    if not occurring:
        return None
    rarest = min(occurring, key=lambda number: counts[number])
    return rarest if max(counts) > MOST_TIMES * counts[rarest] else None


def imbalance(target: str, classes: Sequence[str | None], counts: Sequence[int]) -> str | None:
    """Return what a person should know of a target whose classes are unbalanced, without a period; else None.

    Parameters
    ----------
    target : str
        The name of the column.
    classes : sequence of (str or None)
        The name of each class; None is NULL.
    counts : sequence of int
        The training rows of each class.
    """
    rarest = rarest_class(counts)
    if rarest is None or len(classes) != len(counts):
        return None
    n_rows, usual = sum(counts), max(range(len(counts)), key=lambda number: counts[number])
    return (
        f"{target} has unbalanced classes: {label_of(classes[rarest])} has {counts[rarest]:,} of {n_rows:,} training"
        f" rows ({_percent(counts[rarest] / n_rows)}). Accuracy says little: always {label_of(classes[usual])} is right"
        f" for {_percent(counts[usual] / n_rows)}"
    )


def log_shares(counts: Sequence[int]) -> tuple[float, ...]:
    """Return the logarithm of each class's share of the rows, of four decimals; no rows count as half a row.

    The softmax of these numbers are the shares.
    """
    n_rows = max(sum(counts), 1)
    return tuple(round(math.log(max(count, 0.5) / n_rows), 4) for count in counts)


def label_of(name: str | None) -> str:
    """Return the name of a class as messages show it."""
    return "NULL" if name is None else repr(name if len(name) <= _LONGEST_LABEL else f"{name[:_LONGEST_LABEL]}...")


def _percent(share: float) -> str:
    """Return a share in percent, of three digits."""
    return f"{100 * share:.3g} %"

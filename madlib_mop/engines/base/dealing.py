"""Distributes segments over locations in turn. Pure; called by the postgres engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.engines.base.interface import Segment, SegmentLocation


@dataclass(frozen=True)
class Carrier:
    """A location of segments, and its number of segments if no total is set."""

    place: SegmentLocation
    n_segments: int


def deal(carriers: Sequence[Carrier], total: int | None) -> list[Segment]:
    """Distribute segments over locations in turn.

    Parameters
    ----------
    carriers : sequence of Carrier
        At least one.
    total : int or None
        Number of segments, distributed evenly. None stands for the sum of the carriers' numbers: each location then
        gets its own number.

    Returns
    -------
    list of Segment
        In the order of their numbers.
    """
    if total is None:
        rounds = max(carrier.n_segments for carrier in carriers)
        places = [c.place for turn in range(rounds) for c in carriers if turn < c.n_segments]
    else:
        places = [carriers[number % len(carriers)].place for number in range(total)]
    return [Segment(number, place) for number, place in enumerate(places)]

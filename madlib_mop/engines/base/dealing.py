"""Which segment is at which place: segments dealt over places in turn. Pure; called by the postgres engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.engines.base.interface import Place, Segment


@dataclass(frozen=True)
class Carrier:
    """A place that carries segments, and how many where nobody says a total."""

    place: Place
    n_segments: int


def deal(carriers: Sequence[Carrier], total: int | None) -> list[Segment]:
    """Deal segments over places in turn.

    Parameters
    ----------
    carriers : sequence of Carrier
        At least one.
    total : int or None
        Number of segments, each place then counts alike. None stands for the sum of the carriers' numbers: each place
        is then passed over once it has as many as it says.

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

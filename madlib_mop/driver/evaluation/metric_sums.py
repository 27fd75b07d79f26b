"""Adds the sums of shards' evaluations to sums of all rows, without NumPy; used by `metrics`, `evaluate`.

A metric's value is computed from its sums (``trainer/backends/base/metric_sums.py``). Means have a total and a count,
so their value is computed here; a trainer computes the other metrics. The order of addition determines the last bit,
so sums are always added in the order of the shards' numbers.
"""

import base64
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import add as plus

from mop_backend.messages import MetricTotals

from madlib_mop.errors import MopError


@dataclass(frozen=True)
class MetricSums:
    """The sums of one model's loss and metrics over some rows.

    Attributes
    ----------
    layout : tuple of (str, int, bool)
        For each metric its name, its number of sums, and whether they are a total and a count; the loss comes first.
    sums : array of float
    """

    layout: tuple[tuple[str, int, bool], ...]
    sums: "array[float]" = field(repr=False)

    @property
    def all_means(self) -> bool:
        """Whether all metrics are means."""
        return all(known for _, _, known in self.layout)

    def means(self) -> dict[str, float]:
        """Return the values of those metrics that are means, by name."""
        values, start = {}, 0
        for name, size, is_mean in self.layout:
            if is_mean:
                total, count = self.sums[start : start + 2]
                values[name] = total / count if count else 0.0
            start += size
        return values

    def as_request(self) -> MetricTotals:
        """Return the sums in the form of a request to a trainer."""
        return MetricTotals(self.layout, base64.b64encode(_swapped(self.sums)).decode())


def add(evaluated: Iterable[MetricTotals]) -> MetricSums:
    """Add up the sums of several evaluations of one model, in their order."""
    layout, sums = None, array("d")
    for totals in evaluated:
        values = array("d", base64.b64decode(totals.data))
        values = array("d", _swapped(values)) if sys.byteorder == "big" else values
        if layout is None:
            layout, sums = totals.layout, values
        elif layout != totals.layout:
            raise MopError("the shards of a model have different metrics; please report it")
        else:
            sums = array("d", map(plus, sums, values))
    if layout is None:
        raise MopError("there are no evaluations to add up")
    return MetricSums(layout, sums)


def _swapped(sums: "array[float]") -> bytes:
    """Return the bytes of sums, little-endian."""
    if sys.byteorder == "big":
        sums = array("d", sums)
        sums.byteswap()
    return sums.tobytes()

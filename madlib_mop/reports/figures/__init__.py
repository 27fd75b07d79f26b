"""Figures of a run, made from its facts with Altair: `figures_of` returns those that the run has data for.

Altair, with Vega-Lite behind it, is used because its figures are data: JSON that a page draws itself, in the colours
of the reader's choice, and whose numbers a table beside the figure repeats.
"""

from collections.abc import Iterator

from madlib_mop.catalog.facts import RunFacts
from madlib_mop.reports.figures.curves import curves
from madlib_mop.reports.figures.figure import Figure
from madlib_mop.reports.figures.history import history
from madlib_mop.reports.figures.parameters import parameters
from madlib_mop.reports.figures.schedule import schedule

#: The figures of each section of a page, in order.
SECTIONS = {"curves": curves, "parameters": parameters, "schedule": schedule, "history": history}


def figures_of(facts: RunFacts) -> Iterator[Figure]:
    """Yield the figures that the run has data for."""
    for make in SECTIONS.values():
        yield from make(facts)


__all__ = ["SECTIONS", "Figure", "figures_of"]

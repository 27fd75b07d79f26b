"""Figures of a run, made from its facts with Altair: `figures_of` returns those that the run has data for.

Altair, with Vega-Lite behind it, is used because its figures are data: JSON that a page draws itself, in the colours
of the reader's choice, and whose numbers a table beside the figure repeats.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.reports.figures.columns import columns
from madlib_mop.reports.figures.curves import curves
from madlib_mop.reports.figures.figure import Figure
from madlib_mop.reports.figures.held_out import held_out
from madlib_mop.reports.figures.history import history
from madlib_mop.reports.figures.parameters import parameters
from madlib_mop.reports.figures.schedule import schedule


@dataclass(frozen=True, slots=True)
class Section:
    """A section of figures, in the report and on the live page; a run without data for a figure has none.

    Attributes
    ----------
    title : str
    make : callable
        Yields the figures of a run's facts.
    is_apart : bool
        Whether the report shows the figures in other sections, beside the tables that they belong to.
    """

    title: str
    make: Callable[[RunFacts], Iterable[Figure]]
    is_apart: bool = False


#: The sections, by their names in links, in order.
SECTIONS = {
    "curves": Section("Learning curves", curves),
    "held-out": Section("Held-out rows", held_out),
    "columns": Section("Columns", columns),
    "parameters": Section("Hyper-parameters", parameters),
    "schedule": Section("Schedule", schedule),
    "history": Section("History", history, is_apart=True),
}


def figures_of(facts: RunFacts) -> Iterator[Figure]:
    """Yield the figures that the run has data for."""
    for section in SECTIONS.values():
        yield from section.make(facts)


__all__ = ["SECTIONS", "Figure", "Section", "figures_of"]

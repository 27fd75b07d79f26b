"""What a figure is: a chart with its words and its numbers, or a table with its words; every module here makes some."""

from collections.abc import Sequence
from dataclasses import dataclass

#: One cell of a figure's table.
Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a report.

    Attributes
    ----------
    key : str
        Its name in links and ids, such as ``curves-iteration``.
    title : str
    description : str
        What it shows and how to read it, for everybody.
    summary : str
        What can be seen in it, for screen readers and in print: one or two sentences with numbers.
    spec : str or None
        Vega-Lite, JSON with its data; without colours of the background and the text, which the page sets. None: the
        figure is its table, which pages show open; that of a chart is folded.
    headings : tuple of str
        Of the table with the figure's numbers.
    rows : tuple of tuple of Cell
        At most `MAX_ROWS`.
    n_rows : int
        How many rows the whole table would have.
    """

    key: str
    title: str
    description: str
    summary: str
    spec: str | None
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    n_rows: int = 0


#: Rows of a figure's table; the rest is in the views that the page names.
MAX_ROWS = 200


def table(rows: Sequence[tuple[Cell, ...]]) -> tuple[tuple[tuple[Cell, ...], ...], int]:
    """Return the first rows for a `Figure`, and the number of all."""
    return tuple(rows[:MAX_ROWS]), len(rows)

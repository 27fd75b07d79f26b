"""The tables as text for a terminal."""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from report.columns import GROUPS, Group
from report.measurement import Comparison
from report.names import HOPPER, look
from report.summary import Row, rows_of, what_of, workloads_of

_WIDTH = 132  # of what is not a terminal: a file, a pipe


def print_tables(comparison: Comparison, console: Console | None = None) -> None:
    """Print the tables of every workload: times, bytes, models; then why ways failed."""
    console = console or Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    for workload in workloads_of(comparison):
        what = what_of(comparison, workload)
        console.print(Text(f"\n{workload}: {what}" if what else f"\n{workload}", style="bold"))
        rows = rows_of(comparison, workload)
        for group in GROUPS:
            console.print(_table(group, [row for row in rows if not row.error]))
        for row in rows:
            if row.error:
                console.print(Text(f"{look(row.way).name} failed: {row.error}", style="red"))


def _table(group: Group, rows: list[Row]) -> Table:
    table = Table(title=group.title, title_justify="left", title_style="italic", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in group.columns:
        table.add_column(column.head, justify="right", vertical="bottom")
    for row in rows:
        style = "bold" if row.way == HOPPER else ""
        table.add_row(look(row.way).name, *(column.show(row) for column in group.columns), style=style)
    return table

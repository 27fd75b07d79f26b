"""The tables as text for a terminal."""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from report import figures, formats
from report.columns import GROUPS, Group
from report.measurement import Comparison
from report.names import FUSED, HOPPER, look
from report.summary import Row, rows_of, runs_of, what_of, workloads_of

_WIDTH = 132  # if the output is not a terminal, but a file or a pipe


def print_tables(comparison: Comparison, console: Console | None = None) -> None:
    """Print the tables of every workload: times, bytes, models; then the reasons of failures."""
    console = console or Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    for workload in workloads_of(comparison):
        what = what_of(comparison, workload)
        console.print(Text(f"\n{workload}: {what}" if what else f"\n{workload}", style="bold"))
        rows = rows_of(comparison, workload)
        for group in GROUPS:
            console.print(_table(group, [row for row in rows if not row.error]))
        runs = runs_of(comparison, workload)
        for way in (HOPPER, FUSED):
            if stages := figures.stage_seconds(runs.get(way, [])):
                console.print(_stages(way, stages, figures.stage_seconds(runs[way], "steady_stages")))
        for row in rows:
            if row.error:
                console.print(Text(f"{look(row.way).name} failed: {row.error}", style="red"))


def _stages(way: str, whole: dict[str, float], later: dict[str, float]) -> Table:
    """Return the breakdown of the workers' time: in total, and after the first epoch."""
    title = f"Where the workers’ time goes: {look(way).name}"
    table = Table(title=title, title_justify="left", title_style="italic", box=None, pad_edge=False)
    table.add_column("")
    for head in ("seconds", "of all", *(("after epoch 1, s", "of that") if later else ())):
        table.add_column(head, justify="right")
    parts = [(stages, sum(stages.values())) for stages in (whole, later) if stages]
    for stage in whole:
        cells = []
        for stages, total in parts:
            seconds = stages.get(stage, 0.0)
            cells += [formats.seconds(seconds), formats.percent(seconds / total)]
        table.add_row(stage, *cells)
    outside = [cell for stages, _ in parts for cell in ("", formats.percent(figures.outside_share(stages)))]
    table.add_row("no model is computed", *outside, style="bold")
    return table


def _table(group: Group, rows: list[Row]) -> Table:
    table = Table(title=group.title, title_justify="left", title_style="italic", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in group.columns:
        table.add_column(column.head, justify="right", vertical="bottom")
    for row in rows:
        style = "bold" if row.way == HOPPER else ""
        table.add_row(look(row.way).name, *(column.show(row) for column in group.columns), style=style)
    return table

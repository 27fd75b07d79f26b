"""The commands that estimate a call that trains: `madlib-mop explain fit`, with the arguments of `madlib-mop fit`."""

import json
import sys
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from madlib_mop.calls import find_function
from madlib_mop.catalog.live.words import clean
from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.calls import command_for
from madlib_mop.cli.queries import query
from madlib_mop.cli.runs import TRAINING, Settings

_EXPLAINED = ("fit", "fit-model", "automl")
_EXPLAIN = (
    "SELECT item, value, low, high, unit, note"
    " FROM madlib_mop.explain_fit(function_name => %s, arguments => %s::pg_catalog.text, caller_path => %s)"
)
_TEXT = """Estimate what {function} would cost with these arguments: visits, time, memory, disk, and what limits it.

Nothing is trained or changed.
"""
explain = typer.Typer(help="Estimate what a call that trains would cost.", no_args_is_help=True)
app.add_typer(explain, name="explain")


def _explain(function: str, arguments: dict[str, Any], settings: list[str] | None, dsn: str) -> None:
    """Print the estimate as a table."""
    given = json.dumps({name: value for name, value in arguments.items() if value is not None})
    table = Table("item", "value", "from", "to", "", "", box=None)
    for column in table.columns[1:4]:
        column.justify = "right"
    for item, value, low, high, unit, note in query(
        dsn, _EXPLAIN, function, given, with_path=True, settings=settings or []
    ):
        numbers = ("" if number is None else f"{number:,.{0 if unit is None else 1}f}" for number in (value, low, high))
        table.add_row(item, *numbers, unit or "", Text(clean(note or "")))
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


for _name in _EXPLAINED:
    _specification = find_function(TRAINING[_name])
    _options = {"settings": (Settings, None), "dsn": (Dsn, "")}
    explain.command(_name)(
        command_for(_specification, _explain, _options, _TEXT.format(function=_specification.name))
    )

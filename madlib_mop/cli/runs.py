"""The commands around runs: those that train call an SQL function; cancel and runs query the server."""

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from madlib_mop.calls import find_function
from madlib_mop.catalog.facts.now import read_runs, read_times_left
from madlib_mop.catalog.live.words import clean, duration
from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.calls import command_for
from madlib_mop.cli.queries import query

#: Version 1.0.0 needed a superuser's login for the record.
CatalogDsn = Annotated[str | None, typer.Option("--catalog-dsn", hidden=True, help="Accepted, and not used.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the run, such as trainer_memory_mb=2000."),
]
#: Commands that train, by name, with the SQL function that they call.
TRAINING = {
    "fit": "madlib_keras_fit_multiple_model",
    "fit-model": "madlib_keras_fit",
    "automl": "madlib_keras_automl",
    "resume": "resume",
    "replay": "replay",
}


@app.command()
def cancel(run_id: int, dsn: Dsn = "") -> None:
    """Stop a run. Exit status 1 if it is not running."""
    ((was_running,),) = query(dsn, "SELECT madlib_mop.cancel(%s)", run_id)
    print(f"run {run_id} is stopping" if was_running else f"run {run_id} is not running")
    raise typer.Exit(0 if was_running else 1)


@app.command()
def runs(dsn: Dsn = "") -> None:
    """List the runs that you may see, with their progress."""
    titles = ("run", "kind", "state", "owner", "output table", "models", "failed", "done", "elapsed", "left")
    table = Table(*titles, box=None)
    times_left = read_times_left(lambda statement, values: query(dsn, statement, *values))
    for run in reversed(read_runs(lambda statement, values: query(dsn, statement, *values), None)):
        table.add_row(
            str(run.run_id), run.kind, run.state, Text(clean(run.owner)), Text(clean(run.output_table)),
            str(run.n_models), str(run.n_failed), f"{run.percent_done}%", duration(run.elapsed_s),
            duration(times_left.get(run.run_id)),
        )  # fmt: skip
    Console(highlight=False, width=None if sys.stdout.isatty() else 240).print(table)


def _call(
    function: str, arguments: dict[str, Any], settings: list[str] | None, dsn: str, catalog_dsn: str | None
) -> None:
    """Call an SQL function that trains; NOTICEs go to stderr, the run's number to stdout."""
    from madlib_mop.cli.sessions import train

    run_id = train(dsn, settings or [], find_function(function), arguments)
    if run_id is not None:
        print(run_id)


_OPTIONS = {"settings": (Settings, None), "dsn": (Dsn, ""), "catalog_dsn": (CatalogDsn, None)}
_TEXT = """{purpose} Print the run's number.

The arguments are those of {function}. \
Ctrl-C stops the run, and `resume` continues it.
"""
for _name, _function in TRAINING.items():
    _specification = find_function(_function)
    _text = _TEXT.format(purpose=_specification.purpose, function=_function)
    app.command(_name)(command_for(_specification, _call, _OPTIONS, _text))

"""The commands around runs: fit, resume and replay drive them in this process, cancel and runs ask the server."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.queries import query

CatalogDsn = Annotated[
    str | None,
    typer.Option(
        "--catalog-dsn",
        envvar="MADLIB_MOP_CATALOG_DSN",
        help="A superuser's login, by which the record of the run is written. Default: the one of --dsn.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the run, such as trainer_memory_mb=2000."),
]
_RUNS = """
SELECT run_id, kind, state, owner, model_output_table, n_models, n_failed, percent_done, elapsed, time_left
FROM madlib_mop.progress ORDER BY run_id
"""


@app.command()
def fit(
    source_table: str,
    model_output_table: str,
    model_selection_table: str,
    num_iterations: int,
    validation_table: Annotated[str | None, typer.Option(help="Packed rows to compute metrics on too.")] = None,
    metrics_compute_frequency: Annotated[int | None, typer.Option(help="Iterations between metrics.")] = None,
    warm_start: Annotated[bool, typer.Option("--warm-start", help="Go on with the output table's models.")] = False,
    name: Annotated[str | None, typer.Option(help="Kept in _summary.")] = None,
    description: Annotated[str | None, typer.Option(help="Kept in _summary.")] = None,
    use_caching: Annotated[bool, typer.Option("--use-caching", help="Keep more of the data in memory.")] = False,
    seed: Annotated[int | None, typer.Option(help="Drawn and told when absent.")] = None,
    schedule: Annotated[str, typer.Option(help="auto, rotation or longest_first.")] = "auto",
    early_stopping: Annotated[str | None, typer.Option(help="E.g. patience=3, metric=val_loss.")] = None,
    settings: Settings = None,
    dsn: Dsn = "",
    catalog_dsn: CatalogDsn = None,
) -> None:
    """Train the configurations of a model selection table, as madlib_keras_fit_multiple_model; print the run's number.

    The driver is this process, so it runs on the server's machine; Ctrl-C stops the run, and resume goes on with it.
    """
    arguments = {
        "source_table": source_table, "model_output_table": model_output_table,
        "model_selection_table": model_selection_table, "num_iterations": num_iterations,
        "validation_table": validation_table, "metrics_compute_frequency": metrics_compute_frequency,
        "warm_start": warm_start, "name": name, "description": description, "use_caching": use_caching, "seed": seed,
        "schedule": schedule, "early_stopping": early_stopping,
    }  # fmt: skip
    _drive("madlib_keras_fit_multiple_model", arguments, dsn, catalog_dsn, settings)


@app.command()
def resume(run_id: int, settings: Settings = None, dsn: Dsn = "", catalog_dsn: CatalogDsn = None) -> None:
    """Go on with a run that was stopped or has failed, and write its output tables."""
    _drive("resume", {"run_id": run_id}, dsn, catalog_dsn, settings)


@app.command()
def replay(
    run_id: int, output_table: str, settings: Settings = None, dsn: Dsn = "", catalog_dsn: CatalogDsn = None
) -> None:
    """Make the visits of a run again, into another output table; print the new run's number."""
    _drive("replay", {"run_id": run_id, "output_table": output_table}, dsn, catalog_dsn, settings)


@app.command()
def cancel(run_id: int, dsn: Dsn = "") -> None:
    """Stop a run that goes on, here or elsewhere. Exit status 1 if none does."""
    ((was_going_on,),) = query(dsn, "SELECT madlib_mop.cancel(%s)", run_id)
    print(f"run {run_id} is told to stop" if was_going_on else f"run {run_id} is not going on")
    raise typer.Exit(0 if was_going_on else 1)


@app.command()
def runs(dsn: Dsn = "") -> None:
    """List the runs that you may see, and how far they are."""
    titles = ("run", "kind", "state", "owner", "output table", "models", "failed", "done", "elapsed", "left")
    table = Table(*titles, box=None)
    for run_id, kind, state, owner, output, n_models, n_failed, percent, elapsed, left in query(dsn, _RUNS):
        table.add_row(
            str(run_id), kind, state, owner, output, str(n_models), str(n_failed), f"{percent}%", str(elapsed),
            "" if left is None else str(left),
        )  # fmt: skip
    Console(highlight=False, width=None if sys.stdout.isatty() else 240).print(table)


def _drive(function: str, arguments: dict, dsn: str, catalog_dsn: str | None, settings: list[str] | None) -> None:
    """Do one call of the driver's in this process; NOTICEs go to stderr, the run's number to stdout."""
    from madlib_mop.cli.sessions import driving
    from madlib_mop.driver.commands import find_command
    from madlib_mop.driver.session.call import Call

    with driving(dsn, catalog_dsn, settings or []) as session:
        find_command(function)(Call(function, arguments, session))
    if session.run_id is not None:
        print(session.run_id)

"""The commands of `madlib-mop`, one function each."""

import platform
from importlib import metadata
from typing import Annotated

import typer
from mop_backend.keras_backends import FACTS
from rich.console import Console

import madlib_mop

app = typer.Typer(
    help="Model hopper parallelism inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

Dsn = Annotated[
    str,
    typer.Option(
        "--dsn",
        envvar="MADLIB_MOP_DSN",
        help="libpq URI or keywords of the database; missing parts come from PGHOST and the other variables of libpq.",
    ),
]


@app.command()
def version() -> None:
    """Print the versions of the library, Python, Keras, its installed backends and NumPy."""
    print(f"madlib_mop {madlib_mop.__version__}")
    print(f"Python {platform.python_version()}")
    backends = [package for name, facts in FACTS.items() for package in (facts.of_cpus, name) if package]
    for package in (*backends, "keras", "numpy"):
        try:
            print(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue


@app.command()
def doctor(dsn: Dsn = "") -> None:
    """Check an installation, and say how to mend each fault. Exit status 1 if there is a fault."""
    from madlib_mop.cli.doctor import examine, show

    raise typer.Exit(0 if show(examine(dsn), Console(highlight=False, soft_wrap=True)) else 1)

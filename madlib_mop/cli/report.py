"""``madlib-mop report``: a run as one HTML file, which the server makes of what the login may see."""

import os
import stat
import sys
from pathlib import Path
from typing import Annotated

import typer

from madlib_mop.cli.app import Dsn, app
from madlib_mop.errors import InvalidParameter, cannot_be_written

_PAGE = "SELECT madlib_mop.report($1::pg_catalog.int8) AS page"
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", help="File to write; - stands for the standard output. Default: run-<number>.html."),
]


@app.command()
def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Number of the run, which madlib-mop runs lists; or a registered model, such as churn@champion.",
        ),
    ],
    output: Output = None,
    dsn: Dsn = "",
) -> None:
    """Write a run as one HTML file: leaderboard, curves, hyper-parameters, schedule, lineage, failures.

    It works from any machine, with the login of a role that may see the run. An existing file is replaced. For a
    registered model, it is the run that trained the version.
    """
    from madlib_mop.catalog.facts.reader import login
    from madlib_mop.catalog.facts.registered import run_of

    if output not in (None, "-"):
        check_writable(Path(output))
    with login(dsn) as reader:
        run_id = run_of(reader, run)
        path = None if output == "-" else Path(output or f"run-{run_id}.html")
        if path is not None:
            check_writable(path)
        text: str = reader.rows(_PAGE, run_id)[0]["page"]  # drawn there: a machine of users has no library of figures
    if path is None:
        sys.stdout.write(text)
        return
    write(path, text)
    print(path)


def check_writable(path: Path) -> None:
    """Raise InvalidParameter unless a file can be written there, and nothing but a file would be replaced."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # defence: link-of-a-report = not stat.S_ISREG(path.stat().st_mode)
            raise InvalidParameter(
                f"--output must be a file. {path} is a {'link' if path.is_symlink() else 'directory or device'}",
                hint="Give another name: --output run.html.",
            )
    except FileNotFoundError:
        if not path.absolute().parent.is_dir():
            raise InvalidParameter(
                f"the directory of --output does not exist. Received: {path}", hint="Create it, or give another name."
            ) from None


def write(path: Path, text: str) -> None:
    """Write a file beside its place and move it there, so that a file is replaced as a whole, and no link is followed.

    Raises
    ------
    InvalidParameter
        If the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "x", encoding="utf-8") as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise cannot_be_written(path, error.strerror, "Give another name: --output run.html.") from None

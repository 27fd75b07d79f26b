"""The command `madlib-mop watch`."""

import sys
from typing import Annotated

import typer

from madlib_mop.cli.app import Dsn, app


@app.command()
def watch(
    run_id: int,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the present state and return.")] = False,
    dsn: Dsn = "",
) -> None:
    """Watch a run until it ends. Exit status 0 if it is finished, 1 if it ended otherwise.

    In a terminal, keys steer the run: up and down (or k and j) select a model, s stops it, r resumes it, c clones it,
    e extends it, p pauses and unpauses the run, q quits. Any role that may see the run can watch it, from any machine.
    """
    from madlib_mop.cli.watching.lines import watch_as_json, watch_as_lines
    from madlib_mop.cli.watching.session import WatchSession

    with WatchSession(dsn, run_id) as session:
        if json:
            status = watch_as_json(session, once)
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            status = watch_as_lines(session, once)
        else:
            from madlib_mop.cli.watching.terminal import watch_in_terminal

            status = watch_in_terminal(session)
    raise typer.Exit(status)

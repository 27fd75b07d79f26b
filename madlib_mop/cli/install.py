"""The command `madlib-mop install`, for clusters of many hosts; for one server, use ``make install``."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from madlib_mop.cli.app import Dsn, app
from madlib_mop.errors import InvalidParameter

if TYPE_CHECKING:  # imports psycopg2, which the help does not need
    from madlib_mop.cli.cluster import Report

# Asks no questions and does not wait for a machine that is off.
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15"


@app.command()
def install(
    greenplum: Annotated[
        bool,
        typer.Option("--greenplum", "--cloudberry", help="The hosts are those of a Greenplum or Cloudberry cluster."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; only check the hosts.")] = False,
    rsh: Annotated[
        str,
        typer.Option(
            "--rsh",
            envvar="MADLIB_MOP_RSH",
            metavar="COMMAND",
            help="The command that runs a command line at a host: COMMAND HOST 'command line'.",
        ),
    ] = _SSH,
    dsn: Dsn = "",
) -> None:
    """Copy this host's installation to all hosts of a cluster, and check them. Exit status 1 if one fails.

    Run it on the coordinator's host after make install, as the operating system user that owns the cluster.
    """
    from madlib_mop.cli import cluster
    from madlib_mop.cli.cluster.layout import claim, read_cluster
    from madlib_mop.cli.cluster.remote import RemoteShell
    from madlib_mop.cli.sessions import connect

    words = tuple(shlex.split(rsh))
    if not greenplum or not words:
        received = "neither" if not greenplum else f"--rsh {rsh!r}"
        raise InvalidParameter(
            f"this command installs on the hosts of a cluster: madlib-mop install --greenplum, or --cloudberry."
            f" Received: {received}",
            hint="One PostgreSQL server is installed on by make install PG_CONFIG=...",
        )
    session = connect(dsn)
    try:
        session.autocommit = True
        found = read_cluster(session)
        with nullcontext() if check else claim(session):
            reports = cluster.install(found, RemoteShell(words), _print, check)
    finally:
        session.close()
    raise typer.Exit(0 if show(reports) else 1)


def show(reports: "Sequence[Report]") -> bool:
    """Print a table of the hosts, then the errors of those that failed; return True if none failed."""
    table = Table(
        "host", "segments", "user", "Python", "madlib_mop", "TensorFlow", "free disk", "clock", "result", box=None
    )
    failed = [(report, report.error) for report in reports if report.error is not None]
    for report in reports:
        facts, versions = report.facts, report.versions
        modules = versions["modules"] if versions else {}
        table.add_row(
            report.host.name,
            _ranges(report.host.segments),
            facts.user if facts else "",
            facts.python if facts else "",
            versions["version"] if versions else "",
            modules.get("tensorflow", {}).get("version", ""),
            f"{facts.free_kb / 2**20:.1f} GiB" if facts else "",
            f"{facts.clock_offset_s:+.1f} s" if facts else "",
            "FAIL" if report.error is not None else report.done or "ok",
        )
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 240).print(table)
    for report, error in failed:
        _print(f"madlib-mop: {report.host.name}: {error.message}")
        if error.hint:
            _print(f"  {error.hint}")
    if failed and any(report.done for report in reports):
        _print("Only some hosts have this installation: fix the errors on the others, then run this command again.")
    elif not failed:
        _print("All hosts have the same. In the database of your choice: CREATE EXTENSION madlib_mop CASCADE")
    return not failed


def _ranges(numbers: tuple[int, ...]) -> str:
    """Write ascending numbers as ranges: 0-3, 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

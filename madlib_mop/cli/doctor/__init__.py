"""The doctor: every check of an installation, in the order in which things depend on each other."""

from collections.abc import Iterator

import psycopg2
from rich.console import Console
from rich.markup import escape

from madlib_mop.catalog.live.words import clean
from madlib_mop.catalog.sessions.dsn import check_dsn
from madlib_mop.catalog.sessions.session_settings import PIN_SEARCH_PATH
from madlib_mop.cli.doctor import citus, greenplum, hosts, jobs, library, logins, runs, server
from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState, Finding
from madlib_mop.errors import InvalidParameter

_MARKS = {
    CheckState.OK: "[green]ok  [/green]",
    CheckState.WARN: "[yellow]warn[/yellow]",
    CheckState.FAIL: "[bold red]FAIL[/bold red]",
    CheckState.SKIP: "[dim]skip[/dim]",
}


def _how_to_log_in(error: str) -> str:
    """Return what to do about a connection that failed; a server that answers with FATAL is running."""
    if "FATAL:" in error:
        return "Log in to an existing database as a superuser, for example with sudo -u postgres, or with --dsn."
    return "Start the server (make server), or select another one with --dsn."


def examine(dsn: str) -> Iterator[Finding]:
    """Check the database of a DSN; yield one finding for each check.

    Parameters
    ----------
    dsn : str
        libpq URI or keywords; empty for the libpq environment variables.
    """
    try:
        check_dsn(dsn)
        connection = psycopg2.connect(dsn, connect_timeout=10, application_name="madlib-mop doctor")
    except InvalidParameter as error:
        yield Finding("connection", CheckState.FAIL, error.message, error.hint)
        return
    except psycopg2.Error as error:
        yield Finding(
            "connection",
            CheckState.FAIL,
            str(error).strip(),
            _how_to_log_in(str(error)),
        )
        return
    connection.autocommit = True
    try:
        context = CheckContext(connection)
        context.row(PIN_SEARCH_PATH)  # defence: path-of-the-doctor
        yield Finding("connection", CheckState.OK, f"database {context.database} as {context.role}")
        yield from server.check(context)
        yield from library.check(context)
        yield from logins.check(context)
        yield from server.check_resources(context)
        if context.product is not None:
            yield from greenplum.check(context, context.product)
        else:
            yield from hosts.check(context)
            yield from citus.check(context)
            yield from jobs.check(context)
        yield from runs.check(context, dsn)
    finally:
        connection.close()


def show(findings: Iterator[Finding], console: Console) -> bool:
    """Print findings as they arrive; return True if no check failed."""
    healthy = True
    for finding in findings:
        console.print(f"{_MARKS[finding.state]}  {_text(f'{finding.check:<22} {finding.found}')}")
        if finding.mend:
            console.print(f"      {'':<22} [bold]->[/bold] {_text(finding.mend)}")
        healthy = healthy and finding.state is not CheckState.FAIL
    console.print(
        "All checks passed: the installation is complete."
        if healthy
        else "Fix the checks marked FAIL, then run the doctor again."
    )
    return healthy


def _text(found: str) -> str:
    """Return a text that may have names of other roles: without markup, and without control characters but newlines."""
    return escape("\n".join(clean(line) for line in found.split("\n")))

"""``madlib-mop dash``: the live page."""

from typing import Annotated

import typer

from madlib_mop.cli.app import app

_DSN = "Server and database, without a password: everybody logs in with a role and a password of their own."
_PUBLIC = "Where browsers find it behind a reverse proxy with TLS, such as https://mop.example.org."


@app.command()
def dash(
    dsn: Annotated[str, typer.Option("--dsn", envvar="MADLIB_MOP_DASH_DSN", help=_DSN)] = "",
    host: Annotated[str, typer.Option(help="Address to listen on. Other ones than 127.0.0.1 need TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8765,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate in PEM format.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its key in PEM format.")] = None,
    public_url: Annotated[str | None, typer.Option(help=_PUBLIC)] = None,
    allowed_host: Annotated[list[str] | None, typer.Option(help="A further name of this page in requests.")] = None,
) -> None:
    """Serve the live page: runs in a browser, with the rights of the role that logs in."""
    from madlib_mop.dash.app import serve
    from madlib_mop.dash.settings import DashSettings, server_of

    hosts = tuple(allowed_host or ())
    serve(DashSettings(server_of(dsn), host, port, tls_cert, tls_key, public_url, hosts))

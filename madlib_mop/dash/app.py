"""The live page as an ASGI application, and the server that runs it; called by the command line."""

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from madlib_mop.dash.accounts import RoleHasLeft
from madlib_mop.dash.connections import BrowserConnection, Gate, most_connections
from madlib_mop.dash.guard import MAX_HEADER_BYTES, STATIC, Guard, headers_of
from madlib_mop.dash.live import LiveHandlers
from madlib_mop.dash.pages import PageHandlers
from madlib_mop.dash.settings import DashSettings
from madlib_mop.dash.site import NeedsLogin, Site
from madlib_mop.dash.verbs import VerbHandlers
from madlib_mop.errors import InsufficientPrivilege, MopError, NotReady

_SWEEP_S = 30.0
_ERRORS = {
    404: ("Not found", "There is no such page or run, or your role may not see it."),
    405: ("Not allowed", "This page cannot be asked for in this way."),
}


class _RunId(Convertor[int]):
    """The number of a run in a path; a longer one is no path of ours, and never becomes a number."""

    regex = "[0-9]{1,19}"  # defence: number-in-a-path = "[0-9]+"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("run", _RunId())


def make_app(settings: DashSettings) -> ASGIApp:
    """Return the application."""
    site = Site(settings)
    pages, live, verbs = PageHandlers(site), LiveHandlers(site), VerbHandlers(site)
    by_path = {asset.path: asset for asset in site.assets.values()}

    async def static(request: Request) -> Response:
        asset = by_path.get(request.url.path)
        if asset is None:
            raise HTTPException(404)
        return Response(asset.content, media_type=asset.kind, headers={"Cache-Control": "max-age=31536000, immutable"})

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, NeedsLogin):
            return JSONResponse({"error": "The session has ended. Log in again."}, 401)
        if isinstance(error, RoleHasLeft):
            return site.html("error.html", 403, title="Logged out", text=error.message, hint=error.hint)
        if isinstance(error, NotReady):
            return site.html("error.html", 503, title="Not ready", text=error.message, hint=error.hint)
        if isinstance(error, MopError):
            title = "The server reports an error"
            status = 403 if isinstance(error, InsufficientPrivilege) else 500
            return site.html("error.html", status, title=title, text=error.message, hint=error.hint)
        assert isinstance(error, HTTPException)
        title, text = _ERRORS.get(error.status_code, ("This request was refused", error.detail))
        headers = error.headers
        response = site.html("error.html", error.status_code, title=title, text=text, hint=None)
        response.headers.update(headers or {})
        return response

    routes = [
        Route("/login", pages.login_form, methods=["GET"]),
        Route("/login", pages.login, methods=["POST"]),
        Route("/logout", pages.logout, methods=["POST"]),
        Route("/", pages.runs, methods=["GET"]),
        Route("/events", live.of_list, methods=["GET"]),
        Route("/runs/{run_id:run}", pages.run, methods=["GET"]),
        Route("/runs/{run_id:run}/events", live.of_run, methods=["GET"]),
        Route("/runs/{run_id:run}/figures", live.figures, methods=["GET"]),
        Route("/runs/{run_id:run}/report", live.report, methods=["GET"]),
        Route(
            "/runs/{run_id:run}/commands/{name}",
            verbs.command,
            methods=["POST"],  # defence: no-command-by-get = ["POST", "GET"]
        ),
        Route(STATIC + "{name}", static, methods=["GET"]),
    ]
    handlers = {error: failed for error in (HTTPException, NeedsLogin, MopError)}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lambda _: _lifespan(site))
    app.state.site = site
    guard = Guard(app, settings)
    return guard


@contextlib.asynccontextmanager
async def _lifespan(site: Site) -> AsyncIterator[None]:
    sweeping = asyncio.create_task(_sweep(site))
    try:
        yield
    finally:
        sweeping.cancel()
        site.feeds.close()
        site.drawing.close()
        site.sessions.end_all()
        site.accounts.close()


async def _sweep(site: Site) -> None:
    """End sessions whose time is over, and accounts whose role may no longer log in."""
    while True:
        await asyncio.sleep(_SWEEP_S)
        site.sessions.sweep()
        for account in site.accounts.live():
            if not await account.may_still_log_in():
                account.close()


def make_server(settings: DashSettings, gate: Gate) -> uvicorn.Server:
    """Return the HTTP server of the live page, which is to be run with ``sockets=[gate]``."""
    connection: Any = functools.partial(BrowserConnection, gate, headers_of(settings.is_secure))
    config = uvicorn.Config(
        make_app(settings), ssl_certfile=settings.tls_cert, ssl_keyfile=settings.tls_key, http=connection, ws="none",
        loop="asyncio",  # another one would accept connections past the gate
        lifespan="on", log_level="error", access_log=False, server_header=False, proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES, timeout_keep_alive=15, timeout_graceful_shutdown=2,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(settings: DashSettings) -> None:
    """Serve the live page until SIGTERM or Ctrl-C.

    Raises
    ------
    NotReady
        If it cannot listen at its address.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s madlib-mop dash: %(message)s")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((settings.host, settings.port))
        except OSError as error:
            raise NotReady(
                f"the live page cannot listen at {settings.host}, port {settings.port}: {error.strerror}",
                hint="Another program may use the port: choose one with --port.",
            ) from None
        scheme = "https" if settings.tls_cert else "http"
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = settings.public_url or f"{scheme}://{shown}:{settings.port}/"
        print(f"live page: {url} (Ctrl-C ends it)", flush=True)
        # behind a proxy, all connections have its address
        most = most_connections()
        with Gate(listening, most, most if settings.public_url else most // 4) as gate:
            with contextlib.suppress(KeyboardInterrupt):
                make_server(settings, gate).run(sockets=[gate])

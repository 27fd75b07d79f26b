"""Around every request: which Host and Origin it may have, how large it may be, which headers each response gets."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from madlib_mop.dash.settings import DashSettings

_LOG = logging.getLogger("madlib_mop.dash")
MAX_BODY_BYTES = 64 * 1024
MAX_HEADER_BYTES = 16 * 1024
HEADERS: dict[str, str] = {
    # defence: scripts-of-files = "script-src 'self' 'unsafe-inline'"
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Frame-Options": "DENY",  # defence: no-frames
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers would hide the Origin of forms from us
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
Refusal = tuple[HTTPStatus, str]
#: How long the body of a refused request is waited for: seconds.
_REST_S = 1.0
#: Where files with a name of their content are, which browsers keep.
STATIC = "/static/"


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, settings: DashSettings):
        self._app = app
        self._hosts = settings.hosts
        self._is_secure = settings.is_secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it; other protocols are not served."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, _limited(receive), _with_headers(scope, send, self._is_secure))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def noting(message: Message) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await _read_rest(receive)
                await _answer(noting, *refusal)
            else:
                await self._app(scope, receive, noting)
        # defence: broken-forms
        except ClientDisconnect:  # the browser has not sent all of its form
            pass
        except Exception:
            _LOG.exception("a request failed")
            if not began:
                await _answer(noting, HTTPStatus.INTERNAL_SERVER_ERROR, "This request failed. The log has the reason.")

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The headers of this request are too large."
        # defence: one-length
        if {b"content-length", b"transfer-encoding"} <= dict(headers).keys():  # a proxy may read the other one
            return HTTPStatus.BAD_REQUEST, "This request has two lengths."
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:  # defence: known-hosts = not hosts
            return HTTPStatus.MISDIRECTED_REQUEST, (
                "This page does not serve this name. Start it with --allowed-host or --public-url to let it."
            )
        # defence: origin-of-a-request
        if scope["method"] not in ("GET", "HEAD") and not self._is_same_origin(dict(headers), hosts[0]):
            return HTTPStatus.FORBIDDEN, "This request does not come from this page."
        return None

    def _is_same_origin(self, headers: Mapping[bytes, bytes], host: str) -> bool:
        """Return whether a page of ours sent the request: browsers say so in two headers, which no page can set."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is None and site is None:
            return False
        if site is not None and site != b"same-origin":  # defence: site-of-a-request
            return False
        if origin is None:
            return True
        return origin.decode("latin-1").lower() == f"{'https' if self._is_secure else 'http'}://{host}"


def _limited(receive: Receive) -> Receive:
    n_bytes = 0

    async def limited() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > MAX_BODY_BYTES:  # defence: size-of-a-request
            raise HTTPException(413, "The request is too large.")
        return message

    return limited


def headers_of(is_secure: bool) -> list[tuple[bytes, bytes]]:
    """Return the headers of every response; with TLS, browsers are told to use no other way."""
    added = {"Strict-Transport-Security": "max-age=31536000"} if is_secure else {}
    return [(name.lower().encode(), value.encode()) for name, value in (HEADERS | added).items()]


def _with_headers(scope: Scope, send: Send, is_secure: bool) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message.get("headers", [])}
            added = dict(headers_of(is_secure))
            if scope["path"].startswith(STATIC) and b"cache-control" in own:
                del added[b"cache-control"]
            dropped = {*added, b"server"}
            kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in dropped]
            message = {**message, "headers": [*kept, *added.items()]}
        await send(message)

    return sending


async def _read_rest(receive: Receive) -> None:
    """Wait a moment for the rest of a request: a connection that is closed before it came is reset, with the answer."""
    with suppress(TimeoutError, HTTPException):
        async with asyncio.timeout(_REST_S):
            while (await receive()).get("more_body"):
                pass


async def _answer(send: Send, status: HTTPStatus, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close")]  # what follows may belong to the request that was not read
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})

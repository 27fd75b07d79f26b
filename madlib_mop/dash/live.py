"""Updates of a page that is shown, figures, and the report to keep; called by `app`."""

import asyncio
import contextlib
import gzip
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from madlib_mop.catalog.facts.now import count_runs, read_jobs, read_now, read_runs, read_status
from madlib_mop.catalog.facts.shared import Fetch
from madlib_mop.dash.accounts import Account, Connection
from madlib_mop.dash.feeds import PAGE, Feed, Look, Seen, Viewer
from madlib_mop.dash.pages import RUNS_PAGE
from madlib_mop.dash.reporting import facts_of, report_html
from madlib_mop.dash.sessions import BrowserSession
from madlib_mop.dash.site import NeedsLogin, Site, run_id_of, to_login

T = TypeVar("T")
#: A comment in the stream now and then: it finds browsers that are gone, and sessions that have ended.
_PING_S = 10.0
_MAX_VIEWERS = 20
#: Figures are drawn anew at most so often: seconds, and as a multiple of the time that drawing took.
_MIN_AGE_S, _AGE_FACTOR = 10.0, 40
_PING = b": ping\n\n"
_HAS_ENDED = b"event: end\ndata: {}\n\n"


@dataclass
class Drawn:
    """Figures of a run as they were drawn last."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    body: bytes = b""
    tag: str = ""
    fresh_until: float = 0.0


class LiveHandlers:
    """Handlers of what changes."""

    def __init__(self, site: Site):
        self._site = site
        self._drawn: dict[tuple[Account, int], Drawn] = {}

    async def of_list(self, request: Request) -> Response:
        """Return the stream of updates of the list of runs."""

        def look(fetch: Fetch) -> Seen:
            parts = self._site.pages.of_list(read_runs(fetch, RUNS_PAGE), count_runs(fetch), read_jobs(fetch))
            return Seen(parts, True)

        return await self._stream(request, self._site.session_of(request, False), None, look)

    async def of_run(self, request: Request) -> Response:
        """Return the stream of updates of a run."""
        session, run_id = self._site.session_of(request, False), run_id_of(request)
        await self._check(session, run_id)  # defence: stream-of-own-runs

        def look(fetch: Fetch) -> Seen | None:
            now = read_now(fetch, run_id, PAGE)
            return None if now is None else Seen(self._site.pages.of_run(now), not now.status.has_ended)

        return await self._stream(request, session, run_id, look)

    async def figures(self, request: Request) -> Response:
        """Return the figures of a run: HTML and Vega-Lite, as JSON."""
        session, run_id = self._site.session_of(request, False), run_id_of(request)
        if not self._site.feeds.shows(session.account, run_id):  # defence: figures-of-own-runs
            await self._check(session, run_id)
        drawn = self._drawn_of(session.account, run_id)
        async with drawn.lock:
            if time.monotonic() >= drawn.fresh_until:
                began = time.monotonic()
                facts = await session.account.use(session.account.slow, _reads(facts_of, run_id))
                found = await self._site.drawing.draw(facts)
                text = json.dumps([{**figure, "html": self._site.pages.figure(figure)} for figure in found]).encode()
                drawn.body, drawn.tag = gzip.compress(text, 1), f'"{hashlib.sha256(text).hexdigest()[:32]}"'
                cost_s = time.monotonic() - began
                drawn.fresh_until = time.monotonic() + max(_MIN_AGE_S, _AGE_FACTOR * cost_s)
        headers = {"ETag": drawn.tag, "Content-Encoding": "gzip"}
        if request.headers.get("if-none-match") == drawn.tag:
            return Response(status_code=304, headers={"ETag": drawn.tag})
        return Response(drawn.body, media_type="application/json", headers=headers)

    async def report(self, request: Request) -> Response:
        """Return the report of a run as a file to keep."""
        try:
            session = self._site.session_of(request)
        except NeedsLogin:
            return to_login(request)
        run_id = run_id_of(request)
        await self._check(session, run_id)
        text = await session.account.use(session.account.slow, _reads(report_html, run_id))
        headers = {"Content-Disposition": f'attachment; filename="run-{run_id}.html"'}
        return Response(text, media_type="text/html", headers=headers)

    async def _check(self, session: BrowserSession, run_id: int) -> None:
        if await session.account.read(lambda fetch: read_status(fetch, run_id)) is None:
            raise HTTPException(404)

    def _drawn_of(self, account: Account, run_id: int) -> Drawn:
        self._drawn = {key: drawn for key, drawn in self._drawn.items() if not key[0].closed.is_set()}
        return self._drawn.setdefault((account, run_id), Drawn())

    async def _stream(self, request: Request, session: BrowserSession, run_id: int | None, look: Look) -> Response:
        if session.n_viewers >= _MAX_VIEWERS:
            return JSONResponse({"error": f"This session watches {_MAX_VIEWERS} pages already."}, 429)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        feed = self._site.feeds.feed(session.account, run_id, look)
        session.n_viewers += 1
        viewer = feed.enter()

        def leave() -> None:
            session.n_viewers -= 1
            feed.leave(viewer)

        return _Stream(self._updates(session, feed, viewer, request.headers.get("last-event-id")), leave)

    async def _updates(
        self, session: BrowserSession, feed: Feed, viewer: Viewer, last_seen: str | None
    ) -> AsyncIterator[bytes]:
        yield b"retry: 3000\n\n"
        await feed.begin(viewer, last_seen)
        while True:
            message = _PING
            with contextlib.suppress(TimeoutError):
                update = await asyncio.wait_for(viewer.queue.get(), _PING_S)
                message = b"" if update is None else update.encode()
            if not message or not self._site.sessions.is_alive(session):  # defence: updates-of-a-session = not message
                break
            yield message
        yield _HAS_ENDED


class _Stream(StreamingResponse):
    """A stream of updates, which calls a function at its end, also if nothing of it could be sent."""

    def __init__(self, updates: AsyncIterator[bytes], leave: Callable[[], None]):
        super().__init__(updates, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()  # defence: leaving-viewers


def _reads(read: Callable[[Connection, int], T], run_id: int) -> Callable[[Connection], T]:
    return lambda connection: read(connection, run_id)

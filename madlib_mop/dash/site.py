"""What all handlers of the live page share: sessions, accounts, templates; called by `app` and the handlers."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from madlib_mop.dash.accounts import Accounts
from madlib_mop.dash.connections import address_of
from madlib_mop.dash.feeds import Feeds
from madlib_mop.dash.logins import LoginLimits
from madlib_mop.dash.parts import Pages
from madlib_mop.dash.reporting import Drawing
from madlib_mop.dash.sessions import BrowserSession, BrowserSessions, LoginTokens, same
from madlib_mop.dash.settings import DashSettings
from madlib_mop.reports.assets import vega_bundle
from madlib_mop.reports.page import TEMPLATES

_STATIC = Path(__file__).parent / "static"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
_MAX_RUN_ID = 2**63 - 1
_NEXT = re.compile(r"/(runs/[0-9]{1,19})?")


class NeedsLogin(Exception):
    """The request has no session."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that browsers keep: its name has a digest of its content."""

    path: str
    content: bytes
    kind: str


@dataclass
class Site:
    """The state of one live page."""

    settings: DashSettings
    pages: Pages = field(init=False)
    sessions: BrowserSessions = field(init=False)
    accounts: Accounts = field(init=False)
    feeds: Feeds = field(default_factory=Feeds)
    limits: LoginLimits = field(default_factory=LoginLimits)
    login_tokens: LoginTokens = field(default_factory=LoginTokens)
    drawing: Drawing = field(default_factory=Drawing)
    assets: Mapping[str, Asset] = field(init=False)

    def __post_init__(self) -> None:
        self.assets = _assets()
        static = {name: asset.path for name, asset in self.assets.items()}
        self.pages = Pages(static=static, database=self.settings.server.database)
        self.sessions = BrowserSessions(self.settings.idle_s, self.settings.longest_s)
        self.accounts = Accounts(self.settings.server)

    @property
    def cookie_name(self) -> str:
        """The name of the session's cookie; with TLS, browsers refuse the name if another host sets it."""
        return "__Host-madlib_mop" if self.settings.is_secure else "madlib_mop"

    def address_of(self, request: Request) -> str:
        """Return the address of a browser. Behind a reverse proxy, the last one that it added is the browser's."""
        peer = request.client.host if request.client else ""
        if self.settings.public_url is not None:  # defence: address-behind-a-proxy = True
            peer = [peer, *request.headers.getlist("x-forwarded-for")][-1].rpartition(",")[2].strip()
        return address_of(peer)[:100]

    def session_of(self, request: Request, counts_as_use: bool = True) -> BrowserSession:
        """Return the session of a request. Raises NeedsLogin if it has none."""
        session = self.sessions.find(request.cookies.get(self.cookie_name), counts_as_use)
        if session is None:
            raise NeedsLogin
        return session

    def set_cookie(self, response: Response, name: str, value: str) -> None:
        """Set a cookie that only this page reads, until the browser is closed."""
        secure = self.settings.is_secure
        response.set_cookie(
            name,
            value,
            path="/",
            httponly=True,  # defence: no-cookies-for-scripts
            samesite="strict",
            secure=secure,
        )

    def drop_cookie(self, response: Response, name: str) -> None:
        """Remove a cookie."""
        secure = self.settings.is_secure
        response.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=secure)

    def html(self, name: str, status: int = 200, session: BrowserSession | None = None, **values: Any) -> HTMLResponse:
        """Return a page."""
        return HTMLResponse(self.pages.render(name, session=session, **values), status)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises HTTPException if it is none, or has a field twice."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is expected.")
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    if len(dict(fields)) != len(fields):
        raise HTTPException(400, "The form has a field twice.")
    return dict(fields)


def check_token(form: dict[str, str], session: BrowserSession) -> None:
    """Take the token out of a form. Raises HTTPException if it is not the session's."""
    if not same(form.pop("token", ""), session.token):  # defence: token-of-a-form = form.pop("token", None) is None
        raise HTTPException(403, "This form is of another session. Load the page again.")


def run_id_of(request: Request) -> int:
    """Return the number of the run in the path. Raises HTTPException if there can be none of this number."""
    run_id: int = request.path_params["run_id"]
    if run_id > _MAX_RUN_ID:
        raise HTTPException(404)
    return run_id


def page_of(request: Request) -> int:
    """Return the number of the page that the query asks for."""
    text = request.query_params.get("page", "1")
    return min(1_000_000, max(1, int(text))) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def safe_next(path: str) -> str:
    """Return where to go after the login: a page of ours."""
    return path if _NEXT.fullmatch(path) else "/"  # defence: own-pages-only = path


def to_login(request: Request) -> RedirectResponse:
    """Return a redirect to the form of the login, which then leads back."""
    return RedirectResponse(f"/login?next={safe_next(request.scope['path'])}", 303)


def _assets() -> Mapping[str, Asset]:
    contents = {path.name: path.read_bytes() for path in _STATIC.iterdir() if path.suffix in _KINDS}
    contents["report.css"] = (TEMPLATES / "report.css").read_bytes()
    contents["vega.js"] = vega_bundle().encode()
    found = {}
    for name, content in contents.items():
        stem, suffix = Path(name).stem, Path(name).suffix
        digest = hashlib.sha256(content).hexdigest()[:16]
        found[name] = Asset(f"/static/{stem}-{digest}{suffix}", content, _KINDS[suffix])
    return found

"""The pages: login, logout, the list of runs and jobs, and one run; called by `app`."""

import asyncio
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from madlib_mop.catalog.facts.findings import has_registry
from madlib_mop.catalog.facts.now import count_runs, read_jobs, read_now, read_runs
from madlib_mop.catalog.facts.shared import Fetch
from madlib_mop.dash.feeds import PAGE
from madlib_mop.dash.logins import FAILED, MAX_ROLE_BYTES, TOO_MANY, LoginFailed, TooManyLogins
from madlib_mop.dash.reporting import section_titles
from madlib_mop.dash.sessions import same
from madlib_mop.dash.site import NeedsLogin, Site, check_token, form_of, page_of, run_id_of, safe_next, to_login
from madlib_mop.errors import MopError
from madlib_mop.reports.sql import register_best

RUNS_PAGE = 50
_LOGIN_COOKIE = "madlib_mop_login"
#: A failed login takes at least so long, whatever its reason is.
_FAILED_S = 0.5
_MAX_AT_ONCE = 8


class PageHandlers:
    """Handlers of pages."""

    def __init__(self, site: Site):
        self._site = site
        self._logging_in = asyncio.Semaphore(_MAX_AT_ONCE)

    async def login_form(self, request: Request) -> Response:
        """Return the form of the login."""
        role = self._site.settings.server.suggested_role
        return self._form(request, safe_next(request.query_params.get("next", "/")), role)

    async def login(self, request: Request) -> Response:
        """Log in, and begin a session with a new cookie; an earlier session of the browser ends."""
        form = await form_of(request)
        role, password, goes_to = form.get("role", ""), form.get("password", ""), safe_next(form.get("next", "/"))
        cookie = request.cookies.get(_LOGIN_COOKIE, "")
        # defence: token-of-the-login
        if not cookie or not same(form.get("token", ""), self._site.login_tokens.token(cookie)):
            return self._form(request, goes_to, role, "The form had expired. Log in again.", 403)
        if len(role.encode()) > MAX_ROLE_BYTES:  # no role has such a name, and the limits do not keep it
            return self._form(request, goes_to, "", FAILED, 403)
        who = role, self._site.address_of(request)
        try:
            self._site.limits.check(*who)
            async with self._logging_in:
                self._site.limits.check(*who)  # logins that waited here with this one may have failed meanwhile
                account = await self._site.accounts.log_in(role, password)
        except TooManyLogins:
            return self._form(request, goes_to, role, TOO_MANY, 429)
        except LoginFailed:
            self._site.limits.failed(*who)
            await asyncio.sleep(_FAILED_S)
            # defence: words-of-a-failed-login = self._form(request, "", role, str(__import__("sys").exception()), 403)
            return self._form(request, goes_to, role, FAILED, 403)
        except MopError as error:
            return self._form(request, goes_to, role, error.message, 403)
        self._site.limits.succeeded(*who)
        before = self._site.sessions.find(request.cookies.get(self._site.cookie_name))
        new, _ = self._site.sessions.begin(account)
        if before is not None:  # defence: cookie-of-a-login
            self._site.sessions.end(before)
        response = RedirectResponse(goes_to, 303)
        self._site.set_cookie(response, self._site.cookie_name, new)
        self._site.drop_cookie(response, _LOGIN_COOKIE)
        return response

    async def logout(self, request: Request) -> Response:
        """End the session."""
        session = self._site.session_of(request)
        check_token(await form_of(request), session)
        self._site.sessions.end(session)  # defence: logout
        response = RedirectResponse("/login", 303)
        self._site.drop_cookie(response, self._site.cookie_name)
        return response

    async def runs(self, request: Request) -> Response:
        """Return the list of runs and jobs."""
        try:
            session = self._site.session_of(request)
        except NeedsLogin:
            return to_login(request)
        page = page_of(request)

        def read(fetch: Fetch) -> dict[str, Any]:
            listed = read_runs(fetch, RUNS_PAGE, RUNS_PAGE * (page - 1))
            return {"runs": listed, "counts": count_runs(fetch), "jobs": read_jobs(fetch)}

        found = await session.account.read(read)
        n_pages = _pages(found["counts"][0], RUNS_PAGE)
        return self._site.html("list.html", session=session, page=page, n_pages=n_pages, pages_of="runs", **found)

    async def run(self, request: Request) -> Response:
        """Return the page of a run."""
        try:
            session = self._site.session_of(request)
        except NeedsLogin:
            return to_login(request)
        run_id, page = run_id_of(request), page_of(request)
        now, registers = await session.account.read(
            lambda fetch: (read_now(fetch, run_id, PAGE, PAGE * (page - 1)), has_registry(fetch))
        )
        if now is None:
            raise HTTPException(404)
        n_pages = _pages(now.status.n_models, PAGE)
        return self._site.html(
            "run.html", session=session, now=now, page=page, n_pages=n_pages, pages_of="the leaderboard",
            sections=section_titles(), register_best=register_best(now.status.output_table) if registers else None,
        )  # fmt: skip

    def _form(self, request: Request, goes_to: str, role: str, error: str = "", status: int = 200) -> Response:
        cookie = self._site.login_tokens.cookie()
        token = self._site.login_tokens.token(cookie)
        response = self._site.html("login.html", status, error=error, role=role, token=token, next=goes_to)
        self._site.set_cookie(response, _LOGIN_COOKIE, cookie)
        return response


def _pages(n: int, size: int) -> int:
    return max(1, math.ceil(n / size))

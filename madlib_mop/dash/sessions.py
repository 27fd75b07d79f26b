"""Sessions of browsers, in memory: random cookies, timeouts, tokens against forged requests; `site` has them."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from madlib_mop.dash.accounts import Account

_N_BYTES = 32


class BrowserSession:
    """One login in one browser.

    Attributes
    ----------
    account : Account
        The sessions at the server that it uses.
    token : str
        A form of this session must have it.
    """

    def __init__(self, key: bytes, account: "Account", now: float):
        self.key = key
        self.account = account
        self.token = secrets.token_urlsafe(_N_BYTES)
        self.began_at = now
        self.used_at = now
        self.has_ended = False
        self.n_viewers = 0


class BrowserSessions:
    """All sessions.

    Parameters
    ----------
    idle_s, longest_s : float
        A session ends after so many seconds without a request, and after so many in all.
    clock : callable
        Returns seconds.
    """

    def __init__(self, idle_s: float, longest_s: float, clock: Callable[[], float] = time.monotonic):
        self._idle_s, self._longest_s = idle_s, longest_s
        self._clock = clock
        self._sessions: dict[bytes, BrowserSession] = {}

    def begin(self, account: "Account") -> tuple[str, BrowserSession]:
        """Return the cookie of a new session, and the session; no value that a browser sent is used."""
        cookie = secrets.token_urlsafe(_N_BYTES)
        session = BrowserSession(_key(cookie), account, self._clock())
        self._sessions[session.key] = session
        account.n_sessions += 1
        return cookie, session

    def find(self, cookie: str | None, counts_as_use: bool = True) -> BrowserSession | None:
        """Return the session of a cookie; None if there is none, or it has ended."""
        session = self._sessions.get(_key(cookie)) if cookie else None
        if session is None or not self.is_alive(session):
            return None
        if counts_as_use:
            session.used_at = self._clock()
        return session

    def is_alive(self, session: BrowserSession) -> bool:
        """Return whether a session goes on; one whose time is over, or that lost the server, is ended here."""
        now = self._clock()
        over = (
            now >= session.used_at + self._idle_s  # defence: idle-sessions
            or now >= session.began_at + self._longest_s  # defence: long-sessions
        )
        if not session.has_ended and (over or session.account.is_lost):
            self.end(session)
        return not session.has_ended

    def end(self, session: BrowserSession) -> None:
        """End a session; with the last one of an account, the account is closed."""
        if session.has_ended:
            return
        session.has_ended = True
        self._sessions.pop(session.key, None)
        session.account.n_sessions -= 1
        if session.account.n_sessions == 0:
            session.account.close()

    def sweep(self) -> None:
        """End the sessions whose time is over."""
        for session in list(self._sessions.values()):
            self.is_alive(session)

    def end_all(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            self.end(session)


class LoginTokens:
    """Tokens of the form of the login, where there is no session yet: each belongs to a cookie of the same browser."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_N_BYTES)

    def cookie(self) -> str:
        """Return a new cookie."""
        return secrets.token_urlsafe(_N_BYTES)

    def token(self, cookie: str) -> str:
        """Return the token that belongs to a cookie."""
        return hmac.new(self._secret, cookie.encode(), hashlib.sha256).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def _key(cookie: str) -> bytes:
    """Return what a cookie is stored under: looking it up tells nothing about other cookies by its duration."""
    return hashlib.sha256(cookie.encode()).digest()

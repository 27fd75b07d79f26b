"""A live page in a thread, and browsers of roles that use it."""

import re
import socket
import threading
from contextlib import closing, contextmanager

import httpx

from madlib_mop.dash import reporting
from madlib_mop.dash.app import make_server
from madlib_mop.dash.connections import Gate
from madlib_mop.dash.settings import DashSettings, server_of
from tests.conftest import PASSWORD
from tests.helpers.faults import wait_for
from tests.helpers.invented import invent_run

reporting._NICENESS = 0  # at 19, figures take tens of seconds while other tests keep all processors busy


def dsn_of(db) -> str:
    """Return the DSN of a database for the live page: without a role and a password."""
    return f"host=127.0.0.1 port={db.cluster.port} dbname={db.name}"


class Dash:
    """A live page that serves at `url`."""

    def __init__(self, db, limits=(1000, 250), **settings):
        self.gate = Gate(socket.create_server(("127.0.0.1", 0)), *limits)
        self.port = self.gate.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = make_server(DashSettings(server_of(dsn_of(db)), port=self.port, **settings), self.gate)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.gate]}, daemon=True)
        self._thread.start()
        wait_for(lambda: self.server.started, what="the live page")

    @property
    def site(self):
        """Its state."""
        return self.server.config.app._app.state.site

    def stop(self) -> None:
        """End it."""
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def browser(self, role: str | None = None) -> "Browser":
        """Return a browser, in which a role is logged in."""
        browser = Browser(self.url)
        if role is not None:
            answer = browser.log_in(role)
            assert answer.status_code == 303, answer.text
        return browser


@contextmanager
def serving(db, **settings):
    """Serve a live page of a database."""
    with closing(Stopping(Dash(db, **settings))) as stopping:
        yield stopping.dash


class Stopping:
    """Closes a live page."""

    def __init__(self, dash: Dash):
        self.dash = dash

    def close(self) -> None:
        """End it."""
        self.dash.stop()


class Browser(httpx.Client):
    """What a browser does: it keeps cookies, follows no redirect, and names the origin of forms."""

    def __init__(self, url: str):
        super().__init__(base_url=url, timeout=60, headers={"Origin": url}, trust_env=False)

    def token(self, path: str = "/") -> str:
        """Return the token of the forms of a page."""
        return re.search(r'name="token" value="([^"]+)"', self.get(path).text)[1]

    def log_in(self, role: str, password: str = PASSWORD, **changes) -> httpx.Response:
        """Send the form of the login; return the answer."""
        form = {"role": role, "password": password, "token": self.token("/login"), "next": "/", **changes}
        return self.post("/login", data=form)

    def command(self, run_id: int, name: str, headers=None, **form) -> httpx.Response:
        """Send the form of a command, with the token of the session unless another one is given."""
        form = {"token": self.token(), **form}
        return self.post(f"/runs/{run_id}/commands/{name}", data=form, headers=headers)

    @contextmanager
    def events(self, path: str, last_seen: str | None = None):
        """Open a stream of updates; yield an iterator over (event, id, data)."""
        headers = {} if last_seen is None else {"Last-Event-ID": last_seen}
        with self.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield _events(response)


def _events(response: httpx.Response):
    event = {}
    for line in response.iter_lines():
        if not line and "event" in event:
            yield event["event"], event.get("id"), event.get("data", "")
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def make_people(db) -> None:
    """Make roles with a run of ann's and one of bob's; carol may read ann's."""
    for role in ("ann", "bob", "carol", "nobody_here"):
        db.cluster.create_role(role)
    for role in ("ann", "bob"):
        db.rows(f"SELECT madlib_mop.grant_use('{role}')")
    db.rows("SELECT madlib_mop.grant_read('carol', 'ann')")
    db.ann, db.bob = invent_run(db, owner="ann"), invent_run(db, owner="bob")

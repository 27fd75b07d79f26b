"""The live page serves others whatever one client sends or does not send, and logs no traceback."""

import asyncio
import logging
import random
import select
import socket
import ssl
import threading
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse

from madlib_mop.catalog.live.following import run_of
from madlib_mop.dash import accounts, connections, feeds
from madlib_mop.dash.connections import Gate, address_of
from madlib_mop.dash.guard import Guard
from madlib_mop.dash.settings import DashSettings, server_of
from madlib_mop.dash.site import Site
from tests.helpers.certificates import make_certificate
from tests.helpers.dash import Dash, Stopping, make_people, serving
from tests.helpers.faults import wait_for
from tests.helpers.invented import invent_run

CHANNEL = "madlib_mop_runs"


@pytest.fixture(scope="module")
def lab(db):
    make_people(db)
    return db


@pytest.fixture(scope="module", autouse=True)
def read_at_once():
    """Live pages read a run again as soon as they are told of a change: tests wait for updates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeds, "_LEAST_S", 0.0)
        patch.setattr(feeds, "_FACTOR", 0.0)
        yield


@pytest.fixture(scope="module")
def dash(lab):
    with serving(lab) as dash:
        yield dash


@pytest.fixture(scope="module")
def ann(dash):
    """Ann's browser, for tests that leave its session as it is: a login takes longer than most of them."""
    return dash.browser("ann")


@pytest.fixture(autouse=True)
def no_traceback(caplog):
    """Nothing that a client sends is an error of ours."""
    with caplog.at_level(logging.INFO):
        yield
    shown = [record.getMessage() for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    assert not shown, shown


@contextmanager
def connected(dash):
    """Connect to the live page as any program can."""
    with closing(socket.create_connection(("127.0.0.1", dash.port), 30)) as raw:
        yield raw


def answer_to(dash, request: bytes) -> bytes:
    """Send bytes, and return all that comes back until the server closes the connection, or a stream begins."""
    received = b""
    with connected(dash) as raw:
        raw.sendall(request)
        while (part := raw.recv(65536)) and b"retry: 3000" not in part:
            received += part
    return received


def head(dash, *lines: str, method: str = "GET", path: str = "/login") -> bytes:
    """Return the head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{dash.port}", *lines, "", ""]).encode("latin-1")


# ---- connections


@pytest.mark.parametrize("sent", [b"", b"GET /login HT", b"POST /login HTTP/1.1\r\nContent-Length: 9\r\n\r\nrole="])
def test_connections_that_wait_give_way_to_others(lab, sent):
    """Also those of the same address: on a machine with many users, all have one."""
    with closing(Stopping(Dash(lab, limits=(40, 20)))) as stopping, ExitStack() as stack:
        dash = stopping.dash
        for _ in range(60):
            stack.enter_context(connected(dash)).sendall(sent)
        assert dash.browser("ann").get("/").status_code == 200
        assert len(dash.gate._open) <= 20


def test_connections_that_wait_for_tls_give_way_to_others(lab, tmp_path):
    """They have sent nothing that could be read yet."""
    certificate, key = map(str, make_certificate(tmp_path))
    with (
        closing(Stopping(Dash(lab, limits=(40, 20), tls_cert=certificate, tls_key=key))) as stopping,
        ExitStack() as stack,
    ):
        dash = stopping.dash
        for _ in range(60):
            stack.enter_context(connected(dash)).sendall(b"\x16\x03\x01")
        trusted = ssl.create_default_context(cafile=certificate)
        answer = httpx.get(f"https://127.0.0.1:{dash.port}/login", verify=trusted, trust_env=False, timeout=60)
        assert answer.status_code == 200 and answer.headers["strict-transport-security"]
        assert len(dash.gate._open) <= 20


def test_connections_that_are_served_are_not_ended_for_others(lab):
    with closing(Stopping(Dash(lab, limits=(40, 3)))) as stopping, ExitStack() as stack:
        dash = stopping.dash
        browser = dash.browser("ann")
        events = stack.enter_context(browser.events(f"/runs/{lab.ann}/events"))
        assert next(events)[0] == "state"
        for _ in range(10):
            stack.enter_context(connected(dash)).sendall(b"GET")
        assert len(dash.gate._open) <= 3
        lab.rows("UPDATE madlib_mop.run SET state_detail = 'changed' WHERE run_id = %s", [lab.ann])
        lab.rows(f"SELECT pg_notify('{CHANNEL}', '{lab.ann}')")
        assert next(events)[0] == "change"


def test_one_address_leaves_room_for_others(monkeypatch):
    """The address is the first 64 bits of IPv6: people get such a network, or a larger one."""
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:2") != address_of("2001:db8:0:1::1")
    assert address_of("::ffff:192.0.2.1") == address_of("192.0.2.1") == "192.0.2.1"
    assert address_of("192.0.2.1:40000") == "192.0.2.1" and address_of("[2001:db8::1]:443") == address_of("2001:db8::")
    assert address_of("[2001:db8::1") == address_of("2001:db8::") and address_of("a:b") == "a:b"
    assert address_of("fe80::1%eth0") == address_of("fe80::2") and address_of("") == ""
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
        port = listening.getsockname()[1]
        gate = stack.enter_context(Gate(listening, 100, 3))

        def accepted(from_address: str) -> socket.socket:
            stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(from_address, 0)))
            return stack.enter_context(gate.accept()[0])

        served = [accepted("127.0.0.2") for _ in range(3)]
        for one in served:
            gate.set_waiting(one.fileno(), False)
        with pytest.raises(ConnectionAbortedError):
            accepted("127.0.0.2")
        other = accepted("127.0.0.3")
        served[0].close()
        again = accepted("127.0.0.2")
        assert {one.fileno() for one in (*served[1:], other, again)} == set(gate._open)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost", "body"])
def test_a_request_is_complete_in_time_or_refused(dash, monkeypatch, sent):
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    kind = "Content-Type: application/x-www-form-urlencoded"
    origin = f"Origin: http://127.0.0.1:{dash.port}"
    if sent == "body":
        sent = head(dash, "Content-Length: 9", kind, origin, method="POST") + b"role="
    with connected(dash) as raw:
        raw.sendall(sent)
        received = b""
        while part := raw.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 408 ") and b"content-security-policy" in received


def _wait_for_its_end(dash, raw: socket.socket) -> None:
    """Wait until the server answers a connection, and then until it has closed it."""
    assert raw.recv(1) == b"H"
    (accepted,) = [one for one in list(dash.gate._open.values()) if one.getpeername() == raw.getsockname()]
    wait_for(lambda: accepted not in list(dash.gate._open.values()), what="the end of the connection")


def test_a_browser_that_takes_nothing_is_dropped(dash, monkeypatch):
    monkeypatch.setattr(connections, "_TAKEN_S", 0.3)
    vega = next(asset.path for asset in dash.site.assets.values() if "vega" in asset.path)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", dash.port))
        raw.sendall(head(dash, path=vega) * 5)
        _wait_for_its_end(dash, raw)


def test_a_browser_that_does_not_take_the_last_response_is_dropped(dash, monkeypatch):
    """The rest of the response is less than what pauses the server."""

    class Small(connections.Accepted):
        def __init__(self, *words, **more):
            super().__init__(*words, **more)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr(connections, "_TAKEN_S", 0.3)
    monkeypatch.setattr(connections, "Accepted", Small)
    monkeypatch.setattr(Site, "html", lambda *_, **__: HTMLResponse("x" * 50_000))
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", dash.port))
        raw.sendall(head(dash, "Connection: close", path="/nowhere"))
        _wait_for_its_end(dash, raw)


# ---- requests


def statuses(received: bytes) -> list[int]:
    """Return the status of each response."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def test_a_request_with_two_lengths_is_refused(dash):
    """A proxy in front of the live page may read another one than we do."""
    both = head(dash, "Content-Length: 4", "Transfer-Encoding: chunked", method="POST")
    received = answer_to(dash, both + b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    assert statuses(received) == [400] and b"content-security-policy" in received


def test_a_refused_form_is_read_before_it_is_answered(dash):
    """Otherwise the connection is closed with unread bytes, which resets it, and the browser may lose the answer."""
    with connected(dash) as raw:
        raw.sendall(head(dash, "Content-Length: 5", method="POST"))
        assert select.select([raw], [], [], 0.2)[0] == []
        raw.sendall(b"a=b&c")
        received = b"".join(iter(lambda: raw.recv(65536), b""))
    assert statuses(received) == [403] and received.endswith(b"This request does not come from this page.")


@pytest.mark.parametrize(
    "request_line",
    [b"\0", b"GET", b"GET / HTTP/9.9", b"GET /\xff HTTP/1.1", b"GET / HTTP/1.1\r\nbad header", b"\x16\x03\x01\x02\x00"],
)
def test_what_is_no_request_is_refused_with_the_headers_of_every_response(dash, request_line):
    received = answer_to(dash, request_line + b"\r\n\r\n")
    assert statuses(received) in ([400], [421]) and b"content-security-policy" in received
    assert b"x-frame-options" in received and b"server:" not in received


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://]", "http://\u212a", "//", "http://a@[b"])
def test_an_origin_that_is_none_is_refused(ann, origin):
    answer = ann.post("/logout", headers={"Origin": origin.encode()}, data={})
    assert answer.status_code == 403 and answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "number", ["9" * 5000, "9" * 30, str(2**63), "0" * 4400 + "1"], ids=lambda number: str(len(number))
)
@pytest.mark.parametrize("path", ["", "/events", "/figures", "/report", "/commands/pause"])
def test_a_run_with_a_number_that_none_can_have_is_not_there(ann, number, path):
    answer = ann.request("POST" if "commands" in path else "GET", f"/runs/{number}{path}", data={})
    assert answer.status_code in (403, 404) and answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "value",
    ["--5", "-", "+5", "5-", "\u00b2", "\u0665", "9" * 5000, "-9223372036854775809", "5\n6", "1e5"],
    ids=lambda text: repr(text[:20]),
)
def test_a_number_of_a_form_that_is_none_is_refused(ann, lab, value):
    answer = ann.command(lab.ann, "stop_model", mst_key=value)
    assert answer.status_code == 422 and "whole number" in answer.json()["error"]


def test_a_form_that_is_broken_off_is_no_error_of_ours():
    """The fixture sees the log."""
    sent = []

    async def app(scope, receive, send):
        await Request(scope, receive).body()

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8765"), (b"origin", b"http://127.0.0.1:8765")]
    scope = {"type": "http", "method": "POST", "path": "/login", "headers": headers}
    asyncio.run(Guard(app, DashSettings(server_of("host=127.0.0.1 dbname=d")))(scope, receive, send))
    assert sent == []


PATHS = (
    "/",
    "/login",
    "/logout",
    "/events",
    "/static/x.js",
    "/static/../../etc/passwd",
    "//evil.example",
    "/%00",
    "/%ff%fe",
    "/?page=%00",
    "/?page=" + "9" * 5000,
    "/login?next=%0d%0aX:1",
    "/runs/{run}",
    "/runs/{run}/",
    "/runs/{run}/events",
    "/runs/{run}/figures",
    "/runs/{run}/report",
    "/runs/-1",
    "/runs/%D9%A5",
    "/runs/{run}?page=\u0665",
    "/[",
    "/runs/[::1",
    "/runs/{run}/commands/{name}",
    "/runs/{run}/commands/%00",
    "/runs/{run}/commands/__class__",
    "*",
    "http://[/",
    "http://other.example/login",
    "/" + "a" * 9000,
    "/;a=b",
    "/login/",
    "/%2e%2e/",
    "/runs/{run}/commands/{name}/x",
)
NAMES = ("stop_model", "resume_model", "clone_model", "extend", "pause", "unpause", "pin_model")
VALUES = (
    "",
    "1",
    "--5",
    "-1",
    "9" * 5000,
    "%00",
    "a%00b",
    "%ff%fe",
    "%ed%a0%80",
    "%D9%A5",
    "true",
    "null",
    "NaN",
    "[1]",
    "1e5",
    "{}",
    "%22",
    "'",
    "\\",
    "%25",
    "%%",
    "%",
    "&",
    "=",
    "+",
    "x" * 30_000,
    "%F0%9F%98%80",
    "loss%3D'x'",
    "0x10",
    "1.5",
)
FIELDS = (
    "mst_key",
    "num_iterations",
    "reason",
    "compile_params",
    "fit_params",
    "pinned",
    "role",
    "password",
    "next",
    "run_id",
    "",
    "%00",
    "token",
)
HEADERS = (
    "Origin: http://[",
    "Origin: null",
    "Sec-Fetch-Site: same-origin",
    "Last-Event-ID: \u00e9",
    "If-None-Match: *",
    "Cookie: madlib_mop=\u00e9; madlib_mop_login=\u00ff",
    "Cookie: =;;=,",
    "Cookie: " + "a=b; " * 2000,
    "Expect: 100-continue",
    "Content-Type: multipart/form-data; boundary=x",
    "Content-Type: application/json",
    "Content-Type: \u00e9",
    "Upgrade: websocket\r\nConnection: upgrade",
    "Range: bytes=0-9999999999999",
    "X-Forwarded-For: [::",
    "TE: trailers",
    "Host: evil.example",
    "Accept-Encoding: \u00e9",
    "Content-Length: 5",
    "Transfer-Encoding: gzip",
    "Authorization: Basic %",
    'Forwarded: for="["',
    "X-Forwarded-Proto: \u00e9",
    "X-HTTP-Method-Override: DELETE",
)


@pytest.mark.parametrize("seed", range(4))
def test_no_request_is_an_error_of_ours(dash, lab, seed):
    """Mixed at random, with and without a session; the log has no error, which a fixture sees."""
    chance = random.Random(seed)
    browser = dash.browser("ann")
    token, cookie = browser.token(), f"madlib_mop={browser.cookies['madlib_mop']}"
    forms = [
        f"{chance.choice(FIELDS)}={chance.choice(VALUES)}&{chance.choice(FIELDS)}={chance.choice(VALUES)}"
        for _ in range(40)
    ]
    for form in forms:
        method = chance.choice(["GET", "POST", "POST", "POST", "HEAD", "PUT", "OPTIONS", "TRACE", "X" * 50])
        path = chance.choice(PATHS) if chance.random() < 0.7 else "/runs/{run}/commands/{name}"
        path = path.replace("{run}", str(chance.choice([lab.ann, lab.bob, 0, 10**18]))).replace(
            "{name}", chance.choice(NAMES)
        )
        body = form if chance.random() < 0.5 else f"token={token}&{form}"
        lines = chance.sample(HEADERS, chance.choice([0, 0, 1, 2])) + ["Connection: close"]
        if chance.random() < 0.8:
            lines += [f"Origin: {dash.url}", "Content-Type: application/x-www-form-urlencoded"]
        if chance.random() < 0.7:
            lines += [f"Cookie: {cookie}"]
        lines += [f"Content-Length: {len(body.encode())}"]
        head_of_it = head(dash, *lines, method=method, path=path.encode().decode("latin-1"))
        received = answer_to(dash, head_of_it + body.encode())
        for answer in received.split(b"HTTP/1.1 ")[1:]:
            status = int(answer[:3])
            assert status < 500 or status == 501, (method, path, lines, body[:200], answer[:300])
            assert status < 200 or b"x-frame-options: DENY" in answer, (method, path, lines)


# ---- notifications


def test_only_numbers_of_runs_are_read_from_notifications():
    assert [run_of(text) for text in (b"7", b"7 done", b"9223372036854775807")] == [7, 7, 2**63 - 1]
    strange = [b"", b" ", b"9" * 20, b"9" * 4400, b"9223372036854775808", b"-1", b"+7", b"\xff", b"\xd9\xa5", b"7\n"]
    assert [run_of(text) for text in strange] == [None] * len(strange)


@pytest.mark.parametrize(
    "payload", ["repeat('9', 4400)", "repeat('9', 7999)", "''", "'9223372036854775808'", "'-1'", "E'\\u0665'"]
)
def test_a_notification_of_anybody_harms_nobody(ann, lab, payload):
    """Every role that may connect can send one."""
    with ann.events(f"/runs/{lab.ann}/events") as events:
        assert next(events)[0] == "state"
        lab.rows(f"SELECT pg_notify('{CHANNEL}', {payload})", role="nobody_here")
        assert ann.get("/").status_code == 200
        lab.rows("UPDATE madlib_mop.run SET state_detail = %s WHERE run_id = %s", [payload, lab.ann])
        lab.rows(f"SELECT pg_notify('{CHANNEL}', '{lab.ann}')")
        assert next(events)[0] == "change", "its stream goes on"


# ---- feeds


def test_a_feed_ends_though_its_viewers_left_before_its_first_state(dash, lab, monkeypatch):
    monkeypatch.setattr(feeds, "_LINGER_S", 0.1)
    monkeypatch.setattr(feeds, "_LEAST_S", 0.1)
    monkeypatch.setattr(feeds, "_QUIET_S", 0.2)
    run_id = invent_run(lab, owner="ann", state="running")
    browser = dash.browser("carol")
    token = browser.token()
    (session,) = [s for s in dash.site.sessions._sessions.values() if s.token == token]
    account, may_read = session.account, threading.Event()
    assert (account, None) not in dash.site.feeds._feeds, "one of another test has a state"
    read = account.read

    async def read_late(do):
        await asyncio.to_thread(may_read.wait, 60)
        return await read(do)

    request = head(dash, f"Cookie: madlib_mop={browser.cookies['madlib_mop']}", path="/events")
    with monkeypatch.context() as patch:
        patch.setattr(account, "read", read_late)
        with connected(dash) as raw:
            raw.sendall(request)
            wait_for(lambda: (account, None) in dash.site.feeds._feeds, what="the feed")
            feed = dash.site.feeds._feeds[account, None]
            wait_for(lambda: feed._viewers, what="the viewer")
        wait_for(lambda: not feed._viewers and not session.n_viewers, what="that the viewer has left")
        may_read.set()
    wait_for(lambda: feed.is_over, what="the end of the feed")
    assert run_id not in {key for _, key in dash.site.feeds._feeds}


def test_viewers_that_leave_at_once_are_not_counted_for_ever(dash):
    browser = dash.browser("ann")
    request = head(dash, f"Cookie: madlib_mop={browser.cookies['madlib_mop']}", path="/events")
    for _ in range(30):
        with connected(dash) as raw:
            raw.sendall(request)

    def may_watch():  # some of the requests may not have been read yet
        with browser.stream("GET", "/events") as response:
            return response.status_code == 200

    wait_for(may_watch, what="that all have left")


# ---- roles


def test_a_login_whose_session_the_server_ends_is_no_error_of_ours(dash, monkeypatch):
    """The fixture sees the log."""

    def lose(connection):
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    browser = dash.browser()
    with monkeypatch.context() as patch:
        patch.setattr(accounts, "check_rights", lose)
        answer = browser.log_in("ann")
    assert answer.status_code == 403 and "Log in again" in answer.text


def test_after_drop_role_the_answer_is_clear_at_once(dash, lab):
    lab.cluster.create_role("passing")
    lab.rows("SELECT madlib_mop.grant_use('passing')")
    run_id = invent_run(lab, owner="passing", state="finished")
    browser = dash.browser("passing")
    assert browser.get(f"/runs/{run_id}").status_code == 200
    token = browser.token()
    lab.rows("DROP OWNED BY passing; DROP ROLE passing")
    lab.cluster._roles.discard("passing")
    answer = browser.post(f"/runs/{run_id}/commands/pause", data={"token": token})
    assert answer.status_code == 403 and "no longer" in answer.text
    assert browser.get("/").headers["location"].startswith("/login"), "the session has ended"
    assert not [a for a in dash.site.accounts.live() if a.role == "passing"]


@pytest.mark.parametrize("change", ["NOLOGIN", "VALID UNTIL '2001-01-01'"])
def test_a_role_that_may_not_log_in_any_more_is_told_so_where_it_meets_an_error(dash, lab, change):
    lab.cluster.create_role("leaving")
    lab.rows("ALTER ROLE leaving LOGIN VALID UNTIL 'infinity'")
    lab.rows("SELECT madlib_mop.grant_use('leaving')")
    browser = dash.browser("leaving")
    lab.rows("SELECT madlib_mop.revoke_use('leaving')")
    denied = browser.get("/")
    assert denied.status_code == 403 and "permission denied" in denied.text and "no longer" not in denied.text
    lab.rows(f"ALTER ROLE leaving {change}")
    assert "no longer log in" in browser.get("/").text
    assert browser.get("/").headers["location"].startswith("/login")

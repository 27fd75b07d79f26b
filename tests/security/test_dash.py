"""The live page gives nothing to one who may not see it, and does nothing that its user has not asked for."""

import contextlib
import json
import re
import subprocess
import threading

import httpx
import pytest

from madlib_mop.dash.logins import LoginLimits
from madlib_mop.dash.sessions import BrowserSessions
from tests.helpers.dash import make_people, serving
from tests.helpers.invented import HOSTILE, invent_run

COOKIE = "madlib_mop"


@pytest.fixture(scope="module")
def lab(db):
    make_people(db)
    return db


@pytest.fixture(scope="module")
def dash(lab):
    with serving(lab) as dash:
        yield dash


@pytest.fixture(scope="module")
def ann(dash):
    """Ann's browser, for tests that leave its session as it is: a login takes longer than most of them."""
    return dash.browser("ann")


@pytest.fixture(autouse=True)
def forgiving(dash):
    """Failed logins of one test do not slow down the next."""
    dash.site.limits = LoginLimits()


def commands(db) -> int:
    return db.value("SELECT count(*) FROM madlib_mop.change")


class FakeAccount:
    n_sessions, is_lost = 0, False

    def close(self):
        self.is_lost = True


# ---- sessions


def test_a_login_makes_a_new_cookie_whatever_the_browser_had(dash):
    browser = dash.browser()
    browser.cookies.set(COOKIE, "chosen-by-an-attacker")
    answer = browser.log_in("ann")
    value = answer.headers["set-cookie"].split(";")[0].partition("=")[2]
    assert answer.status_code == 303 and len(value) >= 43 and value != "chosen-by-an-attacker"
    other = dash.browser()
    other.cookies.set(COOKIE, "chosen-by-an-attacker")
    assert other.get("/").status_code == 303, "it leads to the login"


def test_a_second_login_ends_the_session_before(dash):
    browser = dash.browser("ann")
    before = browser.cookies[COOKIE]
    browser.log_in("ann")
    other = dash.browser()
    other.cookies.set(COOKIE, before)
    assert other.get("/").status_code == 303 and browser.get("/").status_code == 200


def test_the_cookie_is_for_the_server_and_this_site_only(dash, lab):
    def flags(answer):
        (cookie,) = [c for c in answer.headers.get_list("set-cookie") if c.startswith(("madlib_mop=", "__Host-"))]
        return cookie.lower()

    told = flags(dash.browser().log_in("ann"))
    assert "httponly" in told and "samesite=strict" in told and "secure" not in told
    with serving(lab, public_url="https://mop.example.org") as behind_tls:
        browser = behind_tls.browser()
        browser.headers.update({"Host": "mop.example.org", "Origin": "https://mop.example.org"})
        answer = browser.get("/login")
        (cookie,) = answer.headers.get_list("set-cookie")
        assert "; secure" in cookie.lower()
        assert behind_tls.site.cookie_name.startswith("__Host-")


def test_a_logout_ends_the_session(dash):
    browser = dash.browser("ann")
    cookie = browser.cookies[COOKIE]
    assert browser.post("/logout", data={"token": browser.token()}).status_code == 303
    browser.cookies.set(COOKIE, cookie)
    assert browser.get("/").status_code == 303


@pytest.mark.slow
def test_a_logout_ends_the_updates(dash, lab):
    dash.browser("ann")  # another session, which keeps the sessions at the server open
    browser = dash.browser("ann")
    seen = []

    def watch():
        with browser.events(f"/runs/{lab.ann}/events") as events:
            seen.extend(name for name, _, _ in events)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    other = dash.browser()
    other.cookies.update(browser.cookies)
    other.post("/logout", data={"token": other.token()})
    thread.join(30)
    assert not thread.is_alive() and seen[-1] == "end"


@pytest.mark.parametrize("pauses", [(101,), (60, 60, 60, 60)], ids=["idle", "too long"])
def test_a_session_ends_by_time(pauses):
    now = [0.0]
    sessions = BrowserSessions(100, 200, lambda: now[0])
    cookie, session = sessions.begin(FakeAccount())
    assert sessions.find(cookie) is session
    for pause in pauses:
        now[0] += pause
        found = sessions.find(cookie)
    assert found is None and session.account.is_lost, "the sessions at the server are closed too"


def test_only_the_cookie_itself_finds_a_session():
    sessions = BrowserSessions(100, 200)
    cookie, session = sessions.begin(FakeAccount())
    assert sessions.find(session.key.hex()) is None and sessions.find("") is None and sessions.find(cookie[:-1]) is None


# ---- forged requests


@pytest.mark.parametrize("token", ["", "wrong", "of another session"])
def test_a_command_needs_the_token_of_its_session(dash, ann, lab, token):
    if token == "of another session":
        token = dash.browser("ann").token()
    before = commands(lab)
    assert ann.command(lab.ann, "pin_model", token=token, mst_key="1").status_code == 403
    assert ann.post("/logout", data={"token": token}).status_code == 403
    assert commands(lab) == before and ann.get("/").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": ""}, {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
    ],
    ids=str,
)  # fmt: skip
def test_a_form_of_another_site_does_nothing(ann, lab, headers):
    before = commands(lab)
    answer = ann.command(lab.ann, "pin_model", headers=headers, mst_key="1")
    assert (answer.status_code, commands(lab)) == (403, before)


def test_a_form_without_an_origin_does_nothing(dash, lab):
    browser = dash.browser("ann")
    token = browser.token()
    del browser.headers["Origin"]
    before = commands(lab)
    answer = browser.command(lab.ann, "pin_model", token=token, mst_key="1")
    assert (answer.status_code, commands(lab)) == (403, before)


def test_the_login_is_sent_by_our_form_only(dash):
    """Otherwise a page could log its visitor in as somebody else."""
    assert dash.browser().log_in("ann", token="wrong").status_code == 403
    browser, other = dash.browser(), dash.browser()
    assert browser.log_in("ann", token=other.token("/login")).status_code == 403


def test_no_verb_is_obeyed_by_get(ann, lab):
    before = commands(lab)
    for name in ("stop_model", "pin_model", "extend", "cancel"):
        path = f"/runs/{lab.ann}/commands/{name}?token={ann.token()}&mst_key=1&num_iterations=1"
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            assert ann.request(method, path).status_code == 405
    assert ann.get("/logout").status_code == 405
    assert commands(lab) == before and ann.get("/").status_code == 200


# ---- every response


def test_every_response_has_the_headers_that_browsers_obey(dash, lab):
    browser = dash.browser("ann")
    static = browser.get("/").text.partition('href="/static/')[2].partition('"')[0]
    answers = [
        browser.get(path)
        for path in ("/", f"/runs/{lab.ann}", "/login", "/nothing", f"/runs/{lab.bob}", "/logout", f"/static/{static}")
    ]
    answers += [browser.post("/"), browser.get("/", headers={"Host": "evil.example"}), dash.browser().get("/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert "base-uri 'none'" in policy and "form-action 'self'" in policy and "script-src 'self'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store" or answer.url.path.startswith("/static/")
        assert "server" not in answer.headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.tk:{port}", ""])
def test_another_name_in_the_header_host_is_refused(dash, ann, host):
    """A name that an attacker's DNS resolves to 127.0.0.1 would make a foreign page one of ours."""
    answer = ann.get("/", headers={"Host": host.format(port=dash.port)})
    assert answer.status_code in (400, 421) and "Run" not in answer.text


def test_names_that_the_administrator_allows_are_served(lab):
    with serving(lab, allowed_hosts=("mop.internal",)) as dash:
        assert dash.browser().get("/login", headers={"Host": "mop.internal"}).status_code == 200
        assert dash.browser().get("/login", headers={"Host": f"localhost:{dash.port}"}).status_code == 200


def test_large_requests_are_refused(dash):
    """The server may close the connection before the browser has sent everything."""
    browser = dash.browser("ann")
    token, status = browser.token(), None
    with contextlib.suppress(httpx.TransportError):
        status = browser.post("/logout", data={"token": token, "more": "x" * 100_000}).status_code
    assert status in (None, 413) and browser.get("/").status_code == 200, "it has not logged out"
    with contextlib.suppress(httpx.TransportError):
        assert browser.get("/", headers={"X-Long": "x" * 100_000}).status_code in (400, 431)


def test_no_traceback_reaches_the_browser(dash, monkeypatch):
    def fails(*_):
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr("madlib_mop.dash.pages.read_runs", fails)
    answer = dash.browser("ann").get("/")
    assert answer.status_code == 500
    assert "secret" not in answer.text and "Traceback" not in answer.text and answer.headers["x-frame-options"]


# ---- other roles


@pytest.mark.parametrize("path", ["", "/events", "/figures", "/report"])
def test_a_run_of_another_role_is_like_one_that_is_not_there(ann, lab, path):
    theirs, none = ann.get(f"/runs/{lab.bob}{path}"), ann.get(f"/runs/123456{path}")
    assert theirs.status_code == none.status_code == 404 and theirs.text == none.text


def test_figures_are_kept_for_the_roles_that_may_see_the_run(dash, lab):
    run_id = invent_run(lab, owner="ann", state="running")
    path = f"/runs/{run_id}"
    ann, bob = dash.browser("ann"), dash.browser("bob")
    with ann.events(f"{path}/events") as events:
        next(events)
        assert ann.get(f"{path}/figures").status_code == 200
        assert bob.get(f"{path}/figures").status_code == 404, "that ann has just seen it says nothing of bob"


def test_figures_that_are_kept_are_not_for_a_role_that_lost_the_run(dash, lab):
    run_id = invent_run(lab, owner="ann", state="finished")
    ann = dash.browser("ann")
    assert ann.get(f"/runs/{run_id}/figures").status_code == 200
    lab.rows("UPDATE madlib_mop.run SET owner = 'bob'::regrole WHERE run_id = %s", [run_id])
    assert ann.get(f"/runs/{run_id}/figures").status_code == 404


def test_the_list_has_only_the_runs_that_the_role_may_see(dash, lab):
    def listed(role):
        return {n for n in (lab.ann, lab.bob) if f'href="/runs/{n}"' in dash.browser(role).get("/").text}

    assert (listed("ann"), listed("bob"), listed("carol")) == ({lab.ann}, {lab.bob}, {lab.ann})


@pytest.mark.parametrize("name", ["stop_model", "pin_model", "extend", "cancel", "pause"])
def test_a_command_to_a_run_of_another_role_is_refused(ann, lab, name):
    before = commands(lab)
    answer = ann.command(lab.bob, name, mst_key="1")
    assert (answer.status_code, commands(lab)) == (404, before)


def test_who_may_only_read_sees_no_button_and_commands_nothing(dash, lab):
    browser = dash.browser("carol")
    page = browser.get(f"/runs/{lab.ann}")
    assert page.status_code == 200 and "data-verb" not in page.text and "<dialog" not in page.text
    assert "data-verb" in dash.browser("ann").get(f"/runs/{lab.ann}").text
    before = commands(lab)
    assert browser.command(lab.ann, "pin_model", mst_key="1").status_code == 403
    assert commands(lab) == before


def test_requests_without_a_session_get_nothing(dash, lab):
    browser = dash.browser()
    for path in (f"/runs/{lab.ann}", f"/runs/{lab.ann}/report", "/"):
        assert browser.get(path).headers["location"].startswith("/login")
    for path in ("/events", f"/runs/{lab.ann}/events", f"/runs/{lab.ann}/figures"):
        assert browser.get(path).status_code == 401
    assert browser.post(f"/runs/{lab.ann}/commands/pause", data={}).status_code == 401


def test_the_login_leads_to_our_pages_only(dash):
    for path in ("//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
        assert dash.browser().log_in("ann", next=path).headers["location"] == "/"


# ---- hostile names


def test_hostile_names_are_text_everywhere(lab, dash):
    run_id = invent_run(lab, n_models=50, owner="ann", state="failed", output=HOSTILE, source=HOSTILE, detail=HOSTILE)
    changed = "UPDATE madlib_mop.model SET compile_params = %s, fit_params = %s WHERE run_id = %s"
    lab.rows(changed, [HOSTILE, HOSTILE, run_id])
    lab.rows("UPDATE madlib_mop.metric SET name = %s WHERE run_id = %s AND ordinal = 1", [HOSTILE, run_id])
    lab.rows(
        "INSERT INTO madlib_mop.change (run_id, change, command, arguments, source, issued_by, state, detail)"
        " VALUES (%s, 'stop', 'stop_model', jsonb_build_object('reason', %s), 'person', 'ann'::regrole, 'refused', %s)",
        [run_id, HOSTILE, HOSTILE],
    )  # fmt: skip
    browser = dash.browser("ann")
    pages = [browser.get("/").text, browser.get(f"/runs/{run_id}").text]
    with browser.events(f"/runs/{run_id}/events") as events:
        _, _, data = next(events)
    parts = json.loads(data)
    assert "<script>alert" in parts.pop("say"), "which the page sets as text"
    pages.append(json.dumps(parts, ensure_ascii=False))
    pages.append("".join(figure["html"] for figure in browser.get(f"/runs/{run_id}/figures").json()))
    for page in pages:
        shown = re.sub(r'data-(compile|fit)=\\?"[^"]*"', "", page)  # for the form of a clone, as they are
        assert "<script>alert" not in page and "\x1b" not in shown
    assert all("&lt;script&gt;alert(1)" in page for page in pages[:3])


def test_the_live_page_has_no_code_in_its_pages():
    """The policy of its pages runs scripts of files only; a test of the templates finds one that it would not run."""
    found = subprocess.run(
        ["grep", "-rnE", r"<script>|javascript:| on[a-z]+=|style=|\|\s*safe", "madlib_mop/dash/templates"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout == ""

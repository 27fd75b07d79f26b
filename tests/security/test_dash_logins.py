"""Logins of the live page: with a password that a person typed, and with nothing of our operating system user's."""

import asyncio
import os
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from madlib_mop.dash import accounts, pages
from madlib_mop.dash.logins import LoginFailed, LoginLimits, TooManyLogins, _is_of_the_person, log_in
from madlib_mop.dash.settings import DashSettings, server_of
from madlib_mop.errors import InvalidParameter
from tests.conftest import PASSWORD
from tests.helpers.commands import run
from tests.helpers.dash import dsn_of, make_people, serving
from tests.helpers.faults import wait_for


@pytest.fixture(scope="module")
def lab(db):
    make_people(db)
    return db


@pytest.fixture(scope="module")
def dash(lab):
    with serving(lab) as dash:
        yield dash


@pytest.fixture(autouse=True)
def forgiving(dash):
    """Failed logins of one test do not slow down the next."""
    dash.site.limits = LoginLimits()


@pytest.mark.slow
def test_a_wrong_password_is_refused_like_an_unknown_role(dash):
    dash.browser("ann")  # whose sessions at the server are there to be shared
    answers = [
        dash.browser().log_in("ann", "wrong"), dash.browser().log_in("ann", ""),
        dash.browser().log_in("no such role"), dash.browser().log_in("", ""),
    ]  # fmt: skip
    messages = {a.text.partition('role="alert">')[2].partition("<")[0] for a in answers}
    assert {a.status_code for a in answers} == {403}
    assert messages == {"The server does not accept this role with this password."}


def test_a_role_without_rights_on_the_extension_is_told_so(dash):
    answer = dash.browser().log_in("nobody_here")
    assert answer.status_code == 403 and "grant_use" in answer.text


@pytest.mark.slow
def test_failed_logins_slow_down_the_next(dash):
    for _ in range(3):
        assert dash.browser().log_in("ann", "wrong").status_code == 403
    for _ in range(3):  # each doubles the wait
        dash.site.limits.failed("ann", "127.0.0.1")
    assert dash.browser().log_in("ann").status_code == 429, "also with the right password"
    assert dash.browser().log_in("bob").status_code == 303, "another role does not wait"


@pytest.mark.slow
def test_guesses_sent_at_once_are_limited_like_others(dash, monkeypatch):
    tried = []

    async def refuse(role, password):
        tried.append(password)
        await asyncio.sleep(0.05)
        raise LoginFailed

    monkeypatch.setattr(dash.site.accounts, "log_in", refuse)
    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(lambda n: dash.browser().log_in("ann", f"guess {n}").status_code, range(40)))
    assert 3 <= len(tried) <= 10, "8 logins at once, and 2 more before the third of them has failed"
    assert answers.count(403) == len(tried) and answers.count(429) == 40 - len(tried)


def test_names_that_no_role_has_are_refused_and_not_kept(dash):
    answer = dash.browser().log_in("x" * 64)
    assert answer.status_code == 403 and "x" * 64 not in answer.text and not dash.site.limits._failures


def refuses(limits, role: str, address: str) -> bool:
    try:
        limits.check(role, address)
    except TooManyLogins:
        return True
    return False


def test_the_wait_after_failures_grows():
    now = [0.0]
    limits = LoginLimits(lambda: now[0])
    waited = []
    for _ in range(12):
        began = now[0]
        while refuses(limits, "ann", "192.0.2.1"):
            now[0] += 0.5
        waited.append(now[0] - began)
        limits.failed("ann", "192.0.2.1")
    assert waited == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    for _ in range(1100):  # a float has no power of two that is as large
        limits.failed("ann", "192.0.2.1")
    assert refuses(limits, "ann", "192.0.2.1")
    now[0] += 61
    limits.succeeded("ann", "192.0.2.1")
    assert not refuses(limits, "ann", "192.0.2.1")


def test_who_guesses_does_not_lock_out_others():
    """At another address; the person, and everybody else."""
    now = [0.0]
    limits = LoginLimits(lambda: now[0])
    for number in range(30):
        limits.check(f"role {number}", "192.0.2.1")
        limits.failed(f"role {number}", "192.0.2.1")
    assert refuses(limits, "role 99", "192.0.2.1"), "one address has a limit for all roles"
    assert not refuses(limits, "role 1", "192.0.2.2") and not refuses(limits, "role 99", "192.0.2.2")
    for _ in range(10):
        limits.failed("ann", "192.0.2.3")
    assert refuses(limits, "ann", "192.0.2.3") and not refuses(limits, "ann", "192.0.2.4")
    now[0] += 61
    assert not refuses(limits, "role 99", "192.0.2.1")


def test_guesses_of_one_password_from_many_addresses_are_limited():
    """Its person can still log in where she has logged in before."""
    now = [0.0]
    limits = LoginLimits(lambda: now[0])
    limits.succeeded("ann", "192.0.2.1")
    for number in range(30):
        limits.check("ann", f"198.51.100.{number}")
        limits.failed("ann", f"198.51.100.{number}")
    assert refuses(limits, "ann", "203.0.113.1") and not refuses(limits, "ann", "192.0.2.1")
    assert not refuses(limits, "bob", "203.0.113.1")
    now[0] += 61
    assert not refuses(limits, "ann", "203.0.113.1")


def test_the_limits_of_logins_keep_a_limited_number_of_names(monkeypatch):
    monkeypatch.setattr(LoginLimits, "_most_kept", 10)
    limits = LoginLimits()
    for number in range(50):
        limits.failed(f"role {number}", f"address {number}")
        limits.succeeded(f"role {number}", f"address {number}")
        limits.failed(f"role {number}", f"address {number}")
    kept = (limits._failures, limits._of_address, limits._of_role, limits._known)
    assert [len(each) for each in kept] == [10] * 4


def test_behind_a_proxy_the_address_is_what_the_proxy_has_added(lab, monkeypatch):
    """A browser can send the header too: what the proxy adds comes last."""
    tried = []
    monkeypatch.setattr(pages, "_FAILED_S", 0)
    with serving(lab, public_url="https://mop.example.org") as behind_tls:
        behind_tls.site.limits.failed = lambda role, address: tried.append(address)
        for sent in (["6.6.6.6, 192.0.2.9"], ["6.6.6.6", "192.0.2.8"], [], ["\u00e9" * 500], ["2001:db8::7"]):
            browser = behind_tls.browser()
            browser.headers.update({"Host": "mop.example.org", "Origin": "https://mop.example.org"})
            form = browser.get("/login")
            cookie = form.headers["set-cookie"].partition(";")[0]
            token = re.search(r'name="token" value="([^"]+)"', form.text)[1]
            fields = {"role": "ann", "password": "wrong", "token": token}
            added = [("X-Forwarded-For", text.encode("latin-1")) for text in sent]
            assert browser.post("/login", data=fields, headers=[("Cookie", cookie), *added]).status_code == 403
    assert tried == ["192.0.2.9", "192.0.2.8", "127.0.0.1", "\u00e9" * 100, "2001:db8::/64"]


def test_without_a_proxy_a_browser_does_not_choose_its_address(dash, monkeypatch):
    tried = []
    monkeypatch.setattr(pages, "_FAILED_S", 0)
    monkeypatch.setattr(dash.site.limits, "failed", lambda role, address: tried.append(address))
    browser = dash.browser()
    browser.headers["X-Forwarded-For"] = "6.6.6.6"
    browser.log_in("ann", "wrong")
    assert tried == ["127.0.0.1"]


@pytest.mark.parametrize("role", ["ann", ""])
def test_nothing_of_our_environment_logs_anybody_in(lab, monkeypatch, tmp_path, role):
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:*:{PASSWORD}\n")
    passwords.chmod(0o600)
    service = tmp_path / "service"
    service.write_text(f"[dash]\nuser=ann\npassword={PASSWORD}\n")
    found = {"PGPASSFILE": passwords, "PGSERVICEFILE": service, "PGSERVICE": "dash", "PGUSER": "ann"}
    for name, value in {**found, "PGPASSWORD": PASSWORD}.items():
        monkeypatch.setenv(name, str(value))
        with pytest.raises(LoginFailed):
            log_in(server_of(dsn_of(lab)), role, "")
        assert name not in os.environ or not role, "libpq of later logins does not find it either"
        monkeypatch.delenv(name, raising=False)


def test_an_empty_role_is_not_our_operating_system_user(lab, monkeypatch):
    """libpq would take the name of the user that runs the live page."""
    asked = []
    monkeypatch.setattr("psycopg.connect", lambda **words: asked.append(words))
    for role in ("", "x\0y", "x" * 64):
        with pytest.raises(LoginFailed):
            log_in(server_of(dsn_of(lab)), role, PASSWORD)
    assert asked == []


def test_a_password_file_of_our_home_logs_nobody_in(lab, monkeypatch, tmp_path):
    passwords = tmp_path / ".pgpass"
    passwords.write_text(f"*:*:*:*:{PASSWORD}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(LoginFailed):
        log_in(server_of(dsn_of(lab)), "ann", "")


@pytest.mark.parametrize(("system_user", "version", "is_accepted"), [
    ("ident:root", 160000, False), ("peer:root", 160000, False), ("cert:ann", 160000, False), (None, 160000, True),
    (None, 150000, False),
])  # fmt: skip
def test_a_login_that_our_operating_system_user_won_is_refused(system_user, version, is_accepted):
    """Servers since 16 tell the method; NULL is trust, which asks nobody for a password."""

    class Answer:
        def fetchone(self):
            return (system_user,)

    class Connection:
        pgconn = type("", (), {"used_password": False})
        info = type("", (), {"server_version": version})

        def execute(self, _):
            return Answer()

    assert _is_of_the_person(Connection()) is is_accepted


@pytest.mark.parametrize("dsn", [
    "host=127.0.0.1 dbname=d password=secret", "postgresql://ann:secret@127.0.0.1/d", "host=/tmp dbname=d",
    "host=@abstract dbname=d", "host=127.0.0.1,/tmp dbname=d", "service=mine dbname=d", "passfile=/x dbname=d",
    "sslkey=/x sslcert=/y dbname=d", "host=127.0.0.1", "options=-crole=bob dbname=d", "host=127.0.0.1, dbname=d",
])  # fmt: skip
def test_a_dsn_with_a_secret_or_a_socket_is_refused(dsn):
    with pytest.raises(InvalidParameter) as raised:
        server_of(dsn)
    assert "secret" not in str(raised.value)


def test_without_a_host_it_does_not_log_in_by_the_socket(monkeypatch):
    monkeypatch.delenv("PGHOST", raising=False)
    assert server_of("dbname=d").keywords["host"] == "127.0.0.1"
    monkeypatch.setenv("PGHOST", "/tmp")
    with pytest.raises(InvalidParameter):
        server_of("dbname=d")


@pytest.mark.slow
def test_another_address_needs_tls(db):
    server = server_of("host=127.0.0.1 dbname=d")
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        with pytest.raises(InvalidParameter):
            DashSettings(server, host=host)
    assert DashSettings(server, host="::1").hosts
    refused = run(db, "dash", "--host", "0.0.0.0", dsn="host=127.0.0.1 dbname=d")
    assert (refused.returncode, refused.stdout) == (1, "") and "needs TLS" in refused.stderr
    refused = run(db, "dash", dsn="postgresql://ann:secret@127.0.0.1/d")
    assert refused.returncode == 1 and "password" in refused.stderr and "secret" not in refused.stderr


def test_first_logins_of_a_role_at_once_share_one_account(lab, dash, monkeypatch):
    """A sweep that closes the account of a role must reach all its browsers."""
    lab.cluster.create_role("twin")
    lab.rows("SELECT madlib_mop.grant_use('twin')")
    both, open_others = Barrier(2), accounts._open_others

    def open_at_once(*words):
        both.wait(60)
        return open_others(*words)

    monkeypatch.setattr(accounts, "_open_others", open_at_once)
    with ThreadPoolExecutor(2) as threads:
        browsers = list(threads.map(lambda _: dash.browser("twin"), range(2)))
    assert {browser.get("/").status_code for browser in browsers} == {200}
    (account,) = [a for a in dash.site.accounts.live() if a.role == "twin"]
    assert account.n_sessions == 2
    n_sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'twin'"
    wait_for(lambda: lab.value(n_sessions) == 3, what="the end of the other sessions at the server")


def test_a_login_just_after_the_last_logout_gets_a_new_account(lab, dash, monkeypatch):
    lab.cluster.create_role("quick")
    lab.rows("SELECT madlib_mop.grant_use('quick')")
    browser = dash.browser("quick")
    (before,) = [a for a in dash.site.accounts.live() if a.role == "quick"]
    monkeypatch.setattr(accounts, "_close", lambda connections: None)  # the sessions at the server are not closed yet
    browser.post("/logout", data={"token": browser.token()})
    assert before.closed.is_set() and not before.live.connection.closed
    assert dash.browser("quick").get("/").status_code == 200
    (account,) = [a for a in dash.site.accounts.live() if a.role == "quick"]
    assert account is not before and account.n_sessions == 1
    monkeypatch.undo()
    accounts._close([line.connection for line in (before.live, before.slow, before.steering)])


def test_sessions_of_who_may_no_longer_log_in_are_closed(lab, dash):
    lab.cluster.create_role("leaver")
    lab.rows("SELECT madlib_mop.grant_use('leaver')")
    dash.browser("leaver")
    (account,) = [a for a in dash.site.accounts.live() if a.role == "leaver"]

    def may() -> bool:
        return asyncio.run_coroutine_threadsafe(account.may_still_log_in(), account._loop).result(30)

    assert may()
    lab.rows("ALTER ROLE leaver NOLOGIN")
    assert not may()

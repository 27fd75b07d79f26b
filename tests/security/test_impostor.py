"""Who listens at a server's port in its place, or on the way to it, gets no password that the library sends.

While a server is down, another user of its machine can listen at its port.
"""

import asyncio
import re
import socket
import struct
import subprocess
import sys
import threading

import pytest
from psycopg2.extensions import libpq_version

from madlib_mop.catalog.rows.job import JobRow
from madlib_mop.dash.logins import LoginFailed, log_in
from madlib_mop.dash.settings import server_of
from madlib_mop.engines.hosts.connections import HostLogin, connect_host
from madlib_mop.engines.hosts.relay import Relay
from madlib_mop.engines.sessions.access import Access
from madlib_mop.engines.sessions.login import RunLogin
from madlib_mop.engines.sessions.session import AsyncSession, SessionLost
from madlib_mop.errors import NotReady
from madlib_mop.jobs.sessions import JobServer, target

ROLE, PASSWORD = "madlib_mop_run_1_1_00000000", "a secret of one run"
LOGIN = RunLogin(ROLE, PASSWORD)
ASKED = {"plain text": struct.pack("!cii", b"R", 8, 3), "MD5": struct.pack("!cii4s", b"R", 12, 5, b"salt")}


class Impostor:
    """A program that asks each client for its password; ``heard`` is all that clients have sent.

    Parameters
    ----------
    asked : bytes
        The server's message with which it asks.
    """

    def __init__(self, asked: bytes):
        self.heard = b""
        self._asked = asked
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = str(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            client, _ = self._socket.accept()
            with client:
                while data := client.recv(10_000):
                    self.heard += data
                    if data[:1] in b"pPQ":  # the password, or a statement
                        break
                    client.sendall(b"N" if len(data) == 8 else self._asked if b"user\0" in data else b"")


def job_target(impostor: Impostor):
    job = JobRow.from_row({
        "job_id": 1, "series_id": None, "name": None, "function": None, "owner": "alice", "owner_oid": 1,
        "submitted_by": "alice", "submitted_by_oid": 1, "as_superuser": False, "every": None, "after": None,
        "if_running": "skip", "time_limit_ms": 0, "time_zone": None, "state": "running", "attempt": 1, "run_id": None,
        "session_pid": None, "login_role": LOGIN.role, "cancelled_by": None,
    })  # fmt: skip
    return target(JobServer("", "127.0.0.1", impostor.port, "db"), job, LOGIN)


def reader_target(impostor: Impostor):
    return Access(1, {}, "127.0.0.1", impostor.port, "db", "", LOGIN, 10).reader()


needs_libpq_16 = pytest.mark.skipif(libpq_version() < 160000, reason="older versions of libpq send the password")
asked = pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))


@needs_libpq_16
@asked
@pytest.mark.parametrize("target_of", [job_target, reader_target])
def test_an_impostor_at_the_servers_port_gets_no_password(target_of, asked):
    impostor = Impostor(asked)
    with pytest.raises(SessionLost) as raised:
        asyncio.run(asyncio.wait_for(AsyncSession(target_of(impostor)).connect(), 10))
    assert "authentication method requirement" in raised.value.message and kept_its_password(impostor)


def kept_its_password(impostor: Impostor) -> bool:
    """Return whether a client has named itself, and sent nothing of a password."""
    return ROLE.encode() in impostor.heard and not re.search(rb"p..(..)?(md5|a secret)", impostor.heard, re.DOTALL)


def by_relay(impostor: Impostor) -> str:
    """Log in as a writer's relay does; return what the run is told."""
    options = {"host": "127.0.0.1", "port": impostor.port, "dbname": "d", "user": ROLE, "password": PASSWORD}
    access = {"options": options, "needs_password": False, "coordinator": "c", "key": "00"}
    relay = Relay()
    relay.do({"op": "connect", "server": "alpha", "run_id": 1, **access}, [])
    (answer, _) = relay.do({"op": "stats"}, [])
    assert PASSWORD not in str(answer)
    return f"{answer['host_refused']}"


def by_driver(impostor: Impostor) -> str:
    """Log in as add_host, packing and planning do; return the error."""
    options = {"host": "127.0.0.1", "port": impostor.port, "dbname": "d", "user": ROLE, "password": PASSWORD}
    with pytest.raises(NotReady) as raised:
        connect_host(HostLogin("alpha", "me", options, False), "a test")
    return f"{raised.value.message} {raised.value.detail} {raised.value.hint}"


@needs_libpq_16
@asked
@pytest.mark.parametrize("log_in", [by_relay, by_driver])
def test_an_impostor_in_the_place_of_a_host_gets_no_password(log_in, asked):
    """The login of a host's superuser, by which add_host sends the key that the two servers share."""
    impostor = Impostor(asked)
    said = log_in(impostor)
    assert kept_its_password(impostor), said
    assert "scram-sha-256" in said and "verify-full" in said, "what the administrator can do"


@asked
def test_an_impostor_gets_no_password_from_the_question_whether_a_host_is_up(asked):
    """A relay asks after an error that it does not know. libpq's ping keeps the lock of the interpreter meanwhile."""
    impostor = Impostor(asked)
    options = {"host": "127.0.0.1", "port": impostor.port, "dbname": "d", "user": ROLE, "password": PASSWORD}
    code = f"from madlib_mop.engines.hosts.login import _is_up; print(_is_up({options!r}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout == "True\n" and kept_its_password(impostor), impostor.heard


@needs_libpq_16
@pytest.mark.parametrize("log_in", [by_relay, by_driver])
def test_a_host_that_lets_everybody_in_is_not_taken_for_the_one_that_knows_the_password(log_in):
    """With SCRAM, the server proves that it knows the password too."""
    impostor = Impostor(struct.pack("!cii", b"R", 8, 0) + b"Z\0\0\0\5I")
    assert "scram-sha-256" in log_in(impostor)
    assert b"SELECT" not in impostor.heard


@pytest.mark.parametrize("log_in", ["relay", "driver"])
def test_a_host_that_asks_for_no_password_is_refused_to_a_role_that_is_no_superuser(log_in):
    """Otherwise the role would act there as whom the server's operating system user may be, as in postgres_fdw."""
    let_in = [struct.pack("!cii", b"R", 8, 0), struct.pack("!ciii", b"K", 12, 1, 1), b"Z\0\0\0\5I"]
    impostor = Impostor(b"".join(let_in))
    options = {"host": "127.0.0.1", "port": impostor.port, "dbname": "d", "user": ROLE}
    if log_in == "relay":
        relay = Relay()
        access = {"options": options, "needs_password": True, "coordinator": "c", "key": "00"}
        relay.do({"op": "connect", "server": "alpha", "run_id": 1, **access}, [])
        refused = relay.do({"op": "stats"}, [])[0]["host_refused"]
        assert refused["sqlstate"] == "2F003" and "does not request a password" in refused["message"]
    else:
        with pytest.raises(NotReady, match="without the password"):
            connect_host(HostLogin("alpha", "me", options, True), "a test")
    assert b"SELECT" not in impostor.heard


@needs_libpq_16
@asked
def test_an_impostor_in_the_place_of_the_live_pages_server_gets_no_password(asked, caplog):
    impostor = Impostor(asked)
    with pytest.raises(LoginFailed):
        log_in(server_of(f"host=127.0.0.1 port={impostor.port} dbname=d"), ROLE, PASSWORD)
    assert kept_its_password(impostor)
    assert "scram-sha-256" in caplog.text and "verify-full" in caplog.text and PASSWORD not in caplog.text

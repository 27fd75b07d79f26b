"""While the server is down, another user of its machine can listen at its port: he gets no password of a login role."""

import select
import socket
import struct
import threading

import pytest
from psycopg2.extensions import libpq_version

from madlib_mop.catalog.rows.job import Job
from madlib_mop.engines.sessions.access import Access
from madlib_mop.engines.sessions.login import RunLogin
from madlib_mop.engines.sessions.session import Failure, Session
from madlib_mop.jobs.sessions import Server, target

LOGIN = RunLogin("madlib_mop_run_1_1_00000000", "a secret of one run")
CLEARTEXT = struct.pack("!cii", b"R", 8, 3)


class Impostor:
    """A program that asks each client for its password as plain text; ``heard`` is all that clients have sent."""

    def __init__(self):
        self.heard = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = str(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            client, _ = self._socket.accept()
            with client:
                while data := client.recv(10_000):
                    self.heard += data
                    if data.startswith(b"p"):  # the password
                        break
                    client.sendall(b"N" if len(data) == 8 else CLEARTEXT if b"user\0" in data else b"")


def job_target(impostor: Impostor):
    job = Job.from_row({
        "job_id": 1, "series_id": None, "name": None, "function": None, "owner": "alice", "owner_oid": 1,
        "submitted_by": "alice", "submitted_by_oid": 1, "as_superuser": False, "every": None, "after": None,
        "if_running": "skip", "time_limit_ms": 0, "time_zone": None, "state": "running", "attempt": 1, "run_id": None,
        "session_pid": None, "login_role": LOGIN.role, "cancelled_by": None,
    })  # fmt: skip
    return target(Server("", "127.0.0.1", impostor.port, "db"), job, LOGIN)


def reader_target(impostor: Impostor):
    return Access(1, {}, "127.0.0.1", impostor.port, "db", "", LOGIN, 10).reader()


@pytest.mark.skipif(libpq_version() < 160000, reason="older versions of libpq send the password")
@pytest.mark.parametrize("target_of", [job_target, reader_target])
def test_an_impostor_at_the_servers_port_gets_no_password(target_of):
    impostor = Impostor()
    session = Session(target_of(impostor))
    event = None
    while event is None:
        poller = select.poll()
        poller.register(session.fileno(), session.events)
        assert poller.poll(10_000)
        event = session.advance()
    assert LOGIN.role.encode() in impostor.heard and LOGIN.password.encode() not in impostor.heard
    assert isinstance(event, Failure) and event.lost and "cleartext password" in event.message

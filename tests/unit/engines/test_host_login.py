"""A rejected login to a host is distinguished from a lost host, in any language of the server."""

import contextlib
import multiprocessing
import socket
import struct

import psycopg
import pytest

from madlib_mop.engines.hosts import login as host_login

_SSL, _GSS = 80877103, 80877104
_ASK_PASSWORD = b"R" + struct.pack("!ii", 23, 10) + b"SCRAM-SHA-256\0\0"


def told(sqlstate: str, message: str) -> bytes:
    """Return a server's ErrorResponse."""
    fields = {"S": "FATAL", "V": "FATAL", "C": sqlstate, "M": message}
    body = b"".join(name.encode() + text.encode() + b"\0" for name, text in fields.items()) + b"\0"
    return b"E" + struct.pack("!i", 4 + len(body)) + body


def take(connection: socket.socket, n_bytes: int) -> bytes:
    """Read exactly this number of bytes, or raise EOFError."""
    data = b""
    while len(data) < n_bytes:
        part = connection.recv(n_bytes - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def answer(connection: socket.socket, said: bytes) -> None:
    """Read a login and answer it; an answer that starts with a password request continues after the password."""
    code = None
    while code is None or code in (_SSL, _GSS):
        if code is not None:
            connection.sendall(b"N")
        (size,) = struct.unpack("!i", take(connection, 4))
        code = struct.unpack("!i", take(connection, size - 4)[:4])[0]
    if said.startswith(_ASK_PASSWORD):
        connection.sendall(_ASK_PASSWORD)
        _, size = struct.unpack("!ci", take(connection, 5))
        take(connection, size - 4)
    connection.sendall(said.removeprefix(_ASK_PASSWORD))


def serve(listener: socket.socket, answers: list[bytes]) -> None:
    """Answer each login with the next answer, and later logins with the last one."""
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(EOFError, OSError):
            answer(connection, answers[0])
            del answers[: len(answers) > 1]


@contextlib.contextmanager
def server(*answers: bytes):
    """Return the port of a server with these answers, in another process because libpq's ping blocks our threads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=serve, args=(listener, list(answers)), daemon=True)
        process.start()
        yield listener.getsockname()[1]
        process.kill()
        process.join()


def log_in(port: int):
    return host_login.log_in(
        {"host": "127.0.0.1", "port": port, "user": "bob", "password": "s3cret", "dbname": "d", "connect_timeout": 10},
        "a test",
        must_use_password=False,
        waits=True,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(host_login, "_PAUSES_S", (0.01, 0.01))


WRONG = _ASK_PASSWORD + told("28P01", "Passwort-Authentifizierung für Benutzer »bob« fehlgeschlagen")
NO_ENTRY = told("28000", "kein pg_hba.conf-Eintrag für Host »127.0.0.1«")
NO_DATABASE = _ASK_PASSWORD + told("3D000", "база данных 'd' не существует")
STARTING = told("57P03", "das Datenbanksystem startet")


@pytest.mark.parametrize("said", [WRONG, NO_ENTRY, NO_DATABASE], ids=["password", "pg_hba", "database"])
def test_who_is_not_let_in_is_told_in_the_servers_words(said):
    with server(said) as port, pytest.raises(host_login.NotLetIn) as caught:
        log_in(port)
    assert caught.value.sqlstate == "28000" and "pg_hba.conf" in caught.value.hint
    assert caught.value.message.encode() in said and "s3cret" not in caught.value.message


@pytest.mark.parametrize("said", [STARTING, b"", told("53300", "sorry, too many clients already")])
def test_a_host_that_is_down_or_full_is_lost(said):
    with server(said) as port, pytest.raises(psycopg.OperationalError):
        log_in(port)


def test_a_host_that_is_not_there_is_lost():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(psycopg.OperationalError):
        log_in(port)


def test_a_host_that_goes_down_meanwhile_is_lost():
    """It was full for a moment, with an unknown message, and answered the ping; then it is restarted."""
    full = told("53300", "tut mir leid, schon zu viele Verbindungen")
    with server(full, full, STARTING) as port, pytest.raises(psycopg.OperationalError):
        log_in(port)

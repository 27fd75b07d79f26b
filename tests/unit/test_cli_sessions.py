"""Signals to a command that waits for a call that trains; tests/integration/test_cli.py has them with a server."""

import os
import signal

import pytest
from psycopg2.extensions import POLL_OK, POLL_READ

from madlib_mop.cli import sessions


class Statement:
    """A session whose statement ends after a number of cancels, as far as `psycopg2` is asked about it."""

    def __init__(self, n_cancels: int):
        self._left = n_cancels
        self._read, self._write = os.pipe()
        self.notices = []
        self.n_cancelled = 0

    def fileno(self) -> int:
        return self._read

    def poll(self) -> int:
        return POLL_READ if self._left else POLL_OK

    def cancel(self) -> None:
        self.n_cancelled += 1
        self._left -= 1
        if not self._left:
            os.write(self._write, b"the error of the statement")

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def statement():
    statement = Statement(3)
    yield statement
    statement.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_until_the_statement_ends_and_the_next_one_is_not_held_back(statement, monkeypatch, number):
    monkeypatch.setattr(sessions, "_CANCEL_AGAIN_S", 0.001)
    before = signal.getsignal(number)
    with sessions._stopped_by_signals(statement) as received:
        os.kill(os.getpid(), number)
        sessions._wait(statement, received)
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (received, statement.n_cancelled) == ([number], 3)
    assert signal.getsignal(number) == before


def test_messages_of_the_server_are_lines_without_control_characters(statement, capsys):
    statement.notices.append("NOTICE:  run 7: \x1b[31mred\nHINT:  Look.\n")
    statement._left = 0
    sessions._wait(statement, [])
    assert capsys.readouterr().err == "NOTICE:  run 7: \\x1b[31mred\nHINT:  Look.\n"
    assert statement.notices == []

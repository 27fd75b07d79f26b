"""Asynchronous sessions without a server: psycopg2's connection is a fake over a pair of sockets."""

import asyncio
import gc
import os
import signal
import socket
import threading

import psycopg2
import pytest
from psycopg2 import extensions

from madlib_mop.driver.session import stopping
from madlib_mop.engines.sessions import session as module
from madlib_mop.engines.sessions.session import AsyncSession, CoroutineLoop, LoginTarget, SessionLost, StatementFailed

TARGET = LoginTarget({"host": "nowhere"}, [("first", []), ("second", [])])
WITHIN_S = 20.0


class FakeConnection:
    """A connection whose server is the test: it writes answers to ``server``; "lost" and "wrong" are errors."""

    def __init__(self):
        self.ours, self.server = socket.socketpair()
        self.closed = 0
        self.statements, self.answer = [], None
        self.is_waiting = True
        self.info = self
        self.backend_pid = 77

    def fileno(self):
        assert not self.closed, "a closed connection has no socket"
        return self.ours.fileno()

    def cursor(self):
        return self

    def execute(self, statement, params):
        self.statements.append(statement)
        self.is_waiting = True

    def fetchone(self):
        return (self.answer,)

    def poll(self):
        self.ours.setblocking(False)
        try:
            data = self.ours.recv(100).decode()
        except BlockingIOError:
            return extensions.POLL_READ if self.is_waiting else extensions.POLL_OK
        if data in ("", "lost"):
            self.closed = 2
            raise psycopg2.OperationalError("server closed the connection unexpectedly")
        if data == "wrong":
            raise psycopg2.ProgrammingError("no such function")
        self.answer, self.is_waiting = data, False
        return extensions.POLL_OK

    def close(self):
        self.closed = self.closed or 1
        self.ours.close()


@pytest.fixture
def loop():
    loop = CoroutineLoop()
    yield loop
    loop.close()


@pytest.fixture
def world(monkeypatch, loop):
    """A session that is being opened, and what its coroutines return, by `World.run`."""

    class World:
        def __init__(self):
            self.connections, self.results, self.loop = [], [], loop
            self.session = AsyncSession(TARGET)

        def connect(self, **keywords):
            assert keywords == {"host": "nowhere", "client_encoding": "UTF8", "async_": 1}
            self.connections.append(FakeConnection())
            return self.connections[-1]

        @property
        def connection(self):
            return self.connections[-1]

        def say(self, text):
            self.connection.server.sendall(text.encode())

        def begin(self, coroutine):
            async def end():
                try:
                    self.results.append(await coroutine)
                except (SessionLost, StatementFailed) as error:
                    self.results.append(error)
                loop.wake()

            return loop.start(end())

        def run(self):
            """Run until a coroutine that was begun has ended; return its result, or its error."""
            while not self.results:
                loop.run(WITHIN_S)
            return self.results.pop()

        def turn(self):
            loop.run(0)

        def opened(self):
            """Open the session."""
            self.begin(self.session.connect())
            self.turn()
            for n in (1, 2, 3):  # the login, and its two statements
                self.say(f"answer {n}")
                while not self.results and len(self.connection.statements) < n:
                    loop.run(WITHIN_S if self.results else 0.01)
            assert self.run() is None
            return self.session

    world = World()
    monkeypatch.setattr(module.psycopg2, "connect", world.connect)
    return world


def test_a_session_logs_in_and_executes_its_first_statements(world):
    session = world.opened()
    assert world.connection.statements == ["first", "second"]
    assert session.pid == 77 and not session.is_busy and not session.is_closed


def test_a_statement_returns_its_value_and_nothing_else_of_the_server_is_kept(world):
    session = world.opened()
    world.begin(session.execute("SELECT %s", [1]))
    world.turn()
    assert session.is_busy
    world.say("42")
    assert world.run() == "42" and not session.is_busy
    world.connection.notices.append("a notice of a gigabyte")
    world.connection.notifies.append("a notification")
    assert world.connection.notices == [] and world.connection.notifies == []


def test_a_failed_statement_leaves_a_session_that_can_be_used_again(world):
    session = world.opened()
    world.begin(session.execute("SELECT"))
    world.turn()
    world.say("wrong")
    error = world.run()
    assert isinstance(error, StatementFailed) and error.error["message"] == "no such function"
    assert not session.is_busy and not session.is_closed
    world.begin(session.execute("SELECT"))
    world.turn()
    world.say("42")
    assert world.run() == "42"


def test_an_answer_without_a_row_is_a_failed_statement(world):
    session = world.opened()
    world.connection.fetchone = lambda: None
    world.begin(session.execute("SELECT"))
    world.turn()
    world.say("42")
    assert "returned no value that can be read" in world.run().message


@pytest.mark.parametrize("when", ["the login", "a first statement", "a statement", "a wait"])
def test_the_end_of_a_session_is_an_error_at_any_time(world, when, loop):
    if when in ("the login", "a first statement"):
        world.begin(world.session.connect())
        world.turn()
        if when == "a first statement":
            world.say("logged in")
            while not world.connection.statements:
                loop.run(0.01)
    elif when == "a statement":
        world.begin(world.opened().execute("SELECT"))
    else:
        world.begin(world.opened().idle_until(loop.future()))
    world.turn()
    world.say("lost")
    error = world.run()
    assert isinstance(error, SessionLost) and "closed the connection" in error.message and world.session.is_closed


def test_a_failed_first_statement_closes_the_session(world, loop):
    world.begin(world.session.connect())
    world.turn()
    world.say("logged in")
    while not world.connection.statements:
        loop.run(0.01)
    world.say("wrong")
    assert isinstance(world.run(), SessionLost) and world.session.is_closed


def test_a_refused_connection_is_a_lost_session(world, monkeypatch):
    def refuse(**keywords):
        raise psycopg2.OperationalError("Connection refused")

    monkeypatch.setattr(module.psycopg2, "connect", refuse)
    world.begin(world.session.connect())
    assert isinstance(world.run(), SessionLost) and world.session.is_closed and world.session.is_lost()


def test_an_idle_session_waits_for_its_order(world, loop):
    order = loop.future()
    world.begin(world.opened().idle_until(order))
    world.turn()
    world.say("a notice")
    loop.run(0.01)
    assert not world.results and not order.done()
    order.set_result(None)
    assert world.run() is None


def test_an_idle_session_that_was_ended_is_found_lost(world):
    session = world.opened()
    assert not session.is_lost()
    world.say("lost")
    assert session.is_lost() and session.is_closed


def test_a_cancelled_statement_leaves_a_busy_session_and_its_socket_alone(world, loop):
    """The next connection can have the same descriptor: a late end of the coroutine must not stop its wait."""
    gc.collect()  # else another test's descriptor, a lower one, can become free meanwhile
    session = world.opened()
    task = world.begin(session.execute("SELECT"))
    world.turn()
    fd = session._connection.fileno()
    task.cancel()
    assert session.is_busy
    session.close()
    world.session = AsyncSession(TARGET)
    world.begin(world.session.connect())
    loop.cancel([task])
    world.turn()
    assert world.connection.fileno() == fd, "the test is about a descriptor that is used again"
    world.say("lost")
    assert isinstance(world.run(), SessionLost)


class Odd(BaseException):
    """An error that asyncio does not expect."""


def test_the_error_of_a_coroutine_is_raised_by_the_next_run(loop, capfd):
    async def fail():
        await asyncio.sleep(0)
        raise Odd

    loop.start(fail())
    with pytest.raises(Odd):
        loop.run(WITHIN_S)
    loop.close()
    assert capfd.readouterr().err == ""


def test_the_error_of_a_callback_is_raised_too(loop, capfd):
    def fail():
        raise Odd

    reads, writes = os.pipe()
    loop.watch(reads, fail)
    os.write(writes, b"x")
    with pytest.raises(Odd):
        loop.run(WITHIN_S)
    loop.unwatch(reads)
    os.close(reads)
    os.close(writes)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("where", ["the wait", "a coroutine"])
def test_sigterm_ends_the_wait_where_it_is(loop, where, monkeypatch, capfd):
    monkeypatch.setattr(stopping, "_delayed", False)
    before = signal.getsignal(signal.SIGTERM)
    stopping.raise_on_sigterm()

    async def terminated():
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(WITHIN_S)

    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGTERM])
    try:
        if where == "a coroutine":
            loop.start(terminated())
        else:
            timer.start()
        with pytest.raises(stopping.Stopped):
            loop.run(WITHIN_S)
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)
    loop.close()
    assert capfd.readouterr().err == ""


def test_the_end_of_the_loop_ends_all_coroutines_and_says_nothing(loop, capfd):
    ended = []

    async def work():
        inner = [asyncio.ensure_future(asyncio.sleep(WITHIN_S)), asyncio.ensure_future(fail())]
        try:
            await asyncio.gather(*inner)
        except Odd:
            await asyncio.sleep(WITHIN_S)
        finally:
            module.abandon(*inner)
            ended.append(True)

    async def fail():
        raise Odd

    for _ in range(3):
        loop.start(work())
    loop.run(0)
    loop.close()
    assert ended == [True] * 3 and capfd.readouterr().err == ""


def test_it_returns_when_a_descriptor_is_readable(loop):
    reads, writes = os.pipe()
    loop.watch(reads)
    os.write(writes, b"x")
    loop.run(1e6)
    os.close(writes)
    loop.unwatch(reads)
    os.close(reads)

"""Rows from a reader session, in which users' code can run, to the process that has the trainer."""

import os
import secrets
import socket
import struct
import subprocess
import threading

import pytest
from mop_backend.rows import RowsListener, RowsLost, Sender


def no_interrupt() -> None:
    """Check nothing."""


def forwarded(send) -> list:
    """Return what a listener forwards of what ``send`` writes to its socket."""
    listener, found = RowsListener(), []

    def run():
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect("\0" + listener.address)
            send(raw)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        listener.forward(lambda shapes, blobs: found.append((shapes, blobs)), no_interrupt, os.getpid())
    finally:
        thread.join()
    return found


def test_buffers_arrive_as_they_were_sent():
    listener, found = RowsListener(), []

    def run():
        sender = Sender(listener.address, no_interrupt)
        sender.send([[2, 1]], [b"ab"])
        sender.end()

    thread = threading.Thread(target=run)
    thread.start()
    listener.forward(lambda shapes, blobs: found.append((shapes, blobs)), no_interrupt, os.getpid())
    thread.join()
    assert found == [([[2, 1]], [b"ab"])]


def test_a_reader_that_sends_too_much_is_dropped():
    """The shapes are arrays of users; a header of 256 MB took gigabytes in the writer."""
    with pytest.raises(RowsLost, match="larger one than it may"):
        forwarded(lambda raw: raw.sendall(struct.pack(">II", (1 << 20) + 1, 0)))


@pytest.mark.parametrize("header", [b"[]", b"1", b"null", b'{"shapes": 5, "n_buffers": 0, "x": [}', b"{}"])
def test_a_reader_that_sends_something_else_is_dropped(header):
    with pytest.raises(RowsLost):
        forwarded(lambda raw: raw.sendall(struct.pack(">II", len(header), 0) + header))


def test_a_reader_that_ends_before_it_connects_is_not_waited_for(monkeypatch):
    """Its statement failed, for example because the run's owner has lost the right to call it."""
    monkeypatch.setattr("mop_backend.rows._CONNECT_WITHIN_S", 5)
    reader = subprocess.Popen(["true"])
    reader.wait()
    with pytest.raises(RowsLost, match="the reader session ended before it connected"):
        RowsListener().forward(lambda shapes, blobs: None, no_interrupt, reader.pid)


def test_rows_go_to_no_socket_of_another_kind():
    """The address comes with a call of SQL; other services of the server's user listen on abstract sockets too."""
    name = f"madlib_mop.other.{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as service:
        service.bind("\0" + name)
        service.listen(1)
        service.setblocking(False)
        for address in (name, f"x{name}", "", "madlib_mop.rows", "/tmp"):
            with pytest.raises(RowsLost, match="not an address at which rows are expected"):
                Sender(address, lambda: None)
        with pytest.raises(BlockingIOError):
            service.accept()


def test_rows_go_to_a_listener_of_the_same_user():
    listener = RowsListener()
    sender = Sender(listener.address, lambda: None)
    received = []
    sender.send([[1]], [b"x"])
    sender.end()

    def receive(shapes, blobs) -> None:
        received.append((shapes, [bytes(blob) for blob in blobs]))

    assert listener.forward(receive, lambda: None) == 1
    assert received == [([[1]], [b"x"])]

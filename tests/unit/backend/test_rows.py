"""The sending end of a shard's rows: which sockets it connects to."""

import secrets
import socket

import pytest
from mop_backend.rows import Listener, RowsLost, Sender


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
    listener = Listener()
    sender = Sender(listener.address, lambda: None)
    received = []
    sender.send([[1]], [b"x"])
    sender.end()

    def receive(shapes, blobs) -> None:
        received.append((shapes, [bytes(blob) for blob in blobs]))

    assert listener.forward(receive, lambda: None) == 1
    assert received == [([[1]], [b"x"])]

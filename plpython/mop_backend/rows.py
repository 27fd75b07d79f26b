"""Sends rows from a reader session to a trainer over a Unix socket between two processes of one server.

The process that has the trainer listens (`RowsListener`: a writer session, or its process at a Greenplum segment); the
one whose session reads the rows connects (`Sender`). Users' code can run in a reader session, so neither end relies on
a secret: each checks which operating system user, and where it is known which process, is at the other end, and nothing
but the rows of one shard goes through.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from mop_backend.frames import Blob, Channel, Check, Header, PeerGone, TooLarge, of_answers
from mop_backend.sockets import owner_of

_PREFIX = "madlib_mop.rows."
_CONNECT_WITHIN_S = 60
_LOOK_EVERY_S = 0.1
#: Of a buffer: the shapes of its columns, which users' arrays are.
_MOST_HEADER_BYTES = 1 << 20


Shapes = Sequence[Sequence[int]]  # of the tensors of a buffer, one for each column


class RowsLost(Exception):
    """The reader ended, or did not connect, before it had sent all rows of the shard."""


class RowsListener:
    """The receiving end of one shard's rows.

    Attributes
    ----------
    address : str
        Name of the abstract socket, to be given to the reader.
    """

    def __init__(self) -> None:
        self.address = _PREFIX + os.urandom(16).hex()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind("\0" + self.address)
            self._socket.listen(1)
            self._socket.settimeout(_LOOK_EVERY_S)
        except BaseException:
            self._socket.close()
            raise

    def forward(self, send: Callable[[Shapes, Sequence[Blob]], None], check: Check, pid: int | None = None) -> int:
        """Forward every buffer of the shard until the reader reports the last one; then stop listening.

        Parameters
        ----------
        send : callable
            Takes a list of shapes and a list of bytes-like, one each a column.
        check : callable
            The interrupt check.
        pid : int or None
            The reader's process; None where it is not known.

        Returns
        -------
        int
            How many buffers there were.

        Raises
        ------
        RowsLost
        """
        with self._accept(check, pid) as connection:
            # defence: header-of-a-buffer = of_answers()
            limits = of_answers()._replace(header_bytes=_MOST_HEADER_BYTES)
            channel = Channel(connection.fileno(), connection.fileno(), check, limits=limits)
            n_buffers = 0
            try:
                while True:
                    header, blobs = channel.receive()
                    if "n_buffers" in header:
                        break
                    send(header["shapes"], blobs)
                    n_buffers += 1
            except TooLarge:
                raise RowsLost(f"after {n_buffers} buffers, the reader session sent a larger one than it may") from None
            except (PeerGone, ConnectionError, ValueError, KeyError, TypeError):
                raise RowsLost(f"the reader session ended after {n_buffers} buffers") from None
            if header["n_buffers"] != n_buffers:
                raise RowsLost(f"{n_buffers} of {header['n_buffers']} buffers arrived")
            return n_buffers

    def close(self) -> None:
        """Listen no longer."""
        self._socket.close()

    def _accept(self, check: Check, pid: int | None) -> socket.socket:
        """Wait for the reader's connection; other connections are rejected. Raises RowsLost.

        A reader whose statement fails before it connects ends: it is not waited for.
        """
        deadline = time.monotonic() + _CONNECT_WITHIN_S
        try:
            while time.monotonic() < deadline:
                check()
                has_ended = pid is not None and not os.path.exists(f"/proc/{pid}")  # it may have connected before that
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    if has_ended:
                        raise RowsLost("the reader session ended before it connected") from None
                    continue
                peer_pid, peer_user = owner_of(connection)
                # defence: user-of-the-reader = pid in (None, peer_pid)
                # defence: process-of-the-reader = peer_user == os.geteuid()
                if peer_user == os.geteuid() and pid in (None, peer_pid):
                    return connection
                connection.close()
        finally:
            self.close()
        raise RowsLost(f"no reader session connected within {_CONNECT_WITHIN_S} s")


class Sender:
    """The reader's end.

    Parameters
    ----------
    address : str
        The listener's.
    check : callable
        The interrupt check.

    Raises
    ------
    RowsLost
        If no process of this server listens there.
    """

    def __init__(self, address: str, check: Check):
        self.address = address
        self._n_buffers = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(address)
        except BaseException:
            self._socket.close()
            raise
        self._channel = Channel(self._socket.fileno(), self._socket.fileno(), check)

    def send(self, shapes: Shapes, blobs: Sequence[Blob]) -> None:
        """Send one buffer. Raises RowsLost if the receiver has gone."""
        self._write({"shapes": shapes}, blobs)
        self._n_buffers += 1

    def end(self) -> int:
        """Report the end of the rows; return the number of buffers."""
        self._write({"n_buffers": self._n_buffers}, ())
        self.close()
        return self._n_buffers

    def close(self) -> None:
        """Close the connection; the listener takes the rows for lost unless `end` came before."""
        self._socket.close()

    def _connect(self, address: str) -> None:
        if not address.startswith(_PREFIX):  # defence: names-of-sockets
            raise RowsLost("this is not an address at which rows are expected")
        self._socket.setblocking(False)
        try:
            self._socket.connect("\0" + address)
        except OSError:
            raise RowsLost("no process expects rows there") from None
        if owner_of(self._socket)[1] != os.geteuid():  # defence: user-of-the-rows-socket
            raise RowsLost("the socket belongs to another operating system user")

    def _write(self, header: Header, blobs: Iterable[Blob]) -> None:
        try:
            self._channel.send(header, blobs)
        except (PeerGone, ConnectionError):
            raise RowsLost("the session with the trainer accepts no more rows") from None

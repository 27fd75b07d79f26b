"""The sessions that share a trainer: each has a seat, a socket for its requests and their answers; for ``server.py``.

The fork server hands the trainer the seats one after the other (``mop_backend/forking.py``). Called before any heavy
import, so the standard library only.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Sequence

from mop_backend.frames import Blob, Channel, Frame, FrameLimits, Header, Json, PeerGone, parsed
from mop_backend.spinning import Spinner

#: Seconds, at least, that the process goes on with the request of a session that has left.
_LEFT_S = 1.0
#: Seconds that the process waits for more of a request that has begun, and for space for more of an answer.
_STALLED_S = 1.0
#: Headers that are kept, and bytes of one.
_MOST_KNOWN, _MOST_KNOWN_BYTES = 256, 1 << 12
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class Seats:
    """The seats of the sessions that are there now.

    A session may leave while its request is worked on, because its statement was cancelled. If that work does not end
    soon, the process does: the others ask again, as after its idle time. A session that loses its seat asks again too,
    and has a trainer of its own in the end.

    Parameters
    ----------
    fd : int
        Descriptor of the socket from which seats are taken.
    """

    def __init__(self, fd: int):
        self._source = socket.socket(fileno=fd)
        self._source.setblocking(False)
        self._is_open = True  # whether the fork server lives
        self._seats: dict[int, Channel] = {}
        self._served: Sequence[int] = ()
        self._first = -1  # of those that were ready last
        self._parse = _Headers().parse
        self._spinner = Spinner()
        self._poller = select.poll()
        self._poller.register(fd, select.POLLIN)

    def ready(self, idle_s: float | None) -> list[int] | None:
        """Wait for requests; return the seats that have one, or None if none came for ``idle_s`` seconds, or none can
        come any more."""
        while self._is_open or self._seats:
            events = self._spinner.poll(self._poller, None if idle_s is None else idle_s * 1000)
            if not events:
                return None
            for fd, event in events:
                if fd == self._source.fileno():
                    self._take()
                elif event & _GONE:  # who has left needs no answer
                    self.leave(fd)
            if found := [fd for fd, event in events if event == select.POLLIN and fd in self._seats]:
                self._first = found[0]
                return found
        return None

    def receive(self, seat: int, limits: FrameLimits) -> Frame | None:
        """Return the request of a session; None if it has left, or sends what it may not."""
        if seat != self._first and _is_closed(seat):  # while others were served
            self.leave(seat)
            return None
        channel = self._seats[seat]
        channel.limits = limits  # defence: size-of-shared-requests
        try:
            return channel.receive()
        except (PeerGone, ValueError, MemoryError):
            self.leave(seat)
            return None

    def send(self, seat: int, answer: Header, blobs: Sequence[Blob]) -> None:
        """Answer a session."""
        try:
            self._seats[seat].send(answer, blobs)
        except PeerGone:
            self.leave(seat)

    def leave(self, seat: int) -> None:
        """Close the seat of a session."""
        del self._seats[seat]
        self._poller.unregister(seat)
        os.close(seat)

    def serves(self, seats: Sequence[int]) -> None:
        """Note whose requests are worked on now."""
        self._served = seats

    def watch(self) -> None:
        """Start a thread that ends the process when it works for sessions that have left."""
        threading.Thread(target=self._watch, name="watch-seats", daemon=True).start()

    def _watch(self) -> None:
        left: Sequence[int] = ()
        while True:
            time.sleep(_LEFT_S)
            served = self._served
            if served and served is left:
                os._exit(0)
            left = served if served and all(map(_is_closed, served)) else ()

    def _take(self) -> None:
        """Take the next seat; there is none if the fork server has ended, or this process has too many descriptors."""
        try:
            message, fds, _, _ = socket.recv_fds(self._source, 1, 1)
        except BlockingIOError:
            return
        for fd in fds:
            self._seats[fd] = Channel(
                fd,
                fd,
                interval_s=_STALLED_S,
                is_patient=False,  # defence: sessions-that-stall
                parse=self._parse,
            )
            self._poller.register(fd, select.POLLIN | select.POLLRDHUP)
        if not message:
            self._is_open = False
            self._poller.unregister(self._source)


class _Headers:
    """Parses the headers of requests; those for row after row of a model, which are the same, once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Header] = {}

    def parse(self, text: bytes | bytearray) -> Json:
        """Return what a header says; who gets it may change it, but not what is in it."""
        if len(text) > _MOST_KNOWN_BYTES:
            return parsed(text)
        text = bytes(text)
        known = self._known.get(text)
        if known is None:
            header = parsed(text)
            if not (isinstance(header, dict) and header.get("op") == "predict_row") or "lengths" in header:
                return header
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[text] = header
        return known.copy()


def _is_closed(seat: int) -> bool:
    poller = select.poll()
    poller.register(seat, select.POLLRDHUP)
    return bool(poller.poll(0))

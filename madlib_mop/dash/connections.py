"""Connections of browsers: how many each address may have, and how long each may take; `app` serves through them.

Somebody who opens connections and sends nothing, or reads nothing, must not keep others out. A connection waits while
its request is not complete. If an address, or all together, have too many connections, the one that waits longest
gives way to the new one; if none waits, the new one is closed. Each request must be complete, and each response taken,
within a time limit.
"""

import asyncio
import resource
import socket
from collections import OrderedDict
from collections.abc import Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds within which a request is complete, from its first byte, or from the connection on for the first one.
REQUEST_S = 20.0
#: Seconds within which a browser takes what was sent to it.
_TAKEN_S = 60.0
_MOST = 1000
Headers = Sequence[tuple[bytes, bytes]]


def address_of(peer: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, as people get a whole network of such.

    Some reverse proxies add the port, which is another one for each connection: 192.0.2.1:443, [2001:db8::1]:443. It
    does not count. A text that is no address is returned as it is.
    """
    host = peer[1:].partition("]")[0] if peer.startswith("[") else peer
    if host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Network((address, 64), strict=False))
    return str(address)


def most_connections() -> int:
    """Return how many connections there may be, with as many files to spare; raise this process's limit for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * _MOST if hard == resource.RLIM_INFINITY else min(2 * _MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(_MOST, wanted // 2)


class Accepted(socket.socket):
    """The socket of one connection, which its listener counts until it is closed."""

    gate: "Gate | None" = None
    address = ""

    def close(self) -> None:
        """Close it."""
        if self.gate is not None:
            self.gate.left(self)
            self.gate = None
        super().close()


class Gate(socket.socket):
    """A listening socket with limits.

    Parameters
    ----------
    listening : socket.socket
        It is taken over.
    most, most_of_address : int
        How many connections there may be, and how many of one address.
    """

    def __init__(self, listening: socket.socket, most: int, most_of_address: int):
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._most, self._most_of_address = most, most_of_address
        self._open: dict[int, Accepted] = {}
        self._n_of: dict[str, int] = {}
        self._waiting: OrderedDict[int, Accepted] = OrderedDict()  # the one that waits longest is the first

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; the event loop calls it.

        Raises
        ------
        ConnectionAbortedError
            If there are too many, and none waits.
        """
        plain, peer = super().accept()
        number = plain.detach()
        accepted = Accepted(self.family, self.type, self.proto, fileno=number)
        accepted.address = address_of(str(peer[0]))
        n_of_address = self._n_of.get(accepted.address, 0)
        # defence: connections-of-an-address
        if n_of_address >= self._most_of_address and not self._drop_one(accepted.address):
            accepted.close()
            raise ConnectionAbortedError("too many connections of one address")
        if len(self._open) >= self._most and not self._drop_one(None):
            accepted.close()
            raise ConnectionAbortedError("too many connections")
        accepted.gate = self
        self._open[number] = self._waiting[number] = accepted
        self._n_of[accepted.address] = self._n_of.get(accepted.address, 0) + 1
        return accepted, peer

    def set_waiting(self, number: int, is_waiting: bool) -> None:
        """Note whether a connection, by its descriptor, waits for its request to be complete."""
        if not is_waiting:
            self._waiting.pop(number, None)
        elif number in self._open and number not in self._waiting:
            self._waiting[number] = self._open[number]

    def left(self, accepted: Accepted) -> None:
        """Forget a connection that is being closed."""
        number = accepted.fileno()
        if self._open.pop(number, None) is not None:
            self._waiting.pop(number, None)
            self._n_of[accepted.address] -= 1
            if not self._n_of[accepted.address]:
                del self._n_of[accepted.address]

    def _drop_one(self, address: str | None) -> bool:
        """End the connection that waits longest, of one address or of all; return whether there was one.

        The event loop, which has the socket, closes it then. It is not counted any more.
        """
        for accepted in self._waiting.values():  # defence: room-for-connections
            if address in (None, accepted.address):
                self.left(accepted)
                try:
                    accepted.shutdown(socket.SHUT_RDWR)
                except OSError:  # the peer has ended it
                    pass
                return True
        return False


class BrowserConnection(H11Protocol):
    """One connection.

    Parameters
    ----------
    gate : Gate
    headers : sequence of (bytes, bytes)
        Of responses that the application does not make.
    **words
        uvicorn's.
    """

    def __init__(self, gate: Gate, headers: Headers, **words: Any):
        super().__init__(**words)
        self._gate, self._headers_of_errors = gate, headers
        self._number = -1
        self._deadline: asyncio.TimerHandle | None = None
        self._taken_by: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._number = transport.get_extra_info("socket").fileno()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_clock()
        if self._taken_by is not None:
            self._taken_by.cancel()
        self._number = -1  # another connection may get it
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request; until its first byte, uvicorn's limit for idle connections applies."""
        super().on_response_complete()
        # defence: time-of-the-last-response
        if self.transport.is_closing():  # it waits until the browser has taken what is left
            self._limit_taking()
        self._gate.set_waiting(self._number, self._is_waiting)
        self._stop_clock()
        if self.conn.trailing_data[0] or self.conn.their_state is h11.SEND_BODY:
            self._look()

    def pause_writing(self) -> None:
        """Wait until the browser takes what was sent, for some time."""
        super().pause_writing()
        self._limit_taking()

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if self._taken_by is not None and not self.transport.is_closing():
            self._taken_by.cancel()
            self._taken_by = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, with the headers of every response."""
        self._refuse(400, msg)

    @property
    def _is_waiting(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _look(self) -> None:
        self._gate.set_waiting(self._number, self._is_waiting)  # defence: served-connections
        if not self._is_waiting:
            self._stop_clock()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self._be_late)  # defence: time-of-a-request

    def _limit_taking(self) -> None:
        if self._taken_by is None:
            self._taken_by = self.loop.call_later(_TAKEN_S, self.transport.abort)  # defence: time-of-a-response

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _be_late(self) -> None:
        self._refuse(408, f"The request was not complete after {REQUEST_S:.0f} seconds.")

    def _refuse(self, status: int, text: str) -> None:
        """Answer, unless a response has begun, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = text.encode()
            words = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            length = (b"content-length", str(len(body)).encode())
            # defence: headers-of-errors = h11.Response(status_code=status, headers=[*words, length])
            answer = h11.Response(status_code=status, headers=[*self._headers_of_errors, *words, length])
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:  # as when the browser has closed it
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self._limit_taking()

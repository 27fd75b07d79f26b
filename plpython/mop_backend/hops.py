"""Hops: sends models' states from the host that has them to the host that needs them, over one TCP connection.

Called by `mop_backend.segment` at both hosts. The sender's session (`Offer`) listens for one peer that knows the
ticket, the receiver's session (`pull`) is that peer. The coordinator has drawn the ticket for this pull; neither of the
two can log in to the other. With TLS, the sender has its server's own certificate, and the receiver accepts the one
whose digest the sender has told the coordinator. The connection is not trusted otherwise: what arrives must have the
digest that the record has.

After the sender's greeting with a nonce, each end shows that it knows the ticket: the HMAC-SHA-256, under the ticket,
of a word, both nonces and the digest of the certificate; the receiver first. Then: ``u32`` number of states; of each
the ``u32`` number of its parts and their ``u64`` lengths; all parts. Integers are big-endian.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mop_backend.frames import MOST_BLOBS, Check

if TYPE_CHECKING:  # most sessions at hosts need no TLS of Python's
    import ssl

GREETING = b"mop hop1"
_NONCE_BYTES = _PROOF_BYTES = 32
_CHUNK_BYTES = 1 << 20
_LOOK_EVERY_S = 0.1
#: How long a sender waits for the peer with the ticket.
_WAITS_S = 30.0
#: How long a peer that has connected has to show that it knows the ticket: meanwhile, no other is heard.
_HELLO_S = 3.0
#: Seconds until a peer from which nothing comes counts as gone.
_STALL_S = 20.0
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

ReadPart = Callable[[int, int], bytes]  # of a state and of a part of it, by their numbers


class HopFailed(Exception):
    """A state did not get from one host to the other; the coordinator can bring it in another way."""


class Certificate(NamedTuple):
    """The certificate of a server: what it answers connections with, and its SHA-256 in hexadecimal."""

    context: ssl.SSLContext
    digest: str


class HopPlace(NamedTuple):
    """Where a sender listens.

    Attributes
    ----------
    address : str
    port : int
    certificate : str or None
        The digest of its certificate; None: without TLS.
    """

    address: str
    port: int
    certificate: str | None


class Pulled(NamedTuple):
    """What is known of a state that is to arrive: its digest, None if not all of it is sent; most of its bytes."""

    digest: str | None
    most_bytes: int


def server_certificate(certificate: str | Path, key: str | Path) -> Certificate:
    """Return the certificate of a server from its files. Raises HopFailed if they cannot be used."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # OpenSSL asks at no terminal
        found = _PEM.search(Path(certificate).read_text(encoding="ascii", errors="replace"))
        assert found is not None, "it could be loaded"
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest()
    except (OSError, ValueError) as error:
        raise HopFailed(f"the server's certificate or key cannot be read: {error}") from None
    return Certificate(context, digest)


def client_context() -> ssl.SSLContext:
    """Return the TLS of a receiver, which compares the certificate itself."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Offer:
    """States that one peer can get, once.

    Parameters
    ----------
    ticket : bytes
        32 random bytes.
    address : str
        Of this host, as its peers reach it.
    ports : (int, int) or None
        The first and the last port at which it may listen; None: any.
    certificate : Certificate or None
        None: without TLS.
    waits_s : float
        How long `serve` waits for the peer.

    Raises
    ------
    HopFailed
        If no port is free.
    """

    def __init__(
        self,
        ticket: bytes,
        address: str,
        ports: tuple[int, int] | None = None,
        certificate: Certificate | None = None,
        waits_s: float = _WAITS_S,
    ):
        self._ticket: bytes | None = ticket
        self._certificate, self._waits_s = certificate, waits_s
        self._listener = _listening(address, ports)
        digest = None if certificate is None else certificate.digest
        self.place = HopPlace(address, self._listener.getsockname()[1], digest)

    def serve(self, lengths: Sequence[Sequence[int]], read: ReadPart, check: Check) -> None:
        """Wait for the peer, and send it the states; whatever happens, the offer ends.

        Parameters
        ----------
        lengths : sequence of sequence of int
            Of each state the bytes of its parts.
        read : callable
        check : callable
            The interrupt check; its exceptions end the wait.

        Raises
        ------
        HopFailed
        """
        ticket, self._ticket = self._ticket, None
        if ticket is None:  # defence: one-pull-a-ticket
            raise HopFailed("these states were offered once")
        with self._listener:
            connection = self._accept(ticket, check)
        with connection.raw:
            form = [struct.pack(">I", len(lengths))]
            form += [struct.pack(f">I{len(parts)}Q", len(parts), *parts) for parts in lengths]
            connection.send(b"".join(form))
            for state, parts in enumerate(lengths):
                for part in range(len(parts)):
                    connection.send(read(state, part))

    def close(self) -> None:
        """Offer them no longer."""
        self._ticket = None
        self._listener.close()

    def _accept(self, ticket: bytes, check: Check) -> _Connection:
        """Return the connection of the peer that knows the ticket; others are closed. Raises HopFailed."""
        deadline = time.monotonic() + self._waits_s
        while time.monotonic() < deadline:
            check()
            try:
                raw, _ = self._listener.accept()
            except (TimeoutError, ConnectionAbortedError):
                continue
            except OSError as error:
                raise HopFailed(f"no peer can connect any more: {error.strerror or error}") from None
            connection = _Connection(raw, check, _HELLO_S, time.monotonic() + _HELLO_S)
            try:
                if self._certificate is not None:
                    connection.wrap(self._certificate.context, is_server=True)
                if _greet(connection, ticket, self.place.certificate):
                    connection.stall_s, connection.ends_at = _STALL_S, inf
                    return connection
            except HopFailed:
                pass
            except BaseException:
                connection.raw.close()
                raise
            connection.raw.close()
        raise HopFailed(f"no peer with the ticket connected within {self._waits_s} s")


def pull(place: HopPlace, ticket: bytes, expected: Sequence[Pulled], check: Check) -> list[list[bytearray]]:
    """Get states from the host that offers them; return the parts of each.

    Parameters
    ----------
    place : HopPlace
        Where they are offered.
    ticket : bytes
    expected : sequence of Pulled
        One for each state.
    check : callable
        The interrupt check; its exceptions end the wait.

    Raises
    ------
    HopFailed
    """
    try:
        raw = socket.create_connection((place.address, place.port), timeout=_HELLO_S)
    except OSError as error:
        raise HopFailed(f"{place.address}:{place.port} cannot be reached: {error.strerror or error}") from None
    connection = _Connection(raw, check, _STALL_S)
    try:
        if place.certificate is not None:
            seen = hashlib.sha256(connection.wrap(client_context(), is_server=False)).hexdigest()
            if not hmac.compare_digest(seen, place.certificate):  # defence: certificate-of-a-hop
                raise HopFailed(f"{place.address}:{place.port} has another certificate")
        _answer(connection, ticket, place.certificate)
        return _states(connection, expected)
    finally:
        connection.raw.close()


def _states(connection: _Connection, expected: Sequence[Pulled]) -> list[list[bytearray]]:
    """Read states. Raises HopFailed if one is not the expected one."""
    (n_states,) = struct.unpack(">I", connection.receive(4))
    if n_states != len(expected):
        raise HopFailed(f"the other host sends {n_states} states of {len(expected)}")
    lengths = []
    for one in expected:
        (n_parts,) = struct.unpack(">I", connection.receive(4))
        if n_parts > MOST_BLOBS:  # defence: parts-of-a-hop
            raise HopFailed("the other host sends more parts than a state has")
        lengths.append(struct.unpack(f">{n_parts}Q", connection.receive(8 * n_parts)))
        if sum(lengths[-1]) > one.most_bytes:  # defence: bytes-of-a-hop
            raise HopFailed("the other host sends more bytes than the state has")
    states = []
    for one, of_parts in zip(expected, lengths, strict=True):
        digest = hashlib.sha256()
        parts = [connection.receive(length, digest.update) for length in of_parts]
        if one.digest is not None and digest.hexdigest() != one.digest:  # defence: digest-of-a-hop
            raise HopFailed("what arrived is not the state that the record names")
        states.append(parts)
    return states


def _greet(connection: _Connection, ticket: bytes, certificate: str | None) -> bool:
    """Return whether the peer knows the ticket, after it was shown that this end does. Raises HopFailed."""
    nonce = os.urandom(_NONCE_BYTES)
    connection.send(GREETING + nonce)
    answer = connection.receive(_NONCE_BYTES + _PROOF_BYTES)
    other, proof = bytes(answer[:_NONCE_BYTES]), bytes(answer[_NONCE_BYTES:])
    # defence: ticket-of-a-hop
    if not hmac.compare_digest(proof, _proof(ticket, b"receiver", nonce, other, certificate)):
        return False
    connection.send(_proof(ticket, b"sender", nonce, other, certificate))
    return True


def _answer(connection: _Connection, ticket: bytes, certificate: str | None) -> None:
    """Show that this end knows the ticket. Raises HopFailed unless the other one does."""
    greeting = connection.receive(len(GREETING) + _NONCE_BYTES)
    if not greeting.startswith(GREETING):
        raise HopFailed("another program answers there")
    nonce, own = bytes(greeting[len(GREETING) :]), os.urandom(_NONCE_BYTES)
    connection.send(own + _proof(ticket, b"receiver", nonce, own, certificate))
    proof = bytes(connection.receive(_PROOF_BYTES))
    # defence: sender-of-a-hop
    if not hmac.compare_digest(proof, _proof(ticket, b"sender", nonce, own, certificate)):
        raise HopFailed("who answers there does not know the ticket")


def _proof(ticket: bytes, word: bytes, senders: bytes, receivers: bytes, certificate: str | None) -> bytes:
    return hmac.digest(ticket, word + senders + receivers + (certificate or "").encode(), "sha256")


def _listening(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Return a socket that listens at a free port. Raises HopFailed."""
    candidates = [0] if ports is None else list(range(ports[0], ports[1] + 1))
    random.shuffle(candidates)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    reason = "the range is empty"
    for port in candidates:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(8)
            listener.settimeout(_LOOK_EVERY_S)
            return listener
        except OSError as error:
            listener.close()
            reason = error.strerror or str(error)
    raise HopFailed(f"there is no free port for a hop at {address}: {reason}")


class _Connection:
    """A connection that waits with interrupt checks, and not longer than ``stall_s`` while nothing happens, nor after
    ``ends_at``, of the monotonic clock."""

    def __init__(self, raw: socket.socket, check: Check, stall_s: float, ends_at: float = inf):
        self.raw, self.stall_s, self.ends_at, self._check = raw, stall_s, ends_at, check
        raw.settimeout(_LOOK_EVERY_S)

    def wrap(self, context: ssl.SSLContext, is_server: bool) -> bytes:
        """Begin TLS; return the other end's certificate, b"" of a client. Raises HopFailed."""
        try:
            connection = context.wrap_socket(self.raw, server_side=is_server, do_handshake_on_connect=False)
        except OSError as error:  # the other end has gone already
            raise HopFailed(f"the connection has ended: {error.strerror or error}") from None
        self.raw = connection
        self._patiently(connection.do_handshake)
        return connection.getpeercert(binary_form=True) or b""

    def send(self, data: bytes) -> None:
        """Send all. Raises HopFailed."""
        view = memoryview(data)
        while view:
            sent = self._patiently(partial(self.raw.send, view[:_CHUNK_BYTES]))
            view = view[sent:]

    def receive(self, n_bytes: int, seen: Callable[[memoryview], object] | None = None) -> bytearray:
        """Return so many bytes; ``seen`` gets each piece as it arrives. Raises HopFailed."""
        data, filled = bytearray(n_bytes), 0
        with memoryview(data) as view:
            while filled < n_bytes:
                got = self._patiently(partial(self.raw.recv_into, view[filled : filled + _CHUNK_BYTES]))
                if got == 0:
                    raise HopFailed("the other host has closed the connection")
                if seen is not None:
                    seen(view[filled : filled + got])
                filled += got
        return data

    def _patiently(self, step: Callable[[], int | bytes | None]) -> int:
        """Return the result of a step of the socket, repeated while it is not possible. Raises HopFailed."""
        deadline = min(time.monotonic() + self.stall_s, self.ends_at)
        while True:
            self._check()
            if time.monotonic() > self.ends_at:
                raise HopFailed("the other host takes too long")
            try:
                found = step()
                return found if isinstance(found, int) else 0
            except TimeoutError:  # of the socket, after `_LOOK_EVERY_S`
                if time.monotonic() > deadline:
                    raise HopFailed("the other host sends nothing, or reads nothing, any more") from None
            except OSError as error:  # TLS's errors too
                raise HopFailed(f"the connection has ended: {error.strerror or error}") from None

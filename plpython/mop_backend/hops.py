"""Hops: gets models' states from the host that has them to where they are needed.

The direct way is one TCP connection between two hosts, and `mop_backend.segment` calls its functions at both. The
sender's session (`Offer`) listens for one peer that knows the ticket, the receiver's session (`pull`) is that peer. The
coordinator has drawn the ticket for this pull; neither of the two can log in to the other. With TLS, the sender has its
server's own certificate, and the receiver accepts the one whose digest the sender has told the coordinator. The
connection is not trusted otherwise: a whole state must have the digest that the record has.

After the sender's greeting with a nonce, each end shows that it knows the ticket: the HMAC-SHA-256, under the ticket,
of a word, both nonces and the digest of the certificate; the receiver first. Then: ``u32`` number of states; of each
the ``u32`` number of its parts and their ``u64`` lengths; of each all parts, and such an HMAC of them. Integers are
big-endian.

The other way, `fetch`, is for the coordinator: its writers and drivers ask the session at the host for each part.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import random
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mop_backend.frames import MOST_BLOBS, Blob, Check, Frame, Header, Json, of_answers, read_as_it_arrives
from mop_backend.seals import digest_of_all

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
#: A transfer that is slower, after some time, counts as lost: directly, after which there is the other way; and in that
#: way, on which the states of many segments may share one slow link.
_LEAST_BYTES_PER_S, _LEAST_BYTES_PER_S_OF_A_FETCH, _SPARE_S = 1e6, 1e5, 60.0
#: Of the parts in which trainers send states.
_PART_BYTES = 16 << 20
#: What is said of a host that exceeds `answer_s`.
TOO_LONG = "it takes too long to answer"
_DIGEST = re.compile("[0-9a-f]{64}")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

ReadPart = Callable[[int, int], bytes]  # of a state and of a part of it, by their numbers


class HopFailed(Exception):
    """A state did not get from one host to the other; the coordinator can bring it in another way."""


class StateLost(Exception):
    """A host does not hold a state, or not as the record has it."""


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


class _Ticket(NamedTuple):
    """A ticket in use: ``about`` has the nonces of both ends, and the digest of the certificate."""

    ticket: bytes
    about: bytes

    def proof(self, word: bytes, data: bytes = b"") -> bytes:
        """Return what shows that an end knows the ticket, and that it has sent this."""
        return hmac.digest(self.ticket, word + self.about + data, "sha256")


def transfer_s(n_bytes: int) -> float:
    """Return how many seconds a direct transfer may take in all."""
    return _SPARE_S + n_bytes / _LEAST_BYTES_PER_S


def fetch_s(n_bytes: int) -> float:
    """Return how many seconds a fetch may take in all."""
    return _SPARE_S + n_bytes / _LEAST_BYTES_PER_S_OF_A_FETCH


def answer_s(n_bytes: int) -> float:
    """Return how many seconds a host may take to send a part of a state of so many bytes, or something shorter."""
    return fetch_s(min(n_bytes, _PART_BYTES))


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
        If no port is free, or the address is none.
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
            accepted = self._accept(ticket, check)
        connection, shown = accepted
        with connection.raw:
            connection.ends_at = time.monotonic() + transfer_s(sum(map(sum, lengths)))
            connection.send(struct.pack(">I", len(lengths)) + b"".join(map(_form_of, lengths)))
            for state, parts in enumerate(lengths):
                digest = hashlib.sha256()
                for part in range(len(parts)):
                    data = read(state, part)
                    digest.update(data)
                    connection.send(data)
                connection.send(_proof_of_state(shown, state, parts, digest.digest()))

    def close(self) -> None:
        """Offer them no longer."""
        self._ticket = None
        self._listener.close()

    def _accept(self, ticket: bytes, check: Check) -> tuple[_Connection, _Ticket]:
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
                shown = _greet(connection, ticket, self.place.certificate)
                if shown is not None:
                    connection.stall_s = _STALL_S
                    return connection, shown
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
    if not _is_place(place):  # defence: place-of-a-hop
        raise HopFailed("the other host names no address and port")
    try:
        raw = socket.create_connection((place.address, place.port), timeout=_HELLO_S)
    except OSError as error:
        raise HopFailed(f"{place.address}:{place.port} cannot be reached: {error.strerror or error}") from None
    connection = _Connection(raw, check, _STALL_S, time.monotonic() + transfer_s(0))
    try:
        if place.certificate is not None:
            seen = hashlib.sha256(connection.wrap(client_context(), is_server=False)).hexdigest()
            if not hmac.compare_digest(seen, place.certificate):  # defence: certificate-of-a-hop
                raise HopFailed(f"{place.address}:{place.port} has another certificate")
        return _states(connection, _answer(connection, ticket, place.certificate), expected)
    finally:
        connection.raw.close()


def fetch(ask: Callable[[Header], Frame], name: Sequence[Json], state: Pulled, n_parts: int | None) -> list[Blob]:
    """Get a state from the host that holds it, by a session there; return its parts.

    Parameters
    ----------
    ask : callable
        Asks that session.
    name : sequence
        The state's name in messages.
    state : Pulled
    n_parts : int or None
        How many leading parts are needed; None: all.

    Raises
    ------
    StateLost, HopFailed
    """
    ends_at = time.monotonic() + fetch_s(state.most_bytes)
    parts: list[Blob] = []
    n_bytes, n_there, wanted = 0, 0, 1
    while len(parts) < wanted:
        if time.monotonic() > ends_at:
            raise HopFailed("it takes too long to send a state")
        request = {"op": "held_part", "run_id": name[0], "state": name, "part": len(parts)}
        answer, blobs = ask(request)
        found = answer.get("n_parts")
        if type(found) is not int or not 0 < found <= MOST_BLOBS:  # it does not hold the state
            raise StateLost
        # defence: parts-of-a-fetch = not blobs
        if found != (n_there or found) or len(blobs) != 1 or not len(blobs[0]):
            raise StateLost
        n_there, n_bytes = found, n_bytes + len(blobs[0])
        if n_bytes > state.most_bytes:  # defence: bytes-of-a-fetch
            raise StateLost
        parts += blobs
        wanted = n_there if n_parts is None else min(n_there, n_parts)
    if state.digest is not None and digest_of_all(parts) != state.digest:  # it is damaged there
        raise StateLost
    return parts


def _is_place(place: HopPlace) -> bool:
    is_digest = place.certificate is None or _DIGEST.fullmatch(place.certificate) is not None
    return _is_address(place.address) and 0 < place.port < 1 << 16 and is_digest


def _is_address(address: str) -> bool:
    """Return whether a text is the address of a host, and no name that would be looked up."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _states(connection: _Connection, shown: _Ticket, expected: Sequence[Pulled]) -> list[list[bytearray]]:
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
    n_bytes, most = sum(map(sum, lengths)), of_answers().blob_bytes
    if most is not None and n_bytes > most:  # defence: memory-of-a-hop
        raise HopFailed("the other host sends more bytes than this one takes at once: a quarter of its memory")
    connection.ends_at = time.monotonic() + transfer_s(n_bytes)
    states = []
    for number, (one, of_parts) in enumerate(zip(expected, lengths, strict=True)):
        digest = hashlib.sha256()
        parts = [connection.receive(length, digest.update) for length in of_parts]
        proof = bytes(connection.receive(_PROOF_BYTES))
        # defence: proof-of-a-hop
        if not hmac.compare_digest(proof, _proof_of_state(shown, number, of_parts, digest.digest())):
            raise HopFailed("what arrived is not what the other host has sent")
        if one.digest is not None and digest.hexdigest() != one.digest:  # defence: digest-of-a-hop
            raise HopFailed("what arrived is not the state that the record names")
        states.append(parts)
    return states


def _form_of(lengths: Sequence[int]) -> bytes:
    return struct.pack(f">I{len(lengths)}Q", len(lengths), *lengths)


def _proof_of_state(shown: _Ticket, number: int, lengths: Sequence[int], digest: bytes) -> bytes:
    """Return what shows that the sender has sent a state of a pull."""
    return shown.proof(b"state", struct.pack(">I", number) + _form_of(lengths) + digest)


def _greet(connection: _Connection, ticket: bytes, certificate: str | None) -> _Ticket | None:
    """Return the ticket as it is in use if the peer knows it, after it was shown that this end does. Raises
    HopFailed."""
    nonce = os.urandom(_NONCE_BYTES)
    connection.send(GREETING + nonce)
    answer = connection.receive(_NONCE_BYTES + _PROOF_BYTES)
    other, proof = bytes(answer[:_NONCE_BYTES]), bytes(answer[_NONCE_BYTES:])
    shown = _Ticket(ticket, nonce + other + (certificate or "").encode())
    if not hmac.compare_digest(proof, shown.proof(b"receiver")):  # defence: ticket-of-a-hop
        return None
    connection.send(shown.proof(b"sender"))
    return shown


def _answer(connection: _Connection, ticket: bytes, certificate: str | None) -> _Ticket:
    """Show that this end knows the ticket; return it as it is in use. Raises HopFailed unless the other one knows
    it."""
    greeting = connection.receive(len(GREETING) + _NONCE_BYTES)
    if not greeting.startswith(GREETING):
        raise HopFailed("another program answers there")
    nonce, own = bytes(greeting[len(GREETING) :]), os.urandom(_NONCE_BYTES)
    shown = _Ticket(ticket, nonce + own + (certificate or "").encode())
    connection.send(own + shown.proof(b"receiver"))
    proof = bytes(connection.receive(_PROOF_BYTES))
    if not hmac.compare_digest(proof, shown.proof(b"sender")):  # defence: sender-of-a-hop
        raise HopFailed("who answers there does not know the ticket")
    return shown


def _listening(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Return a socket that listens at a free port. Raises HopFailed."""
    if not _is_address(address):
        raise HopFailed(f"a host can only listen at an IP address. Received: {address!r}")
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

    def __init__(self, raw: socket.socket, check: Check, stall_s: float, ends_at: float):
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

        def fill(data: bytearray, filled: int) -> int:
            with memoryview(data) as view:
                while filled < len(view):
                    got = self._patiently(partial(self.raw.recv_into, view[filled : filled + _CHUNK_BYTES]))
                    if got == 0:
                        raise HopFailed("the other host has closed the connection")
                    if seen is not None:
                        seen(view[filled : filled + got])
                    filled += got
            return filled

        return read_as_it_arrives(n_bytes, fill)

    def _patiently(self, step: Callable[[], int | bytes | None]) -> int:
        """Return the result of a step of the socket, repeated while it is not possible. Raises HopFailed."""
        deadline = time.monotonic() + self.stall_s
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

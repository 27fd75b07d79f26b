"""Hops: a state goes to the one peer that knows the ticket, and arrives as it was sent or not at all."""

import hashlib
import hmac
import resource
import secrets
import socket
import struct
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from mop_backend import hops, seals
from mop_backend.frames import FrameLimits
from mop_backend.hops import HopFailed, HopPlace, Offer, Pulled, StateLost, fetch, pull, server_certificate

from tests.helpers.certificates import make_certificate

STATES = [[b"abc", b"", b"d" * 100_000], [b"e"]]
EXPECTED = [Pulled(hashlib.sha256(b"".join(parts)).hexdigest(), sum(map(len, parts))) for parts in STATES]


def no_interrupt() -> None:
    """Check nothing."""


@pytest.fixture
def certificate(tmp_path):
    return server_certificate(*make_certificate(tmp_path))


def lengths_of(states):
    return [list(map(len, parts)) for parts in states]


def hop(offer, receive, states=STATES):
    """Serve an offer in a thread while ``receive`` runs; return what it returns, and the sender's failure."""
    failures = []

    def run():
        try:
            offer.serve(lengths_of(states), lambda state, part: states[state][part], no_interrupt)
        except HopFailed as failure:
            failures.append(str(failure))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return receive(), failures
    finally:
        thread.join()


@pytest.mark.parametrize("has_tls", [False, True])
def test_states_arrive_in_their_parts(has_tls, certificate):
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1", certificate=certificate if has_tls else None)
    assert (offer.place.certificate is not None) is has_tls
    found, failures = hop(offer, lambda: pull(offer.place, ticket, EXPECTED, no_interrupt))
    assert found == STATES and not failures


def test_nobody_without_the_ticket_gets_anything_and_the_right_one_still_does(monkeypatch):
    """Who connects without the ticket is closed; the state stays for the one that has it."""
    monkeypatch.setattr(hops, "_HELLO_S", 0.3)
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1")

    def receive():
        with pytest.raises(HopFailed, match="closed the connection"):
            pull(offer.place, secrets.token_bytes(32), EXPECTED, no_interrupt)
        address = offer.place.address, offer.place.port
        with socket.create_connection(address) as silent:
            greeting = silent.recv(1 << 16)
            silent.sendall(b"x" * 10)
            assert len(greeting) == 40 and silent.recv(1 << 16) == b""  # closed after the time of a greeting
        with socket.create_connection(address) as replaying:
            replaying.sendall(replaying.recv(1 << 16)[8:] + b"0" * 32)
            assert replaying.recv(1 << 16) == b""
        return pull(offer.place, ticket, EXPECTED, no_interrupt)

    found, failures = hop(offer, receive)
    assert found == STATES and not failures


def test_a_peer_that_shows_the_ticket_byte_by_byte_is_closed(monkeypatch):
    monkeypatch.setattr(hops, "_HELLO_S", 0.5)
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1")

    def receive():
        with socket.create_connection((offer.place.address, offer.place.port)) as slow:
            slow.recv(1 << 16)
            began = time.monotonic()
            with pytest.raises(ConnectionError):
                while time.monotonic() - began < 10:
                    slow.sendall(b"x")
                    time.sleep(0.2)
        return pull(offer.place, ticket, EXPECTED, no_interrupt)

    found, failures = hop(offer, receive)
    assert found == STATES and not failures


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_peer_that_is_gone_at_once_stops_nobody(has_tls, certificate):
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1", certificate=certificate if has_tls else None)
    for sent in (b"", b"hello"):  # before it is accepted
        with socket.create_connection((offer.place.address, offer.place.port)) as gone:
            gone.sendall(sent)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    found, failures = hop(offer, lambda: pull(offer.place, ticket, EXPECTED, no_interrupt))
    assert found == STATES and not failures


def test_a_ticket_is_worth_one_pull():
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1")
    assert hop(offer, lambda: pull(offer.place, ticket, EXPECTED, no_interrupt))[0] == STATES
    with pytest.raises(HopFailed, match="cannot be reached"):
        pull(offer.place, ticket, EXPECTED, no_interrupt)
    with pytest.raises(HopFailed, match="offered once"):
        offer.serve(lengths_of(STATES), lambda state, part: b"", no_interrupt)


def test_a_listener_that_does_not_know_the_ticket_is_not_believed():
    """Another program can listen at the port when the sender has ended."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        place = HopPlace("127.0.0.1", listener.getsockname()[1], None)

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(hops.GREETING + bytes(32))
                connection.recv(64)
                connection.sendall(bytes(32) + struct.pack(">II", 1, 1) + struct.pack(">Q", 1) + b"x")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HopFailed, match="does not know the ticket"):
            pull(place, secrets.token_bytes(32), [Pulled(None, 1)], no_interrupt)
        thread.join()


def test_another_certificate_is_not_accepted(tmp_path, certificate):
    (tmp_path / "other").mkdir()
    other = server_certificate(*make_certificate(tmp_path / "other"))
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1", certificate=certificate, waits_s=0.5)
    place = offer.place._replace(certificate=other.digest)

    def receive():
        with pytest.raises(HopFailed, match="another certificate"):
            pull(place, ticket, EXPECTED, no_interrupt)

    assert "no peer with the ticket" in str(hop(offer, receive)[1])


def test_who_is_between_the_two_with_tls_cannot_use_the_answer_of_the_receiver(tmp_path, certificate):
    """The receiver's answer is about the certificate that it has seen, so nobody can pass it on to the sender."""
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1", certificate=certificate, waits_s=0.5)

    def receive():
        with socket.create_connection((offer.place.address, offer.place.port)) as raw:
            with hops.client_context().wrap_socket(raw) as connection:
                greeting = connection.recv(1 << 16)
                nonce, own = greeting[8:], bytes(32)
                proof = hmac.digest(ticket, b"receiver" + nonce + own + b"another certificate", "sha256")
                connection.sendall(own + proof)
                return connection.recv(1 << 16)

    found, failures = hop(offer, receive)
    assert found == b"" and "no peer with the ticket" in failures[0]


@pytest.mark.parametrize(
    "sent, expected, reason",
    [
        ([[b"abX", b"d"]], [Pulled(hashlib.sha256(b"abcd").hexdigest(), 4)], "not the state"),
        ([[b"abc"]], [Pulled(None, 2)], "more bytes"),
        ([[b"abc"], [b"d"]], [Pulled(None, 3)], "2 states"),
        ([[b""] * ((1 << 20) + 1)], [Pulled(None, 3)], "more parts"),
    ],
)
def test_another_state_than_the_recorded_one_is_not_taken(sent, expected, reason):
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1")

    def receive():
        with pytest.raises(HopFailed, match=reason):
            pull(offer.place, ticket, expected, no_interrupt)

    hop(offer, receive, sent)


def test_more_than_a_host_takes_at_once_is_not_taken(monkeypatch):
    """Whatever the record says of the states: a host that lies has sent the number of their bytes."""
    monkeypatch.setattr(hops, "of_answers", lambda: FrameLimits(blob_bytes=5))
    test_another_state_than_the_recorded_one_is_not_taken([[b"abc"], [b"def"]], [Pulled(None, 9)] * 2, "at once")


@contextmanager
def false_sender(*sent):
    """Have a listener that knows a ticket, and sends this; yield its place and the ticket."""
    ticket = secrets.token_bytes(32)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer():
            raw, _ = listener.accept()
            with raw:
                shown = hops._greet(hops._Connection(raw, no_interrupt, 5.0, time.monotonic() + 5), ticket, None)
                with suppress(ConnectionError):
                    for each in sent:
                        raw.sendall(each(shown) if callable(each) else each)

        thread = threading.Thread(target=answer)
        thread.start()
        yield HopPlace("127.0.0.1", listener.getsockname()[1], None), ticket
        thread.join()


@contextmanager
def at_most(more_bytes):
    """Limit the address space of this process: what is only reserved counts too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_a_state_that_is_only_claimed_takes_no_memory(monkeypatch):
    monkeypatch.setattr(hops, "of_answers", lambda: FrameLimits(blob_bytes=1 << 60))
    claimed = 8 << 30
    with false_sender(struct.pack(">IIQ", 1, 1, claimed), b"few bytes") as (place, ticket):
        with at_most(512 << 20), pytest.raises(HopFailed, match="closed the connection"):
            pull(place, ticket, [Pulled(None, claimed)], no_interrupt)
    with at_most(512 << 20), pytest.raises(MemoryError):
        bytearray(1 << 30)


@pytest.mark.parametrize("changed", ["data", "parts", "place"])
def test_leading_parts_that_were_changed_on_the_way_are_not_taken(changed):
    """The record has no digest of them, and without TLS, somebody can be between the two hosts."""
    digest = hashlib.sha256(b"abcd").digest()

    def proof(shown):
        lengths = [4] if changed == "parts" else [1, 3]
        return hops._proof_of_state(shown, 1 if changed == "place" else 0, lengths, digest)

    data = b"abcX" if changed == "data" else b"abcd"
    with false_sender(struct.pack(">IIQQ", 1, 2, 1, 3), data, proof) as (place, ticket):
        with pytest.raises(HopFailed, match="not what the other host has sent"):
            pull(place, ticket, [Pulled(None, 4)], no_interrupt)


def test_a_transfer_has_an_end_whatever_is_sent(monkeypatch):
    """Each part may be in time: all together count."""
    monkeypatch.setattr(hops, "_SPARE_S", 0.3)
    slowly = [lambda shown: time.sleep(0.1) or b"x"] * 20
    with false_sender(struct.pack(">IIQ", 1, 1, 1000), *slowly) as (place, ticket):
        with pytest.raises(HopFailed, match="takes too long"):
            pull(place, ticket, [Pulled(None, 1000)], no_interrupt)
    assert hops.transfer_s(10_000_000) == pytest.approx(10.3)


def test_a_sender_that_is_slow_does_not_send_without_end(monkeypatch):
    monkeypatch.setattr(hops, "_SPARE_S", 0.3)
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1")

    def receive():
        """Read what comes, for as long as it comes."""
        with socket.create_connection((offer.place.address, offer.place.port)) as raw:
            hops._answer(hops._Connection(raw, no_interrupt, 5.0, time.monotonic() + 5), ticket, None)
            raw.settimeout(5)
            while raw.recv(1000):
                pass

    def slow(state, part):
        time.sleep(0.01)
        return b"x"

    thread = threading.Thread(target=receive)
    thread.start()
    with pytest.raises(HopFailed, match="takes too long"):
        offer.serve([[1] * 1000], slow, no_interrupt)
    thread.join()


@pytest.mark.parametrize(
    "place", [("localhost", 5500, None), ("127.0.0.1", 0, None), ("127.0.0.1", 1 << 16, None), ("", 1, None),
              ("127.0.0.1", -1, None), ("127.0.0.1", 5500, "not a digest")]
)  # fmt: skip
def test_a_place_is_an_address_and_a_port(place, monkeypatch):
    """A host that lies must not make another one look up names."""
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it connects"))
    with pytest.raises(HopFailed, match="no address and port"):
        pull(HopPlace(*place), bytes(32), EXPECTED, no_interrupt)


def test_a_host_listens_at_addresses_only():
    with pytest.raises(HopFailed, match="IP address. Received: 'localhost'"):
        Offer(bytes(32), "localhost")


def test_leading_parts_have_no_digest():
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1")
    found, _ = hop(offer, lambda: pull(offer.place, ticket, [Pulled(None, 100)], no_interrupt), [[b"abc"]])
    assert found == [[b"abc"]]


def test_a_peer_that_stops_in_the_middle_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hops, "_STALL_S", 0.3)
    ticket = secrets.token_bytes(32)
    offer = Offer(ticket, "127.0.0.1")

    def stuck(state, part):
        time.sleep(1.0)
        raise HopFailed("the disk is gone")

    failures = []

    def run():
        try:
            offer.serve([[10]], stuck, no_interrupt)
        except HopFailed as failure:
            failures.append(str(failure))

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(HopFailed, match="sends nothing"):
        pull(offer.place, ticket, [Pulled(None, 10)], no_interrupt)
    thread.join()
    assert failures == ["the disk is gone"]


def test_an_offer_ends_by_an_interrupt_and_after_its_time():
    class Cancelled(Exception):
        pass

    def cancel():
        raise Cancelled

    offer = Offer(secrets.token_bytes(32), "127.0.0.1")
    with pytest.raises(Cancelled):
        offer.serve([[1]], lambda state, part: b"a", cancel)
    with pytest.raises(HopFailed, match="cannot be reached"):
        pull(offer.place, secrets.token_bytes(32), [Pulled(None, 1)], no_interrupt)
    with pytest.raises(HopFailed, match="no peer with the ticket"):
        Offer(secrets.token_bytes(32), "127.0.0.1", waits_s=0.1).serve([[1]], lambda state, part: b"a", no_interrupt)


def test_a_range_of_ports_is_kept():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HopFailed, match="no free port"):
            Offer(bytes(32), "127.0.0.1", ports=(port, port))
    assert Offer(bytes(32), "127.0.0.1", ports=(port, port)).place.port == port


def test_a_key_with_a_passphrase_is_not_asked_for(tmp_path):
    """Nothing may read the terminal of a server."""
    certificate, key = make_certificate(tmp_path)
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(HopFailed, match="certificate"):
        server_certificate(certificate, key)


# Through the coordinator

NAME = [7, 1, 3, "digest"]
STATE = [b"ab", b"c"]
WHOLE = Pulled(seals.digest_of_all(STATE), 3)


def session(*answers):
    """Return a session at a host, which gives these answers: the number of parts, and the blobs."""
    left = list(answers)

    def ask(request):
        assert request["op"] == "held_part" and request["state"] == NAME and request["run_id"] == NAME[0]
        assert request["part"] == len(answers) - len(left)
        n_parts, blobs = left.pop(0)
        return {} if n_parts is None else {"n_parts": n_parts}, list(blobs)

    return ask


def test_a_state_is_fetched_part_by_part():
    assert fetch(session((2, [b"ab"]), (2, [b"c"])), NAME, WHOLE, None) == STATE
    assert fetch(session((2, [b"ab"])), NAME, Pulled(None, 3), 1) == [b"ab"]
    assert fetch(session((2, [b"ab"]), (2, [b"c"])), NAME, Pulled(None, 3), 5) == STATE


@pytest.mark.parametrize(
    "answers",
    [
        [(None, [])],
        [(2, [])],
        [(2, [b"ab", b"c"])],
        [(2, [b""])],
        [(2, [b"ab"]), (3, [b"c"])],
        [(2, [b"ab"]), (1, [b"c"])],
        [(0, [b"ab"])],
        [(-1, [b"ab"])],
        [(1 << 40, [b"ab"])],
        [("2", [b"ab"])],
        [(2, [b"ab"]), (2, [b"cd"])],
        [(2, [b"ab"]), (2, [b"X"])],
    ],
)
def test_a_host_that_sends_something_else_does_not_hold_the_state(answers):
    with pytest.raises(StateLost):
        fetch(session(*answers), NAME, WHOLE, None)


def test_a_host_that_sends_more_than_the_state_does_not_hold_it():
    """Also of leading parts, which have no digest in the record."""
    for answers in ([(1, [b"abcd"])], [(2, [b"ab"]), (2, [b"cd"])]):
        with pytest.raises(StateLost):
            fetch(session(*answers), NAME, Pulled(None, 3), 2)


def test_states_of_many_segments_may_share_a_slow_link(monkeypatch):
    """There is no other way than through the coordinator: 16 states of 1 GB at 100 Mbit/s need 20 minutes."""
    now, n_parts = 0.0, 60
    monkeypatch.setattr(hops.time, "monotonic", lambda: now)
    state = Pulled(None, n_parts)  # as if a byte were a part of 16 MiB
    monkeypatch.setattr(hops, "fetch_s", lambda n_bytes, fetch_s=hops.fetch_s: fetch_s(n_bytes * (16 << 20)))

    def ask(request):
        nonlocal now
        now += 16 * (16 << 20) / 12.5e6
        return {"n_parts": n_parts}, [b"x"]

    assert fetch(ask, NAME, state, None) == [b"x"] * n_parts and now > hops.transfer_s(n_parts * (16 << 20))
    monkeypatch.undo()
    assert 16 * (16 << 20) / 12.5e6 < hops.answer_s(10**9) < 300, "a host that is silent is away after minutes"


def test_a_fetch_has_an_end(monkeypatch):
    monkeypatch.setattr(hops, "_SPARE_S", -1.0)
    with pytest.raises(HopFailed, match="takes too long"):
        fetch(session((2, [b"ab"])), NAME, WHOLE, None)

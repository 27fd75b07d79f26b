"""A process that reads frames survives whatever the process at the other end sends: trainers run users' code."""

import json
import os
import resource
import struct
import sys
import threading

import pytest
from mop_backend import process
from mop_backend.frames import Channel, FrameLimits, NotAFrame, PeerGone, TooLarge, encoded, of_answers
from mop_backend.process import Child, ChildDied
from mop_backend.refusals import readable

MIB = 1 << 20


def frame(header: bytes, lengths=(), blobs=b"") -> bytes:
    """Return a frame; the lengths of its blobs need not be true."""
    return struct.pack(f">II{len(lengths)}Q", len(header), len(lengths), *lengths) + header + blobs


def received(sent: bytes, **options):
    """Return what a channel reads of these bytes, after which the other end is closed."""
    read_fd, write_fd = os.pipe()

    def write():
        with os.fdopen(write_fd, "wb") as file:
            file.write(sent)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        return Channel(read_fd, -1, **options).receive()
    finally:
        writer.join()
        os.close(read_fd)


@pytest.mark.parametrize("n_bytes", [0, 1, 64 * MIB, 64 * MIB + 1, 200 * MIB])
def test_blobs_of_any_size(n_bytes):
    blob = b"ab" * (n_bytes // 2) + b"c" * (n_bytes % 2)
    header, blobs = received(frame(b'{"a": 1}', [n_bytes, 3], blob + b"end"))
    assert header == {"a": 1} and blobs == [blob, b"end"]


@pytest.mark.parametrize(
    "header",
    [b"not JSON", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b""],
    ids=lambda header: repr(header[:8]),
)
def test_what_is_no_header(header):
    with pytest.raises(NotAFrame):
        received(frame(header))


def test_a_header_that_is_too_long_is_not_read():
    header = encoded({"text": "a" * 100})
    assert received(frame(header), limits=FrameLimits(len(header)))[0]["text"]
    with pytest.raises(TooLarge):
        received(frame(header), limits=FrameLimits(len(header) - 1))
    with pytest.raises(TooLarge):
        received(struct.pack(">II", 101, 0), limits=FrameLimits(100))


@pytest.mark.parametrize("value", [b"[],", b"{},", b"0,", b'"a":0,', b"[["])
def test_a_header_with_too_many_values_is_not_parsed(value, monkeypatch):
    """A list of a header of 32 MiB takes up to thirty times as much memory."""
    monkeypatch.setattr("mop_backend.frames.json.loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(TooLarge):
        received(frame(b"[" + value * (of_answers().values + 1)), limits=of_answers())


def test_blobs_that_are_too_large_together_are_not_read():
    limits = FrameLimits(blob_bytes=10)
    assert received(frame(b"{}", [4, 6], b"x" * 10), limits=limits)[1] == [b"xxxx", b"xxxxxx"]
    with pytest.raises(TooLarge):
        received(frame(b"{}", [4, 7], b""), limits=limits)
    assert 0 < of_answers().blob_bytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2


def test_of_blobs_that_are_taken_in_turn_each_is_limited(trainer, monkeypatch):
    """The process holds one at a time. 3 GB of a state come in parts of 16 MB."""
    monkeypatch.setattr(process, "of_answers", lambda: FrameLimits(blob_bytes=10))
    sent = frame(b"{}", [4, 10], b"abcd0123456789")
    child = trainer(sent)
    header, blobs = child.receive_in_turn()
    assert header == {} and blobs.lengths == (4, 10) and list(blobs) == [b"abcd", b"0123456789"]
    for refused in (trainer(sent).receive, trainer(frame(b"{}", [4, 11], b"")).receive_in_turn):
        with pytest.raises(ChildDied) as died:
            refused()
        assert "more than it may send at once" in died.value.last_words


@pytest.mark.parametrize("n_bytes", [1 << 36, 1 << 50, (1 << 64) - 1])
def test_a_blob_that_is_only_claimed_takes_no_memory(n_bytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PeerGone):
        received(frame(b"{}", [n_bytes], b"few bytes"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024  # KiB


_TRAINER = "import os, sys, time; os.write(1, bytes.fromhex('{sent}')); time.sleep(60)"


@pytest.fixture
def trainer(monkeypatch):
    """Start a process in a trainer's place that sends these bytes and does not end; timeit runs its code."""
    monkeypatch.setattr(process, "TRAINER", "timeit")
    children = []

    def start(sent: bytes) -> Child:
        children.append(Child("timeit", python=sys.executable, words=["-n1", "-r1", _TRAINER.format(sent=sent.hex())]))
        return children[-1]

    yield start
    for child in children:
        child.stop()


@pytest.mark.parametrize(
    "sent", [frame(b"[1]"), frame(b"null"), frame(b'"text"'), frame(b"{" * 9), struct.pack(">II", 33 * MIB, 0)]
)
def test_a_trainer_that_sends_no_frame_is_killed(trainer, sent):
    with pytest.raises(ChildDied) as died:
        trainer(sent).receive()
    assert died.value.returncode == -9
    assert "the other process sent" in died.value.last_words


def test_a_trainers_error_is_made_readable(trainer):
    sent = {"error": {"message": "a\0b" * 4000, "sqlstate": "'; --", "hint": "\ud800", "detail": {"a": 1}}, "kind": 7}
    answer, _ = trainer(frame(json.dumps(sent).encode())).receive()
    error = answer.pop("error")
    assert answer == {"kind": "internal", "ending": False}
    assert error.pop("message") == ("a?b" * 4000)[:10_000]
    assert error == {"sqlstate": "XX000", "hint": "?", "detail": None}


@pytest.mark.parametrize("error", [None, "text", [], {}, {"message": 7}, {"message": ""}, {"sqlstate": "00000"}])
def test_an_error_without_a_message_has_one(error):
    assert readable({"error": error})["error"] == {
        "message": "the trainer sent an error without a message",
        "sqlstate": "XX000",
        "hint": None,
        "detail": None,
    }


def test_other_answers_stay_as_they_are():
    header = {"loss": 1.0, "metrics": {}}
    assert readable(header) is header
    error = {"message": "not enough memory", "sqlstate": "53000", "hint": "h", "detail": "d"}
    assert readable({"error": error, "kind": "memory", "ending": True}) == {
        "error": error,
        "kind": "memory",
        "ending": True,
    }

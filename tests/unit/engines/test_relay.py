"""The relay believes no answer that the host's session has not signed, and takes none that is too large."""

import hashlib
import hmac
import json
import resource
import subprocess
import sys

import pytest
from mop_backend import seals
from mop_backend.frames import FrameLimits, of_answers

from madlib_mop.engines.hosts import relay as relays
from madlib_mop.engines.hosts.relay import HostSession, Relay, limit_memory

KEY = b"k" * 32
ASKED = {"op": "stats"}


class HostileHost(HostSession):
    """A host that sends what it likes; ``sent`` returns its answer to the message of a number."""

    def __init__(self, sent, part: object = b"part"):
        self._n_messages, self._key, self._answer_key = 0, KEY, seals.answer_key(KEY)
        self._sent, self._part = sent, part
        self.messages: list[tuple] = []

    @property
    def is_open(self) -> bool:
        """As if it were connected."""
        return True

    def _value(self, query, *values):
        if "segment_send" in query:
            self.messages.append(values)
            return self._sent(self)
        return self._part


def sealed(text: str, key: bytes | None = None) -> str:
    """Return an answer with its signature."""
    return hmac.new(key or seals.answer_key(KEY), text.encode(), "sha256").hexdigest() + text


def answer_of(sent, request=ASKED, part: object = b"part"):
    """Return the relay's answer to a writer, and its blobs, where a host sends this."""
    relay = Relay()
    relay._host, relay._server = HostileHost(sent, part), "alpha"
    return relay.do(request, [])


def an_answer(**fields) -> str:
    digest = hashlib.sha256(b"part").hexdigest()
    return json.dumps({"n_rows": 5, "number": 1, "blobs": [digest], **fields})


def test_an_answer_of_the_session_is_forwarded():
    assert answer_of(lambda _: sealed(an_answer())) == ({"n_rows": 5}, [b"part"])


FORGED = {
    "no signature": lambda _: an_answer(),
    "another key": lambda _: sealed(an_answer(), b"z" * 32),
    "the key of messages": lambda _: sealed(an_answer(), KEY),
    "nothing": lambda _: None,
    "bytes": lambda _: sealed(an_answer()).encode(),
    "too short": lambda _: "ab",
    "not ASCII": lambda _: "\u00e9" * 64 + an_answer(),
    "the message itself": lambda host: host.messages[-1][1] + host.messages[-1][0],
    "the answer to another message": lambda _: sealed(an_answer(number=2)),
    "other blobs": lambda _: sealed(an_answer(blobs=["0" * 64])),
}


@pytest.mark.parametrize("sent", FORGED.values(), ids=list(FORGED))
def test_a_forged_answer_is_refused(sent):
    answer, blobs = answer_of(sent)
    refused = answer["host_refused"]
    assert (refused["sqlstate"], blobs) == ("42501", []) and "does not come from this host" in refused["message"]


def test_tickets_are_sent_masked_with_another_mask_each():
    """The header is in a statement of the host, which its logs can have."""
    ticket = "ab" * 32
    pulls = [{"ticket": ticket, "place": ["host", 1, None]} for _ in range(2)]
    for request in ({"op": "offer", "ticket": ticket}, {"op": "train", "hop": {"pulls": pulls}}):
        relay = Relay()
        relay._host, relay._server = HostileHost(lambda _: sealed(an_answer())), "alpha"
        assert relay.do(request, []) == ({"n_rows": 5}, [b"part"])
        ((text, *_),) = relay._host.messages
        sent = json.loads(text)
        masked = [sent["ticket"]] if "ticket" in sent else [one["ticket"] for one in sent["hop"]["pulls"]]
        first = 0 if "ticket" in sent else 1
        assert ticket not in text and len(set(masked)) == len(masked)
        for index, one in enumerate(masked):
            assert seals.masked(KEY, 1, first + index, bytes.fromhex(one)).hex() == ticket


def test_a_blob_that_is_none_is_refused():
    assert "host_refused" in answer_of(lambda _: sealed(an_answer()), part=None)[0]


@pytest.mark.parametrize("text", ["[" * 2_200_000, '{"a": "' + "x" * (33 << 20) + '"}'], ids=["values", "bytes"])
def test_an_answer_that_is_too_large_is_not_parsed(text, monkeypatch):
    """Parsed, a header of 90 MB took 1.7 GB."""
    monkeypatch.setattr("madlib_mop.engines.hosts.relay.json.loads", lambda text: pytest.fail("it was parsed"))
    answer, _ = answer_of(lambda _: sealed(text))
    assert answer["host_refused"]["sqlstate"] == "53200" and "more than an answer may have" in str(answer)


def test_blobs_that_are_too_large_together_are_not_kept(monkeypatch):
    monkeypatch.setattr(relays, "of_answers", lambda: FrameLimits(1 << 20, 1 << 10, blob_bytes=10))
    digest = hashlib.sha256(b"part").hexdigest()
    assert answer_of(lambda _: sealed(an_answer(blobs=[digest] * 2)))[1] == [b"part"] * 2
    answer, blobs = answer_of(lambda _: sealed(an_answer(blobs=[digest] * 3)))
    assert answer["host_refused"]["sqlstate"] == "53200" and blobs == []


def test_a_relay_has_a_limit_of_memory():
    """libpq holds a row of a host whole before anybody can see how large it is."""
    code = "import resource; from madlib_mop.engines.hosts.relay import limit_memory; limit_memory();" \
        " print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == (1 << 30) + 2 * of_answers().blob_bytes
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != int(printed) and callable(limit_memory)


def test_memory_that_the_limit_refuses_is_an_answer(monkeypatch):
    def take_all(_):
        raise MemoryError

    answer, _ = answer_of(take_all)
    assert answer["host_refused"]["sqlstate"] == "53200"

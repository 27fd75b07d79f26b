"""Signatures of messages between a relay and the session at a host that it works with; called by both.

A signature is the HMAC-SHA-256 of a header, which has the SHA-256 of each of its blobs. The standard library suffices,
because the relay is no server process.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from mop_backend.frames import Blob


def session_key(key: bytes, nonce: str) -> bytes:
    """Return the key of one session's messages, made of the key that the two servers share."""
    return hmac.digest(key, nonce.encode(), "sha256")


def answer_key(own_key: bytes) -> bytes:
    """Return the key of a session's answers, made of that of its messages. So no message is taken for an answer."""
    return hmac.digest(own_key, b"answer", "sha256")  # defence: key-of-answers = own_key


def signature_of(key: bytes, header: str) -> str:
    """Return the signature of a header, in hexadecimal."""
    return hmac.new(key, header.encode(), "sha256").hexdigest()


def is_signed(key: bytes, header: str, signature: str) -> bool:
    """Return whether a header has this signature."""
    return hmac.compare_digest(signature_of(key, header).encode(), signature.encode())


def digest_of(blob: Blob) -> str:
    """Return the SHA-256 of a blob, in hexadecimal."""
    return hashlib.sha256(blob).hexdigest()


def digest_of_all(blobs: Iterable[Blob]) -> str:
    """Return the SHA-256 of blobs, one after the other, in hexadecimal: that of the state whose parts they are."""
    digest = hashlib.sha256()
    for blob in blobs:
        digest.update(blob)
    return digest.hexdigest()


def masked(key: bytes, number: int, index: int, ticket: bytes) -> bytes:
    """Return a ticket as it is sent, or as it was before that; the statement that sends it shows nothing of it.

    Parameters
    ----------
    key : bytes
        Of the session's messages.
    number : int
        That of the message.
    index : int
        Counts the tickets of a message.
    ticket : bytes
        32 bytes.
    """
    mask = hmac.digest(key, f"ticket {number} {index}".encode(), "sha256")
    return bytes(a ^ b for a, b in zip(ticket, mask, strict=True))

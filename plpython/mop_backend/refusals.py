"""Answers of a trainer that are errors: how they are read (process.py), and what becomes of them (writer.py)."""

from __future__ import annotations

import re

from mop_backend.frames import Frame, Header, Json

#: Longest text of an error that is shown and recorded, in characters.
_LONGEST = 10_000
_SQLSTATE = re.compile(r"[0-9A-Z]{5}")
_INTERNAL = "XX000"


class Refused(Exception):
    """The trainer answered with an error: the task failed, the trainer works."""

    def __init__(self, error: Header, kind: str):
        super().__init__(error["message"])
        self.error = error
        self.kind = kind


def readable(header: Header) -> Header:
    """Return an answer with an error that can be shown and recorded, whatever the trainer has sent as one.

    A trainer runs what users wrote. So each text of the error is cut, and has no characters that PostgreSQL does not
    take; what is missing or of another type gets a default.
    """
    if "error" not in header:
        return header
    sent = header["error"] if isinstance(header["error"], dict) else {}
    error: Header = {name: _text(sent.get(name)) for name in ("hint", "detail")}
    error["message"] = _text(sent.get("message")) or "the trainer sent an error without a message"
    sqlstate = sent.get("sqlstate")
    is_valid = isinstance(sqlstate, str) and _SQLSTATE.fullmatch(sqlstate) and not sqlstate.startswith("00")
    error["sqlstate"] = sqlstate if is_valid else _INTERNAL
    kind = header.get("kind")
    return {"error": error, "kind": kind if isinstance(kind, str) else "internal", "ending": bool(header.get("ending"))}


def _text(value: Json) -> str | None:
    """Return a text of an error as it can be shown."""
    if not isinstance(value, str):
        return None
    return value[:_LONGEST].encode("utf-8", "replace").decode().replace("\0", "?")


def checked(answer: Frame) -> Frame:
    """Return an answer that is no error. Raises Refused."""
    header, blobs = answer
    if "error" in header:
        raise Refused(header["error"], header.get("kind", "internal"))
    return header, blobs


def check_digest(model: Header, answer: Header) -> None:
    """Raise Refused if a stored state differs from the recorded one."""
    if model["digest"] is not None and answer["digest_in"] != model["digest"]:
        raise Refused(
            {
                "sqlstate": "XX001",
                "message": f"mst_key {model['mst_key']}: the stored state does not have the digest recorded for it",
            },
            "internal",
        )


def reason_of(error: Header, place: str) -> str:
    """Return in one line why a member of a group failed, in the driver's form for separate models."""
    return f"{error['message']} ({place})" + (f"; {error['hint']}" if error.get("hint") else "")

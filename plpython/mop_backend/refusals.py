"""Answers of a trainer that are errors, for `mop_backend.writer`."""

from __future__ import annotations

from mop_backend.frames import Frame, Header


class Refused(Exception):
    """The trainer answered with an error: the task failed, the trainer works."""

    def __init__(self, error: Header, kind: str):
        super().__init__(error["message"])
        self.error = error
        self.kind = kind


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

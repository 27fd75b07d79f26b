"""Answers of a trainer that are errors: how they are read (process.py), and what becomes of them (writer.py)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from mop_backend.frames import Header, Json

if TYPE_CHECKING:
    from mop_backend.messages import VisitFigures

_Blobs = TypeVar("_Blobs")
#: Longest text of an error that is shown and recorded, in characters.
_LONGEST = 10_000
_SQLSTATE = re.compile(r"[0-9A-Z]{5}")
_INTERNAL = "XX000"
#: Kinds of errors, of which ``trainer/process/failures.py`` has more. The data or the request is at fault:
INPUT = "input"
#: Memory was insufficient.
MEMORY = "memory"
#: The model to predict with is not loaded, or not any more.
NOT_LOADED = "not loaded"
#: A trainer that sessions share does not do this, because it would take too much memory or time of the others.
NOT_SHARED = "not shared"
_DAMAGED = "XX001"
#: What is wrong with a training state whose bytes are not those that were recorded.
STATE_GONE = "its stored state is gone"
STATE_DAMAGED = "its stored state is damaged: it does not have the SHA-256 that is recorded for it"


class Refused(Exception):
    """The trainer answered with an error: the task failed, the trainer works."""

    def __init__(self, error: Header, kind: str):
        super().__init__(error["message"])
        self.error = error
        self.kind = kind


class CutShort(Refused):
    """A blob of a request could not be made: the trainer waits for the rest of it, and must be ended."""


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
    # defence: length-of-an-error = value.encode("utf-8", "replace").decode().replace("\0", "?")
    return value[:_LONGEST].encode("utf-8", "replace").decode().replace("\0", "?")


def checked(answer: tuple[Header, _Blobs]) -> tuple[Header, _Blobs]:
    """Return an answer that is no error. Raises Refused."""
    header, blobs = answer
    if "error" in header:
        raise Refused(header["error"], header.get("kind", "internal"))
    return header, blobs


def check_digest(model: Header, trained: VisitFigures) -> None:
    """Raise Refused if a model was trained from another state than the recorded one."""
    if model["digest"] is not None and trained.digest_in != model["digest"]:
        raise damaged(STATE_DAMAGED)


def damaged(message: str) -> Refused:
    """Return the refusal of a state that is damaged or gone; only its model fails."""
    return Refused({"sqlstate": _DAMAGED, "message": message}, "model")


def with_way_out(error: Header, run_id: int, mst_key: int) -> Header:
    """Return an error with the statement that trains the model of a damaged state again, if it is about one."""
    return {**error, "hint": how_to_train_again(run_id, mst_key)} if error.get("sqlstate") == _DAMAGED else error


def how_to_train_again(run_id: int, mst_key: int, best_iteration: int | None = None) -> str:
    """Return the hint for a model of a run whose state is damaged or gone.

    ``best_iteration`` is the number of the iteration whose state is stored too, if there is one.
    """
    from_start = f"SELECT madlib_mop.clone_model({run_id}, {mst_key}, from_state => false);"
    ways = f"{from_start} trains a model with the same parameters from the start, without the others."
    if best_iteration is not None:
        from_best = f"SELECT madlib_mop.clone_model({run_id}, {mst_key});"
        ways = (
            f"{from_best} trains a model with the same parameters from its best iteration, {best_iteration}, without"
            f" the others; {from_start} trains it from the start."
        )
    return f"{ways} If the run has ended, SELECT madlib_mop.resume({run_id}); trains it."


def reason_of(error: Header, place: str) -> str:
    """Return in one line why a member of a group failed, in the driver's form for separate models."""
    return f"{error['message']} ({place})" + (f"; {error['hint']}" if error.get("hint") else "")

"""Failures in a trainer's answers: a kind for the driver, and one sentence for the user."""

import contextlib
import re
import traceback
from collections.abc import Iterator

from mop_backend import refusals
from mop_backend.frames import Header

from madlib_mop.errors import InvalidParameter, ModelFailed, MopError, OutOfResources, is_exhausted

#: The configuration is the cause: its model ends ``failed``, the others continue.
MODEL = "model"
#: These are explained in ``refusals.py``.
INPUT, MEMORY, NOT_LOADED, NOT_SHARED = refusals.INPUT, refusals.MEMORY, refusals.NOT_LOADED, refusals.NOT_SHARED
#: The trainer is at fault.
INTERNAL = "internal"

_MEMORY_HINT = (
    "Use a smaller batch_size or a smaller model, or raise the setting madlib_mop.trainer_memory_mb,"
    " which limits the memory of one trainer process."
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(
    r"^\s*(File \".*|Detected at node.*|Node: .*|\[\[.*|Graph execution error:.*|Stack trace for op.*|"
    r"Exception encountered when calling.*|Hint: If you want to see a list of allocated tensors.*)$"
)
_LONGEST = 400


class RequestFailure(Exception):
    """A failed request: ``kind`` and the error of the answer."""

    def __init__(self, kind: str, error: MopError):
        super().__init__(error.message)
        self.kind = kind
        self.error = error

    def as_answer(self) -> Header:
        """Return the header of the answering frame."""
        return {"error": self.error.as_dict(), "kind": self.kind}


def invalid_input(message: str, hint: str | None = None) -> RequestFailure:
    """Make the failure for data that cannot be trained on."""
    return RequestFailure(INPUT, InvalidParameter(message, hint=hint))


def not_shared(what: str) -> RequestFailure:
    """Make the failure for what a trainer that sessions share does not do; a session's own trainer does it."""
    return RequestFailure(NOT_SHARED, OutOfResources(f"a trainer that sessions share does not {what}"))


def model_failed(message: str, hint: str | None = None) -> RequestFailure:
    """Make the failure of one configuration."""
    return RequestFailure(MODEL, ModelFailed(message, hint=hint))


def failure_of(error: BaseException, kind: str = INTERNAL) -> RequestFailure:
    """Return the failure for an exception; ``kind`` is the default kind."""
    if isinstance(error, RequestFailure):
        return error
    if is_exhausted(error):
        return RequestFailure(MEMORY, OutOfResources(f"not enough memory{_for_what(error)}", hint=_MEMORY_HINT))
    if isinstance(error, MopError):
        return RequestFailure(kind, error)
    if kind == MODEL:
        return RequestFailure(MODEL, ModelFailed(sentence_of(error)))
    if kind == INPUT:
        return RequestFailure(INPUT, InvalidParameter(sentence_of(error)))
    return RequestFailure(
        kind, MopError(f"trainer: {sentence_of(error)}", hint="The trainer's stderr has the details.")
    )


@contextlib.contextmanager
def blaming(kind: str) -> Iterator[None]:
    """Convert every exception of the block to a RequestFailure, by default of ``kind``."""
    try:
        yield
    except RequestFailure:
        raise
    except Exception as error:
        if not isinstance(error, MopError):  # those were foreseen
            traceback.print_exc()
        raise failure_of(error, kind) from error


def sentence_of(error: BaseException) -> str:
    """Reduce a message of Keras or its backend to one line, without colours, stack frames or dumps of arguments."""
    text = _ESCAPES.sub("", str(getattr(error, "message", None) or error))
    text = text.split("Arguments received by")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.match(line)]
    line = " ".join(lines) or type(error).__name__
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _for_what(error: BaseException) -> str:
    """Return the purpose of the memory, if the message has the shape or the size of a tensor."""
    text = str(error)
    found = re.search(r"tensor with shape\[([\d,]+)\]", text)
    sizes = found[1].split(",") if found else re.findall(r"size: (\d+)", text)
    if sizes:
        return f" for a tensor of shape ({', '.join(sizes)})"
    n_bytes = re.search(r"allocat(?:e|ing) (\d+) bytes", text)
    return f" for a tensor of {int(n_bytes[1]):,} bytes" if n_bytes else ""

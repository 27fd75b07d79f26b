"""Compiled functions in requests and answers; called by ``server.py``.

If ``start`` has ``share_functions``, requests to train or to evaluate, and their answers, may have ``functions``: keys
of compiled functions, which are the first blobs of a request and the last ones of an answer. Other trainers of the run
have compiled those of a request.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mop_backend.frames import Blob, Header

from madlib_mop.trainer.requests import malformed

if TYPE_CHECKING:  # imports Keras
    from madlib_mop.trainer.backends.base.interface import Backend, SharedFunctions


class Sharing:
    """The functions of this trainer; it shares none before `begin`."""

    def __init__(self) -> None:
        self._functions: SharedFunctions | None = None

    def begin(self, backend: "Backend") -> None:
        """Share functions, if the backend compiles any; call it before anything is computed."""
        self._functions = backend.share_functions()

    def take(self, header: Header, blobs: list[Blob]) -> None:
        """Take the functions out of a request. Raises Failure (internal) if this trainer shares none."""
        keys = header.pop("functions", [])
        if keys and self._functions is None:
            raise malformed("this trainer takes no compiled functions")
        if self._functions is not None:
            self._functions.take({key: bytes(blob) for key, blob in zip(keys, blobs, strict=False)})
        del blobs[: len(keys)]

    def with_new(self, answer: Header, blobs: Sequence[Blob]) -> tuple[Header, Sequence[Blob]]:
        """Return an answer with the functions that were compiled since the last one."""
        new = self._functions.new() if self._functions is not None else {}
        return ({**answer, "functions": list(new)}, [*blobs, *new.values()]) if new else (answer, blobs)

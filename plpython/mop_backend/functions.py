"""Compiled functions on their way between a segment's trainer and the driver, which has those of all trainers.

Called by `mop_backend.writer`. A task may have ``functions``, which other trainers of the run have compiled; the answer
then has those that this trainer compiled: base64 by key. See `SharedFunctions` in the trainer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from mop_backend.frames import Blob, Frame, Header

#: Limits of an answer's compiled functions: bytes of all, and characters of a key. What exceeds them goes no further.
_MOST_BYTES, _LONGEST_KEY = 16 << 20, 256


class Functions:
    """The functions that the trainer has not yet got, and those that the driver has not yet got."""

    def __init__(self) -> None:
        self._for_trainer: dict[str, bytes] = {}
        self._for_driver: dict[str, Blob] = {}

    def take(self, task: Header, are_shared: bool = True) -> None:
        """Take the functions out of a task; drop them if the trainer does not share any."""
        functions = task.pop("functions", {})
        if are_shared:
            self._for_trainer.update({key: base64.b64decode(text) for key, text in functions.items()})

    def forget(self) -> None:
        """Forget all: the trainer has ended."""
        self._for_trainer, self._for_driver = {}, {}

    def on_request(self, request: Header, blobs: Iterable[Blob]) -> Frame:
        """Return a request to the trainer with the functions that it has not yet got."""
        given, self._for_trainer = self._for_trainer, {}
        return ({**request, "functions": list(given)}, [*given.values(), *blobs]) if given else (request, list(blobs))

    def from_answer(self, answer: Header, blobs: list[Blob], are_shared: bool = True) -> Frame:
        """Take the functions out of an answer; return the rest. Drop them if the trainer must not share any."""
        keys = answer.pop("functions", [])
        rest = len(blobs) - len(keys)
        are_small = sum(map(len, blobs[rest:])) <= _MOST_BYTES and all(len(str(key)) <= _LONGEST_KEY for key in keys)
        if are_shared and are_small:
            self._for_driver.update(zip(map(str, keys), blobs[rest:], strict=True))
        return answer, blobs[:rest]

    def on_answer(self, answer: Header) -> Header:
        """Return an answer to the driver with the functions that it has not yet got."""
        if not self._for_driver:
            return answer
        new, self._for_driver = self._for_driver, {}
        return {**answer, "functions": {key: base64.b64encode(blob).decode() for key, blob in new.items()}}

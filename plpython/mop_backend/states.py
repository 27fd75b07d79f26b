"""Where the states of a run's models are, who brings each to the trainer that needs it, and where the new one is kept.

`mop_backend.writer` asks one of three for that: `States`, whose states are in the tables of this server;
`mop_backend.segment_states` on Greenplum, where each is at the segment that made it; and `mop_backend.host_states`, for
runs of which hosts may hold some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mop_backend.refusals import checked

if TYPE_CHECKING:
    from mop_backend.frames import Blob, Header
    from mop_backend.messages import Detour, StateWrite
    from mop_backend.record import RunRecord


class Trainer(Protocol):
    """What asks a trainer: its channel."""

    def ask(self, header: Header, blobs: Sequence[Any] = ()) -> tuple[Header, Sequence[Any]]:
        """Send one request and wait for its answer."""


@dataclass(frozen=True)
class ArrivedPart:
    """A part of a state that the process at the segment has, for its trainer."""

    pull: int
    part: int


class AnsweredPart:
    """A blob of the trainer's answer that the process at the segment has; `bytes` brings it here.

    Parameters
    ----------
    number : int
        Which one of the answer.
    n_bytes : int
    fetch : callable
        Returns a blob of the answer by its number.
    """

    def __init__(self, number: int, n_bytes: int, fetch: Callable[[int], bytes]):
        self.number = number
        self._n_bytes = n_bytes
        self._fetch = fetch

    def __len__(self) -> int:
        return self._n_bytes

    def __bytes__(self) -> bytes:
        return self._fetch(self.number)


class States:
    """The states of a run, in the tables of this server.

    Parameters
    ----------
    record : RunRecord
    """

    def __init__(self, record: RunRecord):
        self._record = record

    def bring(
        self, models: Sequence[Header | None], n_parts: Sequence[int | None]
    ) -> list[Sequence[Blob | ArrivedPart]]:
        """Return what goes with a request about models: for each, the parts of its newest state.

        There are none for a model without a state, and where `train` and `evaluate` bring them.

        Parameters
        ----------
        models : sequence of dict or None
            Their rows of the record; None for an unused place.
        n_parts : sequence of int or None
            How many leading parts of each state are needed; None for all.

        Raises
        ------
        Refused
            If a state is not there, or not whole.
        """
        found = zip(models, n_parts, strict=True)
        return [[] if model is None else self._record.state(model, most) for model, most in found]

    def train(
        self,
        trainer: Trainer,
        request: Header,
        models: Sequence[Header | None],
        blobs: Sequence[Blob | ArrivedPart],
        versions: Sequence[tuple[int, int] | None] | None,
    ) -> tuple[Header, Sequence[Blob | AnsweredPart], dict[str, float]]:
        """Let a trainer make a visit; return its answer, the parts of the new states, and times, which may be no times.

        Parameters
        ----------
        trainer : channel
        request : dict
        models : sequence of dict or None
            As of `bring`.
        blobs : sequence
            What `bring` has returned, or start weights.
        versions : sequence of (int, int) or None
            mst_key and version of each new state, if these stay at the segment's host, which commits them. There are no
            parts then.

        Raises
        ------
        Refused, BadMessage, and what channels raise
        """
        assert versions is None, "new states come to this server"
        answer, parts = checked(trainer.ask(request, blobs))
        return answer, parts, {}

    def evaluate(
        self,
        trainer: Trainer,
        request: Header,
        models: Sequence[Header | None],
        blobs: Sequence[Blob | ArrivedPart],
    ) -> Header:
        """Let a trainer evaluate models; return its answer. Arguments and errors are those of `train`."""
        return checked(trainer.ask(request, blobs))[0]

    def put(
        self, write: StateWrite, parts: Sequence[Blob | AnsweredPart], segment_id: int | None = None
    ) -> None:
        """Write a new state; with ``segment_id``, one that is to be averaged with those of other segments."""
        for number, part in enumerate(parts):
            self._record.put_part(write, number, bytes(part), segment_id)

    def take_statements(self) -> list[str]:
        """Return what is left to execute after an order, for which `put` was called; each inserts one row."""
        return []

    def let_go(self, trainer: Trainer) -> None:
        """Let the segment's host let go of states that the run does not need any more."""

    def new_detours(self) -> tuple[Detour, ...]:
        """Return between which hosts states have begun to go through this session since the last call."""
        return ()

    def close(self) -> None:
        """Note that the trainer, or its session, has ended."""

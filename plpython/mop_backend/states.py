"""Where the states of a run's models are, who brings each to the trainer that needs it, and where the new one is kept.

`mop_backend.writer` asks one of three for that: `States`, whose states are in the tables of this server;
`mop_backend.segment_states` on Greenplum, where each is at the segment that made it; and `mop_backend.host_states`, for
runs of which hosts may hold some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from mop_backend.allocation import keep_freed_memory
from mop_backend.frames import BlobElsewhere, SomeBlob, lengths_of
from mop_backend.refusals import CutShort, Refused, checked

if TYPE_CHECKING:
    from mop_backend.frames import Header, Json
    from mop_backend.messages import Detour, StateWrite
    from mop_backend.record import LaterStatement, RunRecord

_Answer = TypeVar("_Answer")
#: Larger states are read part by part while they are sent; of smaller ones, a query for their parts would take longer.
LARGE_BYTES = 64 << 20


class Trainer(Protocol):
    """What asks a trainer: its channel."""

    demands_tls: bool

    def send(self, header: Header, blobs: Iterable[Any] = ()) -> None:
        """Send one request."""

    def ask(self, header: Header, blobs: Iterable[Any] = ()) -> tuple[Header, Sequence[Any]]:
        """Send one request and wait for its answer."""

    def ask_in_turn(self, header: Header, blobs: Iterable[Any] = ()) -> tuple[Header, Iterable[Any]]:
        """As `ask`; the blobs of the answer may be read when they are asked for, all before the next request."""


@dataclass(frozen=True)
class ArrivedPart(BlobElsewhere):
    """A part of a state that the process at the segment has, for its trainer; ``pull`` and ``part`` are its name."""

    n_bytes: int
    pull: int
    part: int


@dataclass(frozen=True)
class AnsweredPart(BlobElsewhere):
    """A blob of the trainer's answer that the process at the segment has; `bytes` brings it here.

    Attributes
    ----------
    n_bytes : int
    number : int
        Which one of the answer.
    fetch : callable
        Returns a blob of the answer by its number.
    """

    n_bytes: int
    number: int
    fetch: Callable[[int], bytes]

    def __bytes__(self) -> bytes:
        return self.fetch(self.number)


class NewStates(NamedTuple):
    """New states that stay at the segment's host.

    Attributes
    ----------
    versions : sequence of (int, int) or None
        mst_key and version of each.
    origin : JSON
        What they depend on besides the request: the run, which can have the number of another one that a backup has;
        and the rows.
    """

    versions: Sequence[tuple[int, int] | None]
    origin: Json


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
    ) -> list[Iterable[SomeBlob]]:
        """Return what goes with a request about models: for each, the parts of its newest state.

        There are none for a model without a state, and where `train` and `evaluate` bring them. Large states are
        `BlobsInTurn`.

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
        return [self._state(model, most) for model, most in zip(models, n_parts, strict=True)]

    def train(
        self,
        trainer: Trainer,
        request: Header,
        models: Sequence[Header | None],
        blobs: Iterable[SomeBlob],
        new: NewStates | None,
    ) -> tuple[Header, Iterable[SomeBlob], dict[str, float]]:
        """Let a trainer make a visit; return its answer, the parts of the new states, and times, which may be too long.

        Parts of large states may be `BlobsInTurn`: they are read from the trainer when they are asked for.

        Parameters
        ----------
        trainer : channel
        request : dict
        models : sequence of dict or None
            As of `bring`.
        blobs : iterable
            What `bring` has returned, or start weights.
        new : NewStates or None
            If the new states stay at the segment's host, which has committed them by then. There are no parts.

        Raises
        ------
        Refused, BadMessage, and what channels raise
        """
        assert new is None, "new states come to this server"
        answer, parts = checked(_sent(trainer.ask_in_turn, request, blobs))
        return answer, parts if sum(lengths_of(parts)) > LARGE_BYTES else list(parts), {}

    def evaluate(
        self, trainer: Trainer, request: Header, models: Sequence[Header | None], blobs: Iterable[SomeBlob]
    ) -> Header:
        """Let a trainer evaluate models; return its answer. Arguments and errors are those of `train`."""
        return checked(_sent(trainer.ask, request, blobs))[0]

    def put(self, write: StateWrite, parts: Iterable[SomeBlob], segment_id: int | None = None) -> int:
        """Write a new state, each part before the next one is asked for; return its bytes.

        With ``segment_id``, it is one that is to be averaged with those of other segments.
        """
        n_bytes = 0
        numbers = count()
        for part in parts:
            n_bytes += len(part)
            self._put_part(write, next(numbers), part, segment_id)
            del part  # before the next one is read; enumerate would hold it too
        return n_bytes

    def take_statements(self) -> list[LaterStatement]:
        """Return what is left to execute after an order, in this order; each is about one row."""
        return []

    def take_part(self, number: int) -> bytes:
        """Return the ``$1`` of a statement, once."""
        raise KeyError(number)

    def drop_statements(self) -> None:
        """Drop what is left of an order that has failed."""

    def let_go(self, trainer: Trainer) -> None:
        """Let the segment's host let go of states that the run does not need any more."""

    def new_detours(self) -> tuple[Detour, ...]:
        """Return between which hosts states have begun to go through this session since the last call."""
        return ()

    def close(self) -> None:
        """Note that the trainer, or its session, has ended."""

    def _state(self, model: Header | None, n_parts: int | None) -> Iterable[SomeBlob]:
        """Return the parts of one state, as `bring`."""
        if model is None:
            return []
        if not is_large(model):
            return self._record.state(model, n_parts)
        keep_freed_memory()
        return self._record.state_in_turn(model, n_parts)

    def _put_part(self, write: StateWrite, number: int, part: SomeBlob, segment_id: int | None) -> None:
        """Write one part of a new state."""
        assert not isinstance(part, BlobElsewhere), "the trainer's channel ends here"
        self._record.put_part(write, number, part, segment_id)


def is_large(model: Header) -> bool:
    """Return whether the newest state of a model is to be read part by part."""
    return (model["state_bytes"] or 0) > LARGE_BYTES


def _sent(ask: Callable[[Header, Iterable[Any]], _Answer], request: Header, blobs: Iterable[SomeBlob]) -> _Answer:
    """Send a request as ``ask`` does. Raises CutShort if a part of a state is gone."""
    try:
        return ask(request, blobs)
    except Refused as refusal:
        raise CutShort(refusal.error, refusal.kind) from None

"""The weights of a model, as they are read: from the field of a row, or in parts from a table beside; each time checked
against the SHA-256 that is recorded for them. Called by the driver, by sessions that predict, and by the client.

Weights can be larger than a field, and than what a session or a driver should hold. So they are read buffer by buffer,
while they are sent to the process that needs them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mop_backend.frames import Blob, BlobsInTurn

#: What is wrong with weights whose bytes are not those that were recorded.
WEIGHTS_DAMAGED = "its weights do not have the SHA-256 that is recorded for them"
#: What to do about a model of an output table.
WRITE_AGAIN = (
    "If the run is in madlib_mop.run: madlib_mop.drop_models drops the output tables, and madlib_mop.resume writes them"
    " again. Otherwise restore the table from a backup. If you have changed the weights yourself, set weights_digest to"
    " NULL."
)
#: The suffix of the table with the parts of weights that do not fit into a field of an output table.
PARTS_SUFFIX = "_weights"

#: Runs a query with values for its parameters and their SQL types; returns the rows.
Query = Callable[[str, Sequence[Any], Sequence[str]], Sequence[Mapping[str, Any]]]


class WeightErrors(NamedTuple):
    """The exceptions of weights that cannot be used.

    Attributes
    ----------
    damaged, changed : callable
        Return one: that the weights are not those of the recorded SHA-256; that they were changed while they were read.
    """

    damaged: Callable[[], Exception]
    changed: Callable[[], Exception]


class ModelWeights(BlobsInTurn[Blob]):
    """The weights of a model: float32, in ``get_weights()`` order, in one buffer or several.

    The buffers are read each time that this is iterated over. Before the last one, all are checked.

    Parameters
    ----------
    lengths : sequence of int
        Bytes of each buffer.
    read : callable
        Returns a buffer by its number.
    digest : str or None
        The SHA-256 that is recorded for all; None: it is not checked.
    errors : WeightErrors
    binds : bool
        Whether, without a digest, all passes after the first one must read the same bytes as that.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        read: Callable[[int], Blob | None],
        digest: str | None,
        errors: WeightErrors,
        binds: bool = False,
    ):
        self.lengths = lengths
        self._read = read
        self._digest = digest
        self._errors = errors
        self._binds = binds

    @property
    def n_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(self.lengths)

    def __iter__(self) -> Iterator[Blob]:
        found = hashlib.sha256() if self._digest is not None or self._binds else None
        for number, length in enumerate(self.lengths):
            buffer = self._read(number)
            if buffer is None or len(buffer) != length:
                raise self._errors.changed()
            if found is not None:
                found.update(buffer)
                if number == len(self.lengths) - 1:
                    self._check(found.hexdigest())
            yield buffer
            del buffer  # before the next one is read

    def _check(self, found: str) -> None:
        if self._digest is None:
            self._digest = found
            self._errors = WeightErrors(self._errors.changed, self._errors.changed)
        elif self._digest != found:
            raise self._errors.damaged()

    def digest(self) -> str:
        """Read all; return their SHA-256."""
        if self._binds or self._digest is not None:
            deque(self, maxlen=0)
            assert self._digest is not None, "there is one after a pass"
            return self._digest
        found = hashlib.sha256()
        for buffer in self:
            found.update(buffer)
        return found.hexdigest()

    def only(self, digest: str) -> ModelWeights:
        """Return the same weights, which raise that they were changed if they do not have this SHA-256."""
        return ModelWeights(self.lengths, self._read, digest, WeightErrors(self._errors.changed, self._errors.changed))


class JoinedWeights(ModelWeights):
    """The weights of several models, one after the other; those of each are checked as before."""

    def __init__(self, members: Sequence[ModelWeights]):
        self.lengths = [length for member in members for length in member.lengths]
        self._members, self._digest, self._binds = members, None, False

    def __iter__(self) -> Iterator[Blob]:
        for member in self._members:
            yield from member


class WeightsPlace(NamedTuple):
    """Where the weights of a model of a table are.

    Attributes
    ----------
    field_query : str
        One row with the columns ``weights``, NULL if they are in parts, and ``digest``, the recorded SHA-256 or NULL.
    lengths_query : str or None
        The columns ``part`` and ``n_bytes`` of each part, in order. None: there are no parts.
    part_query : str or None
        The column ``data`` of a part; its number is the last parameter.
    params, types : list
        Values and SQL types of the parameters of all, but for that number.
    """

    field_query: str
    lengths_query: str | None
    part_query: str | None
    params: list[Any]
    types: list[str]


def read_stored(query: Query, place: WeightsPlace, errors: WeightErrors) -> ModelWeights:
    """Return the weights of a model of a table. Raises the errors, also while they are iterated over."""
    rows = query(place.field_query, place.params, place.types)
    if len(rows) != 1:
        raise errors.changed()
    weights, digest = rows[0]["weights"], rows[0]["digest"]
    if weights is not None:
        return of_field(weights, digest, errors)
    if place.lengths_query is None:
        raise errors.changed()
    parts = query(place.lengths_query, place.params, place.types)

    def read(number: int) -> Blob | None:
        assert place.part_query is not None, "it comes with the query of lengths"
        found = query(place.part_query, [*place.params, number], [*place.types, "integer"])
        return found[0]["data"] if len(found) == 1 else None

    return of_parts([(row["part"], row["n_bytes"]) for row in parts], read, digest, errors)


def of_parts(
    parts: Sequence[tuple[int, int]], read: Callable[[int], Blob | None], digest: str | None, errors: WeightErrors
) -> ModelWeights:
    """Return weights of the numbers and the bytes of their parts; raise that they are damaged if one is not there."""
    if not parts or [number for number, _ in parts] != list(range(len(parts))):
        raise errors.damaged()
    return ModelWeights([n_bytes for _, n_bytes in parts], read, digest, errors, binds=True)


def of_field(weights: Blob, digest: str | None, errors: WeightErrors) -> ModelWeights:
    """Return weights in one buffer; raise that they are damaged if they do not have the recorded SHA-256."""
    if are_damaged(weights, digest):
        raise errors.damaged()
    return ModelWeights([len(weights)], lambda _: weights, None, errors)


def are_damaged(weights: Blob, digest: str | None) -> bool:
    """Return whether weights are not those of a recorded digest; without one, nothing is checked."""
    return digest is not None and hashlib.sha256(weights).hexdigest() != digest

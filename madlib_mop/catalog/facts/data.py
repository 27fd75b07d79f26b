"""What a run was trained on: tables, shards, classes, columns; made by `reading`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One shard of the run's data, and what the trainer of its segment has done and does.

    Attributes
    ----------
    data_set : str
        ``training``, ``validation`` or ``sample``. Only segments of training data make visits.
    segment_id : int
    place : str or None
        The foreign server that stores it; None for this server.
    n_rows, n_bytes : int or None
    fingerprint : str or None
        SHA-256 of its rows; None until a trainer has loaded them.
    n_visits, busy_s
        Of all visits that the trainer made; the seconds of models that trained together are divided among them.
    mst_key, epoch, seconds, loss, ended_at
        Of the newest visit that it made.
    task : mapping or None
        What it has been doing for a second: ``kind``, ``mst_keys`` and perhaps ``epoch``, as `madlib_mop.segment`.
    """

    data_set: str
    segment_id: int
    place: str | None
    n_rows: int | None
    n_bytes: int | None
    fingerprint: str | None
    n_visits: int = 0
    busy_s: float = 0.0
    mst_key: int | None = None
    epoch: int | None = None
    seconds: float | None = None
    loss: float | None = None
    ended_at: datetime | None = None
    task: Mapping[str, Any] | None = None
    task_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ClassCount:
    """One class of an output; ``n_rows`` is None if the packed table does not say how many rows it has."""

    name: str
    n_rows: int | None


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One output column: its classes, in the order of the units.

    Attributes
    ----------
    name : str
    classes : tuple of ClassCount
        Empty for a number.
    n_classes : int or None
        How many classes there are; ``classes`` may have only the first ones.
    why_no_counts : str or None
        Why their rows are unknown: a sentence.
    """

    name: str
    classes: tuple[ClassCount, ...]
    n_classes: int | None
    why_no_counts: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column of the ordinary table that the packed tables were made from: how it is encoded."""

    name: str
    sql_type: str
    role: str
    kind: str
    encoding: str


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What the run was trained on.

    Attributes
    ----------
    inputs : tuple of str
    outputs : tuple of OutputFacts
    segments : tuple of SegmentFacts
    columns : tuple of ColumnFacts
        Empty if pack_columns did not make the packed tables, or the viewer may not see their preprocessor.
    preprocessor_digest : str or None
    """

    inputs: tuple[str, ...]
    outputs: tuple[OutputFacts, ...]
    segments: tuple[SegmentFacts, ...]
    columns: tuple[ColumnFacts, ...] = ()
    preprocessor_digest: str | None = None

    def n_rows(self, data_set: str) -> int | None:
        """Return the rows of a data set; None if they are not known."""
        counts = [s.n_rows for s in self.segments if s.data_set == data_set]
        return sum(n for n in counts if n is not None) if counts and None not in counts else None

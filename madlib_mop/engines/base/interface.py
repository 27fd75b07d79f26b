"""The contract of an engine, implemented by `postgres` (with or without hosts) and the other engines.

An engine determines where data are stored and where work runs. No code above it (commands, plans, schedules, the
hopper) depends on a particular engine: it calls an `Engine`, checks its `EngineLimits`, and passes `SegmentLocation`
values without reading them.

The words
    segment   one part of the data, and the one trainer that works on it; numbered from 0.
    place     where a segment is. `HERE` is the server that the caller is on.
    shard     the rows of one packed table on one segment.
    channel   how a worker session reaches the trainer of its segment (`mop_backend.channels`): a process beside it, a
              relay to a session at another server, or a query that the engine itself runs at the segment.

What every engine promises
  - The segments of a new packed table are told by `segments`, before any work; their order is their number. The same
    settings give the same segments.
  - Which rows a segment gets does not depend on its place: so the bits of a run do not.
  - Rows reach the segments through a `Store`, in the caller's transaction as far as anybody can see: when that is
    rolled back, no name that the caller can use leads to what was written, and what lies elsewhere is removed later.
  - A packed table's query, ``WHERE __dist_key__ = k``, gives a shard's rows to any session that may read the table, on
    any engine. What is faster than that is in the plan: ``place`` with the shard's own query there.
  - The record (runs, states, visits, metrics) is on the server that the caller is on, whatever the engine. A visit is
    kept there by one commit. So what moves is a model's state: out to its next segment and back, or, where the engine
    has a motion of its own, by that.
  - A visit is cancelled by ending the worker's session; whatever the engine started for it ends within a second.

What an engine cannot do is in its `EngineLimits`, a table; a command that needs one of these things asks it and says
what the limit's text says.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.names import Relation
from madlib_mop.engines.base.caller import EngineCaller
from madlib_mop.engines.base.system_columns import naming_columns, version_columns

#: Settings with which callers choose segments.
SEGMENTS, HOSTS = "madlib_mop.segments", "madlib_mop.hosts"


@dataclass(frozen=True)
class SegmentLocation:
    """Where a segment is.

    Attributes
    ----------
    server : str or None
        Name of a foreign server that was added by madlib_mop.add_host; None is the caller's own.
    """

    server: str | None = None

    def __str__(self) -> str:
        return "here" if self.server is None else self.server


HERE = SegmentLocation()


@dataclass(frozen=True)
class Segment:
    """A segment of a table to be packed: ``number`` is its ``__dist_key__``."""

    number: int
    place: SegmentLocation = HERE


@dataclass(frozen=True)
class ShardPlace:
    """Where one shard of an existing packed table is.

    Attributes
    ----------
    server : str or None
        The foreign server; None is the caller's own server; there the shard is a separate table, too.
    table : Relation
        The shard's table there.
    """

    server: str | None
    table: Relation


@dataclass(frozen=True)
class EngineLimits:
    """The limits of an engine: each attribute is None if supported, else the reason, as the end of a sentence.

    Attributes
    ----------
    gpus : str or None
        Trainers that use GPUs.
    row_security : str or None
        Training on packed tables whose policies hide rows from the caller.
    uncommitted : str or None
        Training on a table that was packed in the caller's own, open transaction.
    fused_training : str or None
        Training several models in one graph.
    """

    gpus: str | None
    row_security: str | None
    uncommitted: str | None
    fused_training: str | None


class Store(ABC):
    """A packed table while it is created and filled; a context manager: nothing is committed anywhere if it is left
    early."""

    @abstractmethod
    def create(self) -> None:
        """Create the table and a partition for each segment."""

    @abstractmethod
    def insert(self, segment: int, buffer_id: int, values: Sequence[bytes], shapes: Sequence[Sequence[int]]) -> None:
        """Write one buffer; buffers come segment after segment, ascending. An error may be raised later, at the latest
        by `finish`."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the table; called once, after the last buffer."""

    @abstractmethod
    def close(self) -> None:
        """Close everything; without `finish` before, nothing remains on other servers."""

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Engine(ABC):
    """A kind of server that tables are packed on and runs are driven from."""

    name: str
    #: Whether a shard of a packed table can move to another location after a run was planned.
    moves_shards = False
    #: Whether two scans of a table give its rows in the same order.
    keeps_order = True

    @abstractmethod
    def limits(self, places: Sequence[SegmentLocation]) -> EngineLimits:
        """Return the limits with segments at these locations."""

    @abstractmethod
    def segments(self, session: EngineCaller) -> list[Segment]:
        """Return the segments that a table packed now would have; raise a MopError for settings that cannot be met."""

    @abstractmethod
    def check_host(self, server: str) -> None:
        """Raise Unsupported if other servers cannot be added as hosts; ``server`` is the one to add."""

    def part_suffixes(self, segments: Sequence[Segment]) -> tuple[str, ...]:
        """Return the suffixes of the names of the tables that a packed table consists of."""
        return ()

    @abstractmethod
    def check(self, session: EngineCaller, segments: Sequence[Segment]) -> None:
        """Raise a MopError unless the caller can write rows to these segments; nothing is changed yet."""

    @abstractmethod
    def store(
        self, session: EngineCaller, table: Relation, columns: Sequence[str], segments: Sequence[Segment]
    ) -> Store:
        """Return the store that creates and fills a packed table; ``columns`` are inputs and outputs, in their
        order."""

    @abstractmethod
    def shard_places(self, session: EngineCaller, relation: Relation) -> Mapping[int, ShardPlace]:
        """Return the locations of a packed table's shards by ``__dist_key__``: those on other servers, or all."""

    def shard_keys(self, session: EngineCaller, relation: Relation, what: str) -> Mapping[int, int]:
        """Return the segment of each ``__dist_key__`` of a packed table, if the key is not the segment's number."""
        return {}

    def feed_query(self, relation: Relation, columns: Sequence[str]) -> str | None:
        """Return the query by which the engine itself sends a shard to the trainer of its segment, or None."""
        return None

    def naming_columns(self, session: EngineCaller, relation: Relation) -> tuple[str, ...]:
        """Return the system columns that together identify one row of a table or view; () if there are none."""
        return naming_columns(session, relation)

    def version_columns(self, session: EngineCaller, relation: Relation) -> tuple[str, ...]:
        """Return the system columns that differ between any two versions of rows; () if there are none."""
        return version_columns(session, relation)

    def reads_by_blocks(self, session: EngineCaller, relation: Relation) -> bool:
        """Return whether ranges of a table's blocks can be read one by one, each for the cost of its own blocks."""
        return False

    def distribution(self, columns: Sequence[str]) -> str:
        """Return the clause of CREATE TABLE that distributes rows by these columns, or randomly without columns."""
        return ""

    def dbids(self, session: EngineCaller, segments: Sequence[Segment]) -> Mapping[int, Segment]:
        """Return the segments by their numbers in a table of distribution_rules."""
        return {segment.number + 1: segment for segment in segments}

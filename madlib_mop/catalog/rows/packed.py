"""The packed tables of a run in its plan (``plan.py``): where each shard is, and how workers read it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from madlib_mop.catalog.rows.base import Json


@dataclass(frozen=True, slots=True)
class ShardAccess:
    """How a worker reads a shard that is not read from the whole table on this server.

    Attributes
    ----------
    query : str
    server : str or None
        The foreign server to read it from.
    key : int or None
        Its ``__dist_key__``, if the engine's dispatcher sends its rows.
    """

    query: str
    server: str | None = None
    key: int | None = None

    def as_json(self) -> Json:
        """Return the value from the plan."""
        if self.key is not None:
            return {"key": self.key, "query": self.query}
        return {"server": self.server, "query": self.query}


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard of a packed table.

    Attributes
    ----------
    segment_id, n_rows, n_bytes : int
    place : ShardAccess or None
    key : int or None
        Its ``__dist_key__``, if that differs from the segment's number.
    """

    segment_id: int
    n_rows: int
    n_bytes: int
    place: ShardAccess | None = None
    key: int | None = None

    @property
    def server(self) -> str | None:
        """The foreign server that it is read from; None for this server."""
        return self.place.server if self.place else None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the value from the plan."""
        place = found.get("place")
        place = ShardAccess(place["query"], place.get("server"), place.get("key")) if place else None
        return cls(found["segment_id"], found["n_rows"], found.get("n_bytes", 0), place, found.get("key"))

    def as_json(self) -> Json:
        """Return the value from the plan."""
        written: Json = {"segment_id": self.segment_id, "n_rows": self.n_rows, "n_bytes": self.n_bytes}
        written["place"] = self.place.as_json() if self.place else None
        return written if self.key is None else {**written, "key": self.key}


@dataclass(frozen=True, slots=True)
class PackedData:
    """A packed table as workers read it.

    Attributes
    ----------
    table, sql_name : str
        Its name for messages, and quoted.
    oid : int
    query : str
        The SELECT of one segment's buffers.
    n_x, n_y : int
        How many inputs and outputs it has.
    normalizing_const : float
    segments : tuple of ShardPlan
    index_inputs : tuple of int
        Which inputs, by number, hold int32 indices instead of float32 numbers; both have four bytes.
    """

    table: str
    sql_name: str
    oid: int
    query: str
    n_x: int
    n_y: int
    normalizing_const: float
    segments: tuple[ShardPlan, ...]
    index_inputs: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return what the plan has; where no input holds indices, it does not mention them."""
        own = ("segments", "index_inputs")
        columns = {f.name: found[f.name] for f in dataclasses.fields(cls) if f.name not in own}
        segments = tuple(map(ShardPlan.from_json, found["segments"]))
        return cls(**columns, segments=segments, index_inputs=tuple(found.get("index_inputs", ())))

    def as_json(self) -> Json:
        """Return the value from the plan."""
        written = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if not self.index_inputs:
            del written["index_inputs"]
        return {**written, "segments": [shard.as_json() for shard in self.segments]}

"""Sends the rows of a shard, buffer by buffer; called by a reader session and, at a segment's host, by its session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict

import plpy

from mop_backend.interrupts import Interrupts
from mop_backend.rows import RowsLost, Sender
from mop_backend.sql_errors import raise_cut

if TYPE_CHECKING:
    from mop_backend.frames import Frame, Header
    from mop_backend.process import Child

#: What `shard_form` says.
_FORM = ("n_x", "n_y", "normalizing_const", "index_inputs", "first_rows", "planned_rows")
_AT_SEGMENT = {
    "connect": "select madlib_mop_calls.reader_connect($2) from madlib_mop.segment_key where __dist_key__ = $1",
    "end": "select madlib_mop_calls.reader_end($2) from madlib_mop.segment_key where __dist_key__ = $1",
}


class ShardLocation(TypedDict):
    """The location of a shard that is not on this server: at a host, or at a segment of Greenplum, which has a
    ``key``."""

    server: NotRequired[str]
    query: str
    key: NotRequired[int]


class PlannedShard(TypedDict):
    """One shard of a plan's data set; ``key`` is its ``__dist_key__`` where that is not its segment's number."""

    segment_id: int
    n_rows: NotRequired[int]
    key: NotRequired[int]
    place: NotRequired[ShardLocation | None]


class RowsSource(TypedDict):
    """A plan's ``training`` or ``validation``, or the first rows of one shard of it: how its rows are read."""

    query: str
    n_x: int
    n_y: int
    normalizing_const: float | None
    segments: list[PlannedShard]
    index_inputs: NotRequired[list[int]]  # numbers of inputs of type int32; absent if there are none
    first_rows: NotRequired[int]  # of a sample: the trainer takes no more, and keeps them


class Reading(TypedDict):
    """Arguments of `send_shard`."""

    address: str
    query: str
    key: int
    n_columns: int
    at: int | None


def send_shard(address: str, query: str, key: int, n_columns: int, at: int | None) -> int:
    """Read a shard with this session's rights and send it to the session that has the trainer.

    The connection is made before the query begins, so before any code of users can run in the statement.

    Parameters
    ----------
    address : str
        Where the rows are expected.
    query : str
        As `read_buffers`', or, where the segment's own process is to send, one of dispatch_rows: ``$1`` is the key and
        ``$2`` the address.
    key : int
        The shard's ``__dist_key__``.
    n_columns : int
        How many inputs and outputs there are.
    at : int or None
        A ``__dist_key__`` of the Greenplum segment whose process reads and sends; None if this one does.

    Returns
    -------
    int
        Number of buffers.
    """
    try:
        if at is None:
            return _send(address, query, key, n_columns)
        plans = {name: plpy.prepare(text, ["int4", "text"]) for name, text in _AT_SEGMENT.items()}
        plpy.execute(plans["connect"], [at, address])
        plpy.execute(plpy.prepare(query, ["int4", "text"]), [key, address])
        n_buffers: int = plpy.execute(plans["end"], [at, address])[0]["reader_end"]
        return n_buffers
    except RowsLost as loss:
        plpy.error(str(loss), sqlstate="55000")
    except plpy.SPIError as error:
        raise_cut(error)


def stream_shard(child: Child, shard: str, query: str, key: int, form: Header) -> Frame:
    """Read a shard with this session's rights and send it to a trainer.

    Parameters
    ----------
    child : Child
        The trainer, or the way to it.
    shard : str
        Its name in the trainer.
    query, key
        As `read_buffers`'.
    form : dict
        What `shard_form` returns for the data set.

    Returns
    -------
    tuple of (dict, list)
        What the trainer answered to ``shard_end``.
    """
    child.send({"op": "shard_begin", "shard": shard, **{name: form[name] for name in _FORM if name in form}})
    for shapes, blobs in read_buffers(query, key, form["n_x"] + form["n_y"]):
        child.send({"op": "shard_rows", "shapes": shapes}, blobs)
    return child.ask({"op": "shard_end", "shard": shard})


def read_buffers(query: str, key: int, n_columns: int) -> Iterator[tuple[list[Sequence[int]], list[bytes]]]:
    """Yield shapes and bytes of each buffer of a shard, one each a column.

    Parameters
    ----------
    query : str
        SELECT of columns b0, s0, b1, s1, ...; ``$1`` is the key.
    key : int
        The shard's ``__dist_key__``.
    n_columns : int
    """
    cursor = plpy.cursor(plpy.prepare(query, ["int4"]), [key])
    try:
        while True:
            rows = cursor.fetch(1)
            if not rows.nrows():
                break
            yield [rows[0][f"s{i}"] for i in range(n_columns)], [rows[0][f"b{i}"] for i in range(n_columns)]
    finally:
        cursor.close()


def shard_form(source: RowsSource, segment_id: int) -> Header:
    """Return the description of a shard of a data set for a trainer, sent before its rows."""
    n_rows = next((shard.get("n_rows") for shard in source["segments"] if shard["segment_id"] == segment_id), None)
    return {
        "n_x": source["n_x"],
        "n_y": source["n_y"],
        "normalizing_const": source["normalizing_const"],
        "index_inputs": source.get("index_inputs", []),
        "first_rows": source.get("first_rows"),
        "planned_rows": n_rows,
    }


def with_sample(plan: Header) -> Header:
    """Return a run's plan in which the sample, if there is one, is a data set of its own: the first rows of a shard.

    Its queries read no more buffers than needed, except the aggregates of Greenplum's dispatcher.
    """
    sample = plan.get("sample")
    if sample is None:
        return plan
    source: RowsSource = plan[sample["data_set"]]
    n_rows: int = sample["n_rows"]
    (shard,) = (shard for shard in source["segments"] if shard["segment_id"] == sample["segment_id"])
    place = shard.get("place")
    if place is not None and "key" not in place:
        place = {**place, "query": _first_buffers(place["query"], n_rows)}
    query, shard = _first_buffers(source["query"], n_rows), {**shard, "place": place}
    return {**plan, "sample": {**source, "query": query, "segments": [shard], "first_rows": n_rows}}


def _first_buffers(query: str, n_rows: int) -> str:
    """Return a query of the buffers of a shard that hold its first rows."""
    return (
        "SELECT l.* FROM (SELECT b.*, pg_catalog.sum(b.s0[1]) OVER (ROWS UNBOUNDED PRECEDING) AS upto"
        f" FROM ({query}) AS b) AS l WHERE l.upto - l.s0[1] < {n_rows}"
    )


def _send(address: str, query: str, key: int, n_columns: int) -> int:
    sender = Sender(address, Interrupts())
    try:
        for shapes, blobs in read_buffers(query, key, n_columns):
            sender.send(shapes, blobs)
        return sender.end()
    finally:
        sender.close()

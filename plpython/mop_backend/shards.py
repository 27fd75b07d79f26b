"""Sends the rows of a shard, buffer by buffer; called by a reader session and, at a segment's host, by its session."""

import plpy

from mop_backend.interrupts import Interrupts
from mop_backend.rows import RowsLost, Sender

_AT_SEGMENT = {
    "connect": "select madlib_mop_calls.reader_connect($2) from madlib_mop.segment_key where __dist_key__ = $1",
    "end": "select madlib_mop_calls.reader_end($2) from madlib_mop.segment_key where __dist_key__ = $1",
}


def send_shard(address, query, key, n_columns, at):
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
        return plpy.execute(plans["end"], [at, address])[0]["reader_end"]
    except RowsLost as loss:
        plpy.error(str(loss), sqlstate="55000")


def stream_shard(child, shard, query, key, form):
    """Read a shard with this session's rights and send it to a trainer.

    Parameters
    ----------
    child : Child
        The trainer, or the way to it.
    shard : str
        The name by which the trainer will know it.
    query, key
        As `read_buffers`'.
    form : dict
        ``n_x``, ``n_y`` and ``normalizing_const`` of the data set.

    Returns
    -------
    tuple of (dict, list)
        What the trainer answered to ``shard_end``.
    """
    child.send({"op": "shard_begin", "shard": shard, **shard_form(form)})
    for shapes, blobs in read_buffers(query, key, form["n_x"] + form["n_y"]):
        child.send({"op": "shard_rows", "shapes": shapes}, blobs)
    return child.ask({"op": "shard_end", "shard": shard})


def read_buffers(query, key, n_columns):
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


def shard_form(source):
    """Return what a trainer must know of a data set before its rows come."""
    return {name: source[name] for name in ("n_x", "n_y", "normalizing_const")}


def _send(address, query, key, n_columns):
    sender = Sender(address, Interrupts())
    try:
        for shapes, blobs in read_buffers(query, key, n_columns):
            sender.send(shapes, blobs)
        return sender.end()
    finally:
        sender.close()

"""Sends the rows of a shard to a trainer; called by a worker session and, at a segment's host, by its session there."""

import plpy


def stream_shard(child, shard, query, key, form):
    """Read the buffers of a shard with this session's rights and send them one by one.

    Parameters
    ----------
    child : Child
        The trainer, or the way to it.
    shard : str
        The name by which the trainer will know it.
    query : str
        SELECT of columns b0, s0, b1, s1, ...; ``$1`` is the key.
    key : int
        The shard's ``__dist_key__``.
    form : dict
        ``n_x``, ``n_y`` and ``normalizing_const`` of the data set.

    Returns
    -------
    tuple of (dict, list)
        What the trainer answered to ``shard_end``.
    """
    child.send({"op": "shard_begin", "shard": shard, **shard_form(form)})
    n_columns = form["n_x"] + form["n_y"]
    cursor = plpy.cursor(plpy.prepare(query, ["int4"]), [key])
    try:
        while True:
            rows = cursor.fetch(1)
            if not rows.nrows():
                break
            blobs = [rows[0][f"b{i}"] for i in range(n_columns)]
            shapes = [rows[0][f"s{i}"] for i in range(n_columns)]
            child.send({"op": "shard_rows", "shapes": shapes}, blobs)
    finally:
        cursor.close()
    return child.ask({"op": "shard_end", "shard": shard})


def shard_form(source):
    """Give what a trainer must know of a data set before its rows come."""
    return {name: source[name] for name in ("n_x", "n_y", "normalizing_const")}

"""A trainer at a Greenplum segment, as `mop_backend.process.Child` is one beside the worker: the same calls.

The worker is a backend of the coordinator. Each call is a query for one row of madlib_mop.segment_key, which the server
runs in the one process that this session has at that row's segment; `mop_backend.dispatched` answers there.
"""

import hmac
import itertools
import json
import secrets

import plpy

from mop_backend.channels import place_of
from mop_backend.process import ChildDied
from mop_backend.shards import shard_form, stream_shard

_WAIT_S = 0.2  # between two looks at the client's socket
_QUERIES = {
    "open": ("select madlib_mop.dispatch_open($2) as value", ["bytea"]),
    "put": ("select madlib_mop.dispatch_put($2, $3, $4) as value", ["int8", "text", "bytea"]),
    "send": ("select madlib_mop.dispatch_send($2, $3, $4) as value", ["int8", "text", "text"]),
    "receive": ("select madlib_mop.dispatch_receive($2, $3, $4) as value", ["int8", "text", "float8"]),
    "get": ("select madlib_mop.dispatch_get($2, $3, $4) as value", ["int8", "text", "int4"]),
}
_plans = {}
_secret = secrets.token_bytes(
    32
)  # the session's: each process that it has at a segment takes the first key it is given
_numbers = itertools.count(1)


class Dispatch:
    """The trainer of one segment; `send` of a message ``start`` starts it.

    Parameters
    ----------
    segment_id : int
        The segment's number (``gp_segment_id``).
    key : int
        A ``__dist_key__`` of `madlib_mop.segment_key` that lies there.
    check : callable
        Called while waiting for the trainer.
    """

    averages = True

    def __init__(self, segment_id, key, check):
        self._key = key
        self._check = check
        self._death = None
        self._segment_id = segment_id
        self._open()

    @property
    def alive(self):
        """Whether the trainer still runs, as far as its answers have told."""
        return self._death is None

    def send(self, header, blobs=()):
        """Send one message. Raises ChildDied."""
        for blob in blobs:
            self._ask("put", "put", bytes(blob))
        text = json.dumps(header)
        self._told(self._ask("send", text, text))

    def receive(self):
        """Wait for an answer: ``(header, list of bytes)``. Raises ChildDied."""
        while (answer := self._told(self._ask("receive", "receive", _WAIT_S))) is None:
            self._check()
        return answer["header"], [self._ask("get", f"get {i}", i) for i in range(answer["n_blobs"])]

    def ask(self, header, blobs=()):
        """Send one message and wait for its answer. Raises ChildDied."""
        self.send(header, blobs)
        return self.receive()

    def load_shard(self, shard, source, segment_id):
        """As `mop_backend.channels.Local.load_shard`; the rows that lie at this segment do not leave it.

        Their query is one of `madlib_mop.dispatch_rows`: ``$1`` is the shard's ``__dist_key__``, ``$2`` the ticket.
        """
        place = place_of(source, segment_id)
        if segment_id != self._segment_id:
            return stream_shard(self, shard, source["query"], place["key"], source)
        self.send({"op": "shard_begin", "shard": shard, **shard_form(source)})
        plpy.execute(plpy.prepare(place["query"], ["int4", "text"]), [place["key"], self._seal_next("rows")])
        return self.ask({"op": "shard_end", "shard": shard})

    def stop(self):
        """End the trainer; one that cannot be reached ends with the session."""
        try:
            self._open()
        except plpy.SPIError:
            pass

    def death(self):
        """Give the ChildDied that tells how the trainer ended."""
        return ChildDied(*(self._death or (0, "")))

    def _open(self):
        at = _run("open", [self._key, _secret])
        if at != self._segment_id:
            plpy.error(f"__dist_key__ {self._key} is at segment {at}, not {self._segment_id}", sqlstate="XX000")
        self._death = None

    def _ask(self, name, what, argument):
        number, _, seal = self._seal_next(what).partition(" ")
        return _run(name, [self._key, int(number), seal, argument])

    def _seal_next(self, what):
        number = next(_numbers)
        return f"{number} " + hmac.new(_secret, f"{number} {what}".encode(), "sha256").hexdigest()

    def _told(self, text):
        if text is None:
            return None
        answer = json.loads(text)
        if "died" in answer:
            self._death = answer["died"]["status"], answer["died"]["stderr"]
            raise self.death()
        return answer


def _run(name, values):
    if name not in _plans:
        query, types = _QUERIES[name]
        _plans[name] = plpy.prepare(f"{query} from madlib_mop.segment_key where __dist_key__ = $1", ["int4", *types])
    rows = plpy.execute(_plans[name], values)
    if rows.nrows() != 1:
        plpy.error(f"__dist_key__ {values[0]} is not in madlib_mop.segment_key", sqlstate="XX000")
    return rows[0]["value"]

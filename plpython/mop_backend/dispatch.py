"""A trainer at a Greenplum segment, with the same methods as `mop_backend.process.Child`.

The writer is a backend of the coordinator. Each call is a query for one row of madlib_mop.segment_key, which the server
runs in the one process that this session has at that row's segment; `mop_backend.dispatched` answers there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import plpy

from mop_backend.channels import place_of, reading
from mop_backend.frames import Blob, Header, Json
from mop_backend.interrupts import Interrupts
from mop_backend.process import ChildDied
from mop_backend.rows import RowsListener, RowsLost
from mop_backend.shards import Reading, RowsSource, ShardLocation, shard_form
from mop_backend.states import AnsweredPart, ArrivedPart

# Between two looks at the client's socket. Each wait is a statement, of which the server sends the plan; and once a
# state has been pulled, it tells all segments of the beginning and the end of the statement's subtransaction.
_WAIT_S = 1.0
_QUERIES: dict[str, tuple[str, list[str]]] = {
    "open": ("select madlib_mop_internal.dispatch_open() as value", []),
    "put": ("select madlib_mop_internal.dispatch_put($1) as value", ["bytea"]),
    "send": ("select madlib_mop_internal.dispatch_send($1) as value", ["text"]),
    "ask": ("select madlib_mop_internal.dispatch_ask($1, $2) as value", ["text", "float8"]),
    "receive": ("select madlib_mop_internal.dispatch_receive($1) as value", ["float8"]),
    "get": ("select madlib_mop_internal.dispatch_get($1) as value", ["int4"]),
    "listen": ("select madlib_mop_internal.dispatch_listen() as value", []),
    "forward": ("select madlib_mop_internal.dispatch_forward() as value", []),
}
# A custom plan has the value of a parameter as a constant, and Greenplum sends the parameter besides: a state would be
# sent twice. A generic plan has no values, so keys are literals of the text: only then is it sent to one segment only.
# Parallel scans, which some builds have, would take more processes at the segments.
_SETTINGS = (
    "select pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false),"
    " pg_catalog.set_config('max_parallel_workers_per_gather', '0', false)"
)
_plans: dict[str, plpy.Plan] = {}


class Dispatch:
    """The trainer of one segment; `send` of a message ``start`` starts it.

    Parameters
    ----------
    segment_id : int
        The segment's number (``gp_segment_id``).
    key : int
        A ``__dist_key__`` of `madlib_mop.segment_key` that lies there.
    interrupts : Interrupts
        Checked while waiting for the trainer, or for rows.
    """

    averages = True
    demands_tls = False

    def __init__(self, segment_id: int, key: int, interrupts: Interrupts):
        self._key = int(key)
        self._interrupts = interrupts
        self._death: tuple[int, str] | None = None
        self._segment_id = segment_id
        self._listener: RowsListener | None = None
        plpy.execute(_SETTINGS)
        self._open()

    @property
    def alive(self) -> bool:
        """Whether the trainer is running, according to its answers."""
        return self._death is None

    def send(self, header: Header, blobs: Iterable[Blob | ArrivedPart] = ()) -> None:
        """Send one message. Raises ChildDied."""
        self._answer(self._ask("send", self._message(header, blobs)))

    def receive(self) -> tuple[Header, list[AnsweredPart]]:
        """Wait for an answer, whose blobs stay at the segment. Raises ChildDied."""
        return self._received(self._answer(self._ask("receive", _WAIT_S)))

    def ask(
        self, header: Header, blobs: Iterable[Blob | ArrivedPart] = ()
    ) -> tuple[Header, list[AnsweredPart]]:
        """Send one message and wait for its answer. Raises ChildDied."""
        return self._received(self._answer(self._ask("ask", self._message(header, blobs), _WAIT_S)))

    ask_in_turn = ask

    def reader_of(self, source: RowsSource, segment_id: int) -> Reading:
        """As `mop_backend.channels.Local.reader_of`; rows that lie at this segment do not leave its host.

        Their query is one of the aggregate dispatch_rows: ``$1`` is the shard's ``__dist_key__``, ``$2`` the address.
        """
        place = _place_of(source, segment_id)
        if segment_id == self._segment_id:
            return reading(self._ask("listen"), place["query"], place["key"], source, at=self._key)
        self._stop_listening()
        self._listener = RowsListener()
        return reading(self._listener.address, source["query"], place["key"], source)

    def load_shard(
        self, shard: str, source: RowsSource, segment_id: int, reader_pid: int | None
    ) -> tuple[Header, list[AnsweredPart]]:
        """As `mop_backend.channels.Local.load_shard`.

        The reader's process at the segment is another than ``reader_pid``, and not known: one connection is
        accepted, from any process that knows the address, which is random and sent only to the shard's reader.
        """
        self.send({"op": "shard_begin", "shard": shard, **shard_form(source, segment_id)})
        if segment_id == self._segment_id:
            loss = json.loads(self._ask("forward"))
            if loss is not None:
                raise RowsLost(loss)
        else:
            assert self._listener is not None, "reader_of was not called before"
            self._listener.forward(self._send_buffer, self._interrupts, reader_pid)
        return self.ask({"op": "shard_end", "shard": shard})

    def stop(self) -> None:
        """End the trainer; if it cannot be reached, it ends with the session."""
        self._stop_listening()
        try:
            self._open()
        except plpy.SPIError:
            pass

    def death(self) -> ChildDied:
        """Return the ChildDied with the trainer's exit status."""
        return ChildDied(*(self._death or (0, "")))

    def _message(self, header: Header, blobs: Iterable[Blob | ArrivedPart]) -> str:
        """Return a message in its form at the segment, where its blobs are by then."""
        kept: list[tuple[int, int] | None] = []
        for blob in blobs:
            if isinstance(blob, ArrivedPart):
                kept.append((blob.pull, blob.part))
            else:
                kept.append(None)
                self._ask("put", bytes(blob))
        return json.dumps({"header": header, "blobs": kept})

    def _received(self, answer: Header | None) -> tuple[Header, list[AnsweredPart]]:
        """Return an answer; wait for it if it has not come yet."""
        while answer is None:
            self._interrupts.check_client()  # the statement checks the others
            answer = self._answer(self._ask("receive", _WAIT_S))
        return answer["header"], [AnsweredPart(size, i, self._get) for i, size in enumerate(answer["sizes"])]

    def _get(self, number: int) -> bytes:
        blob: bytes = self._ask("get", number)
        return blob

    def _open(self) -> None:
        at = self._ask("open")
        if at != self._segment_id:
            plpy.error(f"__dist_key__ {self._key} is at segment {at}, not {self._segment_id}", sqlstate="XX000")
        self._death = None

    def _send_buffer(self, shapes: Sequence[Sequence[int]], blobs: Sequence[Blob]) -> None:
        self.send({"op": "shard_rows", "shapes": shapes}, blobs)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _ask(self, name: str, *arguments: object) -> Json:
        query, types = _QUERIES[name]
        text = f"{query} from madlib_mop.segment_key where __dist_key__ = {self._key}"
        if text not in _plans:
            _plans[text] = plpy.prepare(text, types)
        rows = plpy.execute(_plans[text], list(arguments))
        if rows.nrows() != 1:
            plpy.error(f"__dist_key__ {self._key} is not in madlib_mop.segment_key", sqlstate="XX000")
        return rows[0]["value"]

    def _answer(self, text: str | None) -> Header | None:
        if text is None:
            return None
        answer: Header = json.loads(text)
        if "died" in answer:
            self._death = answer["died"]["status"], answer["died"]["stderr"]
            raise self.death()
        return answer


def _place_of(source: RowsSource, segment_id: int) -> ShardLocation:
    place = place_of(source, segment_id)
    assert place is not None, "the plan says of each segment where it is"
    return place

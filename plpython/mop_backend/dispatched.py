"""At a Greenplum segment: the processes that a writer's and a reader's session have there, and the trainer.

Each function of sql/27-dispatch.sql has one here. They must not read tables: their data come with the call.
In a writer's process (`mop_backend.dispatch` at the coordinator calls) there is the trainer; only superusers may
execute its functions, and no code of users runs there. In a reader's process (`mop_backend.shards`) there is, while a
shard is read, the connection to the writer's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import plpy

from mop_backend.frames import Blob, Header
from mop_backend.interrupts import Interrupts
from mop_backend.process import Child, ChildDied, start_trainer_of_run
from mop_backend.rows import RowsListener, RowsLost, Sender

_Result = TypeVar("_Result")
_SLICE_S = 0.1
_segment: _Segment | None = None
_sender: Sender | None = None


def open_segment() -> int:
    """Make this process the writer's at its segment; end the trainer that it may have. Return the segment's number."""
    global _segment
    if _segment is None:
        _segment = _Segment()
    _segment.close()
    return int(plpy.execute("select pg_catalog.current_setting('gp_contentid') as id")[0]["id"])


def put(part: bytes) -> int:
    """Add a blob to the next message; return the number of blobs."""
    blobs = _opened().outgoing
    blobs.append(part)
    return len(blobs)


def keep(pull: int, part: int, data: bytes) -> int:
    """Keep a part of a state for messages to the trainer; return the number of parts. The parts of another pull go."""
    return _opened().keep(pull, part, data)


def send(message: str) -> str | None:
    """Send the trainer a message, as JSON. Return None, or the trainer's exit status.

    It has ``header`` and ``blobs``: ``[pull, part]`` for a part that was kept, None for the next one that was put.
    """
    return _opened().send(**json.loads(message))


def receive(wait_s: float) -> str | None:
    """Return the trainer's answer as JSON, ``{"header", "sizes"}``, the sizes of its blobs, or ``{"died"}``; None if
    none came in time."""
    return _opened().receive(wait_s)


def ask(message: str, wait_s: float) -> str | None:
    """Send the trainer a message as `send` does, and return what `receive` does."""
    return send(message) or receive(wait_s)


def get(index: int) -> bytes:
    """Return a blob of the answer."""
    return bytes(_opened().incoming[index])


def listen() -> str:
    """Start to listen for the rows of a shard; return the address."""
    return _opened().listen()


def forward() -> str:
    """Forward the rows that arrive at the address to the trainer; return JSON: None, or the error."""
    return json.dumps(_opened().forward())


def connect(address: str) -> None:
    """Connect a reader's process to the writer's, before it reads."""
    global _sender
    if _sender is not None:
        _sender.close()
    _sender = None
    _sender = _sent(lambda: Sender(address, Interrupts()))


def send_row(n_rows: int, address: str, shapes: str, tensors: Sequence[bytes]) -> int:
    """Send one buffer of the shard; return the buffers sent so far."""
    _sent(lambda: _sender_to(address).send(json.loads(shapes), tensors))
    return n_rows + 1


def end(address: str) -> int:
    """Report that all buffers of the shard were sent; return their number."""
    global _sender
    sender, _sender = _sender_to(address), None
    return _sent(sender.end)


class _Segment:
    def __init__(self) -> None:
        self.outgoing: list[bytes] = []
        self.incoming: Sequence[Blob] = []
        self._pull = 0
        self._kept: dict[int, bytes] = {}
        self._child: Child | None = None
        self._listener: RowsListener | None = None

    def keep(self, pull: int, part: int, data: bytes) -> int:
        if pull != self._pull:
            self._pull, self._kept = pull, {}
        self._kept[part] = data
        return len(self._kept)

    def send(self, header: Header, blobs: Sequence[tuple[int, int] | None]) -> str | None:
        put, self.outgoing, self.incoming = iter(self.outgoing), [], []
        sent = [next(put) if blob is None else self._part(*blob) for blob in blobs]
        if header["op"] == "train":
            self._kept = {}  # of an evaluation, the next shard needs them too
        try:
            if header["op"] == "start":
                self.close()
                self._child, header = start_trainer_of_run(header, Interrupts())
            self._started.send(header, sent)
        except ChildDied as death:
            return self._died(death)
        return None

    def receive(self, wait_s: float) -> str | None:
        deadline = time.monotonic() + wait_s
        try:
            while not self._started.await_answer(_SLICE_S):  # Python sees a cancel when this returns
                if time.monotonic() >= deadline:
                    return None
            header, self.incoming = self._started.receive()
        except ChildDied as death:
            return self._died(death)
        return json.dumps({"header": header, "sizes": [len(blob) for blob in self.incoming]})

    def listen(self) -> str:
        self._stop_listening()
        self._listener = RowsListener()
        return self._listener.address

    def forward(self) -> str | None:
        assert self._listener is not None, "listen was not called before"
        try:
            self._listener.forward(self._send_buffer, Interrupts())
        except RowsLost as loss:
            return str(loss)
        except ChildDied:
            pass  # the writer gets the error when it requests the answer
        return None

    def close(self) -> None:
        """End the trainer."""
        self._stop_listening()
        self.outgoing, self.incoming, self._kept = [], [], {}
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _part(self, pull: int, part: int) -> bytes:
        if pull != self._pull or part not in self._kept:
            plpy.error(f"part {part} of a state has not arrived", sqlstate="XX000")
        return self._kept[part]

    @property
    def _started(self) -> Child:
        if self._child is None:
            plpy.error("this segment's trainer was not started", sqlstate="55000")
        return self._child

    def _send_buffer(self, shapes: Sequence[Sequence[int]], blobs: Sequence[Blob]) -> None:
        self._started.send({"op": "shard_rows", "shapes": shapes}, blobs)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _died(self, death: ChildDied) -> str:
        self.close()
        return json.dumps({"died": {"status": death.returncode, "stderr": death.stderr}})


def _opened() -> _Segment:
    if _segment is None:
        plpy.error("this process does not belong to a writer; only the driver uses this function", sqlstate="42501")
    return _segment


def _sender_to(address: str) -> Sender:
    if _sender is None or _sender.address != address:
        plpy.error("no reader has opened this; only the driver uses this function", sqlstate="42501")
    return _sender


def _sent(work: Callable[[], _Result]) -> _Result:
    try:
        return work()
    except RowsLost as loss:
        plpy.error(str(loss), sqlstate="55000")

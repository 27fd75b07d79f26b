"""At a Greenplum segment: the process that a worker's session has there, and the trainer beside it.

The functions of sql/27-dispatch.sql are one each here; `mop_backend.dispatch` at the coordinator calls them. They may
not touch tables: what they need comes with the call. Whoever opens the segment of a process first gives it a key, and
that is the worker, before any user code has run there. Every later call must bear a seal made with that key: user code
that runs here too, in the policies and index expressions of a packed table, never sees it.
"""

import hmac
import json

import plpy

from mop_backend.interrupts import Interrupts
from mop_backend.process import ChildDied, start_trainer

_segment = None


def open_segment(key):
    """Let the session that knows the key use this process; end the trainer that it may have. Give the segment's number.

    Raises
    ------
    plpy.Error
        42501, if another key was given before.
    """
    global _segment
    if _segment is None:
        _segment = _Segment(key)
    elif not hmac.compare_digest(_segment.key, key):
        plpy.error("this segment's process has its worker already; workers alone use this function", sqlstate="42501")
    _segment.close()
    return int(plpy.execute("select pg_catalog.current_setting('gp_contentid') as id")[0]["id"])


def put(number, seal, part):
    """Take a blob of the next message; give how many there are."""
    blobs = _opened(number, seal, "put").outgoing
    blobs.append(part)
    return len(blobs)


def send(number, seal, header):
    """Send the trainer a message: ``header``, as JSON, and the blobs put so far. Give None, or how it has died."""
    segment = _opened(number, seal, header)
    return segment.send(json.loads(header))


def receive(number, seal, wait_s):
    """Give the trainer's answer as JSON, ``{"header", "n_blobs"}`` or ``{"died"}``; None if none came in time."""
    return _opened(number, seal, "receive").receive(wait_s)


def get(number, seal, index):
    """Give a blob of the answer."""
    return bytes(_opened(number, seal, f"get {index}").incoming[index])


def take_row(n_rows, ticket, shapes, tensors):
    """Send the trainer one packed row of the shard that a message has begun; give the rows sent so far."""
    if _segment is None:
        _refuse()
    _segment.take_row(ticket or "", json.loads(shapes), tensors)
    return n_rows + 1


class _Segment:
    def __init__(self, key):
        self.key = key
        self.outgoing = []
        self.incoming = []
        self._child = None
        self._number = 0
        self._ticket = None

    def admit(self, number, seal, what):
        """Refuse a call that does not bear the worker's seal, or bears one that was used before."""
        ours = hmac.new(self.key, f"{number} {what}".encode(), "sha256").hexdigest()
        if number <= self._number or not hmac.compare_digest(ours.encode(), seal.encode()):
            _refuse()
        self._number, self._ticket = number, None

    def take_row(self, ticket, shapes, tensors):
        if ticket != self._ticket:
            number, _, seal = ticket.partition(" ")
            self.admit(int(number) if number.isdecimal() else 0, seal, "rows")
            self._ticket = ticket
        if self._child is not None:
            try:
                self._child.send({"op": "shard_rows", "shapes": shapes}, tensors)
            except ChildDied:
                pass  # the worker learns of it when it asks for the answer

    def send(self, header):
        blobs, self.outgoing = self.outgoing, []
        try:
            if header["op"] == "start":
                self.close()
                self._child = start_trainer(Interrupts())
            if self._child is None:
                plpy.error("this segment's trainer was not started", sqlstate="55000")
            self._child.send(header, blobs)
        except ChildDied as death:
            return self._died(death)
        return None

    def receive(self, wait_s):
        try:
            if not self._child.await_answer(wait_s):
                return None
            header, self.incoming = self._child.receive()
        except ChildDied as death:
            return self._died(death)
        return json.dumps({"header": header, "n_blobs": len(self.incoming)})

    def close(self):
        """End the trainer."""
        self.outgoing, self.incoming = [], []
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _died(self, death):
        self.close()
        return json.dumps({"died": {"status": death.returncode, "stderr": death.stderr}})


def _opened(number, seal, what):
    if _segment is None:
        _refuse()
    _segment.admit(number, seal or "", what)
    return _segment


def _refuse():
    plpy.error("this is for the worker of this segment alone; user code may not call it", sqlstate="42501")

"""A session at a segment's host: has this host's trainer do what a coordinator's relay asks for, and nothing else.

Called by the functions of sql/25-segments.sql, which every user of the extension may call, as user code may that a
query runs here. So each message bears a seal: HMAC-SHA-256, under the key that the two servers share, of this session's
nonce and the message. The key is read with the extension owner's rights and stays in this module, which no SQL reaches.
"""

import contextlib
import hmac
import json
import secrets

import plpy

from mop_backend.interrupts import Interrupts
from mop_backend.memory import start_here
from mop_backend.process import ChildDied, start_trainer
from mop_backend.shards import stream_shard

_KEY = "select key from madlib_mop.coordinator where coordinator = $1"

_session = None


def open_session(coordinator):
    """Make this session a coordinator's; give the nonce that its seals must contain. Once a session."""
    global _session
    if _session is not None:
        _refuse("this session works for a coordinator already")
    rows = plpy.execute(plpy.prepare(_KEY, ["text"]), [coordinator])
    if not rows.nrows():
        _refuse("this server does no work for that coordinator", "SELECT madlib_mop.add_host(...); there lets it in.")
    _session = _Session(bytes(rows[0]["key"]))
    return _session.nonce


def put(part):
    """Take one blob of the next message."""
    _opened().put(part)


def send(header, seal, wait):
    """Hand a message to the trainer; see `_Session.send`."""
    return _opened().send(header or "", seal or "", bool(wait))


def get(number):
    """Give one blob of the answer, and forget it."""
    return _opened().get(number)


class _Session:
    def __init__(self, key):
        self.nonce = secrets.token_hex(32)
        self._key = key
        self._n_messages = 0
        self._parts = []
        self._answer_parts = {}
        self._child = None
        self._busy = False

    def put(self, part):
        self._not_busy()
        self._parts.append(part)

    def get(self, number):
        self._not_busy()
        if number not in self._answer_parts:
            _refuse(f"the last answer has no blob {number}")
        return self._answer_parts.pop(number)

    def send(self, header, seal, wait):
        """Check a message and do it.

        Parameters
        ----------
        header : str
            JSON object: a trainer's request, or "shard_load" (see channels.py); with ``number``, which counts this
            session's messages from 1, and ``n_blobs``.
        seal : str
            HMAC-SHA-256 of nonce and header, in hexadecimal.
        wait : bool
            Whether the trainer answers such a request.

        Returns
        -------
        str or None
            JSON: the answer with its ``n_blobs``, or ``{"died": {"status", "stderr"}}`` when there is no trainer more.
        """
        self._not_busy()
        message, parts = self._unsealed(header, seal)
        self._answer_parts = {}
        self._busy = True
        try:
            answer = self._do(message, parts, wait)
        except ChildDied as death:
            self._end_trainer()
            return json.dumps({"died": {"status": death.returncode, "stderr": death.stderr}})
        except BaseException:
            self._end_trainer()
            raise
        finally:
            self._busy = False
        if answer is None:
            return None
        fields, blobs = answer
        self._answer_parts = dict(enumerate(blobs))
        return json.dumps({**fields, "n_blobs": len(blobs)})

    def _do(self, message, parts, wait):
        op = message["op"]
        if op == "start":
            self._end_trainer()
            self._child = start_trainer(Interrupts())
            message = start_here(message)
        elif self._child is None:
            raise ChildDied(0, "")
        if op == "shard_load":
            return stream_shard(self._child, message["shard"], message["query"], message["key"], message)
        self._child.send(message, parts)
        return self._child.receive() if wait else None

    def _unsealed(self, header, seal):
        parts, self._parts = self._parts, []
        ours = hmac.new(self._key, (self.nonce + header).encode(), "sha256").hexdigest()
        message = json.loads(header) if hmac.compare_digest(ours.encode(), seal.encode()) else {}
        if message.pop("number", None) != self._n_messages + 1 or message.pop("n_blobs", None) != len(parts):
            _refuse("this message is not the coordinator's; users may not give a segment work")
        self._n_messages += 1
        return message, parts

    def _not_busy(self):
        if self._busy:
            _refuse("this segment is busy; user code may not call it")

    def _end_trainer(self):
        if self._child is not None:
            with contextlib.suppress(OSError):
                self._child.stop()
            self._child = None


def _opened():
    if _session is None:
        _refuse("this session works for no coordinator; a coordinator's relay alone uses this function")
    return _session


def _refuse(message, hint=None):
    plpy.error(message, sqlstate="42501", **({"hint": hint} if hint else {}))

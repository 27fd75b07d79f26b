"""A session at a segment's host: runs the requests of a coordinator's relay in this host's trainer, and nothing else.

Called by the functions of sql/25-segments.sql, which every user of the extension can call, also through code in a
query. So each message has a signature: HMAC-SHA-256 of its header, which has the SHA-256 of each of its
blobs, under a key that is this session's alone, made of a nonce and of the key that the two servers share. Each answer
has one too, under another such key, so that who is between the two servers can change nothing. The shared
key is read with the extension owner's rights and forgotten; no SQL reaches the session's. What code may run here, and
whether in a sandbox, this server's own settings decide, whatever a coordinator says.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

import plpy

from mop_backend import seals
from mop_backend.call import CallError, check_version
from mop_backend.frames import Blob, Frame, Header
from mop_backend.interrupts import Interrupts
from mop_backend.memory import SETTINGS_HERE, start_here
from mop_backend.process import Child, ChildDied, start_trainer_of_run
from mop_backend.shards import stream_shard

_KEY = "select key from madlib_mop.coordinator where coordinator = $1"
_SETTINGS = "select name, value from madlib_mop.setting where name = any ($1)"
_VERSION = "select extversion from pg_catalog.pg_extension where extname = 'madlib_mop'"
#: Longest header of a message, in characters: it has models, and the functions that they use.
_MOST_HEADER = 64 << 20
_SANDBOX, _ACCEPTED, _PICKLES = "sandbox", "accepted_functions", "pickled_functions"

_session: _Session | None = None


def open_session(coordinator: str) -> str:
    """Make this session work for a coordinator; return the nonce of its key. Only once in a session."""
    global _session
    if _session is not None:
        _refuse("this session works for a coordinator already")
    _check_version()
    rows = plpy.execute(plpy.prepare(_KEY, ["text"]), [coordinator])
    if not rows.nrows():
        _refuse(
            "this server does not accept work from that coordinator",
            "SELECT madlib_mop.add_host(...); there lets it in.",
        )
    nonce = os.urandom(32).hex()
    names = [_SANDBOX, _ACCEPTED, _PICKLES, *SETTINGS_HERE]
    settings = plpy.execute(plpy.prepare(_SETTINGS, ["text[]"]), [names])
    own = {row["name"]: row["value"] for row in settings}
    _session = _Session(seals.session_key(bytes(rows[0]["key"]), nonce), own)
    return nonce


def put(part: bytes) -> None:
    """Add one blob to the next message."""
    _opened().put(part)


def send(header: str | None, signature: str | None, wait: bool | None) -> str | None:
    """Send a message to the trainer; see `_Session.send`."""
    return _opened().send(header or "", signature or "", bool(wait))


def get(number: int) -> Blob:
    """Return one blob of the answer, and drop it."""
    return _opened().get(number)


class _Session:
    def __init__(self, key: bytes, settings: Mapping[str, str]):
        self._key = key
        self._answer_key = seals.answer_key(key)
        self._settings = settings
        self._n_messages = 0
        self._parts: list[bytes] = []
        self._answer_parts: dict[int, Blob] = {}
        self._child: Child | None = None
        self._busy = False

    def put(self, part: bytes) -> None:
        self._not_busy()
        self._parts.append(part)

    def get(self, number: int) -> Blob:
        self._not_busy()
        if number not in self._answer_parts:
            _refuse(f"the last answer has no blob {number}")
        return self._answer_parts.pop(number)

    def send(self, header: str, signature: str, wait: bool) -> str | None:
        """Check a message and run it.

        Parameters
        ----------
        header : str
            JSON object: a trainer's request, or "shard_load" (see channels.py); with ``number``, which counts this
            session's messages from 1, and ``blobs``, the SHA-256 of each, in hexadecimal.
        signature : str
            HMAC-SHA-256 of the header under the session's key, in hexadecimal.
        wait : bool
            Whether the trainer answers such a request.

        Returns
        -------
        str or None
            The signature of the answer, as the message's, and the answer: a JSON object with the ``number`` of the
            message and the SHA-256 of its ``blobs``. ``{"died": {"status", "stderr"}}`` when the trainer has ended.
        """
        self._not_busy()
        message, parts = self._verified(header, signature)
        self._answer_parts = {}
        self._busy = True
        try:
            answer = self._do(message, parts, wait)
        except ChildDied as death:
            self._end_trainer()
            return self._sealed({"died": {"status": death.returncode, "stderr": death.stderr}}, [])
        except BaseException:
            self._end_trainer()
            raise
        finally:
            self._busy = False
        if answer is None:
            return None
        fields, blobs = answer
        self._answer_parts = dict(enumerate(blobs))
        return self._sealed(fields, blobs)

    def _sealed(self, fields: Header, blobs: Sequence[Blob]) -> str:
        text = json.dumps({**fields, "number": self._n_messages, "blobs": list(map(seals.digest_of, blobs))})
        return seals.signature_of(self._answer_key, text) + text

    def _do(self, message: Header, parts: list[bytes], wait: bool) -> Frame | None:
        op = message["op"]
        if op == "start":
            self._end_trainer()
            # defence: sandbox-at-hosts = start_here(message, self._settings)
            message = start_here({**message, "sandbox": self._settings.get(_SANDBOX) != "off"}, self._settings)
            self._child, message = start_trainer_of_run(message, Interrupts())
        elif self._child is None:
            raise ChildDied(0, "")
        if op == "shard_load":
            return stream_shard(self._child, message["shard"], message["query"], message["key"], message)
        refusal = self._refusal(message)
        if refusal is not None:
            return refusal, []
        self._child.send(message, parts)
        return self._child.receive() if wait else None

    def _refusal(self, message: Header) -> Header | None:
        """Return the answer to a request with code that this server does not accept, or None.

        Superusers here accept a custom function by its SHA-256, or all by the word ``any``; pickles by a setting of
        their own.
        """
        accepted = {word.strip() for word in self._settings.get(_ACCEPTED, "").split(",")}
        for asked in (message, *(member or {} for member in message.get("members") or ())):
            custom = (asked.get("model") or {}).get("custom")
            if not custom:
                continue
            custom["pickles"] = bool(custom.get("pickles")) and self._settings.get(_PICKLES) == "on"
            for name, source in custom["functions"].items():
                digest = seals.digest_of(base64.b64decode(source))
                if not accepted & {"any", digest}:  # defence: functions-at-hosts
                    return _not_accepted(name, digest)
        return None

    def _verified(self, header: str, signature: str) -> tuple[Header, list[bytes]]:
        parts, self._parts = self._parts, []
        if len(header) > _MOST_HEADER:
            _refuse(f"a message has a header of at most {_MOST_HEADER >> 20} million characters")
        # defence: signed-messages = json.loads(header)
        message: Header = json.loads(header) if seals.is_signed(self._key, header, signature) else {}
        digests = list(map(seals.digest_of, parts))
        # defence: blobs-of-a-message = message.pop("number", None) != self._n_messages + 1
        #     or message.pop("blobs", None) is None
        if message.pop("number", None) != self._n_messages + 1 or message.pop("blobs", None) != digests:
            _refuse("this message does not come from the coordinator; users must not send work to a segment")
        self._n_messages += 1
        return message, parts

    def _not_busy(self) -> None:
        if self._busy:
            _refuse("this segment is busy; user code must not call it")

    def _end_trainer(self) -> None:
        if self._child is not None:
            with contextlib.suppress(OSError):
                self._child.stop()
            self._child = None


def _not_accepted(name: str, digest: str) -> Header:
    return _refused(
        f"the host of this segment does not accept custom function {name!r}",
        "A superuser there, having read it: INSERT INTO madlib_mop.setting (name, value)"
        f" VALUES ('{_ACCEPTED}', '{digest}'); several are separated by commas.",
    )


def _refused(message: str, hint: str | None = None) -> Header:
    return {"error": {"sqlstate": "42501", "message": message, "hint": hint}, "kind": "input"}


def _check_version() -> None:
    """Refuse work while the library is of another version than the extension, whose functions do not pass theirs."""
    try:
        check_version(plpy.execute(_VERSION)[0]["extversion"])
    except CallError as error:
        plpy.error(str(error), sqlstate="55000", hint=error.fields["hint"])


def _opened() -> _Session:
    if _session is None:
        _refuse("this session does not work for a coordinator; only a coordinator's relay uses this function")
    return _session


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    if hint is None:
        plpy.error(message, sqlstate="42501")
    plpy.error(message, sqlstate="42501", hint=hint)

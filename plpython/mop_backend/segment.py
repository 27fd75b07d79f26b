"""A session at a segment's host: runs the requests of a coordinator's relay in this host's trainer, and nothing else.

Called by the functions of sql/25-segments.sql, which every user of the extension can call, also through code in a
query. So each message has a signature: HMAC-SHA-256 of its header, which has the SHA-256 of each of its
blobs, under a key that is this session's alone, made of a nonce and of the key that the two servers share. Each answer
has one too, under another such key, so that who is between the two servers can change nothing. The shared
key is read with the extension owner's rights and forgotten; no SQL reaches the session's. What code may run here, and
whether in a sandbox, this server's own settings decide, whatever a coordinator says.

States of models can stay here (`mop_backend.held`), and hop from here to the host that needs them next
(`mop_backend.hops`). A request that trains or evaluates has ``hop`` then: where the states of its members are, and
whether the new ones are held. A session that has states to give away needs no trainer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

import plpy

from mop_backend import seals
from mop_backend.call import CallError, check_version
from mop_backend.frames import Blob, Frame, Header, Json
from mop_backend.held import HeldStates, StateName, as_owner
from mop_backend.hops import Certificate, HopFailed, HopPlace, Offer, Pulled, pull, server_certificate
from mop_backend.interrupts import Interrupts
from mop_backend.memory import SETTINGS_HERE, start_here
from mop_backend.messages import BadMessage, Hopped, StatesOffered, TrainedMembers, of_answer, to_json
from mop_backend.process import Child, ChildDied, start_trainer_of_run
from mop_backend.shards import stream_shard

_KEY = "select key from madlib_mop.coordinator where coordinator = $1"
_SETTINGS = "select name, value from madlib_mop.setting where name = any ($1)"
_VERSION = "select extversion from pg_catalog.pg_extension where extname = 'madlib_mop'"
#: Longest header of a message, in characters: it has models, and the functions that they use.
_MOST_HEADER = 64 << 20
_SANDBOX, _ACCEPTED, _PICKLES = "sandbox", "accepted_functions", "pickled_functions"
#: Where this host can be reached by others, and the ports at which it may listen for them, such as 5500-5519.
_HOP_ADDRESS, _HOP_PORTS = "hop_address", "hop_ports"
_OWN_ADDRESS = "select pg_catalog.host(pg_catalog.inet_server_addr()) as address"
_TLS = "select name, setting from pg_catalog.pg_settings where name in ('ssl', 'ssl_cert_file', 'ssl_key_file')"

_session: _Session | None = None


def open_session(coordinator: str) -> str:
    """Make this session work for a coordinator; return the nonce of its key. Only once in a session."""
    global _session
    if _session is not None:
        _refuse("this session works for a coordinator already")
    _check_version()
    rows = plpy.execute(plpy.prepare(_KEY, ["text"]), [coordinator])
    if not rows.nrows():
        plpy.error("this server shares no key with that coordinator", sqlstate=seals.NO_KEY)
    nonce = os.urandom(32).hex()
    names = [_SANDBOX, _ACCEPTED, _PICKLES, _HOP_ADDRESS, _HOP_PORTS, *SETTINGS_HERE]
    settings = plpy.execute(plpy.prepare(_SETTINGS, ["text[]"]), [names])
    own = {row["name"]: row["value"] for row in settings}
    _session = _Session(coordinator, seals.session_key(bytes(rows[0]["key"]), nonce), own)
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
    def __init__(self, coordinator: str, key: bytes, settings: Mapping[str, str]):
        self._states = HeldStates(coordinator)
        self._offered: tuple[Offer, list[StateName], list[int | None]] | None = None
        self._kept: dict[str, list[Blob]] = {}  # parts that the last request has evaluated, by the digest of the state
        self._opened_at = time.time()
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
        if op in _OPS_OF_STATES:
            return self._do_states(op, message)
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
        hop = message.pop("hop", None)
        if hop is not None:
            return self._do_hopping(self._child, message, parts, hop)
        self._kept = {}
        self._child.send(message, parts)
        return self._child.receive() if wait else None

    # States that are held here, and hops

    def _do_states(self, op: str, message: Header) -> Frame:
        """Do a request about states, for which no trainer is needed."""
        run_id = message["run_id"]
        if op == "offer":
            return to_json(self._offer(message)), []
        if op == "serve":
            return self._serve(), []
        if op == "held_part":
            return self._held_part(_name_of(message["state"]), message["part"])
        if op == "let_go":
            as_owner(lambda: self._states.let_go(run_id, message["states"]))
        else:
            names = list(map(_name_of, message["states"]))
            # the record was read after that; this message may have been on its way for long, and others have come since
            as_owner(lambda: self._states.keep_only(run_id, names, message["runs"], self._opened_at))
        return {}, []

    def _held_part(self, name: StateName, part: int) -> Frame:
        """Return a part of a state, and how many it has; {} if the state is not held."""

        def read() -> Frame:
            held = self._states.find(name)
            data = None if held is None else self._states.read(held, part)
            return ({}, []) if held is None or data is None else ({"n_parts": len(held.lengths)}, [data])

        return as_owner(read)

    def _offer(self, message: Header) -> StatesOffered:
        """Listen for the host that needs states; return where, or what prevents that.

        ``states`` has a name of each, and the number of its leading parts that are needed; null for all.
        """
        self._end_offer()
        names = [_name_of(state["name"]) for state in message["states"]]
        absent = [number for number, name in enumerate(names) if as_owner(partial(self._states.find, name)) is None]
        if absent:
            return StatesOffered(absent=tuple(absent))
        try:
            ticket = seals.masked(self._key, self._n_messages, 0, bytes.fromhex(message["ticket"]))
            offer = Offer(ticket, self._address(), _ports_of(self._settings.get(_HOP_PORTS)), _own_certificate())
        except HopFailed as failure:
            return StatesOffered(failed=str(failure))
        self._offered = offer, names, [state["n_parts"] for state in message["states"]]
        return StatesOffered(place=offer.place)

    def _serve(self) -> Header:
        """Wait for the host that needs the offered states, and send them."""
        if self._offered is None:
            return {"failed": "nothing is offered"}
        (offer, names, n_parts), self._offered = self._offered, None
        found = [as_owner(partial(self._states.find, name)) for name in names]
        states = [state for state in found if state is not None]
        if len(states) < len(names):
            offer.close()
            return {"failed": "a state was let go after it was offered"}
        lengths = [state.lengths[:most] for state, most in zip(states, n_parts, strict=True)]

        def read(state: int, part: int) -> bytes:
            data = as_owner(lambda: self._states.read(states[state], part))
            if data is None:  # when it is asked for in the other way, it is not held any more
                raise HopFailed("a state cannot be read")
            return data

        try:
            offer.serve(lengths, read, Interrupts())
        except HopFailed as failure:
            return {"failed": str(failure)}
        return {}

    def _address(self) -> str:
        """Return the address of this host. Raises HopFailed."""
        address: str | None = self._settings.get(_HOP_ADDRESS) or plpy.execute(_OWN_ADDRESS)[0]["address"]
        if address is None:
            raise HopFailed("the coordinator has reached this host by a Unix socket: hop_address is not set")
        return address

    def _do_hopping(self, child: Child, message: Header, parts: list[bytes], hop: Header) -> Frame:
        """Train or evaluate models whose states are at hosts; hold the new states here, if that is asked for.

        ``hop`` has ``run_id``; ``sources``, for each member where its state is (`_sources`); ``pulls``, where other
        hosts offer states; ``task`` and ``versions`` of the new states, or null, for what is trained. The answer is a
        `Hopped`; no blobs come with new states that are held.
        """
        is_training = hop["task"] is not None
        if is_training and (made := self._made(hop)) is not None:
            return to_json(Hopped(made, held=True, adopted=True)), []
        began = time.monotonic()
        pulled: list[list[list[Blob]]] = []
        for number, one in enumerate(hop["pulls"]):
            ticket = seals.masked(self._key, self._n_messages, number + 1, bytes.fromhex(one["ticket"]))
            expected = [Pulled(digest, n_bytes) for digest, n_bytes in one["states"]]
            try:
                pulled.append([list(state) for state in pull(HopPlace(*one["place"]), ticket, expected, Interrupts())])
            except HopFailed as failure:
                return to_json(Hopped(failed=str(failure), pull=number)), []
        absent, blobs = self._sources(message["members"], parts, hop["sources"], pulled)
        if absent:
            return to_json(Hopped(absent=tuple(absent))), []
        pull_s = time.monotonic() - began
        child.send(message, blobs)
        del parts, pulled
        blobs.clear()
        answer, new = child.receive()
        if not is_training or "error" in answer:
            return to_json(Hopped(answer, pull_s=pull_s)), new
        is_held = self._hold(hop, answer, new)
        return to_json(Hopped(answer, held=is_held, pull_s=pull_s)), []

    def _sources(
        self, members: Sequence[Header | None], parts: list[bytes], sources: Json, pulled: Sequence[list[list[Blob]]]
    ) -> tuple[list[int], list[Blob]]:
        """Return the members whose state is not here, and the blobs of all others.

        A source is null (the state, or what there is instead, has come with the request), ``{"held": name, "n_parts"}``
        (it is held here), ``{"pulled": [pull, state]}``, or ``{"kept": key}`` (the last request had it). With a key in
        ``keeps``, it is for the next request too.
        """
        absent: list[int] = []
        blobs: list[Blob] = []
        kept, self._kept = self._kept, {}
        for number, (member, source) in enumerate(zip(members, sources, strict=True)):
            own: list[Blob] | None
            if member is None:
                continue
            if source is None:
                own, parts = list(parts[: member["n_blobs"]]), parts[member["n_blobs"] :]
            else:
                own = self._source(source, kept, pulled)
                if own is None:
                    absent.append(number)
                    continue
                member["n_blobs"], member["has_state"] = len(own), True
                if "keeps" in source:
                    self._kept[source["keeps"]] = own
            blobs += own
        return absent, blobs

    def _source(
        self, source: Header, kept: Mapping[str, list[Blob]], pulled: Sequence[list[list[Blob]]]
    ) -> list[Blob] | None:
        if "kept" in source:
            digest: str = source["kept"]
            return kept.get(digest)
        if "pulled" in source:
            number, state = source["pulled"]
            return pulled[int(number)][int(state)]

        def read() -> list[Blob] | None:
            held = self._states.find(_name_of(source["held"]))
            parts = None if held is None else self._states.parts(held, source["n_parts"])
            return None if parts is None else list(parts)

        return as_owner(read)

    def _made(self, hop: Header) -> Header | None:
        """Return the trainer's answer to a request that was done before, if all new states are held here."""
        held = as_owner(lambda: self._states.made_by(hop["run_id"], hop["task"]))
        if not held:
            return None
        assert held[0].answer is not None, "it is stored with the state"
        answer: Header = json.loads(held[0].answer)
        names = {state.name for state in held}
        if not {name for name, *_ in _new_states(hop, answer)} <= names:
            return None
        are_whole = [as_owner(partial(self._states.parts, state)) is not None for state in held]  # all, to let each go
        return answer if all(are_whole) else None

    def _hold(self, hop: Header, answer: Header, blobs: list[Blob]) -> bool:
        """Hold new states; return whether they are what the trainer's answer says. A trainer can send anything."""
        try:
            new = _new_states(hop, answer)
        except BadMessage:
            return False
        own = [(name, blobs[first : first + n]) for name, _, first, n in new]
        sizes = [sum(map(len, parts)) for _, parts in own]
        if sizes != [n_bytes for _, n_bytes, _, _ in new]:
            return False
        if any(seals.digest_of_all(parts) != name.digest for name, parts in own):
            return False
        text = json.dumps(answer)

        def hold() -> None:
            for name, parts in own:
                self._states.hold(name, parts, hop["task"], text)

        as_owner(hold)
        return True

    def _end_offer(self) -> None:
        if self._offered is not None:
            self._offered[0].close()
            self._offered = None

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


_OPS_OF_STATES = ("offer", "serve", "held_part", "let_go", "keep_only")


def _name_of(written: Json) -> StateName:
    """Return the name of a state as a message has it."""
    run_id, mst_key, version, digest = written
    return StateName(int(run_id), int(mst_key), int(version), str(digest))


def _new_states(hop: Header, answer: Header) -> list[tuple[StateName, int, int, int]]:
    """Return of each state that was trained its name, its bytes, the number of its first blob and of its blobs. Raises
    BadMessage.

    ``versions`` of a request has mst_key and version of each member's new state.
    """
    members = of_answer(TrainedMembers, answer).members
    if len(members) != len(hop["versions"]):
        raise BadMessage("it is about other models")
    found, first = [], 0
    for new, trained in zip(hop["versions"], members, strict=True):
        if new is None or trained is None or trained.n_blobs < 0:
            continue
        if trained.figures is not None:
            mst_key, version = new
            name = StateName(hop["run_id"], mst_key, version, trained.figures.digest_out)
            found.append((name, trained.figures.state_bytes, first, trained.n_blobs))
        first += trained.n_blobs
    return found


def _ports_of(setting: str | None) -> tuple[int, int] | None:
    """Return the range of ports of a setting. Raises HopFailed."""
    if not setting:
        return None
    first, _, last = setting.partition("-")
    try:
        ports = int(first), int(last or first)
    except ValueError:
        ports = 0, 0
    if not 0 < ports[0] <= ports[1] < 1 << 16:
        raise HopFailed(f"setting {_HOP_PORTS} must be a port, or two with a hyphen. Received: {setting!r}")
    return ports


def _own_certificate() -> Certificate | None:
    """Return this server's certificate, None if it does not offer TLS. Raises HopFailed."""
    settings = {row["name"]: row["setting"] for row in as_owner(lambda: plpy.execute(_TLS))}
    if settings.get("ssl") != "on":
        return None
    return server_certificate(settings["ssl_cert_file"], settings["ssl_key_file"])  # a backend is in the data directory


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

"""The relay: a process that connects a writer session with a segment at another host.

It speaks a trainer's frames on its pipes, and forwards each to a session at the host (functions ``segment_*`` of
sql/25-segments.sql), whose backend runs the trainer. Started by `mop_backend.channels.Remote`; ends with it.

A failure of the trainer or its host is also an answer, and the last one: ``{"host_lost": {"message"}}`` when the
host is not reached or lost, ``{"host_refused": {"sqlstate", "message", "hint"}}`` when it rejects the login or a
statement, ``{"died": {"status", "stderr"}}`` when its trainer ended. None of them contains a password or a key.

Answers of a host are signed as messages to it are, so who is between the two servers can change none. The host itself
is not trusted either: the size of an answer is limited, and so is the memory of this process.
"""

import json
import re
import resource
from collections.abc import Sequence
from functools import partial
from typing import Any, LiteralString

import psycopg
from mop_backend import seals
from mop_backend.frames import Blob, Channel, Frame, Header, PeerGone, TooLarge, of_answers
from mop_backend.peer import end_with_parent, end_with_peer, take_pipes

from madlib_mop.engines.hosts.login import NotLetIn, log_in
from madlib_mop.engines.sessions.reasons import plain_reason
from madlib_mop.errors import NotReady, read_server_error

#: Requests without an answer of the trainer.
_SILENT = frozenset({"shard_begin", "shard_rows"})
_CONNECT_S = "10"
_SIGNATURE_CHARACTERS = 64
#: What the relay and its libraries have themselves, with a part of a state on its way.
_USUAL_BYTES = 1 << 30
#: SQLSTATEs of failed connections, of a server that starts or stops, and of too many connections.
_LOST = re.compile("08|57|53300")


def main() -> None:
    """Serve the frames on stdin and stdout until the worker closes them."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory()
    read_fd, write_fd = take_pipes()
    end_with_peer(read_fd)
    channel = Channel(read_fd, write_fd)
    relay = Relay()
    try:
        while True:
            answer = relay.do(*channel.receive())
            if answer is not None:
                channel.send(*answer)
    except PeerGone:
        pass


def limit_memory() -> None:
    """Let this process have an answer of the host and a message to it, each with its blobs, and no more.

    libpq reads each row of a host whole, before anybody can see how large it is.
    """
    most = _USUAL_BYTES + 2 * (of_answers().blob_bytes or 0)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # defence: memory-of-the-relay


class NotSealed(Exception):
    """An answer does not come from the host's session, or was changed on the way."""


class Relay:
    """Translates between frames and the session at the host."""

    def __init__(self) -> None:
        self._host: HostSession | None = None
        self._server = ""
        self._ended: Header | None = None

    def do(self, header: Header, blobs: Sequence[Blob]) -> Frame | None:
        """Process one request; return header and blobs of its answer, or None if a trainer sends none.

        Parameters
        ----------
        header : dict
            First "connect", the answer of ``host_access`` with ``server`` and ``run_id``; then a trainer's requests,
            and "shard_load" (`mop_backend.channels.Remote`).
        blobs : list of bytes-like
        """
        has_answer = header["op"] not in _SILENT and header["op"] != "connect"
        if self._ended is None:
            try:
                if header["op"] == "connect":
                    self._server = header["server"]
                    self._host = HostSession(header)
                    return None
                assert self._host is not None, "the first request is connect"
                answer, parts = self._host.ask(header, blobs, has_answer)
                if "died" not in answer:
                    return (answer, parts) if has_answer else None
                self._ended = answer
            except psycopg.Error as error:
                self._ended = _error_fields(error, header, self._host)
            except NotLetIn as error:
                message = f"{header['server']}: {error.message}"
                self._ended = {"host_refused": {"sqlstate": error.sqlstate, "message": message, "hint": error.hint}}
            except NotSealed:
                message = f"{self._server}: an answer does not come from this host, or was changed"
                hint = "Somebody may be between the two servers: use TLS, with sslmode 'verify-full'."
                self._ended = {"host_refused": {"sqlstate": "42501", "message": message, "hint": hint}}
            except (TooLarge, MemoryError):
                message = f"{self._server}: the host sent more than an answer may have"
                hint = "An answer with its blobs can have a quarter of the memory that this server may use."
                self._ended = {"host_refused": {"sqlstate": "53200", "message": message, "hint": hint}}
            except NotReady as error:
                fields = {"sqlstate": error.sqlstate, "message": error.message, "hint": error.hint}
                self._ended = {"host_refused": fields}
        return (self._ended, []) if has_answer else None

    def close(self) -> None:
        """End the session at the host."""
        if self._host is not None:
            self._host.close()


class HostSession:
    """A session at the host.

    Parameters
    ----------
    access : dict
        See `Relay.do`.

    Raises
    ------
    psycopg.Error, NotLetIn
        If it cannot be opened.
    NotReady
        If another version of the extension is there.
    """

    def __init__(self, access: Header):
        self._n_messages = 0
        options = {"connect_timeout": _CONNECT_S, **access["options"]}
        self._connection = log_in(
            options,
            f"madlib_mop segment of run {access['run_id']}",
            must_use_password=access["needs_password"],
            waits=True,
            same_version_as=access["server"],
        )
        self._cursor = self._connection.cursor(binary=True)
        nonce = self._value("SELECT madlib_mop_calls.segment_open(%s)", access["coordinator"])
        self._key = seals.session_key(bytes.fromhex(access["key"]), nonce)
        self._answer_key = seals.answer_key(self._key)

    def ask(self, header: Header, blobs: Sequence[Blob], wait: bool) -> Frame:
        """Send a message to the trainer there; return its answer, {} if it has none."""
        for blob in blobs:
            self._value("SELECT madlib_mop_calls.segment_put(%b)", blob)
        self._n_messages += 1
        header = self._masked(header)
        text = json.dumps({**header, "number": self._n_messages, "blobs": list(map(seals.digest_of, blobs))})
        signature = seals.signature_of(self._key, text)
        sealed = self._value("SELECT madlib_mop_calls.segment_send(%s, %s, %s)", text, signature, wait)
        if sealed is None and not wait:
            return {}, []
        fields = self._opened(sealed)
        return fields, self._parts(fields.pop("blobs"))

    def _masked(self, header: Header) -> Header:
        """Return a header without its tickets as they are: who sees the host's statements must not learn them."""
        ticket = partial(seals.masked, self._key, self._n_messages)
        if "ticket" in header:
            header = {**header, "ticket": ticket(0, bytes.fromhex(header["ticket"])).hex()}  # defence: masked-tickets
        if (hop := header.get("hop")) is not None:
            pulls = [
                {**one, "ticket": ticket(number + 1, bytes.fromhex(one["ticket"])).hex()}
                for number, one in enumerate(hop["pulls"])
            ]
            header = {**header, "hop": {**hop, "pulls": pulls}}
        return header

    def _opened(self, sealed: object) -> Header:
        """Return an answer. Raises NotSealed and TooLarge."""
        if not isinstance(sealed, str):
            raise NotSealed
        signature, answer = sealed[:_SIGNATURE_CHARACTERS], sealed[_SIGNATURE_CHARACTERS:]
        of_answers().check_header(answer.encode())  # defence: size-of-an-answer
        if not seals.is_signed(self._answer_key, answer, signature):  # defence: signed-answers
            raise NotSealed
        fields: Header = json.loads(answer)
        if fields.pop("number") != self._n_messages:  # defence: number-of-an-answer = fields.pop("number") is None
            raise NotSealed
        return fields

    def _parts(self, digests: Sequence[str]) -> list[Blob]:
        """Return the blobs of the last answer. Raises NotSealed and TooLarge."""
        limits = of_answers()
        parts: list[Blob] = []
        limits.check_blobs([0] * len(digests))
        for number, digest in enumerate(digests):
            part = self._value("SELECT madlib_mop_calls.segment_get(%s::integer)", number)
            # defence: digest-of-a-blob = not isinstance(part, bytes)
            if not isinstance(part, bytes) or seals.digest_of(part) != digest:
                raise NotSealed
            parts.append(part)
            limits.check_blobs([len(part) for part in parts])  # defence: blobs-together
        return parts

    def close(self) -> None:
        """End the session and its trainer there."""
        self._connection.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return not self._connection.broken and not self._connection.closed

    def _value(self, query: LiteralString, *values: object) -> Any:
        row = self._cursor.execute(query, values).fetchone()
        assert row is not None, "each of the queries gives one row"
        return row[0]


def _error_fields(error: psycopg.Error, request: Header, host: HostSession | None) -> Header:
    """Return the meaning of an error for the run, without the connection's parameters."""
    message, found = plain_reason(error), read_server_error(error)
    if found.sqlstate is None and request["op"] == "connect":
        if not isinstance(error, psycopg.OperationalError):  # libpq rejects one of the options
            return {"host_refused": {"sqlstate": "55000", "message": f"{request['server']}: {message}", "hint": None}}
        return {"host_lost": {"message": message}}
    if found.sqlstate is None or _LOST.match(found.sqlstate) or (host is not None and not host.is_open):
        return {"host_lost": {"message": message}}
    fields = {"sqlstate": found.sqlstate, "message": message, "hint": found.hint}
    if request["op"] == "connect":
        fields["message"] = f"{request['server']}: {message}"
        if found.sqlstate == "42501":
            grant = "There, madlib_mop.grant_use must have let in the mapping's user"
            fields["hint"] = f"{grant}; here, add_host the server."
        elif found.hint:
            fields["hint"] = f"At that host: {found.hint}"
    return {"host_refused": fields}


if __name__ == "__main__":
    main()

"""Channels: the connection of a writer session with the trainer of its segment, on this or another host.

A channel is a `Child` that forwards a trainer's requests and answers, with three additions: `reader_of` and
`load_shard`, by which a shard's rows get to it, and ``averages``, which says whether states of this server are averaged
by that trainer. `writer` calls all alike, independent of the kind of channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mop_backend.forkserver import ForkServer, backend_words
from mop_backend.frames import Blob, Check, Frame, Header, ReceivedBlobs
from mop_backend.keras_backends import USUAL
from mop_backend.process import TRAINER, Child, ChildDied, trainers_of
from mop_backend.rows import RowsListener
from mop_backend.shard_file import HandedFile
from mop_backend.shards import Reading, RowsSource, ShardLocation, shard_form

#: Options of libpq, and their values, with which it connects only if nobody on the way can read.
_CLOSED_TO_OTHERS = {
    "sslmode": ("require", "verify-ca", "verify-full"),
    "sslrootcert": ("system",),
    "channel_binding": ("require",),
    "gssencmode": ("require",),
}


class HostLost(Exception):
    """The host of the segment cannot be reached, or was lost; it may become available again."""


class HostRefused(Exception):
    """The host of the segment rejects the login, or a statement failed there; ``error`` has its fields."""

    def __init__(self, error: Header):
        super().__init__(error["message"])
        self.error = error


class FedByReader(Child):
    """A channel into which a reader session's rows are forwarded; parameters are those of `Child`."""

    def __init__(
        self,
        module: str,
        check: Check,
        forkserver: ForkServer | None = None,
        words: Sequence[str] = (),
        use: str | None = None,
        file: HandedFile | None = None,
    ):
        super().__init__(module, check, forkserver=forkserver, words=words, use=use, file=file)
        self._check = check
        self._listener: RowsListener | None = None

    def reader_of(self, source: RowsSource, segment_id: int) -> Reading | None:
        """Start to listen for a shard's rows; return the reader's arguments, or None if it is not needed.

        Parameters
        ----------
        source : dict
            The plan's ``training`` or ``validation``.
        segment_id : int

        Returns
        -------
        dict or None
            Arguments of `mop_backend.shards.send_shard`.
        """
        self._stop_listening()
        self._listener = RowsListener()
        return reading(self._listener.address, source["query"], key_of(source, segment_id), source)

    def load_shard(self, shard: str, source: RowsSource, segment_id: int, reader_pid: int | None) -> Frame:
        """Forward a shard's rows from the reader to the trainer; return the trainer's last answer.

        Parameters
        ----------
        shard : str
            Its name in the trainer.
        source, segment_id
            As `reader_of`'s, which was called before.
        reader_pid : int or None
            The reader's process: other processes are rejected. None only if `reader_of` returned None.

        Raises
        ------
        RowsLost, ChildDied
        """
        assert self._listener is not None and reader_pid is not None, "reader_of was not called before"
        self.send({"op": "shard_begin", "shard": shard, **shard_form(source, segment_id)})
        self._listener.forward(self._send_buffer, self._check, reader_pid)
        return self.ask({"op": "shard_end", "shard": shard})

    def release(self, seconds: float) -> bool:
        """As `Child.release`."""
        self._stop_listening()
        return super().release(seconds)

    def stop(self, grace_s: float = 0.0) -> int | None:
        """As `Child.stop`."""
        self._stop_listening()
        return super().stop(grace_s)

    def _send_buffer(self, shapes: Sequence[Sequence[int]], blobs: Sequence[Blob]) -> None:
        self.send({"op": "shard_rows", "shapes": shapes}, blobs)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class Local(FedByReader):
    """The trainer runs next to this backend, on this server.

    Parameters
    ----------
    check : callable
        As for `Child`.
    gpus : sequence of int
        The GPUs that it may use.
    backend : str
        Its backend of Keras.
    use : str or None
        As for `Child`.
    file : HandedFile or None
        Its file for rows.
    """

    averages = True
    demands_tls = False

    def __init__(
        self,
        check: Check,
        gpus: Sequence[int] = (),
        backend: str = USUAL,
        use: str | None = None,
        file: HandedFile | None = None,
    ):
        # CUDA reads the list of its GPUs when TensorFlow is imported; a forked process has imported it already.
        forkserver = None if gpus else trainers_of(backend)
        super().__init__(TRAINER, check, forkserver=forkserver, words=backend_words(backend), use=use, file=file)


class Remote(FedByReader):
    """The trainer runs on a segment's host; a relay next to this backend has a session there.

    Parameters
    ----------
    check : callable
        As `Child`'s.
    server : str
        Name of the foreign server.
    access : dict
        Answer of ``host_access``: its connection parameters.
    run_id : int

    Attributes
    ----------
    demands_tls : bool
        Whether this server connects to the host only with TLS, or with the encryption of GSSAPI.
    """

    averages = False  # the states to average are on this server

    def __init__(self, check: Check, server: str, access: Header, run_id: int):
        super().__init__("madlib_mop.engines.hosts.relay", check)
        options = access["options"]
        self.demands_tls = any(options.get(name) in values for name, values in _CLOSED_TO_OTHERS.items())
        self._server = server
        self.send({"op": "connect", "server": server, "run_id": run_id, **access})

    def reader_of(self, source: RowsSource, segment_id: int) -> Reading | None:
        """As `FedByReader.reader_of`; rows at the trainer's own host are read there, by the session that has it."""
        return None if self._place_here(source, segment_id) else super().reader_of(source, segment_id)

    def load_shard(self, shard: str, source: RowsSource, segment_id: int, reader_pid: int | None) -> Frame:
        """As `FedByReader.load_shard`. Raises HostLost and HostRefused too."""
        place = self._place_here(source, segment_id)
        if place is None:
            return super().load_shard(shard, source, segment_id, reader_pid)
        there = {"query": place["query"], "key": key_of(source, segment_id)}
        return self.ask({"op": "shard_load", "shard": shard, **there, **shard_form(source, segment_id)})

    def send(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> None:
        """Write one frame. Raises HostLost."""
        try:
            super().send(header, blobs)
        except ChildDied as death:
            raise self._relay_ended(death) from None

    def _receive(self, in_turn: bool) -> tuple[Header, ReceivedBlobs]:
        """Read one answer of the trainer. Raises ChildDied (for the trainer), HostLost and HostRefused."""
        try:
            header, blobs = super()._receive(in_turn)
        except ChildDied as death:
            raise self._relay_ended(death) from None
        if "died" in header:
            raise ChildDied(header["died"]["status"], header["died"]["stderr"])
        if "host_lost" in header:
            raise HostLost(header["host_lost"]["message"])
        if "host_refused" in header:
            raise HostRefused(header["host_refused"])
        return header, blobs

    def _read_blob(self, length: int) -> bytearray:
        try:
            return super()._read_blob(length)
        except ChildDied as death:
            raise self._relay_ended(death) from None

    def _place_here(self, source: RowsSource, segment_id: int) -> ShardLocation | None:
        """Return the place of a shard on the trainer's own host; None for other shards."""
        place = place_of(source, segment_id)
        return place if place is not None and place.get("server") == self._server else None

    def _relay_ended(self, death: ChildDied) -> HostLost:
        return HostLost(f"the relay to it ended with status {death.returncode}: {death.last_words or 'no last words'}")


def reading(address: str, query: str, key: int, source: RowsSource, at: int | None = None) -> Reading:
    """Return the arguments of `mop_backend.shards.send_shard` by name."""
    return {"address": address, "query": query, "key": key, "n_columns": source["n_x"] + source["n_y"], "at": at}


def place_of(source: RowsSource, segment_id: int) -> ShardLocation | None:
    """Return the location of a shard: None if it is on this server, else ``server`` and the ``query`` to use there."""
    places = (s.get("place") for s in source["segments"] if s["segment_id"] == segment_id)
    return next(places, None)


def key_of(source: RowsSource, segment_id: int) -> int:
    """Return the ``__dist_key__`` of a shard: its segment's number, unless the plan has another one."""
    keys = (s["key"] for s in source["segments"] if s["segment_id"] == segment_id and "key" in s)
    return next(keys, segment_id)

"""Frames: the messages of two processes over a pair of pipes (JSON header, raw blobs; never pickled).

A frame is: ``u32`` length of the header, ``u32`` number of blobs, one ``u64`` length a blob, the header
(UTF-8 JSON object), the blobs one after the other. All integers big-endian. Used by the backend, the
driver and the trainer alike, so this file needs the standard library only.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from mop_backend.machine import memory_bytes

if TYPE_CHECKING:
    from mop_backend.spinning import Spinner

Json = Any  # any JSON value
Header = dict[str, Json]  # the JSON object of a frame
Blob = bytes | bytearray | memoryview
Frame = tuple[Header, list[Blob]]
_SomeBlob_co = TypeVar("_SomeBlob_co", bound="SomeBlob", covariant=True)
Check = Callable[[], None]  # the waiting process's check for interrupts; an exception ends the wait

_PREFIX = struct.Struct(">II")
MOST_BLOBS = 1 << 20
_CHUNK_BYTES = 1 << 20
#: What is allocated for a part of a frame before any of it has arrived; then as much again as has arrived. A process
#: that only claims to send much takes no memory, and one that does send it is killed first when memory is short.
_AT_FIRST_BYTES = 1 << 26  # defence: claimed-bytes = 1 << 30
#: Frames up to this size are written with one call, so the reader wakes up once for the whole frame.
_SMALL_BYTES = 1 << 15


class FrameLimits(NamedTuple):
    """What a process may send in one frame.

    Attributes
    ----------
    header_bytes : int
        Longest header.
    values : int or None
        Most values of the header, about: each takes up to 100 bytes when it is parsed, of which two may be sent.
    blob_bytes : int or None
        Most bytes of all its blobs; of each, where they are taken in turn.
    """

    header_bytes: int = 1 << 28
    values: int | None = None
    blob_bytes: int | None = None

    def check_header(self, text: bytes | bytearray) -> None:
        """Check a header before it is parsed. Raises TooLarge."""
        # Each value but the first follows one of these bytes; those in texts count too.
        if len(text) > self.header_bytes or (
            # defence: number-of-values
            self.values is not None and sum(map(text.count, (b",", b"[", b"{", b":"))) > self.values
        ):
            raise TooLarge

    def check_blobs(self, lengths: Sequence[int], in_turn: bool = False) -> None:
        """Check the lengths of the blobs, in bytes, before any is read. Raises TooLarge.

        With ``in_turn``, this process holds one at a time. Whoever keeps them elsewhere limits them together.
        """
        n_bytes = max(lengths, default=0) if in_turn else sum(lengths)
        if len(lengths) > MOST_BLOBS or (self.blob_bytes is not None and n_bytes > self.blob_bytes):
            raise TooLarge


#: Of a process that is trusted.
TRUSTED = FrameLimits()


def of_answers() -> FrameLimits:
    """Return the limits of a process that is not trusted, such as a trainer or the relay to a host.

    What is large in their answers are blobs, and this process must hold those, or one of them where it takes them in
    turn: a quarter of the memory it may use.
    """
    return FrameLimits(header_bytes=32 << 20, values=1 << 21, blob_bytes=memory_bytes() // 4)


def of_sharers(memory_limit: int | None) -> FrameLimits:
    """Return the limits of a request to a process that others share, and of its answer, by its limit of memory.

    What is larger goes to a process that nobody shares.
    """
    most = memory_bytes() if memory_limit is None else min(memory_limit, memory_bytes())
    return FrameLimits(header_bytes=16 << 20, blob_bytes=most // 8)


def encoded(header: Header) -> bytes:
    """Return a header as bytes, for repeated use."""
    return json.dumps(header).encode()


def parsed(text: bytes | bytearray) -> Json:
    """Return what a header says. Raises ValueError and RecursionError."""
    return json.loads(text.decode("utf-8", "surrogatepass"))  # for bytes, json.loads would look for UTF-16 too


def read_as_it_arrives(n_bytes: int, fill: Callable[[bytearray, int], int]) -> bytearray:
    """Return so many bytes, for which space is made as they arrive.

    Parameters
    ----------
    n_bytes : int
        What the other end says that it sends.
    fill : callable
        Reads as much as there is space for after the first bytes, of which it gets the number; returns how many there
        are then.
    """
    data = bytearray(min(n_bytes, _AT_FIRST_BYTES))
    filled = fill(data, 0)
    while filled < n_bytes:
        data += bytes(min(n_bytes - filled, filled))
        filled = fill(data, filled)
    return data


class BlobElsewhere:
    """A blob that another process has, which sends it; this one can name it to that one, and knows its length."""

    n_bytes: int

    def __len__(self) -> int:
        return self.n_bytes


SomeBlob = Blob | BlobElsewhere


class BlobsInTurn(Generic[_SomeBlob_co]):
    """Blobs of known lengths that are made one after the other while their frame is written, as there may be many.

    If one cannot be made, the frame ends in its middle, and the process at the other end must be ended.
    """

    #: Of the blobs, in bytes.
    lengths: Sequence[int] = ()

    def __iter__(self) -> Iterator[_SomeBlob_co]:
        raise NotImplementedError


class ChainedBlobs(BlobsInTurn[_SomeBlob_co]):
    """The blobs of several sequences, one after the other.

    Parameters
    ----------
    sequences : sequence of iterables of blobs
    """

    def __init__(self, sequences: Sequence[Iterable[_SomeBlob_co]]):
        self.lengths = [length for blobs in sequences for length in lengths_of(blobs)]
        self._sequences = sequences

    def __iter__(self) -> Iterator[_SomeBlob_co]:
        for blobs in self._sequences:
            yield from blobs


class ReceivedBlobs(BlobsInTurn[bytearray]):
    """The blobs of a frame whose header was received: each is read when it is asked for.

    All must be read, once, before another frame of their channel is.
    """

    def __init__(self, lengths: Sequence[int], read: Callable[[int], bytearray]):
        self.lengths = lengths
        self._read, self._unread = read, iter(lengths)

    def __iter__(self) -> Iterator[bytearray]:
        for length in self._unread:
            yield self._read(length)


def lengths_of(blobs: Iterable[SomeBlob]) -> list[int]:
    """Return the lengths of blobs in bytes, without making any."""
    if isinstance(blobs, BlobsInTurn):
        return list(blobs.lengths)
    return [len(blob) if isinstance(blob, BlobElsewhere) else memoryview(blob).nbytes for blob in blobs]


class PeerGone(Exception):
    """The process at the other end of the pipe has ended or closed it."""


class NotRead(PeerGone):
    """The process at the other end has ended, or closed a socket, before it has read all that was sent."""

    def __init__(self) -> None:
        super().__init__("the other process has ended before it has read all")


class NotAFrame(PeerGone):
    """The process at the other end sent something that is not a frame; nothing more can be read from it."""

    def __init__(self) -> None:
        super().__init__("the other process sent something that is not a frame")


class TooLarge(NotAFrame):
    """The process at the other end sent more than it may; nothing more can be read from it."""

    def __init__(self) -> None:
        PeerGone.__init__(self, "the other process sent more than it may send at once")


class Channel:
    """One end of a connection: reads frames from one file descriptor, writes them to another.

    Parameters
    ----------
    read_fd, write_fd : int
        File descriptors of pipes; both are set to non-blocking when ``check`` is given.
    check : callable or None
        Called about every ``interval_s`` seconds in these methods, waiting or not. Its exceptions end the wait: in a
        backend it is the interrupt check, so that a cancel works while the other side computes.
    interval_s : float
        Time between two calls of ``check``, in seconds. It costs a backend more than a small frame does.
    spinner : Spinner or None
        How to wait for answers that arrive within microseconds.
    limits : FrameLimits
        What may be read.
    is_patient : bool
        Whether to wait for the other process for more than ``interval_s``; otherwise, that raises PeerGone.
    parse : callable
        Does what `parsed` does.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        check: Check | None = None,
        interval_s: float = 0.1,
        spinner: Spinner | None = None,
        limits: FrameLimits = TRUSTED,
        is_patient: bool = True,
        parse: Callable[[bytes | bytearray], Json] = parsed,
    ):
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.check = check
        self.interval_s = interval_s
        self.spinner = spinner
        self.limits = limits
        self.is_patient = is_patient
        self.parse = parse
        self._checked_at = time.monotonic()
        if check is not None or not is_patient:
            os.set_blocking(read_fd, False)
            os.set_blocking(write_fd, False)

    def send(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> None:
        """Write one frame; ``blobs`` are bytes-like, ``header`` is a dict or the result of `encoded`.

        Raises PeerGone if the other end is closed.
        """
        blobs = blobs if isinstance(blobs, BlobsInTurn) else [memoryview(blob).cast("B") for blob in blobs]
        lengths = lengths_of(blobs)
        head = header if isinstance(header, bytes) else encoded(header)
        prefix = _PREFIX.pack(len(head), len(lengths)) + struct.pack(f">{len(lengths)}Q", *lengths)
        if sum(lengths) <= _SMALL_BYTES:
            self._write(memoryview(b"".join((prefix, head, *blobs))))
            return
        self._write(memoryview(prefix + head))
        for blob in blobs:
            self._write(memoryview(blob).cast("B"))
            del blob  # before the next one is made

    def receive(self) -> Frame:
        """Read one frame: ``(header, list of bytearray)``. Raises PeerGone at end of file, and NotAFrame.

        The header is JSON; whoever does not trust the other process checks that it is a dict.
        """
        header, lengths = self.receive_header()
        return header, [self.read_blob(length) for length in lengths]

    def receive_header(self, in_turn: bool = False) -> tuple[Header, Sequence[int]]:
        """Read the header of a frame; return it, and the length of each blob, which `read_blob` is to read next.

        ``in_turn`` is that of `FrameLimits.check_blobs`.
        """
        n_head, n_blobs = _PREFIX.unpack(self._read(_PREFIX.size))
        # defence: length-of-a-header = n_blobs > MOST_BLOBS
        if n_head > self.limits.header_bytes or n_blobs > MOST_BLOBS:
            raise TooLarge
        text = self._read(8 * n_blobs + n_head)
        lengths = struct.unpack_from(f">{n_blobs}Q", text)
        self.limits.check_blobs(lengths, in_turn)  # defence: blobs-without-end
        del text[: 8 * n_blobs]
        self.limits.check_header(text)
        try:
            header = self.parse(text)
        except (ValueError, RecursionError):  # defence: deep-headers = ValueError
            raise NotAFrame from None
        return header, lengths

    def read_blob(self, length: int) -> bytearray:
        """Read the next blob of a frame, of this length in bytes. Raises PeerGone."""
        return self._read(length)

    def ask(self, header: Header | bytes, blobs: Iterable[Blob] = ()) -> Frame:
        """Send one frame and wait for its answer."""
        self.send(header, blobs)
        return self.receive()

    def _read(self, n_bytes: int) -> bytearray:
        return read_as_it_arrives(n_bytes, self._fill)

    def _fill(self, data: bytearray, filled: int) -> int:
        """Read as much as there is space after the first ``filled`` bytes; return how many there are then."""
        with memoryview(data) as view:
            while filled < len(view):
                try:
                    got = os.readv(self.read_fd, [view[filled : filled + _CHUNK_BYTES]])
                except BlockingIOError:
                    self._wait(self.read_fd, select.POLLIN)
                    continue
                except ConnectionResetError:  # of a socket whose other end was closed with data in it
                    raise NotRead from None
                self._check_in_time()
                if got == 0:
                    raise PeerGone("the other process has ended")
                filled += got
        return filled

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                sent = os.write(self.write_fd, view[:_CHUNK_BYTES])
            except BlockingIOError:
                self._wait(self.write_fd, select.POLLOUT)
                continue
            except (BrokenPipeError, ConnectionResetError):
                raise NotRead from None
            view = view[sent:]
            self._check_in_time()

    def _wait(self, fd: int, event: int) -> None:
        poller = select.poll()
        poller.register(fd, event)
        wait = poller.poll if self.spinner is None else partial(self.spinner.poll, poller)
        while not wait(self.interval_s * 1000):
            if not self.is_patient:
                raise PeerGone("the other process does not go on")
            self._check_now()
        self._check_in_time()

    def _check_in_time(self) -> None:
        if self.check is not None and time.monotonic() - self._checked_at >= self.interval_s:
            self._check_now()

    def _check_now(self) -> None:
        if self.check is not None:
            self.check()
        self._checked_at = time.monotonic()

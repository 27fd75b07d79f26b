"""A shard on its way into the trainer, over several requests; called by ``server.py``."""

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence

from mop_backend.frames import Blob, Channel, Header, PeerGone

from madlib_mop.trainer.data.arrival import Arrival
from madlib_mop.trainer.data.shards import Allocated, Forms, Shard, ShardBuilder, in_memory
from madlib_mop.trainer.process.failures import RequestFailure
from madlib_mop.trainer.requests import Request, malformed, positive

#: While Python code builds and traces a model, the thread that receives rows gets the interpreter lock after this time.
#: The usual 5 ms for each filled pipe would let 50 MB a second through.
_SWITCH_S = 0.0005


class IncomingShard:
    """Takes one shard after the other. An error waits for the shard's end, because only that is answered.

    Parameters
    ----------
    allocate : callable
        Allocates the arrays of a shard whose number of rows is planned.
    """

    def __init__(self, allocate: Callable[[Forms], Allocated] = in_memory) -> None:
        self._allocate = allocate
        self._key: str | None = None
        self._builder: ShardBuilder | None = None
        self._failure: RequestFailure | None = None
        self._arrival: Arrival[Shard] | None = None
        self._finished: Shard | None = None
        #: Whether it is a sample, and whether it may be kept: there was room for all of its rows.
        self.is_sample = False
        self.is_whole = True

    def begin(self, header: Request) -> str:
        """Begin a shard; return its key. What was begun before is dropped."""
        self._key = self._builder = self._failure = None
        first_rows = header.get("first_rows")
        self.is_sample = first_rows is not None
        self._key = str(header["shard"])
        self._builder = ShardBuilder(
            positive(header, "n_x"),
            positive(header, "n_y", least=0),
            float(header["normalizing_const"]),
            header.get("n_rows"),
            header.get("names"),
            header.get("index_inputs", ()),
            None if first_rows is None else positive(header, "first_rows"),
            header.get("planned_rows") if first_rows is None else None,
            self._allocate,
            self._arrival,
        )
        return self._key

    def add(self, shapes: Sequence[Sequence[int]], blobs: Sequence[Blob]) -> None:
        """Take one buffer. Raises RequestFailure."""
        if self._failure is None:
            if self._builder is None:
                raise malformed("shard_rows came without shard_begin")
            self._builder.add(shapes, blobs)

    @contextlib.contextmanager
    def arriving(self, channel: Channel, handle: Callable[[Header, list[Blob]], bool]) -> Iterator[Shard | None]:
        """Receive the next shard in a thread; yield it when its first rows are there, and wait for its end.

        Parameters
        ----------
        channel : Channel
            Where its requests come from, of which ``shard_begin`` is the next one.
        handle : callable
            Does and answers one of them; returns whether others of the shard follow.

        Yields
        ------
        Shard or None
            None if it is not known how many rows come, or none has come.
        """
        arrival: Arrival[Shard] = Arrival()
        self._arrival = arrival

        def receive() -> None:
            try:
                while handle(*channel.receive()):
                    pass
            except (PeerGone, ValueError):
                pass  # the main thread comes to the same end
            except BaseException:  # within a frame, so that nothing more can be read
                traceback.print_exc()
                os._exit(1)
            finally:
                whole, self._finished = self._finished, None
                arrival.end(whole)

        thread, usual_s = threading.Thread(target=receive, name="rows", daemon=True), sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            thread.start()  # without memory for its stack, there is none, and the rows come as usual
            try:
                yield arrival.begun()
            finally:
                thread.join()
        finally:
            sys.setswitchinterval(usual_s)
            self._arrival = None

    def fail(self, failure: RequestFailure) -> None:
        """Remember why the shard cannot be taken; what follows of it is ignored."""
        self._failure = self._failure or failure
        self._builder = None

    def finish(self, key: str) -> Shard:
        """Return the shard. Raises RequestFailure, also the one that waits."""
        builder, failure = self._builder, self._failure
        self._builder = self._failure = None
        if failure is not None:
            raise failure
        if builder is None or self._key != key:
            raise malformed(f"shard_end for {key!r} came without its shard_begin")
        self.is_whole = builder.is_whole
        shard = builder.finish()
        if self._arrival is not None:
            self._finished = shard
        return shard

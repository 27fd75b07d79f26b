"""Channels: how a worker session reaches the trainer of its segment, which is here or at another host.

A channel is a `Child` that takes a trainer's requests and gives its answers, with two things more: ``load_shard``, and
``averages``, which tells whether states of this server are averaged by that trainer. Called by `worker` only, which
does not know what is behind one.
"""

from mop_backend.forkserver import of_this_server
from mop_backend.process import LIBRARY, TRAINER, Child, ChildDied
from mop_backend.shards import shard_form, stream_shard


class HostLost(Exception):
    """The host of the segment cannot be reached, or was lost at work; it may come back."""


class HostRefused(Exception):
    """The host of the segment does not let us in, or a statement failed there; ``error`` has its fields."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.error = error


class Local(Child):
    """The trainer is beside this backend.

    Parameters
    ----------
    check : callable
        As `Child`'s.
    gpus : sequence of int
        The GPUs that it is to use.
    """

    averages = True

    def __init__(self, check, gpus=()):
        # CUDA must be told of its GPUs before TensorFlow is loaded, so where there are some nothing is forked.
        super().__init__(TRAINER, check, forkserver=None if gpus else of_this_server(LIBRARY))

    def load_shard(self, shard, source, segment_id):
        """Send the trainer a shard's rows; give its answer to the last of them.

        Parameters
        ----------
        shard : str
        source : dict
            The plan's ``training`` or ``validation``.
        segment_id : int
        """
        return stream_shard(self, shard, source["query"], key_of(source, segment_id), source)


class Remote(Child):
    """The trainer is at a segment's host; a relay beside this backend has a session there.

    Parameters
    ----------
    check : callable
        As `Child`'s.
    server : str
        Name of the foreign server.
    access : dict
        Answer of ``worker_host``: how to get there.
    run_id : int
    """

    averages = False  # the states that are averaged are here

    def __init__(self, check, server, access, run_id):
        super().__init__("madlib_mop.engines.relay", check=check)
        self._server = server
        self.send({"op": "connect", "server": server, "run_id": run_id, **access})

    def load_shard(self, shard, source, segment_id):
        """As `Local.load_shard`; where the rows are at the trainer's own host, they are read there."""
        place, key = place_of(source, segment_id), key_of(source, segment_id)
        if place is None or place["server"] != self._server:
            return stream_shard(self, shard, source["query"], key, source)
        there = {"query": place["query"], "key": key}
        return self.ask({"op": "shard_load", "shard": shard, **there, **shard_form(source)})

    def send(self, header, blobs=()):
        """Write one frame. Raises HostLost."""
        try:
            super().send(header, blobs)
        except ChildDied as death:
            raise self._relay_ended(death) from None

    def receive(self):
        """Read one answer of the trainer's. Raises ChildDied, of the trainer, HostLost and HostRefused."""
        try:
            header, blobs = super().receive()
        except ChildDied as death:
            raise self._relay_ended(death) from None
        if "died" in header:
            raise ChildDied(header["died"]["status"], header["died"]["stderr"])
        if "host_lost" in header:
            raise HostLost(header["host_lost"]["message"])
        if "host_refused" in header:
            raise HostRefused(header["host_refused"])
        return header, blobs

    def _relay_ended(self, death):
        return HostLost(f"the relay to it ended with status {death.returncode}: {death.last_words or 'no last words'}")


def place_of(source, segment_id):
    """Give the place of a shard: None where it is in this server, else ``server`` and the ``query`` to use there."""
    places = (s.get("place") for s in source["segments"] if s["segment_id"] == segment_id)
    return next(places, None)


def key_of(source, segment_id):
    """Give the ``__dist_key__`` of a shard: the number of its segment, where the plan does not tell another."""
    keys = (s["key"] for s in source["segments"] if s["segment_id"] == segment_id and "key" in s)
    return next(keys, segment_id)

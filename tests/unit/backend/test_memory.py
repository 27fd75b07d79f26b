"""Trainers share the memory of their machine, which for trainers on hosts is the host."""

import pytest
from mop_backend import memory
from mop_backend.memory import MIB, share_of_memory, start_here

GIB = 1024 * MIB


@pytest.fixture
def machine(monkeypatch):
    """Set this machine's memory to 40 GiB."""
    monkeypatch.setattr(memory, "memory_bytes", lambda: 40 * GIB)


def test_four_fifths_are_shared(machine):
    """80 % of 40 GiB for four trainers, but each has at least the minimum for TensorFlow."""
    assert share_of_memory(4) == 8 * GIB
    assert share_of_memory(1000) == GIB


@pytest.mark.parametrize("divisor, cache_bytes", [(4, 4 * GIB), (2, 8 * GIB), (None, 7 * MIB)])
def test_a_host_deals_out_its_own(machine, divisor, cache_bytes):
    """The coordinator's result for its own memory does not apply to a host with another size."""
    options = {"op": "start", "threads": 1, "memory_limit_bytes": 99 * GIB, "shard_cache_bytes": 7 * MIB}
    there = start_here({**options, "share": {"n_trainers": 2, "cache_divisor": divisor}})
    assert there == {**options, "memory_limit_bytes": 16 * GIB, "shard_cache_bytes": cache_bytes}


def test_what_a_setting_tells_holds_at_every_host(machine):
    """Without a share, the request is unchanged."""
    options = {"op": "start", "memory_limit_bytes": 2 * GIB, "shard_cache_bytes": GIB}
    assert start_here(options) == start_here({**options, "share": None}) == options


def test_a_host_s_own_settings_say_where_files_are_and_how_large(machine):
    """A coordinator's limit of a trainer's file can be lowered there; its directory does not apply there."""
    options = {"op": "start", "shard_disk_bytes": 9 * MIB, "shard_directory": "/of/the/coordinator"}
    assert start_here(options) == {"op": "start", "shard_disk_bytes": 9 * MIB}
    here = {"shard_directory": "/here", "shard_disk_mb": "4"}
    assert start_here(options, here) == {"op": "start", "shard_disk_bytes": 4 * MIB, "shard_directory": "/here"}
    assert start_here(options, {"shard_disk_mb": "40"})["shard_disk_bytes"] == 9 * MIB
    assert start_here({"op": "start"}, {"shard_disk_mb": "40"}) == {"op": "start"}

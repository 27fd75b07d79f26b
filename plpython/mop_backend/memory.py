"""The size of a trainer, and its limits on a host; used by the driver, the doctor, and on a host by its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mop_backend.machine import memory_bytes

if TYPE_CHECKING:
    from mop_backend.frames import Header

MIB = 1 << 20
#: Resident size of a process that has imported TensorFlow 2.21 and fitted a tiny model. A trainer that is forked from
#: one shares most of that.
LOADED_TRAINER_BYTES = 600 * MIB
#: A host's own settings that apply to the trainers there.
SETTINGS_HERE = ("shard_directory", "shard_disk_mb")
_PART = 0.8  # fraction of the machine's memory for all its trainers
_LEAST_MB = 1024


def share_of_memory(n_trainers: int) -> int:
    """Return the bytes of this machine's memory for one of ``n_trainers`` trainers; whole MiB, 1 GiB at least.

    If a control group limits the memory of this process, it is a share of this limit.

    Parameters
    ----------
    n_trainers : int

    Returns
    -------
    int
    """
    return max(_LEAST_MB, int(memory_bytes() * _PART / n_trainers) // MIB) * MIB


def start_here(options: Header, settings: Mapping[str, str] | None = None) -> Header:
    """Return a trainer's options as they are for a trainer on this machine, a host.

    Parameters
    ----------
    options : dict
        Of request "start". ``share``, which is there where no setting tells how much memory a trainer may use, has
        ``n_trainers``, how many the run has on this machine, and ``cache_divisor``, what part of its memory may hold
        shards; None where a setting tells that.
    settings : mapping of str to str, optional
        This host's own, of `SETTINGS_HERE`: the directory of its trainers' files, and a limit of their sizes, beside
        the run's.

    Returns
    -------
    dict
        The same without ``share``.
    """
    share, settings = options.get("share"), settings or {}
    # defence: directory-of-a-host = {"share"}
    not_theirs = {"share", "shard_directory"}
    options = {name: value for name, value in options.items() if name not in not_theirs}
    if share is not None:
        options["memory_limit_bytes"] = share_of_memory(share["n_trainers"])
        if share["cache_divisor"] is not None:
            options["shard_cache_bytes"] = options["memory_limit_bytes"] // MIB // share["cache_divisor"] * MIB
    if "shard_directory" in settings:
        options["shard_directory"] = settings["shard_directory"]
    most = settings.get("shard_disk_mb", "")
    if most.strip().isdecimal() and options.get("shard_disk_bytes"):
        options["shard_disk_bytes"] = min(options["shard_disk_bytes"], int(most) * MIB)
    return options

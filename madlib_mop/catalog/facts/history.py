"""What people, policies and searches did to a run; made by `reading`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class SearchEventFacts:
    """One decision of a search, or an event without one.

    Attributes
    ----------
    ordinal : int
    at_s : float
    event : str
    mst_key, epoch : int or None
        Of the event.
    loss : float or None
    action : str or None
        ``add``, ``extend``, ``stop``, ``exploit`` or ``finish``.
    action_key, until_epoch, source_key : int or None
    reason : str or None
    """

    ordinal: int
    at_s: float
    event: str
    mst_key: int | None
    epoch: int | None
    loss: float | None
    action: str | None
    action_key: int | None
    until_epoch: int | None
    source_key: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """One command to the run, and what became of it.

    Attributes
    ----------
    command_id : int
    command : str
    arguments : mapping
    source : str
        ``person`` or ``policy``.
    issued_by : str
    issued_at : datetime
    state : str
    detail : str or None
    mst_keys : tuple of int
    """

    command_id: int
    command: str
    arguments: Mapping[str, Any]
    source: str
    issued_by: str
    issued_at: datetime
    state: str
    detail: str | None
    mst_keys: tuple[int, ...] = ()

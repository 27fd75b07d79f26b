"""Converts a search's decisions to and from the record (`madlib_mop.search_event.actions`)."""

import dataclasses
from collections.abc import Iterable, Sequence

from madlib_mop.catalog.rows.base import Json
from madlib_mop.search.base import Action, Add, Exploit, Extend, Finish, Proposal, Stop

_KINDS = {"add": Add, "extend": Extend, "stop": Stop, "exploit": Exploit, "finish": Finish}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(actions: Iterable[Action]) -> list[Json]:
    """Return actions as a JSON array of objects: ``do`` is the kind, the rest are its fields; NULLs are omitted."""
    written = []
    for action in actions:
        fields = dataclasses.asdict(action.proposal if isinstance(action, Add) else action)
        written.append({"do": _NAMES[type(action)]} | {k: v for k, v in fields.items() if v is not None})
    return written


def from_json(written: Sequence[Json]) -> list[Action]:
    """Return the actions that `to_json` wrote."""
    actions = []
    for item in written:
        fields = {name: value for name, value in item.items() if name != "do"}
        kind = _KINDS[item["do"]]
        actions.append(Add(Proposal(**fields)) if kind is Add else kind(**fields))
    return actions

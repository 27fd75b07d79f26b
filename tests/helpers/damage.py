"""Damaged files: bytes that were changed, lost or added, and JSON with a value that was changed, from a seed."""

import copy
import json
import random
from typing import Any

#: What takes the place of a value of a document.
_VALUES: tuple[Any, ...] = (
    None, 0, -1, 1, 2, 1.5, "", "x", [], {}, [[]], True, False, 10**9, 10**12, 2**63, -(2**63), 10**400, "float64",
    "int32", "a\0b", "\ud800", [None], [0], [1, 2, 3], {"class_name": "Dense", "config": {}}, 3.7e38, 1e-320, "1",
)  # fmt: skip
_KEYS = ("units", "name", "x", "shape", "dtype", "config", "class_name", "axis")


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return a file with other bytes at some places, a cut end, a hole, or more bytes."""
    changed, kind = bytearray(data), rng.random()
    at = rng.randrange(len(changed))
    if kind < 0.5:
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 128, 255, rng.randrange(256)))
    elif kind < 0.65:
        del changed[at:]
    elif kind < 0.8:
        del changed[at : at + rng.choice((1, 4, 8, 64))]
    else:
        changed[at:at] = rng.randbytes(rng.choice((1, 4, 8)))
    return bytes(changed)


def damaged_json(rng: random.Random, text: str | bytes) -> str:
    """Return a document in which one or two values were changed, removed, added, or replaced by others of it."""
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2))):
        places = list(_places(document))
        if not places:
            break
        (container, key), kind = rng.choice(places), rng.random()
        if kind < 0.7:
            container[key] = copy.deepcopy(rng.choice(_VALUES))
        elif kind < 0.8:
            del container[key]
        elif kind < 0.9 and isinstance(container, dict):
            container[rng.choice(_KEYS)] = copy.deepcopy(rng.choice(_VALUES))
        else:
            other, place = rng.choice(places)
            container[key] = copy.deepcopy(other[place])
    return json.dumps(document)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return all values of a document, as containers and keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((value, key), *_places(item))]

"""SQL values in frames: JSON where JSON can hold them, blobs for bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mop_backend.frames import Blob, Header, Json

_BLOB = "$blob"
_PLAIN = frozenset({str, int, float, bool, type(None)})


def encode_value(value: Any, blobs: list[Blob]) -> Json:
    """Return a value as JSON; bytes are appended to ``blobs`` and leave their index behind."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        blobs.append(value)
        return {_BLOB: len(blobs) - 1}
    if isinstance(value, list | tuple):
        return [encode_value(item, blobs) for item in value]
    if isinstance(value, dict):
        return {name: encode_value(item, blobs) for name, item in value.items()}
    decimal = sys.modules.get("decimal")  # not imported here: the first call of most sessions has no value of it
    if decimal is not None and isinstance(value, decimal.Decimal):
        return str(value)
    return value


def decode_arguments(value: Json, blobs: Sequence[Blob]) -> Any:
    """Undo `encode_value`, through lists and dicts."""
    if isinstance(value, dict):
        if set(value) == {_BLOB}:
            return bytes(blobs[value[_BLOB]])
        return {name: decode_arguments(item, blobs) for name, item in value.items()}
    if isinstance(value, list):
        return [decode_arguments(item, blobs) for item in value]
    return value


def encode_columns(result: Iterable[Mapping[str, Any]]) -> tuple[Header, list[Blob]]:
    """Return rows column by column: a list of values, or for bytes one blob with all of them and their lengths.

    Returns
    -------
    tuple of (dict, list of bytes)
        ``n_rows``, and ``columns``: name -> ``{"values": [...]}`` or ``{"lengths": [...], "blob": i}`` (-1 for NULL).
    """
    rows = list(result)
    columns: Header = {}
    blobs: list[Blob] = []
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if any(isinstance(value, bytes) for value in values):
            columns[name] = {
                "lengths": [-1 if value is None else len(value) for value in values],
                "blob": len(blobs),
            }
            blobs.append(b"".join(value for value in values if value is not None))
        else:
            columns[name] = {"values": [encode_value(value, blobs) for value in values]}
    return {"n_rows": len(rows), "columns": columns}, blobs

"""Rows in the format of ``record_send``, written from Python values as PostgreSQL's send functions do."""

import struct
from decimal import Decimal

import numpy as np

from madlib_mop.columns.records import _TYPES, Field

#: Types of extensions, and enums, have an invented one.
OIDS = {name: one.oid or 16_500 + place for place, (name, one) in enumerate(_TYPES.items())}
_STRUCTS = {
    "int2": ">h", "int4": ">i", "int8": ">q", "float4": ">f", "float8": ">d", "bool": ">?", "oid": ">I",
    "date": ">i", "timestamp": ">q", "timestamptz": ">q", "time": ">q",
}  # fmt: skip
_SPECIAL = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}


def field(reader, name=None):
    """Return the field of a type; by default it has the type's name."""
    return Field(name or reader, reader, OIDS[reader], reader)


def numeric(text):
    """Return a numeric's bytes as ``numeric_send`` writes them; the text is a decimal or NaN, Infinity, -Infinity."""
    if text in _SPECIAL:
        return struct.pack(">hhHH", 0, 0, _SPECIAL[text], 0)
    sign, digits, exponent = Decimal(text).as_tuple()
    digits = list(digits) + [0] * (exponent % 4)
    exponent -= exponent % 4
    digits = [0] * (-len(digits) % 4) + digits
    groups = [int("".join(map(str, digits[i : i + 4]))) for i in range(0, len(digits), 4)]
    weight = exponent // 4 + len(groups) - 1
    while groups and groups[-1] == 0:
        groups.pop()
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    if not groups:
        sign = weight = 0
    return struct.pack(f">hhHH{len(groups)}h", len(groups), weight, 0x4000 * sign, max(0, -exponent), *groups)


def array(element, values, lower=1):
    """Return an array's bytes as ``array_send`` writes them; values may be nested one level, and contain None."""
    nested = bool(values) and isinstance(values[0], list)
    shape = (len(values), len(values[0])) if nested else (len(values),)
    flat = [value for row in values for value in row] if nested else values
    if not flat:
        return struct.pack(">iiI", 0, 0, OIDS[element])
    head = struct.pack(">iiI", len(shape), int(None in flat), OIDS[element])
    head += b"".join(struct.pack(">ii", length, lower) for length in shape)
    return head + b"".join(cell(element, value) for value in flat)


def value_of(reader, value):
    """Return the bytes of one value that is not None; texts and addresses are given as bytes."""
    if isinstance(value, bytes):
        return value
    if reader in _STRUCTS:
        return struct.pack(_STRUCTS[reader], value)
    if reader == "numeric":
        return numeric(value)
    if reader == "timetz":
        return struct.pack(">qi", value, -3600)
    if reader == "interval":
        return struct.pack(">qii", *value)
    if reader.startswith("_"):
        return array(reader[1:], value)
    if reader in ("vector", "halfvec"):
        return struct.pack(f">hh{len(value)}{'f' if reader == 'vector' else 'e'}", len(value), 0, *value)
    if reader == "sparsevec":
        full = [(place, number) for place, number in enumerate(value) if number]
        pairs = [*(place for place, _ in full), *(number for _, number in full)]
        return struct.pack(f">iii{len(full)}i{len(full)}f", len(value), len(full), 0, *pairs)
    return value.encode()


def cell(reader, value):
    """Return the length and the bytes of one value; None is NULL."""
    if value is None:
        return struct.pack(">i", -1)
    data = value_of(reader, value)
    return struct.pack(">i", len(data)) + data


def record(fields, row):
    """Return the bytes of one row."""
    cells = [struct.pack(">I", f.oid) + cell(f.reader, value) for f, value in zip(fields, row, strict=True)]
    return struct.pack(">i", len(fields)) + b"".join(cells)


def batch(fields, rows):
    """Return the bytes of the rows and the length of each."""
    records = [record(fields, row) for row in rows]
    return b"".join(records), np.array([len(r) for r in records], np.int64)

"""Raw columns of Python values, their statistics, and specifications, for tests of proposals and encoders."""

import time
import timeit
from dataclasses import replace

import numpy as np

from madlib_mop.columns import raw
from madlib_mop.columns.preprocessors.fitting import fit_preprocessor
from madlib_mop.columns.proposals.kinds import EMBEDDED, ENCODINGS, IMPUTES, SCALES, ColumnSpec
from madlib_mop.columns.proposals.proposal import CountedColumn
from madlib_mop.columns.statistics import ColumnStatistics

SQL_TYPES = {
    "number": "double precision", "boolean": "boolean", "moment": "timestamp without time zone",
    "time": "time without time zone", "span": "interval", "text": "text", "uuid": "uuid", "inet": "inet",
    "vector": "real[]", "blob": "bytea",
}  # fmt: skip


def numbers(values, family=raw.NUMBER):
    missing = np.array([value is None for value in values], bool)
    return raw.Numbers(np.array([0 if value is None else value for value in values], float), missing, family)


def moments(values, family=raw.MOMENT):
    missing = np.array([value is None for value in values], bool)
    return raw.Moments(np.array([value or 0 for value in values], np.int64), missing, family)


def texts(values, family=raw.TEXT):
    dictionary = raw.Dictionary("c")
    codes = [-1 if value is None else dictionary.code_of(value.encode()) for value in values]
    return raw.Levels(np.array(codes, np.int32), dictionary, family)


def vectors(rows, width):
    values = np.array([row or [0.0] * width for row in rows], np.float32).reshape(len(rows), width)
    return raw.Vectors(values, np.array([row is None for row in rows], bool), "v")


def counted(name, column, sql_type=None, **rest):
    """Return a column of a table with its statistics."""
    sql_type = sql_type or SQL_TYPES[column.family]
    return CountedColumn(name, sql_type, column.family, ColumnStatistics.of(column), **rest)


def spec(name, kind="number", **rest):
    """Return the specification of an input with the defaults of its kind."""
    encode = rest.get("encode", ENCODINGS[kind][0])
    defaults = {"encode": encode, "impute": IMPUTES[kind][0], "scale": SCALES[kind][0]}
    if kind in ("text", "image") or encode in EMBEDDED:
        defaults["width"] = 8
    if encode == "hashed":
        defaults["max_levels"] = 64
    return replace(ColumnSpec(name, "any", kind=kind), **{**defaults, **rest})


def target(name, kind="category", **rest):
    """Return the specification of a target."""
    encode, scale = ("identity", "standard") if kind == "number" else ("one_hot", "none")
    return replace(
        ColumnSpec(name, "any", role="target", kind=kind, impute="error", encode=encode, scale=scale), **rest
    )


def fitted(columns):
    """Return the preprocessor of (specification, raw column) pairs."""
    raws = {one.name: column for one, column in columns}
    statistics = {name: ColumnStatistics.of(column) for name, column in raws.items()}
    return fit_preprocessor([one for one, _ in columns], statistics, texts=raws.__getitem__)


def error_text(caught):
    """Return message and hint of a caught error."""
    return f"{caught.value.message} {caught.value.hint}"


def addition_s() -> float:
    """Return the seconds that NumPy takes to add 20 numbers to 20 others: the unit of limits on any machine."""
    ones = np.ones(20)
    number = 20_000
    return min(timeit.repeat(lambda: np.add(ones, ones), number=number, repeat=10, timer=time.process_time)) / number

"""Fits one input to the statistics of the training rows, by its kind."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from madlib_mop.columns.families import FAMILIES, SECOND_US
from madlib_mop.columns.preprocessors.fits import DateFit, Fit, ImageFit, TermsFit, TextFit, VectorFit
from madlib_mop.columns.proposals.kinds import (
    ARRAY,
    BOOLEAN,
    CATEGORY,
    DATETIME,
    GREY_PIXELS,
    IMAGE,
    MAX_ONE_HOT,
    MAX_TERMS,
    NUMBER,
    PADDED,
    ROW_TERMS,
    TEXT,
    VECTOR,
    ColumnSpec,
)
from madlib_mop.columns.proposals.rules import constant_number, no_level, problem
from madlib_mop.columns.proposals.statistics import Statistics
from madlib_mop.columns.raw import MOMENT, Levels, Numbers
from madlib_mop.columns.transforms.categories import (
    FIRST,
    CategoryFit,
    frequency_units,
    most_frequent,
    number_of_level,
    ordinal_units,
)
from madlib_mop.columns.transforms.dates import PARTS, Integers, steps
from madlib_mop.columns.transforms.scaling import NumberFit, NumberSummary, TooWide, fit_scale
from madlib_mop.columns.transforms.tfidf import TermCounts

#: Default of max_levels: the number of levels that are kept.
MOST_LEVELS = 50_000
_N_POINTS = 256
#: Distinct texts whose terms are counted, their characters together, and those of which the longest decides the width.
_MOST_TEXTS, _MOST_CHARACTERS, _MOST_MEASURED = 100_000, 32 << 20, 10_000


def fit_input(spec: ColumnSpec, counted: Statistics) -> Fit:
    """Return the fit of an input. Raises InvalidParameter if its statistics contradict its specification."""
    return _FITTERS[spec.kind](spec, counted)


def fit_number(spec: ColumnSpec, counted: Statistics) -> NumberFit:
    """Return the fit of a number, in the unit of its family."""
    unit = FAMILIES[counted.family].unit
    summary = _summary(counted, unit)
    fills: dict[str, Callable[[], float | None]] = {
        "mean": lambda: summary.mean,
        "median": lambda: summary.quantile(0.5),
        "minimum": lambda: summary.minimum,
        "error": lambda: None,
    }
    fill = constant_number(spec.constant) if spec.constant is not None else fills[spec.impute]()
    try:
        return fit_scale(NumberFit(unit, fill, spec.indicator, spec.scale), summary)
    except TooWide:
        raise problem(
            spec, f"its values are too far apart for scale {spec.scale!r}", "Set scale to log1p, or divide in a view."
        ) from None


def _summary(counted: Statistics, unit: float) -> NumberSummary:
    def number(value: float | None) -> float:
        return float(value or 0) / unit

    return NumberSummary(
        number(counted.minimum),
        number(counted.maximum),
        number(counted.mean),
        number(counted.std),
        lambda q: number(counted.quantile(q)),
    )


def _number(spec: ColumnSpec, counted: Statistics) -> Fit:
    return fit_number(spec, counted)


def _date(spec: ColumnSpec, counted: Statistics) -> Fit:
    parts: tuple[str, ...] = ()
    if spec.encode == "parts":
        values = _sample(counted)
        is_date = counted.family == MOMENT and spec.sql_type == "date"
        possible = PARTS[:2] if is_date else FAMILIES[counted.family].parts
        parts = tuple(part for part in possible if len(np.unique(steps(values, part))) > 1)
    return DateFit(fit_number(spec, counted), parts)


def _sample(counted: Statistics) -> Integers:
    """Return moments of at most 257 rows, evenly from the first to the last, to the second: int64, microseconds."""
    last = counted.n_rows - counted.n_missing - 1
    shares = {place * last // _N_POINTS / last for place in range(_N_POINTS + 1)} if last else {0.0}
    points = [counted.minimum, counted.maximum, *(counted.quantile(share) for share in sorted(shares))]
    return np.array([round((point or 0) / SECOND_US) * SECOND_US for point in points], np.int64)


def _category(spec: ColumnSpec, counted: Statistics) -> Fit:
    accepts_null = spec.impute != "error"
    if spec.encode == "hashed":
        n_buckets, width = spec.max_levels or 1, spec.width or 1
        return CategoryFit("hashed", (), 1 + n_buckets, width, spec.constant, accepts_null, False)
    levels = _levels(spec, counted)
    units: tuple[float, ...] = ()
    indicator = spec.indicator
    if spec.encode == "ordinal":
        units = ordinal_units(len(levels))
    elif spec.encode == "frequency":
        units = frequency_units(levels, counted.level_counts or {}, counted.n_missing, counted.n_rows)
    elif spec.encode == "one_hot":
        indicator = spec.impute == "level" and counted.n_missing > 0
    n_codes = FIRST + len(levels)
    width = {"index": spec.width or 1, "one_hot": n_codes - 1 + indicator}.get(spec.encode, 1 + indicator)
    fill = None if spec.constant is None else own_levels(spec, (spec.constant,), counted)[0]
    return CategoryFit(spec.encode, levels, n_codes, width, fill, accepts_null, indicator, units)


def _levels(spec: ColumnSpec, counted: Statistics) -> tuple[str, ...]:
    if spec.levels is not None and spec.encode != "frequency":
        return own_levels(spec, spec.levels, counted)
    counts = counted.level_counts
    most = MAX_ONE_HOT if spec.encode == "one_hot" else MOST_LEVELS
    if counts is None or (spec.max_levels is None and len(counts) > most):
        many = f"about {counted.n_distinct:,}" if counts is None else f"{len(counts):,}"
        keep = "" if counts is None else f"Set max_levels to {most:,} or fewer, "
        raise problem(
            spec,
            f"{many} levels are too many for encode {spec.encode!r}",
            (keep + "encode hashed with max_levels 4096, or role ignored.").capitalize(),
        )
    if spec.levels is not None:
        levels = own_levels(spec, spec.levels, counted, needs_known=False)
    else:
        levels = most_frequent(counts, spec.max_levels, counted.n_rows)
    if spec.constant is not None and own_levels(spec, (spec.constant,), counted, needs_known=False)[0] not in levels:
        raise no_level(spec, "Use one of: " + ", ".join(levels[:10]))
    return levels


def own_levels(
    spec: ColumnSpec, levels: Sequence[str], counted: Statistics, *, needs_known: bool = True
) -> tuple[str, ...]:
    """Return levels that were given with the texts that the column's values have: 1.50 for 1.5 of a ``numeric(8, 2)``.

    Parameters
    ----------
    spec : ColumnSpec
    levels : sequence of str
    counted : Statistics
        Of the training rows. Levels that none of them has stay as they are.
    needs_known : bool
        Whether a training row must have one of the levels.

    Raises
    ------
    InvalidParameter
        If a level cannot be a value of the column, two are one number, or none is known although one must be.
    """
    counts, own = counted.level_counts, list(levels)
    if FAMILIES[counted.family].holds is Numbers:
        texts = {number_of_level(text, counted.is_single): text for text in counts or ()}
        numbers: dict[float, str] = {}
        for place, level in enumerate(levels):
            number = number_of_level(level, counted.is_single)
            if number is None:
                raise problem(
                    spec, f"level {level!r} is no value of type {spec.sql_type}", "Write it as the table has it."
                )
            if number in numbers:
                raise problem(spec, f"levels {numbers[number]!r} and {level!r} are one number", "Write it once.")
            numbers[number] = level
            own[place] = texts.get(number, level)
    if needs_known and counts is not None and not set(counts) & set(own):
        raise problem(
            spec,
            "no training row has one of the levels " + ", ".join(map(repr, levels[:5])),
            "Values are, for example: " + ", ".join(map(repr, sorted(counts)[:5])) + ".",
        )
    return tuple(own)


def _text(spec: ColumnSpec, counted: Statistics) -> Fit:
    return TextFit(spec.width or 1, spec.impute != "error", spec.indicator)


def fit_terms(spec: ColumnSpec, column: Levels) -> TermsFit:
    """Return the fit of a text with ``encode => 'tfidf'``.

    Of many or long texts, those whose hashes are the smallest are counted, so the fit does not depend on the order of
    the rows.

    Parameters
    ----------
    spec : ColumnSpec
    column : Levels
        The training rows.
    """
    codes, n_rows = np.unique(column.codes[column.codes >= 0], return_counts=True)
    keys = column.levels.keys()
    found = [(keys[code], n) for code, n in zip(codes.tolist(), n_rows.tolist(), strict=True)]
    found.sort(key=lambda one: hashlib.blake2b(one[0], digest_size=8).digest() + one[0])
    texts: list[str] = []
    n_characters = 0
    for key, _ in found[:_MOST_TEXTS]:
        n_characters += len(key)
        if texts and n_characters > _MOST_CHARACTERS:
            break
        texts.append(key.decode("utf-8", "replace"))
    counts = TermCounts()
    counts.add(texts, np.array([n for _, n in found[: len(texts)]], np.int64))
    vocabulary = counts.most_frequent(spec.max_levels or MAX_TERMS)
    width = min(spec.width or ROW_TERMS, max(1, vocabulary.most_terms(texts[:_MOST_MEASURED])))
    hashes, rows = vocabulary.texts()
    return TermsFit(width, spec.impute != "error", spec.indicator, vocabulary.n_terms, counts.n_rows, hashes, rows)


def _vector(spec: ColumnSpec, counted: Statistics) -> Fit:
    width = counted.width or 0
    if not width:
        raise problem(spec, "all its arrays are empty", "Set role to ignored.")
    if spec.width is not None and spec.width != width:
        raise problem(spec, f"width is {spec.width}, and its values have {width} elements", "Set width to NULL.")
    offset, divisor = 0.0, 1.0
    if spec.scale == "standard":
        offset, divisor = _vector_scale(counted)
    is_padded = spec.encode == PADDED
    return VectorFit(
        width, spec.impute != "error", spec.indicator, offset, divisor, counted.dimensions, is_padded=is_padded
    )


def _vector_scale(counted: Statistics) -> tuple[float, float]:
    """Return mean and deviation of all elements; 1 for a deviation that is 0 as float32, with which rows are scaled."""
    deviation = float(counted.std or 0.0)
    return float(counted.mean or 0.0), deviation if np.float32(deviation) else 1.0


def _image(spec: ColumnSpec, counted: Statistics) -> Fit:
    channels = 1 if spec.encode == GREY_PIXELS else 3
    return ImageFit(spec.width or 1, spec.impute != "error", spec.indicator, channels)


_FITTERS: dict[str, Callable[[ColumnSpec, Statistics], Fit]] = {
    NUMBER: _number,
    BOOLEAN: _number,
    CATEGORY: _category,
    DATETIME: _date,
    TEXT: _text,
    VECTOR: _vector,
    ARRAY: _vector,
    IMAGE: _image,
}

"""Which words an edited proposal may have for each kind of column, and which of them contradict each other."""

import math
from collections import Counter

from madlib_mop.columns.proposals.kinds import (
    ARRAY,
    CATEGORY,
    CLASS_ENCODINGS,
    EMBEDDED,
    ENCODINGS,
    IMAGE,
    IMPUTES,
    MAX_LEVELS,
    MAX_ONE_HOT,
    NUMBER,
    PADDED,
    SCALES,
    TARGET_SCALES,
    TEXT,
    TFIDF,
    VECTOR,
    WIDTHS,
    ColumnSpec,
)
from madlib_mop.columns.vectors import MAX_WIDTH
from madlib_mop.errors import InvalidParameter

_DEFAULT = "NULL is the default of the kind."


def problem(spec: ColumnSpec, message: str, hint: str) -> InvalidParameter:
    """Return the error for a column of a specification."""
    return InvalidParameter(f"column {spec.name!r}: {message}", hint=hint)


def default_scale(kind: str) -> str:
    """Return the scale of a column whose row has none."""
    return SCALES[kind][0]


def check_input(spec: ColumnSpec) -> None:
    """Raise InvalidParameter if the row of an input contradicts itself; its kind is one of `KINDS`."""
    _check_encode(spec)
    _check_scale(spec)
    _check_impute(spec)
    _check_indicator(spec)
    _check_levels(spec)
    _check_max_levels(spec)
    _check_width(spec)


def check_target(spec: ColumnSpec) -> None:
    """Raise InvalidParameter if the row of a target contradicts itself; its kind is one of `TARGET_KINDS`."""
    allowed = ("identity",) if spec.kind == NUMBER else CLASS_ENCODINGS
    if spec.encode not in allowed:
        raise problem(
            spec,
            f"encode {spec.encode!r} is not for a target of kind {spec.kind!r}",
            f"Use {' or '.join(allowed)}.",
        )
    scales = TARGET_SCALES if spec.kind == NUMBER else ("none",)
    if spec.scale not in scales:
        raise problem(
            spec,
            f"scale {spec.scale!r} is not for a target of kind {spec.kind!r}",
            f"Use {' or '.join(scales)}: predictions are brought back from these.",
        )
    if spec.impute != "error":
        raise problem(
            spec,
            f"impute {spec.impute!r} is not for a target: a row without its target cannot be trained",
            "Set impute to error, and leave rows with NULL out by a view.",
        )
    if spec.indicator:
        raise problem(spec, "indicator is not for a target", "Set indicator to false.")
    if spec.kind == NUMBER and spec.levels is not None:
        raise problem(spec, "levels are for categories; this target is a number", "Set levels to NULL.")
    _check_list(spec)
    if spec.levels is not None and len(spec.levels) < 2:
        raise problem(spec, f"a target needs two classes or more; levels has {len(spec.levels)}", "Add the others.")
    for key, value in (("width", spec.width), ("max_levels", spec.max_levels)):
        if value is not None:
            raise problem(spec, f"{key} is not for a target. Received: {value}", f"Set {key} to NULL.")


def _check_encode(spec: ColumnSpec) -> None:
    if spec.encode not in {word for words in ENCODINGS.values() for word in words}:
        raise problem(
            spec, f"encode {spec.encode!r} is unknown", f"For kind {spec.kind} use {' or '.join(ENCODINGS[spec.kind])}."
        )
    if spec.encode not in ENCODINGS[spec.kind]:
        raise problem(
            spec,
            f"encode {spec.encode!r} is not for kind {spec.kind!r}",
            f"Use {' or '.join(ENCODINGS[spec.kind])}. {_DEFAULT}",
        )


def _check_scale(spec: ColumnSpec) -> None:
    if spec.scale not in SCALES[NUMBER]:
        raise problem(spec, f"scale {spec.scale!r} is unknown", f"Scales are {', '.join(SCALES[NUMBER])}.")
    if spec.scale not in SCALES[spec.kind]:
        raise problem(
            spec,
            f"scale {spec.scale!r} is not for kind {spec.kind!r}",
            f"Use {' or '.join(SCALES[spec.kind])}. {_DEFAULT}",
        )


def _check_impute(spec: ColumnSpec) -> None:
    word = "constant" if spec.constant is not None else spec.impute
    if word not in {word for words in IMPUTES.values() for word in words} or spec.impute == "constant":
        raise problem(
            spec,
            f"impute {spec.impute!r} is unknown",
            f"For kind {spec.kind} use {' or '.join(_written(IMPUTES[spec.kind]))}.",
        )
    if word not in IMPUTES[spec.kind]:
        raise problem(
            spec,
            f"impute {spec.impute!r} is not for kind {spec.kind!r}",
            f"Use {' or '.join(_written(IMPUTES[spec.kind]))}. {_DEFAULT}",
        )
    if spec.constant is not None and spec.kind != CATEGORY and constant_number(spec.constant) is None:
        raise problem(spec, f"impute {spec.impute!r} has no finite number", "Write it as constant:0, for example.")


def constant_number(text: str) -> float | None:
    """Return the number of ``constant:<number>``, ``true`` being 1 and ``false`` 0; None if it is no finite number."""
    words = {"true": 1.0, "false": 0.0}
    try:
        value = words[text.lower()] if text.lower() in words else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _check_indicator(spec: ColumnSpec) -> None:
    if not spec.indicator:
        return
    if spec.kind == CATEGORY and spec.encode != "ordinal":
        raise problem(
            spec,
            f"indicator is not for encode {spec.encode!r}: NULL is a level of its own",
            "Set indicator to false.",
        )
    if spec.impute == "error":
        raise problem(
            spec, "indicator contradicts impute 'error': no row with NULL is encoded", "Set one of the two otherwise."
        )


def _check_levels(spec: ColumnSpec) -> None:
    if spec.encode == "ordinal" and not spec.levels:
        raise problem(
            spec, "encode 'ordinal' needs levels, in their order", "Set levels, for example to {low,middle,high}."
        )
    if spec.levels is None:
        return
    if spec.kind != CATEGORY or spec.encode == "hashed":
        what = "encode 'hashed'" if spec.kind == CATEGORY else f"kind {spec.kind!r}"
        raise problem(spec, f"levels is not for {what}", "Set levels to NULL.")
    if not spec.levels:
        raise problem(spec, "levels is empty", "Set levels to NULL to take those of the training rows.")
    _check_list(spec)
    if len(spec.levels) > MAX_LEVELS:
        raise problem(spec, f"{len(spec.levels):,} levels are too many", f"At most {MAX_LEVELS:,} are kept.")
    if spec.constant is not None and spec.constant not in spec.levels:
        raise no_level(spec, "Add it to levels.")


def no_level(spec: ColumnSpec, hint: str) -> InvalidParameter:
    """Return the error for an imputed constant that is no level."""
    return problem(spec, f"impute {spec.impute!r} names none of the levels", hint)


def _check_list(spec: ColumnSpec) -> None:
    twice = next((level for level, n in Counter(spec.levels or ()).items() if n > 1), None)
    if twice is not None:
        raise problem(spec, f"level {twice!r} is in levels twice", "Write each level once.")


def _check_max_levels(spec: ColumnSpec) -> None:
    if spec.max_levels is None:
        if spec.encode == "hashed":
            raise problem(spec, "encode 'hashed' needs max_levels: the number of buckets", "Set it to 1024, say.")
        return
    if (spec.kind != CATEGORY and spec.encode != TFIDF) or spec.encode == "ordinal":
        what = f"encode {spec.encode!r}" if spec.kind in (CATEGORY, TEXT) else f"kind {spec.kind!r}"
        raise problem(spec, f"max_levels is not for {what}. Received: {spec.max_levels}", "Set it to NULL.")
    highest = MAX_ONE_HOT if spec.encode == "one_hot" else MAX_LEVELS
    if not 1 <= spec.max_levels <= highest:
        raise problem(
            spec,
            f"max_levels must be from 1 to {highest:,} for encode {spec.encode!r}. Received: {spec.max_levels}",
            "Use another number, or encode index or hashed.",
        )
    if spec.levels is not None and len(spec.levels) > spec.max_levels:
        raise problem(
            spec,
            f"levels has {len(spec.levels)} levels and max_levels is {spec.max_levels}",
            "Set max_levels to NULL.",
        )


def _check_width(spec: ColumnSpec) -> None:
    if spec.width is None:
        if spec.kind in (TEXT, IMAGE) or spec.encode in EMBEDDED or spec.encode == PADDED:
            raise problem(spec, f"encode {spec.encode!r} needs a width", "Copy it from the proposal.")
        return
    if spec.kind in (VECTOR, ARRAY):
        if not 1 <= spec.width <= MAX_WIDTH:
            hint = "Set it to the most elements of an array." if spec.encode == PADDED else "Set it to NULL."
            raise problem(spec, f"width must be from 1 to {MAX_WIDTH:,}. Received: {spec.width}", hint)
        return
    if spec.kind not in WIDTHS or (spec.kind == CATEGORY and spec.encode not in EMBEDDED):
        raise problem(
            spec, f"width is not for encode {spec.encode!r}. Received: {spec.width}", "Set width to NULL."
        )
    low, high = WIDTHS[spec.kind]
    if not low <= spec.width <= high:
        raise problem(
            spec,
            f"width must be from {low} to {high:,} for encode {spec.encode!r}. Received: {spec.width}",
            "Use a width within these limits.",
        )


def _written(words: tuple[str, ...]) -> list[str]:
    return ["constant:<value>" if word == "constant" else word for word in words]

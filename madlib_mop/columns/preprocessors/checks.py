"""Checks of a preprocessor that was read: what was fitted must agree with the specification, and be of a sensible size.

The owner of a packed table or a model table can write any document into its summary, and other roles use it.
"""

import math
from collections.abc import Callable, Sequence

from madlib_mop.columns.preprocessors.fits import (
    ClassFit,
    DateFit,
    FittedColumn,
    ImageFit,
    TermsFit,
    TextFit,
    VectorFit,
)
from madlib_mop.columns.preprocessors.profiles import N_GROUPS, profile_problem
from madlib_mop.columns.proposals.kinds import (
    ARRAY,
    BOOLEAN,
    CATEGORY,
    DATETIME,
    GREY_PIXELS,
    IMAGE,
    MAX_LEVELS,
    MAX_TERMS,
    NUMBER,
    PADDED,
    TARGET,
    TEXT,
    TFIDF,
    VECTOR,
)
from madlib_mop.columns.proposals.specification import check_specification
from madlib_mop.columns.transforms.categories import FIRST, CategoryFit, ordinal_units
from madlib_mop.columns.transforms.dates import PARTS
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.errors import InvalidParameter, UnreadableText

#: Maximum number of columns of a preprocessor: PostgreSQL's limit for a table.
MAX_COLUMNS = 1_600
#: Maximum number of classes of one target: each is an output of the network, and their numbers are int16.
MAX_CLASSES = 1 << 15
#: Of the texts of a target's classes. They are sent twice in the header of a frame, with up to six bytes a character.
MAX_CLASS_BYTES = 16 << 20
#: Maximum number of units of one row over all inputs: 4 MB of float32.
MAX_UNITS = 1_000_000
_HINT = "Pack the table again."


def check_fitted(columns: Sequence[FittedColumn]) -> None:
    """Check the columns of a preprocessor that was read from a table.

    Raises
    ------
    UnreadableText
        For the first contradiction; the message names the column.
    """
    if len(columns) > MAX_COLUMNS:
        raise _damaged(f"it has {len(columns):,} columns; {MAX_COLUMNS:,} are the most")
    try:
        check_specification([column.spec for column in columns], several_targets=True)
    except InvalidParameter as error:
        raise _damaged(error.message) from None
    for column in columns:
        problem = _problem(column)
        if problem is not None:
            raise _damaged(f"column {column.name!r}: {problem}")
    n_units = units_of(columns)
    if n_units > MAX_UNITS:
        raise _damaged(f"a row has {n_units:,} units; {MAX_UNITS:,} are the most")


def units_of(columns: Sequence[FittedColumn]) -> int:
    """Return how many numbers, indices and pixels the inputs of one row are."""
    return sum(_n_units(column) for column in columns if column.spec.role != TARGET)


def _n_units(column: FittedColumn) -> int:
    fit = column.fit
    if isinstance(fit, ImageFit):
        own = math.prod(fit.shape)
    elif isinstance(fit, TextFit | VectorFit):
        own = fit.width
    elif isinstance(fit, TermsFit):
        own = 2 * fit.width
    else:
        own = 1
    return own + len(column.units())


def _problem(column: FittedColumn) -> str | None:
    """Return what is wrong with what was fitted to a column; None if nothing is."""
    spec, fit = column.spec, column.fit
    if spec.role == TARGET:
        expected: type = NumberFit if spec.kind == NUMBER else ClassFit
    elif spec.role == "input":
        expected = TermsFit if spec.encode == TFIDF else _FIT_OF_KIND[spec.kind]
    else:
        return f"its role is {spec.role!r}"
    if type(fit) is not expected:
        return f"a column of kind {spec.kind!r} has no {type(fit).__name__}"
    # defence: profile-of-a-column = _CHECKS[expected](column, fit)
    return _CHECKS[expected](column, fit) or _profile(column)


def _profile(column: FittedColumn) -> str | None:
    """Return what is wrong with the profile of a column, whose fit is right."""
    if column.profile is None:
        return None
    fit, n_counts = column.fit, None
    if isinstance(fit, ClassFit):
        n_counts = len(fit.classes)
    elif isinstance(fit, CategoryFit):
        n_counts = N_GROUPS if fit.encode == "hashed" else len(fit.levels)
    return profile_problem(column.profile, n_counts)


def _number(column: FittedColumn, fit: NumberFit) -> str | None:
    if fit.scale != column.spec.scale:
        return f"scale {column.spec.scale!r} was not fitted"
    if not (fit.unit > 0 and fit.divisor > 0):
        return "a divisor is not positive"
    if not column.scaled_families:
        of = "no family" if column.family is None else "no family of this name"
        return f"{of} has kind {column.spec.kind!r} and unit {fit.unit:g}"
    if fit.indicator and column.spec.role == TARGET:
        return "a target has an indicator"
    if (fit.scale == "quantile") != bool(fit.knots) or len(fit.knots) != len(fit.outputs):
        return f"{len(fit.knots)} knots and {len(fit.outputs)} outputs do not fit scale {fit.scale!r}"
    if any(low >= high for low, high in zip(fit.knots, fit.knots[1:], strict=False)):
        return "knots do not increase"
    return None


def _date(column: FittedColumn, fit: DateFit) -> str | None:
    if not set(fit.parts) <= set(PARTS) or len(set(fit.parts)) < len(fit.parts):
        return f"parts {list(fit.parts)} are unknown"
    return _number(column, fit.age)


def _category(column: FittedColumn, fit: CategoryFit) -> str | None:
    spec, hashed, one_hot = column.spec, fit.encode == "hashed", fit.encode == "one_hot"
    if fit.encode != spec.encode:
        return f"encode {spec.encode!r} was not fitted"
    if len(set(fit.levels)) < len(fit.levels) or (hashed and fit.levels):
        return "its levels are not distinct"
    if fit.n_codes != (1 + (spec.max_levels or 1) if hashed else FIRST + len(fit.levels)):
        return f"{fit.n_codes:,} codes do not fit its levels"
    if len(fit.units) != (fit.n_codes if fit.encode in ("ordinal", "frequency") else 0):
        return f"{len(fit.units):,} units do not fit its levels"
    if fit.encode == "ordinal" and fit.units != ordinal_units(len(fit.levels)):
        return "its units do not fit its levels"
    indicator = spec.indicator and not hashed
    if one_hot:  # only the fit knows whether the training rows had NULL
        indicator = fit.indicator and spec.impute == "level"
    width = fit.n_codes - 1 + indicator if one_hot else 1 + indicator
    width = spec.width or 1 if fit.encode in ("index", "hashed") else width
    fitted: dict[str, object] = {"accepts_null": spec.impute != "error", "indicator": indicator, "width": width}
    fitted |= {"fill": spec.constant} if hashed or spec.constant is None else {}
    for name, value in fitted.items():
        if getattr(fit, name) != value:
            return f"{name} is {getattr(fit, name)!r}, not {value!r} as specified"
    if spec.constant is not None and not hashed and fit.fill not in fit.levels:
        return f"{fit.fill!r} is none of its levels"
    return None


def _text(column: FittedColumn, fit: TextFit) -> str | None:
    return None if fit.width == column.spec.width else f"width {column.spec.width} was not fitted"


def _terms(column: FittedColumn, fit: TermsFit) -> str | None:
    if not 1 <= fit.width <= (column.spec.width or 0):
        return f"width {column.spec.width} was not fitted"
    if not 0 <= fit.n_terms <= (column.spec.max_levels or MAX_TERMS) <= MAX_LEVELS:
        return f"{fit.n_terms:,} terms are too many"
    try:
        n_terms = fit.vocabulary.n_terms
    except ValueError as error:
        return str(error)
    return None if n_terms == fit.n_terms else f"it has {n_terms:,} terms, not {fit.n_terms:,}"


def _vector(column: FittedColumn, fit: VectorFit) -> str | None:
    if not 1 <= fit.width <= MAX_UNITS or column.spec.width not in (None, fit.width):
        return f"a width of {fit.width:,} is not possible"
    if fit.dimensions and (math.prod(fit.dimensions) != fit.width or min(fit.dimensions) < 1):
        return f"dimensions {list(fit.dimensions)} do not fit a width of {fit.width:,}"
    if fit.is_padded != (column.spec.encode == PADDED):
        return f"encode {column.spec.encode!r} was not fitted"
    return None if fit.divisor > 0 else "a divisor is not positive"


def _image(column: FittedColumn, fit: ImageFit) -> str | None:
    if fit.channels != (1 if column.spec.encode == GREY_PIXELS else 3):
        return f"encode {column.spec.encode!r} was not fitted"
    return None if fit.side == column.spec.width else f"width {column.spec.width} was not fitted"


def _classes(column: FittedColumn, fit: ClassFit) -> str | None:
    if not 2 <= len(fit.classes) <= MAX_CLASSES or len(set(fit.classes)) < len(fit.classes):
        return f"{len(fit.classes):,} classes are not possible"
    return None if fit.encode == column.spec.encode else f"encode {column.spec.encode!r} was not fitted"


def _damaged(problem: str) -> UnreadableText:
    return UnreadableText(f"the preprocessor is damaged: {problem}", hint=_HINT)


_FIT_OF_KIND: dict[str, type] = {
    NUMBER: NumberFit,
    BOOLEAN: NumberFit,
    CATEGORY: CategoryFit,
    DATETIME: DateFit,
    TEXT: TextFit,
    VECTOR: VectorFit,
    ARRAY: VectorFit,
    IMAGE: ImageFit,
}
_CHECKS: dict[type, Callable[..., str | None]] = {
    NumberFit: _number,
    DateFit: _date,
    CategoryFit: _category,
    TextFit: _text,
    TermsFit: _terms,
    VectorFit: _vector,
    ImageFit: _image,
    ClassFit: _classes,
}

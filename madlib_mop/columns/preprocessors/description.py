"""A preprocessor in words: one row a column; ``describe_preprocessor`` prints it."""

from dataclasses import dataclass

from madlib_mop.columns.preprocessors.fits import (
    ClassFit,
    DateFit,
    FittedColumn,
    ImageFit,
    TermsFit,
    TextFit,
    VectorFit,
)
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.transforms.categories import FIRST, CategoryFit
from madlib_mop.columns.transforms.scaling import NumberFit

_N_SHOWN = 8


@dataclass(frozen=True)
class ColumnDescription:
    """How one column is encoded.

    Attributes
    ----------
    name, sql_type, role, kind : str
    encoding : str
        What becomes of a value, in one sentence or two.
    nulls : str
        What becomes of NULL.
    units : tuple of str
        Its units in the matrix of numbers; () if it has none there.
    """

    name: str
    sql_type: str
    role: str
    kind: str
    encoding: str
    nulls: str
    units: tuple[str, ...]


def describe(preprocessor: Preprocessor) -> list[ColumnDescription]:
    """Return one row for each input and target, in the order of the specification."""
    return [
        ColumnDescription(
            column.name,
            column.spec.sql_type,
            column.spec.role,
            column.spec.kind,
            _encoding(column),
            _nulls(column),
            column.units() if column.spec.role == "input" else (),
        )
        for column in preprocessor.columns
    ]


def _encoding(column: FittedColumn) -> str:
    fit = column.fit
    if isinstance(fit, NumberFit):
        return _scale(fit, "x")
    if isinstance(fit, DateFit):
        first = _scale(fit.age, column.scaled_families[0].measured_in)
        return f"{first}; sine and cosine of {', '.join(fit.parts)}" if fit.parts else first
    if isinstance(fit, CategoryFit):
        return _category(fit)
    if isinstance(fit, TextFit):
        return f"words and runs of 3 and 4 characters, hashed into {fit.width:,} units"
    if isinstance(fit, TermsFit):
        return (
            f"TF-IDF of {fit.n_terms:,} terms: words, pairs of words and runs of 2 to 5 characters; up to"
            f" {fit.width:,} a row"
        )
    if isinstance(fit, VectorFit):
        what = " x ".join(map(str, fit.dimensions)) if fit.dimensions else f"{fit.width:,}"
        padded = "; absent ones are 0" if fit.is_padded else ""
        return f"{what} elements, each {_affine('x', fit.offset, fit.divisor)}{padded}"
    if isinstance(fit, ImageFit):
        channels = "3 channels (RGB)" if fit.channels == 3 else "1 channel (grey)"
        return f"resized to {fit.side} by {fit.side} pixels, {channels}"
    classes = f"{len(fit.classes):,} classes: {_listed(fit.classes)}"
    return f"{classes}, as {'one unit a class' if fit.encode == 'one_hot' else 'the number of the class'}"


def _scale(fit: NumberFit, name: str) -> str:
    affine = _affine(f"sign({name}) ln(1 + abs({name}))" if fit.scale == "log1p" else name, fit.offset, fit.divisor)
    if fit.scale == "quantile":
        return f"{name}, by {len(fit.knots)} quantiles to a normal distribution"
    return f"r = {affine}, then r / sqrt(1 + (r/3)^2)" if fit.scale == "robust" else affine


def _affine(name: str, offset: float, divisor: float) -> str:
    if offset == 0.0 and divisor == 1.0:
        return f"{name} as it is"
    return f"({name} - {offset:.6g}) / {divisor:.6g}"


def _category(fit: CategoryFit) -> str:
    if fit.encode == "hashed":
        return f"hashed into buckets 1 to {fit.n_codes - 1:,}, for an embedding of {fit.width} units"
    levels = f"{len(fit.levels):,} levels: {_listed(fit.levels)}"
    if fit.encode == "index":
        return f"{levels}: {FIRST} to {fit.n_codes - 1:,}, others 1, for an embedding of {fit.width} units"
    if fit.encode == "one_hot":
        return f"{levels}: one unit each, one for others"
    what = "evenly from 0 to 1" if fit.encode == "ordinal" else "share of the training rows, standardised"
    return f"{levels}: {what}"


def _nulls(column: FittedColumn) -> str:
    fit = column.fit.age if isinstance(column.fit, DateFit) else column.fit
    marked = ", and a unit that says so" if not isinstance(fit, ClassFit) and fit.indicator else ""
    if isinstance(fit, ClassFit) or column.spec.impute == "error":
        return "error"
    if isinstance(fit, NumberFit):
        return "error" if fit.fill is None else f"{column.spec.impute.partition(':')[0]} ({fit.fill:.6g}){marked}"
    if isinstance(fit, CategoryFit):
        if fit.fill is not None:
            return f"level {fit.fill!r}"
        if fit.encode == "one_hot":
            return "a unit of its own" if fit.indicator else "zeros"
        return f"the middle{marked}" if fit.encode == "ordinal" else "a level of its own"
    return f"black{marked}" if isinstance(fit, ImageFit) else f"zeros{marked}"


def _listed(texts: tuple[str, ...]) -> str:
    shown = ", ".join(texts[:_N_SHOWN])
    return shown if len(texts) <= _N_SHOWN else f"{shown}, ..."

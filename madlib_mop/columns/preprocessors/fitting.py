"""Fits a checked specification to the statistics of the training rows; packing calls it once."""

from collections.abc import Callable, Mapping, Sequence

from madlib_mop.columns.families import FAMILIES, to_record
from madlib_mop.columns.numbers import EXACT
from madlib_mop.columns.preprocessors.checks import MAX_CLASS_BYTES, MAX_CLASSES, MAX_UNITS, units_of
from madlib_mop.columns.preprocessors.fits import ClassFit, DateFit, Fit, FittedColumn
from madlib_mop.columns.preprocessors.input_fits import fit_input, fit_number, fit_terms, own_levels
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.kinds import CATEGORY, IGNORED, NUMBER, TARGET, TFIDF, ColumnSpec
from madlib_mop.columns.proposals.names import sql_name
from madlib_mop.columns.proposals.rules import problem
from madlib_mop.columns.proposals.specification import check_family
from madlib_mop.columns.proposals.statistics import Statistics
from madlib_mop.columns.raw import NUMBER as OF_NUMBERS
from madlib_mop.columns.raw import Levels, Numbers
from madlib_mop.columns.records import reader_of
from madlib_mop.columns.transforms.categories import number_of_level
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.errors import InvalidParameter

_FLOATS = ("float4", "float8")


def fit_preprocessor(
    specs: Sequence[ColumnSpec],
    statistics: Mapping[str, Statistics],
    readers: Mapping[str, str] | None = None,
    texts: Callable[[str], Levels] | None = None,
) -> Preprocessor:
    """Return the preprocessor of a specification.

    Parameters
    ----------
    specs : sequence of ColumnSpec
        Checked by `check_specification`.
    statistics : mapping of str to Statistics
        Of the training rows, by column; of every input and target.
    readers : mapping of str to str or None
        What `reader_of` gives for the type of each column, or for the base type of its domain; None: their types are
        no domains.
    texts : callable or None
        Returns the training rows of a column; needed for texts with ``encode => 'tfidf'``.

    Raises
    ------
    InvalidParameter
        For a column that cannot be fitted: no values, too many levels, a target of one class, and the like.
    """
    columns = []
    for spec in specs:
        if spec.role == IGNORED:
            continue
        counted = statistics[spec.name]
        check_family(spec, counted.family)
        if counted.n_rows == 0:
            raise problem(spec, "there are no training rows", "Use a table with rows, or a smaller validation.")
        if counted.n_rows == counted.n_missing:
            raise problem(spec, f"all {counted.n_rows:,} training rows are NULL", "Set role to ignored.")
        if counted.special and spec.kind != CATEGORY:
            text, n_rows = next(iter(counted.special.items()))
            raise problem(
                spec,
                f"{n_rows:,} training row{'s have' if n_rows > 1 else ' has'} the value {text}, which is not finite",
                "Replace it by NULL or a number in a view.",
            )
        reader = readers[spec.name] if readers is not None else reader_of(spec.sql_type)
        if spec.kind == CATEGORY and counted.family == OF_NUMBERS and reader not in _FLOATS:
            largest = max(abs(counted.minimum or 0.0), abs(counted.maximum or 0.0))
            if largest > EXACT:
                raise problem(
                    spec,
                    f"a category cannot have numbers beyond 2^53, such as {largest:.0f}: they are not told apart",
                    f"Cast it in a view: {sql_name(spec.name)}::text.",
                )
        fit: Fit
        if spec.role == TARGET:
            fit = fit_target(spec, counted)
        elif spec.encode == TFIDF:
            assert texts is not None, "the caller has the rows of texts"
            fit = fit_terms(spec, texts(spec.name))
        else:
            fit = fit_input(spec, counted)
        family = to_record(spec.kind, counted.family, spec.sql_type) if isinstance(fit, NumberFit | DateFit) else None
        columns.append(FittedColumn(spec, fit, family=family))
    n_units = units_of(columns)
    if n_units > MAX_UNITS:
        raise InvalidParameter(
            f"the inputs have {n_units:,} units a row; {MAX_UNITS:,} are the most",
            hint="Set role to ignored for wide columns, or a smaller width.",
        )
    return Preprocessor(tuple(columns))


def fit_target(spec: ColumnSpec, counted: Statistics) -> Fit:
    """Return the fit of a target.

    Classes are those of ``levels``, else those of the training rows, sorted as PostgreSQL sorts them: numbers by
    value, false before true, texts by their bytes (collation "C").

    Raises
    ------
    InvalidParameter
        If values are NULL, if there are fewer than two classes or too many, or if a number has one value only.
    """
    if counted.n_missing:
        rows = "row" if counted.n_missing == 1 else "rows"
        raise InvalidParameter(
            f"target {spec.name!r} is NULL in {counted.n_missing:,} training {rows}", hint=null_hint(spec.name)
        )
    if spec.kind == NUMBER:
        if counted.minimum == counted.maximum:
            raise problem(spec, "the target has one value only in the training rows", "Name another target.")
        return fit_number(spec, counted)
    counts = counted.level_counts
    if counts is not None and len(counts) < 2:
        raise problem(
            spec,
            f"the target has one class only in the training rows: {next(iter(counts))!r}",
            "Name another target, or use a table with rows of two classes or more.",
        )
    if spec.levels is not None:
        if len(spec.levels) > MAX_CLASSES:
            raise problem(
                spec, f"levels has {len(spec.levels):,} classes; {MAX_CLASSES:,} are the most", "Use fewer classes."
            )
        classes = own_levels(spec, spec.levels, counted)
        unlisted = sorted(set(counted.level_counts or ()) - set(classes))
        if unlisted:
            raise problem(spec, f"class {unlisted[0]!r} is not in levels", "Add it, or set levels to NULL.")
        return _class_fit(spec, classes)
    if counts is None or len(counts) > MAX_CLASSES:
        many = f"about {counted.n_distinct:,}" if counts is None else f"{len(counts):,}"
        raise problem(
            spec,
            f"the target has {many} classes; {MAX_CLASSES:,} are the most",
            "For a regression set kind to number, encode to identity and scale to standard.",
        )
    if FAMILIES[counted.family].holds is Numbers:
        return _class_fit(spec, sorted(counts, key=lambda text: number_of_level(text) or 0.0))
    return _class_fit(spec, sorted(counts, key=str.encode))


def _class_fit(spec: ColumnSpec, classes: Sequence[str]) -> ClassFit:
    n_bytes = sum(len(text.encode()) for text in classes)
    if n_bytes > MAX_CLASS_BYTES:
        raise problem(
            spec,
            f"the names of the {len(classes):,} classes have {n_bytes:,} bytes; {MAX_CLASS_BYTES:,} are the most",
            "Replace them by short names or numbers in a view.",
        )
    return ClassFit(tuple(classes), spec.encode)


def null_hint(name: str) -> str:
    """Return the hint for rows without their target."""
    return f"Leave such rows out by a view: WHERE {sql_name(name)} IS NOT NULL."

"""Typed columns of a batch of rows, before any encoding; readers make them, statistics and the encoder use them.

Every class has ``n_rows``, ``missing`` (bool, one a row), ``take(indices)``, ``first_special()`` and a static
``concatenate(parts)``; `concatenate` picks the class. Values of missing rows are 0 (``b""`` is a value, not missing).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.blobs import Blobs
from madlib_mop.errors import InvalidParameter, OutOfResources

#: Maximum number of distinct values in a dictionary.
MAX_LEVELS = 1_000_000
NUMBER, BOOLEAN = "number", "boolean"
MOMENT, TIME, SPAN = "moment", "time", "span"
TEXT, UUID, INET = "text", "uuid", "inet"
VECTOR = "vector"
#: Forms of `Numbers` whose texts or values need more than a float64.
INT8, FLOAT4, FLOAT8, NUMERIC = "int8", "float4", "float8", "numeric"
WIDTH_HINT = (
    "All rows of a column of arrays must have as many elements. Leave other rows out, ignore the column, or use the"
    " proposal of madlib_mop.propose_columns, which pads short arrays."
)
#: int64 values of ``-infinity`` and ``infinity`` in timestamps, as in PostgreSQL.
BEGIN, END = -(2**63), 2**63 - 1
_PART_BYTES, _PART_ROWS = 32 << 20, 1_000_000

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp] | npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice
#: For numerics of any size: they have at most 131,072 digits before the point and 16,383 after it.
_WIDE = Context(prec=200_000)


_Item = TypeVar("_Item", bound=np.generic)


class TooManyLevels(OutOfResources):
    """A text column has more distinct values than one dictionary may hold."""

    def __init__(self, column: str, max_levels: int):
        super().__init__(
            f"column '{column}' has more than {max_levels:,} distinct values",
            hint="Encode it as hashed or hashed_ngrams, or set its role to ignored.",
        )
        self.column = column


@dataclass(frozen=True)
class Special:
    """The first value of a column that is no finite number or date.

    Attributes
    ----------
    row : int
        0-based, within the column.
    text : str
        ``NaN``, ``Infinity`` or ``-Infinity`` for numbers and elements, ``infinity`` or ``-infinity`` for moments.
    """

    row: int
    text: str


class Dictionary:
    """Distinct texts of a column and their codes 0, 1, ..., in the order in which they came.

    Parameters
    ----------
    column : str
        Name for errors.
    max_levels : int
        Distinct texts at most.
    """

    def __init__(self, column: str = "", max_levels: int = MAX_LEVELS):
        self.column = column
        self.max_levels = max_levels
        self._codes: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def code_of(self, text: bytes) -> int:
        """Return the code of a text; a new text gets the next code.

        Raises
        ------
        TooManyLevels
            If the text is new and the dictionary is full.
        """
        code = self._codes.get(text)
        if code is None:
            code = len(self._codes)
            if code >= self.max_levels:
                raise TooManyLevels(self.column, self.max_levels)
            self._codes[text] = code
        return code

    def codes_of(self, texts: Sequence[bytes]) -> list[int]:
        """Return the codes of texts, of new ones as `code_of` does; known ones cost least."""
        found = [*map(self._codes.get, texts)]
        return [self.code_of(text) if code is None else code for text, code in zip(texts, found, strict=True)]

    def find(self, text: bytes) -> int:
        """Return the code of a text, or -1 if it is not there."""
        return self._codes.get(text, -1)

    def keys(self) -> list[bytes]:
        """Return the texts as UTF-8, in the order of their codes."""
        return list(self._codes)

    def texts(self) -> list[str]:
        """Return the texts in the order of their codes; bytes that are not UTF-8 become U+FFFD."""
        return [text.decode("utf-8", "replace") for text in self._codes]


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers or booleans.

    Attributes
    ----------
    values : numpy.ndarray
        float64 (n_rows,), 0 where missing; booleans are 0 and 1. Integers over 2^53 are rounded to float64.
    missing : numpy.ndarray
        bool (n_rows,).
    family : str
        ``number`` or ``boolean``.
    form : str or None
        The type as readers name it, such as ``int8`` or ``numeric``: how SQL prints the numbers. None of others.
    rest : numpy.ndarray or None
        int16 (n_rows,), of two forms only. Of ``int8``: each integer minus its float64. Of ``numeric``: the digits
        after the point that SQL prints.
    """

    values: Floats
    missing: Flags
    family: str = NUMBER
    form: str | None = None
    rest: npt.NDArray[np.int16] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.values)

    @cached_property
    def has_missing(self) -> bool:
        """Return whether a row is missing."""
        return bool(self.missing.any())

    def take(self, indices: Indices) -> "Numbers":
        """Return the rows of these indices, in their order."""
        values = taken(self.values, indices)
        missing = taken(self.missing, indices) if self.has_missing else np.zeros(len(values), np.bool_)
        rest = None if self.rest is None else taken(self.rest, indices)
        return Numbers(values, missing, self.family, self.form, rest)

    @property
    def is_single(self) -> bool:
        """Return whether the numbers are of type ``real``: each is a float32."""
        return self.form == FLOAT4

    def integers(self) -> Integers | None:
        """Return the values of ``bigint`` as they are, int64 (n_rows,); None of other types."""
        if self.form != INT8 or self.rest is None:
            return None
        is_over = self.values >= 2.0**63  # the float64 of the greatest integers, which int64 does not have
        if not is_over.any():
            return self.values.astype(np.int64) + self.rest
        wrapped = np.where(is_over, -(2.0**63), self.values).astype(np.int64)
        return wrapped + self.rest  # the sum wraps back

    def sql_texts(self) -> list[str | None]:
        """Return each value as SQL prints it, None where NULL."""
        exact = self.integers()
        values = (self.values if exact is None else exact).tolist()
        digits = self.rest.tolist() if self.form == NUMERIC and self.rest is not None else [None] * len(values)
        return [
            None if absent else sql_text(value, self.form, self.family, n_digits)
            for value, absent, n_digits in zip(values, self.missing.tolist(), digits, strict=True)
        ]

    def first_special(self) -> Special | None:
        """Return the first NaN or infinity, or None."""
        finite = np.isfinite(self.values)
        if finite.all():
            return None
        row = int(np.argmin(finite))
        return Special(row, text_of_number(float(self.values[row])))

    def as_levels(self, column: str = "") -> "Levels":
        """Return the numbers as categories, each with the text of its float64 (``17``, ``0.5``, ``true``).

        These texts are hashed, so they do not depend on how many digits a ``numeric`` has. `sql_texts` has those to
        show.
        """
        present = ~self.missing
        distinct, inverse = np.unique(self.values[present] + 0.0, return_inverse=True)
        texts = [text_of_number(value, self.family) for value in distinct.tolist()]
        codes = np.full(self.n_rows, -1, np.int32)
        codes[present] = inverse
        return Levels(codes, dictionary_of(texts, column))

    @staticmethod
    def concatenate(parts: Sequence["Numbers"]) -> "Numbers":
        """Return the rows of all parts."""
        rests = [part.rest for part in parts if part.rest is not None]
        return replace(
            parts[0],
            values=np.concatenate([part.values for part in parts]),
            missing=np.concatenate([part.missing for part in parts]),
            rest=np.concatenate(rests) if rests else None,
        )


@dataclass(frozen=True, eq=False)
class Moments:
    """Dates, timestamps, times of day or intervals.

    Attributes
    ----------
    values : numpy.ndarray
        int64 (n_rows,), microseconds: of dates and timestamps since 2000-01-01 00:00 (UTC for timestamptz), of times
        since midnight, of intervals their length with months of 30.4375 days. 0 where missing; `BEGIN` and `END` are
        ``-infinity`` and ``infinity``.
    missing : numpy.ndarray
        bool (n_rows,).
    family : str
        ``moment``, ``time`` or ``span``, or another one of `madlib_mop.columns.families`.
    """

    values: Integers
    missing: Flags
    family: str = MOMENT

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.values)

    @cached_property
    def has_missing(self) -> bool:
        """Return whether a row is missing."""
        return bool(self.missing.any())

    def take(self, indices: Indices) -> "Moments":
        """Return the rows of these indices, in their order."""
        values = taken(self.values, indices)
        missing = taken(self.missing, indices) if self.has_missing else np.zeros(len(values), np.bool_)
        return replace(self, values=values, missing=missing)

    def first_special(self) -> Special | None:
        """Return the first infinity, or None."""
        endless = (self.values == BEGIN) | (self.values == END)
        if not endless.any():
            return None
        row = int(np.argmax(endless))
        return Special(row, "infinity" if self.values[row] > 0 else "-infinity")

    @staticmethod
    def concatenate(parts: Sequence["Moments"]) -> "Moments":
        """Return the rows of all parts."""
        return replace(
            parts[0],
            values=np.concatenate([part.values for part in parts]),
            missing=np.concatenate([part.missing for part in parts]),
        )


@dataclass(frozen=True, eq=False)
class Levels:
    """Texts, or what is treated as a text.

    Attributes
    ----------
    codes : numpy.ndarray
        int32 (n_rows,), codes of ``levels``; -1 is NULL. Not every level need occur.
    levels : Dictionary
        Shared with what was taken from it; codes differ from batch to batch.
    family : str
        ``text``, ``uuid`` or ``inet``.
    """

    codes: Codes
    levels: Dictionary
    family: str = TEXT

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.codes)

    @cached_property
    def missing(self) -> Flags:
        """Return which rows are NULL: bool (n_rows,)."""
        return self.codes < 0

    def take(self, indices: Indices) -> "Levels":
        """Return the rows of these indices, in their order."""
        return replace(self, codes=taken(self.codes, indices))

    def first_special(self) -> Special | None:
        """Return None: every text is a level."""
        return None

    def texts(self) -> list[str | None]:
        """Return the text of each row, None where NULL."""
        texts: list[str | None] = [*self.levels.texts(), None]
        return [texts[code] for code in self.codes.tolist()]

    @staticmethod
    def concatenate(parts: Sequence["Levels"]) -> "Levels":
        """Return the rows of all parts, with the codes of one dictionary.

        Raises
        ------
        TooManyLevels
            If the parts have more distinct values than one dictionary holds.
        """
        if all(part.levels is parts[0].levels for part in parts):
            return replace(parts[0], codes=np.concatenate([part.codes for part in parts]))
        levels = Dictionary(parts[0].levels.column, parts[0].levels.max_levels)
        codes = []
        for part in parts:
            renumbered = np.full(len(part.levels) + 1, -1, np.int32)
            keys = part.levels.keys()
            used = np.unique(part.codes[part.codes >= 0])
            renumbered[used] = levels.codes_of([keys[code] for code in used.tolist()])
            codes.append(renumbered[part.codes])
        return replace(parts[0], codes=np.concatenate(codes), levels=levels)


@dataclass(frozen=True, eq=False)
class Vectors:
    """Numeric arrays or vectors of one width.

    Attributes
    ----------
    values : numpy.ndarray
        float32 (n_rows, width), 0 where missing; the width is 0 if all rows are missing. The elements of an array of
        several dimensions have their order in memory: the last dimension is the fastest.
    missing : numpy.ndarray
        bool (n_rows,).
    column : str
        Name for errors.
    dimensions : tuple of int
        Of the arrays of all rows, if they have several dimensions, and the same; else ().
    absent : numpy.ndarray or None
        bool (n_rows, width): the elements that a padded array does not have, or that are NULL in it; their values are
        0. None if the arrays are not padded.
    """

    values: npt.NDArray[np.float32]
    missing: Flags
    column: str = ""
    family: str = VECTOR
    dimensions: tuple[int, ...] = ()
    absent: Flags | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.values)

    @property
    def width(self) -> int | None:
        """Elements of a row; None if no row has a value."""
        return None if self.missing.all() else self.values.shape[1]

    def take(self, indices: Indices) -> "Vectors":
        """Return the rows of these indices, in their order."""
        absent = None if self.absent is None else self.absent[indices]
        return replace(self, values=self.values[indices], missing=self.missing[indices], absent=absent)

    def first_special(self) -> Special | None:
        """Return the first row with a NaN or an infinity (also of a float8 that a float32 cannot hold), or None."""
        finite = np.isfinite(self.values).all(axis=1)
        if finite.all():
            return None
        row = int(np.argmin(finite))
        values = self.values[row]
        return Special(row, text_of_number(float(values[~np.isfinite(values)][0])))

    @staticmethod
    def concatenate(parts: Sequence["Vectors"]) -> "Vectors":
        """Return the rows of all parts.

        Raises
        ------
        InvalidParameter
            If two parts have values of different widths.
        """
        widths = [part.width for part in parts if part.width is not None]
        if len(set(widths)) > 1:
            raise other_width(parts[0].column, widths[0], next(width for width in widths if width != widths[0]))
        width = widths[0] if widths else 0
        values = [
            part.values if part.width is not None else np.zeros((part.n_rows, width), np.float32) for part in parts
        ]
        missing = np.concatenate([part.missing for part in parts])
        absent = [part.absent for part in parts if part.absent is not None]
        return replace(
            parts[0],
            values=np.concatenate(values),
            missing=missing,
            dimensions=common_dimensions([part.dimensions for part in parts if part.width is not None]),
            absent=np.concatenate(absent) if absent else None,
        )


def common_dimensions(found: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the dimensions that all arrays have; () if they differ: then the arrays are rows of elements."""
    return found[0] if found and all(dimensions == found[0] for dimensions in found) else ()


RawColumn = Numbers | Moments | Levels | Vectors | Blobs


def taken(values: npt.NDArray[_Item], indices: Indices) -> npt.NDArray[_Item]:
    """Return the items of these indices, (n,), or those flagged.

    A third faster than indexing, because no index is checked: each must be at least 0 and below the number of items.
    """
    if isinstance(indices, slice) or indices.dtype == np.bool_:
        return values[indices]
    return np.asarray(values).take(indices, mode="clip")


def rows_at_once(column: RawColumn) -> int:
    """Return how many rows of a column are counted at once: 32 MiB of arrays; of others, many."""
    return max(1, _PART_BYTES // max(1, column.values[:1].nbytes)) if isinstance(column, Vectors) else _PART_ROWS


def concatenate(parts: Sequence[RawColumn]) -> RawColumn:
    """Return the rows of all parts of one column; the parts, at least one, are of one class."""
    joined: RawColumn = type(parts[0]).concatenate(parts)  # type: ignore[arg-type] # all parts are of one class
    return joined


def dictionary_of(texts: Iterable[str | bytes], column: str = "") -> Dictionary:
    """Return a dictionary whose codes are the positions of these texts, which are distinct; it may be of any size."""
    keys = [text.encode() if isinstance(text, str) else text for text in texts]
    return dictionary_of_keys(keys, column)


def dictionary_of_keys(keys: Sequence[bytes], column: str = "") -> Dictionary:
    """Return what `dictionary_of` does, of texts that are UTF-8 already."""
    levels = Dictionary(column, max(MAX_LEVELS, len(keys)))
    levels._codes = dict(zip(keys, range(len(keys)), strict=True))
    return levels


def text_of_number(value: float, family: str = NUMBER) -> str:
    """Return a number as text: ``true`` and ``false`` for booleans, whole numbers without a point, NaN, Infinity."""
    if family == BOOLEAN:
        return "true" if value else "false"
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value == int(value) and abs(value) < 1e18 else repr(value)


def sql_text(value: float, form: str | None, family: str = NUMBER, n_digits: int | None = None) -> str:
    """Return a number as SQL prints a value of its type: what ``x::text`` is.

    Parameters
    ----------
    value : float
        An int of ``bigint``.
    form : str or None
        As `Numbers` has it; None writes the number as `text_of_number` does.
    family : str
    n_digits : int or None
        Of ``numeric``: digits after the point; None for as many as the number needs.
    """
    if isinstance(value, int):
        return str(value)
    if form not in (FLOAT4, FLOAT8, NUMERIC) or not np.isfinite(value):
        return text_of_number(value, family)
    if form == NUMERIC:
        exact = Decimal(repr(value + 0.0))
        if n_digits is not None:
            written = exact.quantize(Decimal(1).scaleb(-n_digits), context=_WIDE)
            exact = written if float(written) == value else exact  # of more digits than a float64 has
        return f"{exact:f}"
    if form == FLOAT8 and 1e-4 <= abs(value) < 1e15:
        return repr(value).removesuffix(".0")
    number = np.float32(value) if form == FLOAT4 else np.float64(value)
    scientific = np.format_float_scientific(number, unique=True, trim="-")
    exponent = int(scientific.partition("e")[2])
    is_plain = number == 0 or -4 <= exponent < (6 if form == FLOAT4 else 15)  # the limits of float4out and float8out
    return np.format_float_positional(number, unique=True, trim="-") if is_plain else scientific


def other_width(column: str, expected: int, received: int) -> InvalidParameter:
    """Return the error for a vector of another width than those before it."""
    message = f"column '{column}' has {received} elements, where {expected} are expected"
    return InvalidParameter(message, hint=WIDTH_HINT)


def other_dimensions(column: str, expected: tuple[int, ...], received: tuple[int, ...]) -> InvalidParameter:
    """Return the error for arrays of other dimensions than those of training; () are those of rows of elements."""
    has, wanted = (" x ".join(map(str, found)) or "one dimension" for found in (received, expected))
    return InvalidParameter(
        f"column '{column}' has arrays of {has}, where {wanted} is expected",
        hint="All arrays must have the dimensions that those of training have. Leave other rows out by a view.",
    )

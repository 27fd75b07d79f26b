"""What was fitted to each column of the training rows; the parts of a preprocessor."""

from dataclasses import dataclass, field
from functools import cached_property

from madlib_mop.columns.families import Family, alike, families_of_kind, scaled_families
from madlib_mop.columns.preprocessors.canonical import ADDED
from madlib_mop.columns.preprocessors.profiles import ColumnProfile
from madlib_mop.columns.proposals.kinds import CATEGORY, ColumnSpec
from madlib_mop.columns.transforms.categories import CategoryFit
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.columns.transforms.tfidf import Vocabulary


@dataclass(frozen=True)
class DateFit:
    """A date or time: a scaled number, and parts on a circle (0 and 0 for NULL).

    Attributes
    ----------
    age : NumberFit
        Days since 2000-01-01, or seconds since midnight.
    parts : tuple of str
        ``month``, ``weekday`` and ``hour``, as far as they vary over the training rows.
    """

    age: NumberFit
    parts: tuple[str, ...]


@dataclass(frozen=True)
class TextFit:
    """A text as hashed words and runs of characters: ``width`` units, zeros for NULL."""

    width: int
    accepts_null: bool
    indicator: bool


@dataclass(frozen=True)
class TermsFit:
    """A text as the weights of its terms, at most ``width``; none for NULL.

    Attributes
    ----------
    width : int
    accepts_null, indicator : bool
    n_terms : int
        Terms of the vocabulary.
    n_rows : int
        Training rows of which they were counted.
    terms, counts : str
        The vocabulary, as `Vocabulary.texts` writes it.
    """

    width: int
    accepts_null: bool
    indicator: bool
    n_terms: int
    n_rows: int
    terms: str
    counts: str

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The terms and their weights. Raises ValueError for a damaged document."""
        return Vocabulary.from_texts(self.terms, self.counts, self.n_rows)


@dataclass(frozen=True)
class VectorFit:
    """A vector of ``width`` elements, each (x - offset) / divisor in float32; zeros for NULL.

    Attributes
    ----------
    width : int
    accepts_null, indicator : bool
    offset, divisor : float
    dimensions : tuple of int
        Of arrays of several dimensions, whose product is ``width``; () are rows of elements. Documents of earlier
        versions do not have it: arrays of any dimensions were rows of elements.
    is_padded : bool
        Whether arrays may have fewer elements, and NULL among them: these are zeros.
    """

    width: int
    accepts_null: bool
    indicator: bool
    offset: float
    divisor: float
    dimensions: tuple[int, ...] = field(default=(), metadata=ADDED)
    is_padded: bool = field(default=False, metadata=ADDED)


@dataclass(frozen=True)
class ImageFit:
    """An image of ``side`` by ``side`` pixels and three channels, or one of grey ones; zeros for NULL."""

    side: int
    accepts_null: bool
    indicator: bool
    channels: int = field(default=3, metadata=ADDED)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.side, self.side, self.channels


@dataclass(frozen=True)
class ClassFit:
    """The classes of a target, in the order of the network's outputs.

    Attributes
    ----------
    classes : tuple of str
    encode : str
        ``one_hot`` or ``index``.
    """

    classes: tuple[str, ...]
    encode: str


Fit = NumberFit | CategoryFit | DateFit | TextFit | TermsFit | VectorFit | ImageFit | ClassFit
FIT_TYPES: dict[str, type[Fit]] = {
    "number": NumberFit,
    "category": CategoryFit,
    "date": DateFit,
    "text": TextFit,
    "terms": TermsFit,
    "vector": VectorFit,
    "image": ImageFit,
    "classes": ClassFit,
}


@dataclass(frozen=True)
class FittedColumn:
    """A column that is an input or a target: its specification, what was fitted, and how the training rows were.

    Attributes
    ----------
    spec : ColumnSpec
    fit : Fit
    profile : ColumnProfile or None
        None in documents of earlier versions, which kept no distribution. No encoding depends on it.
    family : str or None
        The name of the family of the training rows, of a number, date or time where neither its unit nor its type shows
        it: of a domain over ``interval`` or ``time``. Documents of earlier versions do not have it.
    """

    spec: ColumnSpec
    fit: Fit
    profile: ColumnProfile | None = None
    family: str | None = None

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.spec.name

    @property
    def scaled_families(self) -> list[Family]:
        """The families of which its scaled number may be; [] if it has none, or one of an unknown unit."""
        fit, spec = self.fit, self.spec
        fit = fit.age if isinstance(fit, DateFit) else fit
        if not isinstance(fit, NumberFit):
            return []
        return scaled_families(spec.kind, fit.unit, spec.sql_type, self.family)

    @cached_property
    def families(self) -> frozenset[str]:
        """The names of the families whose values can be encoded as its own are."""
        if isinstance(self.fit, NumberFit | DateFit):
            return alike(self.scaled_families)
        return families_of_kind(CATEGORY if isinstance(self.fit, ClassFit) else self.spec.kind)

    @property
    def padded_to(self) -> int | None:
        """The elements that its arrays are padded to; None if they are not padded, or it has none."""
        return self.fit.width if isinstance(self.fit, VectorFit) and self.fit.is_padded else None

    def units(self) -> tuple[str, ...]:
        """Return the names of the column's units in the matrix of numbers, in their order; () if it has none."""
        name, fit = self.name, self.fit
        null = (f"{name} is NULL",)
        if isinstance(fit, NumberFit):
            return (name, *null * fit.indicator)
        if isinstance(fit, DateFit):
            first = f"{name}: {self.scaled_families[0].unit_name}"
            parts = [f"{name}: {part} ({way})" for part in fit.parts for way in ("sine", "cosine")]
            return (first, *parts, *null * fit.age.indicator)
        if isinstance(fit, CategoryFit):
            if fit.encode == "one_hot":
                levels = (f"{name} = {level}" for level in fit.levels)
                return (f"{name} is another", *levels, *null * fit.indicator)
            return (name, *null * fit.indicator) if fit.encode in ("ordinal", "frequency") else ()
        if isinstance(fit, ClassFit):
            return ()
        return null * fit.indicator

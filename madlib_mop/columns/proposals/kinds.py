"""The words of a specification: roles, kinds, and what each kind may have; the row of a column."""

from dataclasses import dataclass

INPUT, TARGET, IGNORED = "input", "target", "ignored"
ROLES = (INPUT, TARGET, IGNORED)
NUMBER, CATEGORY, BOOLEAN, DATETIME, TEXT, VECTOR, ARRAY, IMAGE = (
    "number", "category", "boolean", "datetime", "text", "vector", "array", "image",
)  # fmt: skip
KINDS = (NUMBER, CATEGORY, BOOLEAN, DATETIME, TEXT, VECTOR, ARRAY, IMAGE)
TARGET_KINDS = (NUMBER, CATEGORY, BOOLEAN)
#: The encoding of arrays that may have fewer elements than ``width``, and NULL among them.
PADDED = "padded"
#: The encoding of texts by the weights of their terms, and that by dense units.
TFIDF, HASHED_NGRAMS = "tfidf", "hashed_ngrams"
#: The encoding of images with one channel.
GREY_PIXELS = "grey_pixels"
CLASSIFICATION, REGRESSION = "classification", "regression"
#: What the argument ``task`` may be: what the targets of a table are.
TASKS = (CLASSIFICATION, REGRESSION)
#: The first of each is the default.
ENCODINGS: dict[str, tuple[str, ...]] = {
    NUMBER: ("identity",),
    BOOLEAN: ("identity",),
    CATEGORY: ("index", "one_hot", "ordinal", "hashed", "frequency"),
    DATETIME: ("parts", "age"),
    TEXT: (TFIDF, HASHED_NGRAMS),
    VECTOR: ("identity",),
    ARRAY: ("identity", PADDED),
    IMAGE: ("pixels", GREY_PIXELS),
}
SCALES: dict[str, tuple[str, ...]] = {
    NUMBER: ("standard", "min_max", "robust", "quantile", "log1p", "none"),
    BOOLEAN: ("none", "standard"),
    CATEGORY: ("none",),
    DATETIME: ("standard", "min_max", "robust", "quantile", "none"),
    TEXT: ("none",),
    VECTOR: ("standard", "none"),
    ARRAY: ("standard", "none"),
    IMAGE: ("none",),
}
IMPUTES: dict[str, tuple[str, ...]] = {
    NUMBER: ("mean", "median", "minimum", "constant", "error"),
    BOOLEAN: ("mean", "median", "minimum", "constant", "error"),
    CATEGORY: ("level", "constant", "error"),
    DATETIME: ("mean", "median", "minimum", "error"),
    TEXT: ("zero", "error"),
    VECTOR: ("zero", "error"),
    ARRAY: ("zero", "error"),
    IMAGE: ("error", "zero"),
}
DEFAULT_IMPUTE = {kind: words[0] for kind, words in IMPUTES.items()}
#: Scales of a regression target; each has an inverse.
TARGET_SCALES = ("standard", "min_max", "log1p", "none")
CLASS_ENCODINGS = ("one_hot", "index")
#: Encodings of categories that are inputs of an embedding layer.
EMBEDDED = ("index", "hashed")
MAX_LEVELS = 1_000_000
MAX_ONE_HOT = 1_000
#: Least and greatest width by kind, for kinds with a width.
WIDTHS = {CATEGORY: (1, 4_096), TEXT: (8, 65_536), IMAGE: (8, 512)}

#: Units of a hashed text; most terms of a row and of all rows with ``tfidf``.
TEXT_WIDTH = 256
ROW_TERMS, MAX_TERMS = 512, 32_768
IMAGE_WIDTH = 64


def embedding_width(n_levels: int) -> int:
    """Return how many units an embedding of so many levels has: 1.6 n^0.56, at most 64.

    The rule is that of fastai's tabular models (Howard and Gugger, 2020), with a lower limit.
    """
    return min(64, max(1, round(1.6 * float(max(n_levels, 1) ** 0.56))))


@dataclass(frozen=True)
class ColumnSpec:
    """One row of the table that `propose_columns` writes.

    Attributes
    ----------
    name, sql_type : str
        As the catalog has them; ``sql_type`` as ``format_type`` prints it, without domains.
    role : str
        ``input``, ``target`` or ``ignored``. Of an ignored column nothing else is used.
    kind : str
        ``number``, ``category``, ``boolean``, ``datetime``, ``text``, ``vector``, ``array`` or ``image``.
    impute : str
        What NULL becomes. Numbers: ``mean``, ``median``, ``minimum``, ``constant:<number>`` or ``error``; categories:
        ``level`` (a level of its own), ``constant:<level>`` or ``error``; text, vectors, arrays, images: ``zero`` or
        ``error``. Statistics are those of the training rows.
    indicator : bool
        Whether one more unit is 1 where the value is NULL.
    encode : str
        ``identity`` for numbers and arrays, or ``padded`` for arrays; ``index``, ``one_hot``, ``ordinal``, ``hashed``
        or ``frequency`` for categories; ``parts`` or ``age`` for dates and times; ``tfidf`` or ``hashed_ngrams`` for
        text; ``pixels`` or ``grey_pixels`` for images. Of targets: ``identity``; for classes ``one_hot`` or ``index``.
    scale : str
        ``standard``, ``min_max``, ``robust``, ``quantile``, ``log1p`` or ``none``.
    width : int or None
        Of categories as ``index`` or ``hashed``: units of the embedding. Of text: most terms of a row, or units of
        ``hashed_ngrams``. Of images: pixels a side. Of vectors and arrays: elements.
    max_levels : int or None
        Most levels that a category keeps, or terms that ``tfidf`` keeps, the most frequent; of ``hashed``: buckets.
    levels : tuple of str or None
        The levels of a category in their order; None takes those of the training rows.
    n_rows, n_null, n_distinct : int or None
        What was counted when the column was proposed.
    minimum, maximum : str or None
    examples : tuple of str
        Some values.
    reason : str
        One sentence: why the column was proposed so.
    """

    name: str
    sql_type: str
    role: str = INPUT
    kind: str = "number"
    impute: str = "mean"
    indicator: bool = False
    encode: str = "identity"
    scale: str = "standard"
    width: int | None = None
    max_levels: int | None = None
    levels: tuple[str, ...] | None = None
    n_rows: int | None = None
    n_null: int | None = None
    n_distinct: int | None = None
    minimum: str | None = None
    maximum: str | None = None
    examples: tuple[str, ...] = ()
    reason: str = ""

    @property
    def constant(self) -> str | None:
        """The value that NULL becomes, as text; None unless ``impute`` is ``constant:<value>``."""
        word, colon, value = self.impute.partition(":")
        return value.strip() if word == "constant" and colon else None


@dataclass(frozen=True)
class TableColumn:
    """A column as the source table has it now.

    Attributes
    ----------
    name, sql_type : str
    family : str or None
        How its values are treated (`madlib_mop.columns.families`); None for a type that is not read, such as jsonb.
    """

    name: str
    sql_type: str
    family: str | None

"""What each family of types is proposed as: thresholds and their reasons in words."""

import re
import struct
from dataclasses import dataclass, replace

from madlib_mop.columns.blobs import Blobs
from madlib_mop.columns.numbers import EXACT
from madlib_mop.columns.proposals.kinds import (
    ARRAY,
    BOOLEAN,
    CATEGORY,
    DATETIME,
    ENCODINGS,
    GREY_PIXELS,
    IGNORED,
    IMAGE,
    IMAGE_WIDTH,
    MAX_TERMS,
    NUMBER,
    PADDED,
    ROW_TERMS,
    TEXT,
    TFIDF,
    VECTOR,
    WIDTHS,
    ColumnSpec,
    embedding_width,
)
from madlib_mop.columns.proposals.statistics import Statistics

#: Categories with at most this number of levels are one-hot; RealMLP (Holzmueller et al., 2024) uses the same limit.
ONE_HOT_LEVELS = 8
#: Text columns with at most this number of distinct values are categories, whatever the number of rows.
FEW_LEVELS = 30
#: Levels that a category keeps, and number of buckets for hashed ones.
INDEX_LEVELS = 10_000
BUCKETS = 4_096
#: Rows that a category needs per level, on average.
ROWS_A_LEVEL = 5
#: Integer columns with names of codes are categories up to this number of distinct values.
CODE_LEVELS = 1_000
#: Expected number of random repeats in an integer column above which a column without repeats counts as a key.
EXPECTED_REPEATS = 5
#: A tail is heavy if 1 % of the rows are this number of interquartile ranges from the median; 1.7 in a normal
#: distribution.
HEAVY_TAIL = 5.0
#: A column has outliers if a value is this number of standard deviations from the mean.
FAR = 8.0
_FLOATS = ("real", "double precision")
_FEW_NUMBERS = 10
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # how JPEG and PNG files begin
#: Bytes of a file in which its size is looked for: a JPEG can have long segments of metadata before it.
_HEAD_BYTES = 1 << 16
_GREY_TYPES = (0, 4)  # color types of PNG: grey, and grey with alpha
_NEARLY = 0.94  # threshold for estimated numbers of distinct values
_KEY = re.compile(r"(^|_)(id|ids|key|pk|uuid|guid|rowid|rownum|ctid|oid)$|[a-z](Id|ID|Key|Uuid|UUID|Guid)$", re.ASCII)
_CODE = re.compile(
    r"(^|_)(code|type|class|category|cat|group|grp|kind|status|state|zip|zipcode|postcode|postal|region|district"
    r"|cluster|segment|branch|store|shop|model|label|flag|gender|sex|race|month|weekday|dow|hour|quarter|day"
    r"|season|channel|cd)$|[a-z](Code|Type|Class|Group|Status)$|(^|_)(id|key)$|[a-z](Id|ID|Key)$",
    re.ASCII,
)


def key_of_numbers(name: str, statistics: Statistics) -> str | None:
    """Return the sentence why a column of numbers is a key that no network can learn from; None if it is not one."""
    if not is_unique(statistics) or not statistics.is_integral:
        return None
    if statistics.minimum is None or statistics.maximum is None:
        return None
    if is_key_name(name):
        return _named_key(statistics)
    n_values = statistics.n_rows - statistics.n_missing
    chance = n_values * n_values / (2 * (statistics.maximum - statistics.minimum + 1))
    if statistics.distinct_is_exact and chance >= EXPECTED_REPEATS:
        return f"Key: whole numbers without repeats, where chance would make about {min(chance, n_values):,.0f}."
    if statistics.maximum - statistics.minimum < 1.1 * n_values:
        return f"Key: {_distinct(statistics)}, and they are as dense as numbers of rows."
    return None


def key_of_texts(name: str, statistics: Statistics) -> str | None:
    """Return the sentence why a column of texts is a key, as `key_of_numbers`."""
    return _named_key(statistics) if is_unique(statistics) and is_key_name(name) else None


def key_of_uuids(name: str, statistics: Statistics) -> str | None:
    """Return the sentence why a column of uuids is a key, whatever its name, as `key_of_numbers`."""
    return f"Key: {_distinct(statistics)}." if is_unique(statistics) else None


def _named_key(statistics: Statistics) -> str:
    return f"Key: {_distinct(statistics)}, and the name is that of a key."


def _distinct(statistics: Statistics) -> str:
    return "all values are distinct" if statistics.distinct_is_exact else "nearly all values are distinct"


def is_key_name(name: str) -> bool:
    """Return whether a column has the name of a key, such as ``customer_id``."""
    return _KEY.search(name) is not None


def is_unique(statistics: Statistics) -> bool:
    """Return whether all values are distinct; where distinct values are estimated, nearly all."""
    n_values = statistics.n_rows - statistics.n_missing
    least = n_values if statistics.distinct_is_exact else _NEARLY * n_values
    return n_values > 1 and statistics.n_distinct >= least


def guess_number(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of a column of numbers: a category if they look like codes, else a number."""
    n_distinct, name = statistics.n_distinct, spec.name
    largest = max(abs(statistics.minimum or 0.0), abs(statistics.maximum or 0.0))
    if largest > EXACT and spec.sql_type not in _FLOATS:
        return _number(spec, statistics, "Number.")
    if statistics.is_integral and statistics.distinct_is_exact and 2 < n_distinct <= CODE_LEVELS and _CODE.search(name):
        why = f"Whole numbers with {n_distinct:,} distinct values and the name of a code"
        return _category(spec, statistics, why)
    if n_distinct == 1:
        return _category(spec, statistics, "One value and NULL")
    return _number(spec, statistics, "Number.")


def _number(spec: ColumnSpec, statistics: Statistics, what: str) -> ColumnSpec:
    """Return the proposal of a number, scaled by the shape of its distribution."""
    heavy, scale, why = _shape(statistics)
    indicator = statistics.n_missing > 0
    nulls = f" {_share(statistics)} of the rows are NULL: an indicator is added." if indicator else ""
    return replace(
        spec,
        kind=NUMBER,
        impute="median" if heavy else "mean",
        indicator=indicator,
        scale=scale,
        reason=f"{what} {why}{nulls}",
    )


def _shape(statistics: Statistics) -> tuple[bool, str, str]:
    """Return whether a distribution has heavy tails, the scale that suits it, and the sentence why."""
    low, lower, middle, upper, high = (statistics.quantile(q) or 0.0 for q in (0.01, 0.25, 0.5, 0.75, 0.99))
    least, most = statistics.minimum or 0.0, statistics.maximum or 0.0
    if statistics.n_distinct > _FEW_NUMBERS and max(high - middle, middle - low) > HEAVY_TAIL * (upper - lower):
        if least >= 0 and middle >= 1 and most < 1e9:
            return True, "log1p", "Its tail is heavy and no value is negative, so its logarithm is standardised."
        return True, "quantile", "Its tails are heavy, so its ranks are scaled to a normal distribution."
    mean, deviation = statistics.mean or 0.0, statistics.std or 0.0
    if max(most - mean, mean - least) > FAR * deviation:
        return True, "robust", "Single values are far away, so median and quartiles scale it, and it is bounded."
    return False, "standard", "Standardised: its tails are light."


def guess_boolean(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of a boolean column: 0 and 1."""
    indicator = statistics.n_missing > 0
    nulls = f" {_share(statistics)} of the rows are NULL: an indicator is added." if indicator else ""
    return replace(
        spec, kind=BOOLEAN, impute="mean", indicator=indicator, scale="none", reason=f"Boolean: 0 and 1.{nulls}"
    )


def guess_text(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of a text column: a category with few levels, else words, else ignored."""
    n_values = statistics.n_rows - statistics.n_missing
    n_distinct, exact = statistics.n_distinct, statistics.distinct_is_exact
    if spec.levels and len(spec.levels) <= INDEX_LEVELS:
        return _category(spec, statistics, f"Enum with {len(spec.levels):,} labels")
    if exact and (n_distinct <= FEW_LEVELS and n_distinct < max(n_values, 3) or n_distinct * ROWS_A_LEVEL <= n_values):
        return _category(spec, statistics, f"Text with {n_distinct:,} distinct values")
    many = f"{n_distinct:,}" if exact else f"about {n_distinct:,}"
    words = replace(
        spec,
        kind=TEXT,
        impute="zero",
        indicator=statistics.n_missing > 0,
        encode=TFIDF,
        scale="none",
        width=ROW_TERMS,
        max_levels=MAX_TERMS,
        levels=None,
        reason=f"Text with words ({many} distinct values): words and runs of characters, weighted by their rarity.",
    )
    if _has_words(statistics):
        return words
    if exact and n_distinct * 2 <= n_values:
        return _category(spec, statistics, f"Text with {n_distinct:,} distinct values")
    if not exact and n_distinct * ROWS_A_LEVEL <= n_values:
        return _hashed(spec, f"Text with {many} distinct values")
    return replace(
        words,
        role=IGNORED,
        reason=f"Too many levels: {many} distinct values in {n_values:,} rows."
        " Set role to input to use its characters.",
    )


def _category(spec: ColumnSpec, statistics: Statistics, what: str) -> ColumnSpec:
    """Return the proposal of a category, encoded by its number of levels."""
    n_levels = len(spec.levels) if spec.levels else statistics.n_distinct
    spec = replace(spec, kind=CATEGORY, impute="level", indicator=False, scale="none")
    if n_levels <= ONE_HOT_LEVELS:
        return replace(spec, encode="one_hot", reason=f"{what}: one unit a level.")
    if n_levels <= INDEX_LEVELS:
        return replace(
            spec,
            encode="index",
            width=embedding_width(n_levels),
            reason=f"{what}: an embedding of {embedding_width(n_levels)} units, by the number of levels.",
        )
    return _hashed(spec, what)


def _hashed(spec: ColumnSpec, what: str) -> ColumnSpec:
    width = embedding_width(BUCKETS)
    return replace(
        spec,
        kind=CATEGORY,
        impute="level",
        indicator=False,
        scale="none",
        encode="hashed",
        levels=None,
        max_levels=BUCKETS,
        width=width,
        reason=f"{what}, more than {INDEX_LEVELS:,}: hashed into {BUCKETS:,} buckets of an embedding of {width} units.",
    )


def guess_moment(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of a date or timestamp: a standardised age and parts on a circle."""
    return _datetime(spec, statistics, "the age, and those of month, weekday and hour that vary")


def guess_time(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of a time of day: its standardised seconds and a part on a circle."""
    return _datetime(spec, statistics, "the time of day")


def _datetime(spec: ColumnSpec, statistics: Statistics, what: str) -> ColumnSpec:
    return replace(
        spec,
        kind=DATETIME,
        impute="mean",
        indicator=statistics.n_missing > 0,
        encode="parts",
        scale="standard",
        reason=f"Date or time: {what}, as sine and cosine.",
    )


def guess_span(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of an interval: its seconds as a number."""
    return _number(spec, statistics, "Interval, in seconds.")


def guess_vector(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of an array or vector of numbers: an input of its own, with one scale."""
    is_array = spec.sql_type.endswith("[]")
    n_elements = " x ".join(map(str, statistics.dimensions)) or f"{statistics.width}"
    what = f"{'Array' if is_array else 'Vector'} of {n_elements} numbers"
    proposed = replace(
        spec,
        kind=ARRAY if is_array else VECTOR,
        impute="zero",
        indicator=statistics.n_missing > 0,
        scale="standard",
        width=statistics.width or None,
        reason=f"{what}: one mean and one deviation for all.",
    )
    if not statistics.is_padded:
        return proposed
    return replace(
        proposed,
        encode=PADDED,
        reason=f"Arrays of up to {statistics.width} numbers: one mean and one deviation for all. Elements that are NULL"
        " or after the end of a shorter array are 0.",
    )


def guess_blob(spec: ColumnSpec, statistics: Statistics) -> ColumnSpec:
    """Return the proposal of bytes as images of unknown form; see `guess_images`."""
    return guess_images(spec, statistics, ImageForm(None, False))


def guess_images(spec: ColumnSpec, statistics: Statistics, form: "ImageForm") -> ColumnSpec:
    """Return the proposal of images: small square ones as they are, grey ones with one channel."""
    nulls = statistics.n_missing > 0
    is_kept = form.side is not None and WIDTHS[IMAGE][0] <= form.side <= IMAGE_WIDTH
    width = form.side if is_kept else IMAGE_WIDTH
    what = "Grey images" if form.is_grey else "Images"
    size = f"of {width} by {width} pixels" if is_kept else f"resized to {width} by {width} pixels"
    return replace(
        spec,
        kind=IMAGE,
        impute="zero" if nulls else "error",
        indicator=nulls,
        encode=GREY_PIXELS if form.is_grey else ENCODINGS[IMAGE][0],
        scale="none",
        width=width,
        reason=f"{what}, {size}: change width for another size.",
    )


@dataclass(frozen=True)
class ImageForm:
    """What the images of a column have in common.

    Attributes
    ----------
    side : int or None
        Height and width in pixels, if all images are squares of one size.
    is_grey : bool
        Whether all have shades of grey only.
    """

    side: int | None
    is_grey: bool


def form_of_images(column: Blobs) -> ImageForm | None:
    """Return the form of the images of a column; None if it has none.

    It has images if at least half of the values that are not NULL begin as a JPEG or PNG file does. All values are
    looked at, so that the answer does not depend on their order.
    """
    n_values = n_images = 0
    forms: set[tuple[int, int, bool] | None] = set()
    for begin in column.begins(_HEAD_BYTES):
        n_values += 1
        if begin.startswith(_MAGIC):
            n_images += 1
            forms.add(_form_of_png(begin) if begin.startswith(_MAGIC[1]) else _form_of_jpeg(begin))
    if not n_values or 2 * n_images < n_values:
        return None
    known = [form for form in forms if form is not None]
    sides = {form[:2] for form in known}
    height, width = next(iter(sides), (0, 1))
    is_same = len(known) == len(forms) and len(sides) == 1 and height == width
    return ImageForm(height if is_same else None, len(known) == len(forms) and all(form[2] for form in known))


def _form_of_png(head: bytes) -> tuple[int, int, bool] | None:
    """Return height, width, and whether a PNG is grey, from its first chunk; None if that is not IHDR."""
    if head[12:16] != b"IHDR" or len(head) < 26:
        return None
    width, height = struct.unpack_from(">II", head, 16)
    return height, width, head[25] in _GREY_TYPES


def _form_of_jpeg(head: bytes) -> tuple[int, int, bool] | None:
    """Return height, width, and whether a JPEG is grey, from its frame header; None if that is not in these bytes."""
    position = 2
    while position + 10 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if marker == 0xFF:  # a byte of filling
            position += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width, channels = struct.unpack_from(">HHB", head, position + 5)
            return height, width, channels == 1
        position += 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return None


def _has_words(statistics: Statistics) -> bool:
    """Return whether at least half of the examples have two words or more, or are long."""
    texts = [str(example) for example in statistics.examples]
    long = sum(len(text.split()) >= 2 or len(text) > 40 for text in texts)
    return bool(texts) and 2 * long >= len(texts)


def _share(statistics: Statistics) -> str:
    share = 100 * statistics.n_missing / statistics.n_rows
    return f"{share:.3g} %" if share < 99.95 else "over 99.9 %"

"""The distribution of each column over the training rows: bins and counts, which drift compares with later rows."""

import hashlib
from dataclasses import dataclass

#: Bins of a number, with about equally many training rows each.
N_BINS = 10
#: Groups of the levels of a hashed category.
N_GROUPS = 20
#: Most levels of a column, beyond those of its fit, whose hashes are kept.
MAX_OTHERS = 20_000
_HASH_BYTES = 7


@dataclass(frozen=True)
class NumberProfile:
    """One number of each row: the value of a column, or a number computed from it, such as the length of a text.

    Attributes
    ----------
    name : str
        What the number is: ``value``, ``characters``, ``bytes``, ``element 3``, ``mean`` or ``deviation``.
    minimum, maximum : float or None
        In the units of the raw column: microseconds for dates and times. None without finite values.
    edges : tuple of float
        Upper limits of all bins but the last, increasing; a value that equals a limit belongs to the bin below it.
    counts : tuple of int
        Rows of each bin; () without finite values.
    """

    name: str
    minimum: float | None
    maximum: float | None
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class LevelProfile:
    """The levels of a category.

    Attributes
    ----------
    counts : tuple of int
        Rows of each level of the fit, in its order. Of ``hashed``: rows of each of `N_GROUPS` groups of hashes.
    n_other : int
        Rows with another level, which is too rare for the fit.
    others : tuple of int
        `level_hash` of those levels (of ``hashed``: of all levels), increasing. Hashes, because rare levels can be
        names of persons.
    knows_others : bool
        False if there were too many of them: then a new level cannot be told from a rare one.
    """

    counts: tuple[int, ...]
    n_other: int
    others: tuple[int, ...]
    knows_others: bool


@dataclass(frozen=True)
class ColumnProfile:
    """The distribution of one column.

    Attributes
    ----------
    n_rows : int
    n_null : int
    n_special : int
        Rows with NaN or an infinity.
    numbers : tuple of NumberProfile
        () for categories and classes.
    levels : LevelProfile or None
        Of categories and classes.
    """

    n_rows: int
    n_null: int
    n_special: int
    numbers: tuple[NumberProfile, ...]
    levels: LevelProfile | None = None


def level_hash(text: bytes) -> int:
    """Return a hash of a level: 56 bits of BLAKE2b."""
    digest = hashlib.blake2b(text, digest_size=_HASH_BYTES, person=b"madlib_mop new").digest()
    return int.from_bytes(digest, "little")


def profile_problem(profile: ColumnProfile, n_counts: int | None) -> str | None:
    """Return what is wrong with a profile that was read; None if nothing is.

    Parameters
    ----------
    profile : ColumnProfile
    n_counts : int or None
        How many counts its levels must have; None if the column has no levels.
    """
    wholes = [profile.n_rows, profile.n_null, profile.n_special]
    levels = profile.levels
    if (levels is None) != (n_counts is None) or (levels is not None and profile.numbers):
        return "its profile is that of another kind of column"
    if levels is not None:
        wholes += [*levels.counts, levels.n_other, *levels.others]
        if len(levels.counts) != n_counts or len(levels.others) > MAX_OTHERS:
            return "its profile does not fit its levels"
    for number in profile.numbers:
        wholes += number.counts
        if len(number.counts) > N_BINS or len(number.edges) != max(len(number.counts) - 1, 0):
            return "the bins of its profile do not fit their limits"
        if any(low >= high for low, high in zip(number.edges, number.edges[1:], strict=False)):
            return "the limits of its profile do not increase"
        if (number.minimum is None) != (not number.counts) or (number.maximum is None) != (not number.counts):
            return "its profile has limits without values"
    return "its profile has a negative count" if any(whole < 0 for whole in wholes) else None

"""What a difference between two distributions means, as a word and a sentence; the command drift prints both."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from madlib_mop.columns.drift.observed import ProfileDifference
from madlib_mop.columns.drift.stability import index_by_chance, stability_index

#: The usual thresholds of the PSI (N. Siddiqi, Credit Risk Scorecards, 2006).
MODERATE, LARGE = 0.1, 0.25


class Verdict(StrEnum):
    """How large a difference is, from the least to the greatest; UNKNOWN is beside them."""

    UNKNOWN = "unknown"  # there is nothing to compare with
    STABLE = "stable"  # the PSI is below the first threshold, or not above what chance does
    MODERATE = "moderate"  # between the thresholds
    LARGE = "large"  # at or above the second threshold


@dataclass(frozen=True)
class Judgement:
    """The verdict on a difference.

    Attributes
    ----------
    psi : float or None
        Population stability index; None without a baseline.
    by_chance : float or None
        What the PSI exceeds in 1 % of all cases without any drift, with so many rows.
    verdict : Verdict
    reason : str
        One or more sentences.
    """

    psi: float | None
    by_chance: float | None
    verdict: Verdict
    reason: str


def judge(
    difference: ProfileDifference, moderate: float = MODERATE, large: float = LARGE, missing: str = ""
) -> Judgement:
    """Return the verdict on a difference.

    Parameters
    ----------
    difference : ProfileDifference
    moderate, large : float
        The thresholds of the PSI.
    missing : str
        The reason for ``unknown``, where there is no baseline.
    """
    details = " ".join(_details(difference))
    n_baseline = sum(difference.expected)
    if not difference.expected or not n_baseline:
        return Judgement(None, None, Verdict.UNKNOWN, " ".join(filter(None, (missing, details))))
    psi = stability_index(difference.expected, difference.actual)
    by_chance = index_by_chance(difference.expected, difference.actual)
    verdict = Verdict.LARGE if psi >= large else Verdict.MODERATE if psi >= moderate else Verdict.STABLE
    compared = f"PSI {psi:.3f}"
    if verdict is not Verdict.STABLE and psi <= by_chance:
        verdict = Verdict.STABLE
        compared += f", but {difference.n_rows:,} rows can reach {by_chance:.3f} by chance."
    elif verdict is Verdict.LARGE:
        compared += f", at least {large:g}."
    elif verdict is Verdict.MODERATE:
        compared += f", from {moderate:g} to below {large:g}."
    else:
        compared += f", below {moderate:g}."
    return Judgement(psi, by_chance, verdict, " ".join(filter(None, (compared, details))))


def _details(difference: ProfileDifference) -> Iterator[str]:
    """Yield what differs most, one sentence each."""
    n_rows, of = difference.n_rows, difference.baseline
    if difference.n_new:
        yield f"{_share(difference.n_new, n_rows)} of the rows have a level that no training row has."
    elif difference.n_new is None and difference.n_unknown:
        yield (
            f"{_share(difference.n_unknown, n_rows)} of the rows have a level that is new, or was too rare in training"
            " to be encoded."
        )
    if of is not None and of.n_rows:
        now, then = difference.n_null / n_rows, of.n_null / of.n_rows
        if abs(now - then) >= 0.01 or (difference.n_null and not of.n_null):
            yield f"NULL in {_share(difference.n_null, n_rows)} of the rows, {_share(of.n_null, of.n_rows)} before."
    if difference.n_special:
        yield f"{difference.n_special:,} rows are NaN or infinite, which predict rejects."
    if difference.n_outside:
        yield (
            f"{_share(difference.n_outside, n_rows)} of the rows are outside of"
            f" {_short(difference.baseline_minimum)} to {_short(difference.baseline_maximum)}."
        )
    if shifted := _shift(difference):
        yield shifted


def _shift(difference: ProfileDifference) -> str | None:
    """Return the sentence on the bin of numbers that grew or shrank most."""
    if difference.measured == "level" or len(difference.expected) < 4:
        return None
    n_then, n_now = sum(difference.expected), sum(difference.actual)
    shares = [(a / n_now - e / n_then) for e, a in zip(difference.expected[:-2], difference.actual[:-2], strict=True)]
    place = max(range(len(shares)), key=lambda i: abs(shares[i]))
    if abs(shares[place]) < 0.05:
        return None
    where = f"the {_ordinal(place + 1)} of {len(shares)} bins"
    then, now = difference.expected[place], difference.actual[place]
    return f"{_share(now, n_now)} of the rows are in {where}, {_share(then, n_then)} before."


def _share(part: int, whole: int) -> str:
    """Return a share in percent; small ones are not rounded to 0."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.2g} %" if 0 < percent < 1 else f"{percent:.0f} %" if percent < 99.5 or part == whole else ">99 %"


def _short(text: str | None) -> str:
    """Return a number with 6 digits, and a date as it is."""
    try:
        return f"{float(text or ''):.6g}"
    except ValueError:
        return text or ""


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")

"""The population stability index: how much two distributions over the same bins differ; drift's verdicts use it."""

import math
from collections.abc import Sequence

#: Rows that are added to each bin, so that an empty bin has a logarithm.
PRIOR = 0.5
_Z_99 = 2.3263478740408408


def stability_index(expected: Sequence[int], actual: Sequence[int]) -> float:
    """Return the population stability index (PSI) of two histograms.

    It is the sum over the bins of (a - e) ln(a / e), where e and a are the shares of the rows in the bin: Jeffreys'
    divergence (H. Jeffreys, 1946). `PRIOR` rows are added to each bin of both. Bins that are empty in both count for
    nothing. The PSI is 0 if the shares are equal; it has no upper limit.

    Parameters
    ----------
    expected, actual : sequence of int
        Rows of each bin, of the same length.
    """
    bins = [(e, a) for e, a in zip(expected, actual, strict=True) if e or a]
    n_expected = sum(e for e, _ in bins) + PRIOR * len(bins)
    n_actual = sum(a for _, a in bins) + PRIOR * len(bins)
    shares = [((e + PRIOR) / n_expected, (a + PRIOR) / n_actual) for e, a in bins]
    return math.fsum((a - e) * math.log(a / e) for e, a in shares)


def index_by_chance(expected: Sequence[int], actual: Sequence[int]) -> float:
    """Return the PSI that two samples of one distribution exceed in about 1 % of all cases, by chance alone.

    With N and M rows in B bins, PSI / (1/N + 1/M) is distributed nearly as chi-square with B - 1 degrees of freedom
    (B. Yurdakul, Statistical properties of population stability index, 2018). The quantile of chi-square is that of
    E. B. Wilson and M. M. Hilferty (1931). Infinite without rows on one side; 0 with one bin.
    """
    n_expected, n_actual = sum(expected), sum(actual)
    if not n_expected or not n_actual:
        return math.inf
    freedom = sum(1 for e, a in zip(expected, actual, strict=True) if e or a) - 1
    if freedom < 1:
        return 0.0
    part = 2 / (9 * freedom)
    quantile = freedom * (1 - part + _Z_99 * math.sqrt(part)) ** 3
    return (1 / n_expected + 1 / n_actual) * quantile

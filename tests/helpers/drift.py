"""Calls of drift, and an independent computation of the population stability index with NumPy."""

import numpy as np


def rows_of(user, query: str) -> list[dict]:
    """Return the rows of a query, each by the names of its columns."""
    with user.connection.cursor() as cursor:
        cursor.execute(query)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def by_feature(user, query: str) -> dict[str, dict]:
    """Return the rows of drift by kind and feature; of several rows of one feature, the last."""
    return {f"{row['kind']} {row['feature']}": row for row in rows_of(user, query)}


def psi_of(before, now, n_bins: int = 10, prior: float = 0.5) -> float:
    """Return the PSI of two lists of numbers with None, by deciles of the first: written apart from the library."""
    before_values = np.array([value for value in before if value is not None], float)
    now_values = np.array([value for value in now if value is not None], float)
    limits = np.unique(np.quantile(before_values, np.arange(1, n_bins) / n_bins, method="inverted_cdf"))
    bins = np.concatenate([[-np.inf], limits, [np.inf]])
    e = [((before_values > low) & (before_values <= high)).sum() for low, high in zip(bins, bins[1:], strict=False)]
    a = [((now_values > low) & (now_values <= high)).sum() for low, high in zip(bins, bins[1:], strict=False)]
    e = np.array([*e, len(before) - len(before_values)], float)
    a = np.array([*a, len(now) - len(now_values)], float)
    used = (e > 0) | (a > 0)
    e, a = e[used] + prior, a[used] + prior
    e, a = e / e.sum(), a / a.sum()
    return float(((a - e) * np.log(a / e)).sum())

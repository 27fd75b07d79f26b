"""Varies the numbers of a configuration a little, as Optuna has them; called by `studies` for past experience."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

#: Standard deviation of a step, as a share of a range; of the range of logarithms if these are uniform.
STEP = 0.03


def varied(
    parameters: Mapping[str, Any], distributions: Mapping[str, BaseDistribution], rng: np.random.Generator
) -> dict[str, Any]:
    """Return parameters whose numbers of ranges have each moved by a normal step; all else stays.

    Parameters
    ----------
    parameters : mapping of str to value
        A trial's, as Optuna stores them.
    distributions : mapping of str to BaseDistribution
        Of the same names. A step has the standard deviation `STEP`; it ends at the ends of the range.
    rng : numpy.random.Generator
    """
    return {name: _moved(value, distributions[name], rng) for name, value in parameters.items()}


def _moved(value: Any, distribution: BaseDistribution, rng: np.random.Generator) -> Any:
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return value
    low, high = distribution.low, distribution.high
    step = STEP * float(rng.standard_normal())
    moved = value * math.exp(step * math.log(high / low)) if distribution.log else value + step * (high - low)
    within = min(max(moved, low), high)
    return round(within) if isinstance(distribution, IntDistribution) else within

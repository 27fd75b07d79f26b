"""Numbers to units: NULLs filled, scaled by the statistics of the training rows; many columns at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.transforms.logarithm import signed_log1p

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_N_KNOTS = 256
_CLIP = 3.0


class TooWide(ValueError):
    """The values of a column are further apart than a float64 holds."""


@dataclass(frozen=True)
class NumberFit:
    """How one number becomes a unit: divided by ``unit``, filled, maybe log1p, then (x - offset) / divisor.

    Attributes
    ----------
    unit : float
        What raw values are divided by first: 1, or the microseconds of a day or a second.
    fill : float or None
        What NULL becomes, before scaling; None if NULL is an error.
    indicator : bool
        Whether a second unit is 1 where the value was NULL.
    scale : str
        ``standard``, ``min_max``, ``robust``, ``quantile``, ``log1p`` or ``none``.
    offset, divisor : float
    knots, outputs : tuple of float
        Of ``quantile``: increasing values, and what they become; linear between them, constant beyond. Else empty.
    """

    unit: float
    fill: float | None
    indicator: bool
    scale: str
    offset: float = 0.0
    divisor: float = 1.0
    knots: tuple[float, ...] = ()
    outputs: tuple[float, ...] = ()


@dataclass(frozen=True)
class NumberSummary:
    """Statistics of a number over the training rows, in its unit.

    Attributes
    ----------
    minimum, maximum, mean, std : float
        ``std`` is the population's.
    quantile : callable
        From 0..1 to a value.
    """

    minimum: float
    maximum: float
    mean: float
    std: float
    quantile: Callable[[float], float]


def fit_scale(fit: NumberFit, summary: NumberSummary) -> NumberFit:
    """Return a fit with the offset, divisor and knots of its scale.

    ``standard``: mean and standard deviation. ``min_max``: 0 to 1 over the training rows. ``robust``: median and
    quartile range, then x / sqrt(1 + (x/3)^2), which keeps within -3 and 3 (Holzmueller et al., "Better by default",
    2024, section 3). ``log1p``: sign(x) ln(1 + abs(x)), standardised. ``quantile``: to a normal distribution (Gorishniy
    et al., "Revisiting deep learning models for tabular data", 2021, section 4.2), by 256 linear pieces.

    Raises
    ------
    TooWide
        If a float64 does not hold the divisor.
    """
    if fit.scale == "standard":
        return _affine(fit, summary.mean, summary.std)
    if fit.scale == "min_max":
        return _affine(fit, summary.minimum, summary.maximum - summary.minimum)
    if fit.scale == "robust":
        spread = summary.quantile(0.75) - summary.quantile(0.25)
        return _affine(fit, summary.quantile(0.5), spread or (summary.maximum - summary.minimum) / 2)
    if fit.scale == "log1p":
        points = np.array([summary.quantile((i + 0.5) / _N_KNOTS) for i in range(_N_KNOTS)], np.float64)
        logs = signed_log1p(points).tolist()
        mean = math.fsum(logs) / _N_KNOTS
        return _affine(fit, mean, math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / _N_KNOTS))
    if fit.scale == "quantile":
        if not math.isfinite(summary.maximum - summary.minimum):
            raise TooWide
        knots, outputs = _knots(summary)
        return replace(fit, knots=knots, outputs=outputs)
    return fit


def _affine(fit: NumberFit, offset: float, divisor: float) -> NumberFit:
    if not math.isfinite(divisor):
        raise TooWide
    return replace(fit, offset=offset, divisor=divisor or 1.0)


def _knots(summary: NumberSummary) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return distinct quantiles, and the normal deviate of each; of values that repeat, of their middle rank."""
    ranks: dict[float, list[float]] = {}
    for i in range(_N_KNOTS + 1):
        value = summary.quantile(i / _N_KNOTS)
        ranks.setdefault(value + 0.0, []).append((i + 0.5) / (_N_KNOTS + 1))
    normal = NormalDist()
    knots = sorted(ranks)
    return tuple(knots), tuple(normal.inv_cdf((ranks[knot][0] + ranks[knot][-1]) / 2) for knot in knots)


class Scaling:
    """Applies the fits of several columns to all of them at once; every value's bits depend on that value alone.

    Parameters
    ----------
    fits : sequence of NumberFit
        One a column.
    """

    def __init__(self, fits: Sequence[NumberFit]):
        self.n_columns = len(fits)
        self._units = _column([fit.unit for fit in fits]) if any(fit.unit != 1.0 for fit in fits) else None
        self._fills = _column([0.0 if fit.fill is None else fit.fill for fit in fits])
        self._offsets = _column([fit.offset for fit in fits])
        self._divisors = _column([fit.divisor for fit in fits])
        self._logs = _rows(fits, "log1p")
        self._robust = _rows(fits, "robust")
        self._quantiles = [(row, _Pieces(fits[row])) for row in _rows(fits, "quantile")]

    def apply(self, values: Floats, missing: Flags) -> Floats:
        """Return the units, before they are rounded to float32.

        Parameters
        ----------
        values : numpy.ndarray
            float64 (n_columns, n_rows), finite; overwritten.
        missing : numpy.ndarray
            bool (n_columns, n_rows).

        Returns
        -------
        numpy.ndarray
            float64 (n_columns, n_rows), within the range of float32.
        """
        with np.errstate(all="ignore"):
            if self._units is not None:
                values /= self._units
            np.copyto(values, self._fills, where=missing)
            if self._logs:
                values[self._logs] = signed_log1p(values[self._logs])
            for row, pieces in self._quantiles:
                values[row] = pieces.apply(values[row])
            values -= self._offsets
            values /= self._divisors
            np.maximum(values, -_MAX_FLOAT32, out=values)
            np.minimum(values, _MAX_FLOAT32, out=values)
            if self._robust:
                chosen = values[self._robust]
                third = chosen / _CLIP
                values[self._robust] = chosen / np.sqrt(1.0 + third * third)
        return values


class _Pieces:
    """The linear pieces of one ``quantile`` scale."""

    def __init__(self, fit: NumberFit):
        self._knots = np.array(fit.knots, np.float64)
        self._outputs = np.array(fit.outputs, np.float64)
        self._gaps = np.diff(self._knots)
        self._rises = np.diff(self._outputs)

    def apply(self, values: Floats) -> Floats:
        if not len(self._gaps):
            return np.zeros_like(values)
        within = np.minimum(np.maximum(values, self._knots[0]), self._knots[-1])
        piece = np.minimum(self._knots.searchsorted(within, side="right") - 1, len(self._gaps) - 1)
        share = (within - self._knots[piece]) / self._gaps[piece]
        units: Floats = self._outputs[piece] + share * self._rises[piece]
        return units


def restore(units: Floats, fit: NumberFit) -> Floats:
    """Return the numbers that units of a target stand for; of ``standard``, ``min_max``, ``log1p`` and ``none``.

    Parameters
    ----------
    units : numpy.ndarray
        float64, any shape.
    fit : NumberFit

    Returns
    -------
    numpy.ndarray
        float64, the same shape. A number beyond the range of a float64 is infinite.
    """
    if units.size == 1:
        number = units.item() * fit.divisor + fit.offset
        if fit.scale == "log1p":
            number = math.copysign(_expm1(abs(number)), number)
        return np.array([number], np.float64).reshape(units.shape)
    with np.errstate(all="ignore"):
        numbers: Floats = units * fit.divisor + fit.offset
        if fit.scale == "log1p":
            flat = [math.copysign(_expm1(abs(x)), x) for x in numbers.ravel().tolist()]
            numbers = np.array(flat, np.float64).reshape(numbers.shape)
    return numbers


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 709.0 else math.inf if value == value else value


def _column(values: list[float]) -> Floats:
    return np.array(values, np.float64)[:, None]


def _rows(fits: Sequence[NumberFit], scale: str) -> list[int]:
    return [row for row, fit in enumerate(fits) if fit.scale == scale]

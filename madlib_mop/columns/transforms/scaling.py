"""Numbers to units: NULLs filled, scaled by the statistics of the training rows; many columns at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.transforms.logarithm import signed_log1p

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_MOST, _LEAST = np.array(_MAX_FLOAT32), np.array(-_MAX_FLOAT32)
_N_KNOTS = 256
_CLIP = 3.0
#: Values of several columns that are looked up in their pieces at once, at most.
_TOGETHER = 1024


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
        self._has_log, self._has_robust = (any(fit.scale == scale for fit in fits) for scale in ("log1p", "robust"))
        self._logs, self._robust = places(_rows(fits, "log1p")), places(_rows(fits, "robust"))
        in_pieces = _rows(fits, "quantile")
        self._in_pieces = places(in_pieces)
        self._pieces = _Pieces([fits[row] for row in in_pieces]) if in_pieces else None

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
            if self._has_log:
                values[self._logs] = signed_log1p(values[self._logs])
            if self._pieces is not None:
                values[self._in_pieces] = self._pieces.apply(values[self._in_pieces])
            values -= self._offsets
            values /= self._divisors
            np.maximum(values, _LEAST, out=values)
            np.minimum(values, _MOST, out=values)
            if self._has_robust:
                chosen = values[self._robust]
                third = chosen / _CLIP
                values[self._robust] = chosen / np.sqrt(1.0 + third * third)
        return values


class _Pieces:
    """The linear pieces of ``quantile`` scales, side by side: those of the first column, then those of the next."""

    def __init__(self, fits: Sequence[NumberFit]):
        flat = (0.0, 1.0), (0.0, 0.0)  # of a column with one knot, whose values all become 0
        lines = [(fit.knots, fit.outputs) if len(fit.knots) > 1 else flat for fit in fits]
        sizes = [len(knots) for knots, _ in lines]
        self._of_column = [np.array(knots, np.float64) for knots, _ in lines]
        self._least, self._most = _column([knots[0] for knots, _ in lines]), _column([knots[-1] for knots, _ in lines])
        ends = np.array([list(accumulate(sizes))], np.intp).T
        self._before, self._last = ends - np.array([sizes], np.intp).T - 1, ends - 2
        self._knots = np.concatenate(self._of_column)
        self._outputs = np.concatenate([np.array(outputs, np.float64) for _, outputs in lines])
        with np.errstate(all="ignore"):  # a difference between two columns is not used
            self._gaps, self._rises = np.diff(self._knots), np.diff(self._outputs)

    def apply(self, values: Floats) -> Floats:
        """Return the units of float64 (n_columns, n_rows): of few rows for many columns at once."""
        units = np.empty_like(values)
        step = max(1, _TOGETHER // max(1, values.shape[1]))
        for begin in range(0, len(values), step):
            some = slice(begin, begin + step)
            within = np.maximum(values[some], self._least[some])
            np.minimum(within, self._most[some], out=within)
            piece = np.empty(within.shape, np.intp)
            for row, knots in enumerate(self._of_column[some]):
                piece[row] = knots.searchsorted(within[row], "right")
            piece += self._before[some]
            np.minimum(piece, self._last[some], out=piece)
            share = within - self._knots.take(piece)
            share /= self._gaps.take(piece)
            share *= self._rises.take(piece)
            np.add(self._outputs.take(piece), share, out=units[some])
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


def places(numbers: Sequence[int]) -> slice | npt.NDArray[np.intp]:
    """Return an index of rows of a matrix: a slice if their distances are equal, which NumPy takes faster."""
    if numbers and numbers[0] >= 0:
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        found = range(numbers[0], numbers[-1] + 1, step) if step > 0 else range(0)
        if list(found) == list(numbers):
            return slice(found.start, found.stop, step)
    return np.array(numbers, np.intp)

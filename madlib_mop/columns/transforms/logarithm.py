"""A logarithm that has the same bits on every processor; used where numbers are scaled."""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LN2 = math.log(2.0)
_FEW = 8
_SQRT_HALF = math.sqrt(0.5)
_COEFFICIENTS = tuple(2.0 / (2 * power + 1) for power in range(9, -1, -1))


def signed_log1p(values: Floats) -> Floats:
    """Return sign(x) ln(1 + abs(x)), within 9e-16 of it, relatively.

    NumPy's own log1p takes other instructions on other processors, and has other last bits there. This one uses only
    operations that IEEE 754 rounds correctly (add, subtract, multiply, divide), one at a time.

    Parameters
    ----------
    values : numpy.ndarray
        float64, any shape, finite.

    Returns
    -------
    numpy.ndarray
        float64, the same shape.

    Notes
    -----
    ln(y) = e ln 2 + 2 artanh(s) for y = m 2^e and s = (m - 1) / (m + 1), with m from sqrt(1/2) to sqrt(2); the error of
    1 + x is corrected as in Goldberg, "What every computer scientist should know about floating-point arithmetic",
    theorem 4.
    """
    if values.size <= _FEW:
        return np.array([_alone(value) for value in values.ravel().tolist()], np.float64).reshape(values.shape)
    size = np.abs(values)
    above = size + 1.0
    mantissa, exponent = np.frexp(above)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    whole = (exponent - small).astype(np.float64)
    quotient = (mantissa - 1.0) / (mantissa + 1.0)
    square = quotient * quotient
    series = np.full_like(square, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        series *= square
        series += coefficient
    series *= quotient
    lost = (size - (above - 1.0)) / above
    return np.copysign(whole * _LN2 + (series + lost), values)


def _alone(value: float) -> float:
    """Return the same for one value: the same operations in the same order, faster than NumPy for a few values."""
    size = abs(value)
    above = size + 1.0
    mantissa, exponent = math.frexp(above)
    if mantissa < _SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    quotient = (mantissa - 1.0) / (mantissa + 1.0)
    square = quotient * quotient
    series = _COEFFICIENTS[0]
    for coefficient in _COEFFICIENTS[1:]:
        series = series * square + coefficient
    lost = (size - (above - 1.0)) / above
    return math.copysign(exponent * _LN2 + (series * quotient + lost), value)

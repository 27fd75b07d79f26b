"""Numbers, booleans and ages of rows as units, all columns at once; a part of the encoder."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.encoding.inputs import check_family, null_value, special_value
from madlib_mop.columns.preprocessors.fits import DateFit, FittedColumn
from madlib_mop.columns.raw import Flags, Floats, Integers, Moments, Numbers, RawColumn
from madlib_mop.columns.transforms.dates import cyclic
from madlib_mop.columns.transforms.scaling import NumberFit, Scaling, places

Units = npt.NDArray[np.float32]
_ENDLESS = 9.2e18  # microseconds; PostgreSQL's infinities have greater absolute values
_GREATEST = float(np.finfo(np.float64).max)


class ScaledUnits:
    """All numbers and ages of a row in one matrix, so that a row alone costs a few operations of NumPy."""

    def __init__(self) -> None:
        self._columns: list[FittedColumn] = []
        self._names: list[str] = []
        self._fits: list[NumberFit] = []
        self._units: list[int] = []
        self._dates: list[tuple[int, int, tuple[str, ...]]] = []

    def add(self, column: FittedColumn, unit: int) -> None:
        """Add a number, date or time with its first unit; its parts on a circle come after it."""
        fit = column.fit
        if isinstance(fit, DateFit):
            if fit.parts:
                self._dates.append((len(self._names), unit + 1, fit.parts))
            fit = fit.age
        assert isinstance(fit, NumberFit), "other columns have no scaled number"
        self._columns.append(column)
        self._names.append(column.name)
        self._fits.append(fit)
        self._units.append(unit)

    def seal(self) -> None:
        """Make the tables; no column is added after that."""
        self._scaling = Scaling(self._fits)
        self._strict = [row for row, fit in enumerate(self._fits) if fit.fill is None]
        self._most = np.array([[_GREATEST if fit.unit == 1.0 else _ENDLESS] for fit in self._fits], np.float64)
        marked = [row for row, fit in enumerate(self._fits) if fit.indicator]
        after = {row: 1 + 2 * len(parts) for row, _, parts in self._dates}
        self._marked, self._n_marked = places(marked), len(marked)
        self._indicators = places([self._units[row] + after.get(row, 1) for row in marked])
        self._places = places(self._units)

    def write(self, raw: Mapping[str, RawColumn], units: Units) -> None:
        """Write the units of these columns: float32 (n_units, n_rows)."""
        if not self._names:
            return
        n_rows = units.shape[1]
        values: Floats = np.empty((len(self._names), n_rows))
        missing: Flags = np.empty((len(self._names), n_rows), np.bool_)
        for row, name in enumerate(self._names):
            column = raw[name]
            check_family(self._columns[row], column)
            assert isinstance(column, Numbers | Moments), "its family is one of these"
            values[row] = column.values
            missing[row] = column.missing
        if np.count_nonzero(np.abs(values) <= self._most) < values.size:  # NaN too
            self._raise_special(raw)
        has_missing = np.count_nonzero(missing) > 0
        if has_missing and self._strict and missing[self._strict].any():
            first = next(row for row in self._strict if missing[row].any())
            raise null_value(self._names[first], missing[first])
        units[self._places] = self._scaling.apply(values, missing)
        if self._n_marked:
            units[self._indicators] = missing[self._marked]
        for row, unit, parts in self._dates:
            column = raw[self._names[row]]
            assert isinstance(column, Moments), "only dates and times have parts"
            moments: Integers = column.values
            end = unit + 2 * len(parts)
            for place, part in enumerate(parts):
                units[unit + 2 * place : unit + 2 * place + 2] = cyclic(moments, part)
            if has_missing and missing[row].any():
                units[unit:end, missing[row]] = 0.0

    def _raise_special(self, raw: Mapping[str, RawColumn]) -> None:
        for name in self._names:
            special = raw[name].first_special()
            if special is not None:
                raise special_value(name, special.text)

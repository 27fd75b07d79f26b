"""A model's predictions as columns, so that their distribution is counted as that of any column; for drift, register.

Classes count by the most probable one; rows of NaN, which have none, as NULL. Numbers are those that predict returns,
in the units of the table.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.fits import ClassFit, Fit, FittedColumn, VectorFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.kinds import ARRAY, CATEGORY, NUMBER, TARGET, ColumnSpec
from madlib_mop.columns.raw import Levels, Numbers, RawColumn, Vectors, dictionary_of
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.inference.wanted import Form, PredType, by_class, choose


class Counter(Protocol):
    """What counts the rows of a column: `Profiler` or `ObservedColumn`."""

    def add(self, raw: RawColumn) -> None: ...


class CountedOutputs:
    """Counts the predictions of a model, batch after batch.

    Parameters
    ----------
    model : TrainedModel
    make : callable
        Makes the counter of an output, when its first batch shows how many units it has.

    Attributes
    ----------
    counters : dict of str to Counter
        By the name of the output.
    """

    def __init__(self, model: TrainedModel, make: Callable[[FittedColumn], Counter]):
        self.counters: dict[str, Counter] = {}
        self._model = model
        self._make = make
        self._fits: dict[str, Fit] = {}
        self._targets: Targets | None = None
        self._numbers: set[str] = set()
        if model.preprocessor is not None:
            preprocessor = Preprocessor.from_json(model.preprocessor)
            self._targets = Targets(preprocessor)
            self._numbers = {column.name for column in preprocessor.targets if isinstance(column.fit, NumberFit)}

    def add(self, scores: Sequence[np.ndarray]) -> None:
        """Add the outputs of a batch: float32 (n_rows, n_units) each.

        Raises
        ------
        InvalidParameter
            If an output has another number of units than its classes.
        """
        for output, values in zip(self._model.outputs, scores, strict=True):
            raw = self._column(output, values)
            if output.name not in self.counters:
                self.counters[output.name] = self._make(self._fitted(output))
            self.counters[output.name].add(raw)

    def _fitted(self, output: DependentOutput) -> FittedColumn:
        fit = self._fits[output.name]
        kind = CATEGORY if isinstance(fit, ClassFit) else NUMBER if isinstance(fit, NumberFit) else ARRAY
        return FittedColumn(ColumnSpec(output.name, output.vartype, role=TARGET, kind=kind), fit)

    def _column(self, output: DependentOutput, values: np.ndarray) -> RawColumn:
        n_rows, n_units = values.shape
        nothing_missing = np.zeros(n_rows, np.bool_)
        if output.is_number(n_units) and n_units > 1:
            self._fits[output.name] = VectorFit(n_units, True, False, 0.0, 1.0)
            return Vectors(values, nothing_missing, output.name)
        if output.is_number(n_units):
            self._fits[output.name] = NumberFit(1.0, None, False, "none")
            return Numbers(self._in_units(output.name, values), nothing_missing)
        values = by_class(values, len(output.values or ()))
        classes = _distinct(output.labels(values.shape[1]))
        self._fits[output.name] = ClassFit(classes, "one_hot")
        chosen = choose(values, PredType(Form.RESPONSE)).units
        return Levels(chosen.astype(np.int32), dictionary_of(classes, output.name))

    def _in_units(self, name: str, values: np.ndarray) -> np.ndarray:
        if self._targets is None or name not in self._numbers:
            return values[:, 0].astype(np.float64)
        numbers = self._targets.decode({name: values})[name].numbers
        assert numbers is not None, "it is a regression"
        return numbers


def _distinct(labels: Sequence[str | None]) -> tuple[str, ...]:
    """Return a text for each unit: NULL, if it is a class, is the first; units beyond the classes have numbers."""
    found: list[str] = []
    for unit, label in enumerate(labels):
        text = label if label is not None else "NULL" if unit == 0 else f"unit {unit}"
        found.append(text if text not in found else f"{text} (unit {unit})")
    return tuple(found)

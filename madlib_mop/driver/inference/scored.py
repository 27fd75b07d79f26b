"""What score writes of each output of a model: the class and a probability, or the number; no database."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mop_backend.held_out import HeldOut

from madlib_mop.catalog.names import MAX_NAME_BYTES
from madlib_mop.certainty.scores import calibrate
from madlib_mop.driver.data.copied import quoted
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.inference.wanted import Form, PredType, by_class, choose
from madlib_mop.errors import InvalidParameter, Unsupported, no_such_class

_PREDICTED, _PROBABILITY = "predicted", "probability"
_BEST = PredType(Form.RESPONSE)


@dataclass(frozen=True)
class ScoreColumns:
    """The columns of one output.

    Attributes
    ----------
    names : tuple of (str, str)
        Names and SQL types: the class and a probability, or the number.
    labels : tuple of (str or None)
        The classes, in the order of the units; empty for a number.
    of_class : int or None
        The class whose probability is written; None: the predicted one.
    held_out : HeldOut or None
        What calibrates the probabilities; None: they are those of the network.
    """

    names: tuple[tuple[str, str], ...]
    labels: tuple[str | None, ...] = ()
    of_class: int | None = None
    held_out: HeldOut | None = None

    def elements(self, values: np.ndarray) -> list[list[str]]:
        """Return the values of each column for some rows, as elements of an array literal.

        Parameters
        ----------
        values : numpy.ndarray
            The output, (n_rows, n_units), a number in the units of the table.
        """
        if not self.labels:
            return [[repr(value) for value in values[:, 0].astype(np.float64).tolist()]]
        written = by_class(values, len(self.labels))
        best = choose(written, _BEST)
        classes = quoted([*self.labels, None])[best.units]  # the last one, -1, is that of NO_CLASS
        if self.held_out is not None:  # predict too subtracts from 1 in float64
            written = calibrate(by_class(values.astype(np.float64), len(self.labels)), self.held_out)
        probabilities = written[best.rows, best.units] if self.of_class is None else written[:, self.of_class]
        return [classes.tolist(), [repr(value) for value in probabilities.astype(np.float64).tolist()]]


def score_columns(
    outputs: Sequence[DependentOutput], n_units: Sequence[int | None], of_class: str | None
) -> list[ScoreColumns]:
    """Return the columns of each output; with several outputs, their names end in the output's.

    Parameters
    ----------
    outputs : sequence of DependentOutput
    n_units : sequence of (int or None)
        Units of each output, as far as the architecture has them.
    of_class : str or None
        The class whose probability is written; None: the predicted one.

    Raises
    ------
    InvalidParameter
        If there is no such class, the model has several outputs besides, or two columns would have one name.
    Unsupported
        If an output is an array of numbers.
    """
    if of_class is not None and len(outputs) > 1:
        raise InvalidParameter(
            f"of_class is for models with one output; this one has {len(outputs)}. Received: {of_class!r}",
            hint="Omit of_class.",
        )
    found = [
        _columns_of(output, units, f"_{output.name}" if len(outputs) > 1 else "", of_class)
        for output, units in zip(outputs, n_units, strict=True)
    ]
    names = [name for one in found for name, _ in one.names]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Unsupported(
            f"the output table would have two columns {twice!r}: the names of the model's outputs are too long",
            hint="madlib_mop.predict_json returns all outputs of a row.",
        )
    return found


def _columns_of(output: DependentOutput, n_units: int | None, suffix: str, of_class: str | None) -> ScoreColumns:
    predicted, probability = _cut(_PREDICTED + suffix), _cut(_PROBABILITY + suffix)
    n_units = n_units or len(output.values or ()) or 1
    if output.is_number(n_units):
        if n_units > 1:
            raise Unsupported(
                f"output {output.name!r} is an array of {n_units} numbers, and score writes one prediction a row",
                hint="madlib.madlib_keras_predict writes a row for each number.",
            )
        if of_class is not None:
            raise no_such_class((), of_class)
        return ScoreColumns(((predicted, "float8"),))
    n_classes = 2 if n_units == 1 and len(output.values or ()) == 2 else n_units
    labels = tuple(output.labels(n_classes))
    if of_class is not None and of_class not in labels:
        raise no_such_class([label for label in labels if label is not None], of_class)
    place = None if of_class is None else labels.index(of_class)
    return ScoreColumns(((predicted, "text"), (probability, "float8")), labels, place)


def _cut(name: str) -> str:
    """Return a name that is no longer than PostgreSQL allows."""
    return name.encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore")

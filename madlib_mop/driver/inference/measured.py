"""What the predictions of labelled rows mean, beside the truth; called by register, learn and measuring.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.certainty.measures import Codes, Floats, codes_of
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.inference.packed_rows import ragged


@dataclass(frozen=True)
class ClassOutput:
    """Predicted probabilities of classes.

    Attributes
    ----------
    name : str
        The target.
    labels : list of (str or None)
        The class of each column of ``probabilities``; None is the class NULL, or a unit of no class.
    probabilities : numpy.ndarray
        float64 (n_rows, n_classes), as the network returns them.
    truth : numpy.ndarray
        int64 (n_rows,): the class of each row.
    """

    name: str
    labels: list[str | None]
    probabilities: Floats
    truth: Codes


@dataclass(frozen=True)
class NumberOutput:
    """Predicted numbers.

    Attributes
    ----------
    name : str
        The target.
    numbers, truth : numpy.ndarray
        float64 (n_rows,), in the units of the table.
    with_logarithm : bool
        Whether the target's logarithm was scaled for the network.
    """

    name: str
    numbers: Floats
    truth: Floats
    with_logarithm: bool


def measured_outputs(
    model: TrainedModel, outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray], what: str
) -> list[ClassOutput | NumberOutput]:
    """Return what predictions mean; outputs of several numbers are left out.

    Parameters
    ----------
    model : TrainedModel
    outputs : sequence of numpy.ndarray
        float32 (n_rows, n_units) for each output.
    labels : sequence of numpy.ndarray
        The packed values of each target, (n_rows, ...).
    what : str
        The argument that named the table, for messages.

    Raises
    ------
    InvalidParameter
        For a class that the model does not have; the owner of a packed table can write any.
    """
    preprocessor = None if model.preprocessor is None else Preprocessor.from_json(model.preprocessor)
    targets = None if preprocessor is None else Targets(preprocessor)
    fits = {} if preprocessor is None else {column.name: column.fit for column in preprocessor.targets}
    found: list[ClassOutput | NumberOutput] = []
    for output, values, true in zip(model.outputs, outputs, labels, strict=True):
        fit = fits.get(output.name)
        if not output.is_number(values.shape[1]):
            found.append(_classes(output, values, true, what))
        elif targets is not None and isinstance(fit, NumberFit):
            numbers, truth = (targets.decode_one(output.name, one).numbers for one in (values, true))
            assert numbers is not None and truth is not None, "it is a number"
            found.append(NumberOutput(output.name, numbers, truth, fit.scale == "log1p"))
        elif values.shape[1] == 1:
            found.append(NumberOutput(output.name, _flat(values), _flat(true), False))
    return found


def _classes(output: DependentOutput, values: np.ndarray, true: np.ndarray, what: str) -> ClassOutput:
    probabilities = values.astype(np.float64)  # first: the backend too subtracts from 1 in float64
    if probabilities.shape[1] == 1:
        probabilities = np.concatenate([1.0 - probabilities, probabilities], axis=1)
    codes, n_classes = codes_of(true), probabilities.shape[1]
    check_codes(codes, n_classes, output.name, what)
    return ClassOutput(output.name, output.labels(n_classes), probabilities, codes)


def check_codes(codes: Codes, n_classes: int, column: str, what: str) -> None:
    """Raise InvalidParameter for a class that the model does not have; the owner of a packed table can write any.

    Parameters
    ----------
    codes : numpy.ndarray
        int64 (n_rows,).
    n_classes : int
    column : str
    what : str
        The argument that named the table, for messages.
    """
    if ((codes < 0) | (codes >= n_classes)).any():
        raise ragged(f"column {column!r} has a class that the model does not have", what)


def _flat(values: np.ndarray) -> Floats:
    rows: npt.NDArray[np.float64] = values.reshape(len(values), -1)[:, 0].astype(np.float64)
    return rows

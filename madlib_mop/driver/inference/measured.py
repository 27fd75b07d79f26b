"""What the predictions of labelled rows mean, beside the truth; called by register, learn and measuring.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.catalog.names import Relation
from madlib_mop.certainty.measures import Codes, Floats, Measure, codes_of, of_classes, of_numbers
from madlib_mop.columns.encoding.targets import Predictions, Targets
from madlib_mop.columns.preprocessors.fits import ClassFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.driver.data.packed import class_counts, read_summary
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.inference.packed_rows import PredictedTable, ragged
from madlib_mop.driver.session.caller import CallerSession


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


@dataclass(frozen=True)
class MeasuredTarget:
    """The predictions of one target of a preprocessor, and how good they are."""

    name: str
    predicted: Predictions
    measures: list[Measure]


def measured_targets(
    preprocessor: Preprocessor, rows: PredictedTable, counts: Mapping[str, Sequence[int]]
) -> list[MeasuredTarget]:
    """Return the measures of the predictions of a packed table, by target.

    Parameters
    ----------
    preprocessor : Preprocessor
        Of the packed table.
    rows : PredictedTable
        With labels; outputs and labels in the order of the targets.
    counts : mapping of str to (sequence of int)
        The training rows of each class, by target.

    Raises
    ------
    InvalidParameter
        If an output has another form than the target, or a row a class that the preprocessor does not have.
    """
    targets, found = Targets(preprocessor), []
    for name, values, labels in zip(targets.names, rows.outputs, rows.labels, strict=True):
        one = targets.decode_one(name, values)
        if one.numbers is None:
            codes = codes_of(labels)
            check_codes(codes, len(one.classes), name, "packed_table")
            measures = of_classes(one, codes, counts.get(name))
        else:
            numbers = targets.decode_one(name, labels).numbers
            assert numbers is not None, "it is a number"
            measures = of_numbers(one.numbers, numbers)
        found.append(MeasuredTarget(name, one, measures))
    return found


def counts_of_classes(
    session: CallerSession, relation: Relation, name: str | None, preprocessor: Preprocessor
) -> dict[str, tuple[int, ...]]:
    """Return the training rows of each class, by target of classes whose counts the summary of a packed table has.

    Parameters
    ----------
    session : CallerSession
    relation : Relation
        The packed table of training rows.
    name : str or None
        As written by the caller, for messages.
    preprocessor : Preprocessor
    """
    summary = read_summary(session, relation, name, "packed_table")
    found = {}
    for column in preprocessor.targets:
        if isinstance(column.fit, ClassFit):
            counts = class_counts(session, summary, column.name)
            if counts is not None and len(counts) == len(column.fit.classes):
                found[column.name] = counts
    return found


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

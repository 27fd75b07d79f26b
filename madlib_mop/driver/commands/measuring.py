"""The commands metrics, confusion_matrix, roc_curve, precision_recall_curve, choose_threshold and reliability: how good
and how sure a model's predictions of labelled rows are."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import Any

import numpy as np
from mop_backend.registered_names import with_newest

from madlib_mop.certainty.measures import (
    Measure,
    ThresholdCurve,
    calibration_error,
    most_probable,
    of_classes,
    of_numbers,
    slices,
)
from madlib_mop.certainty.measures import reliability as reliability_of
from madlib_mop.certainty.scores import calibrate
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Predictions, Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.raw import Levels, Moments, Numbers
from madlib_mop.driver.columns.recorded import batch_rows_of, needed_fields, together
from madlib_mop.driver.columns.rows import names_of, naming_rows, read_batches
from madlib_mop.driver.columns.source import read_source
from madlib_mop.driver.commands.explaining import as_json, model_of_rows, values_of
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.inference.labelled_rows import find_labelled, is_packed
from madlib_mop.driver.inference.measured import ClassOutput, NumberOutput, measured_outputs
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.packed_rows import predicted_rows
from madlib_mop.driver.inference.prediction import predicted
from madlib_mop.driver.inference.registered import find_model, need_registry
from madlib_mop.driver.inference.rows import RowBatch
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_rows
from madlib_mop.errors import InvalidParameter, Unsupported, no_such_class, shown

_WHAT = "source_table"
#: Of more classes, pairs without rows are left out of a confusion matrix.
_MOST_CLASSES = 100


def metrics(call: Call) -> list[dict[str, Any]]:
    """Return a row for each output, slice and metric."""
    a = call.arguments
    parts: list[tuple[str | None, np.ndarray]]
    if a["by"] is not None:
        outputs, parts = _by_slice(call)
    else:
        outputs = _outputs(call)[1]
        parts = [(None, np.arange(len(outputs[0].truth)))] if outputs else []
    answer = []
    for output in outputs:
        for name, rows in parts:
            for one in _measures(output, rows):
                answer.append(
                    {
                        "output": output.name,
                        "slice": name,
                        "n_rows": len(rows),
                        "metric": one.name,
                        "value": as_json(one.value),
                        "baseline": as_json(one.baseline),
                    }
                )
    return answer


def confusion_matrix(call: Call) -> list[dict[str, Any]]:
    """Return a row for each pair of a true and a predicted class."""
    answer = []
    for output in _classes(_outputs(call)[1]):
        truth, guesses = output.truth.tolist(), most_probable(output.probabilities).tolist()
        n_true, counts = Counter(truth), Counter(zip(truth, guesses, strict=True))  # n**2 of many classes do not fit
        occurs = sorted({*truth, *guesses})
        pairs = product(occurs, repeat=2) if len(occurs) <= _MOST_CLASSES else sorted(counts)
        for actual, guess in pairs:
            answer.append(
                {
                    "output": output.name,
                    "actual": output.labels[actual],
                    "predicted": output.labels[guess],
                    "n_rows": counts[actual, guess],
                    "share_of_actual": counts[actual, guess] / n_true[actual] if n_true[actual] else None,
                }
            )
    return answer


def roc_curve(call: Call) -> list[dict[str, Any]]:
    """Return a row for each threshold: the false and the true positive rate."""
    answer = []
    for name, of_class, curve in _curves(call):
        false, true = curve.false_positive_rate, curve.recall
        area, limits = curve.area, curve.limits
        for place in curve.places(call.arguments["max_points"]):
            answer.append(
                {
                    "output": name,
                    "class": of_class,
                    "threshold": as_json(limits[place]),
                    "false_positive_rate": float(false[place]),
                    "true_positive_rate": float(true[place]),
                    "auc": area,
                }
            )
    return answer


def precision_recall_curve(call: Call) -> list[dict[str, Any]]:
    """Return a row for each threshold: precision and recall."""
    answer = []
    for name, of_class, curve in _curves(call):
        precision, recall, average = curve.precision, curve.recall, curve.average_precision
        limits = curve.limits
        for place in curve.places(call.arguments["max_points"]):
            answer.append(
                {
                    "output": name,
                    "class": of_class,
                    "threshold": as_json(limits[place]),
                    "precision": float(precision[place]),
                    "recall": float(recall[place]),
                    "n_predicted": int(curve.n_predicted[place]),
                    "average_precision": average,
                }
            )
    return answer


def choose_threshold(call: Call) -> list[dict[str, Any]]:
    """Return the threshold with the least cost, the most recall of those with a precision, or the highest F1; a row for
    each class."""
    a = call.arguments
    costs = a["cost_false_positive"], a["cost_false_negative"]
    by_cost, by_precision, by_f1 = None not in costs, a["least_precision"] is not None, bool(a["highest_f1"])
    if by_cost + by_precision + by_f1 != 1 or (not by_cost and costs != (None, None)):
        raise InvalidParameter(
            "pass either cost_false_positive and cost_false_negative, or least_precision, or highest_f1 => true."
            f" Received: {costs[0]}, {costs[1]}, {a['least_precision']} and {str(by_f1).lower()}",
            hint="cost_false_positive => 1, cost_false_negative => 10: a missed row costs as much as ten false alarms.",
        )
    if (a["least_precision"] or 0) > 1:
        raise InvalidParameter(f"least_precision must be at most 1. Received: {a['least_precision']}")
    answer = []
    for name, of_class, curve in _curves(call):
        cost = None
        if by_cost:
            of_thresholds, cost = curve.costs(*costs), costs[1] * curve.n_positive  # without any prediction of it
            place = int(np.argmin(of_thresholds))
            if of_thresholds[place] < cost:
                cost = float(of_thresholds[place])
            else:
                place = -1
        elif by_precision:
            enough = np.flatnonzero(curve.precision >= a["least_precision"]).tolist()
            place = max(enough, key=lambda one: (curve.n_right[one], curve.precision[one]), default=-1)
        else:
            highest = curve.highest_f1()
            place = -1 if highest is None else highest
        found = place >= 0
        answer.append(
            {
                "output": name,
                "class": of_class,
                "threshold": as_json(curve.limits[place]) if found else None,
                "precision": float(curve.precision[place]) if found else None,
                "recall": float(curve.recall[place]) if found else 0.0,
                "n_predicted": int(curve.n_predicted[place]) if found else 0,
                "cost": cost,
                "n_rows": curve.n_rows,
            }
        )
    return answer


def reliability(call: Call) -> list[dict[str, Any]]:
    """Return a row for each interval of a probability: how probable, and how often true."""
    a = call.arguments
    if a["calibrated"]:
        need_registry(call.session)
    model, outputs = _outputs(call)
    answer = []
    for output in _classes(outputs):
        probabilities = output.probabilities
        if a["calibrated"]:
            probabilities = calibrate(probabilities, model.held_out_of(output.name))
        of_class = a["of_class"]
        if of_class is None:
            best = most_probable(probabilities)
            chosen, is_true = probabilities[np.arange(len(best)), best], best == output.truth
        else:
            number = _number_of(output, of_class)
            chosen, is_true = probabilities[:, number], output.truth == number
        if not (np.isfinite(chosen).all() and 0 <= chosen.min() and chosen.max() <= 1):
            raise Unsupported(
                f"the model has outputs for {output.name!r} that are no numbers from 0 to 1, so no probabilities",
                hint="Train with a softmax or sigmoid layer at the end.",
            )
        bins = reliability_of(chosen, is_true, a["n_bins"])
        error = calibration_error(bins)
        answer += [
            {
                "output": output.name,
                "class": of_class,
                "lower": one.lower,
                "upper": one.upper,
                "n_rows": one.n_rows,
                "probability": one.probability,
                "share": one.share,
                "calibration_error": error,
            }
            for one in bins
        ]
    return answer


def _outputs(call: Call) -> tuple[TrainedModel, list[ClassOutput | NumberOutput]]:
    """Predict the rows of a table; return the model, and each output beside the truth."""
    a, session = call.arguments, call.session
    model = find_model(session, call.function, with_newest(a["model_table"], a["mst_key"]), a["mst_key"])
    (rows,) = find_labelled(session, a[_WHAT], _WHAT).rows_of([model])
    with LocalTrainer(session) as trainer:
        found = predicted_rows(session, trainer, model, rows, _WHAT)
    return model, measured_outputs(model, found.outputs, found.labels, _WHAT)


def _classes(outputs: Sequence[ClassOutput | NumberOutput]) -> list[ClassOutput]:
    """Return the outputs of classes. Raises Unsupported if there is none."""
    found = [output for output in outputs if isinstance(output, ClassOutput)]
    if not found:
        raise Unsupported(
            "the model predicts numbers, not classes", hint="madlib_mop.metrics returns the measures of numbers."
        )
    return found


def _curves(call: Call) -> Iterator[tuple[str, str | None, ThresholdCurve]]:
    """Yield target, class and curve: of the class of the call; without one, of two classes the second, else all."""
    of_class = call.arguments["of_class"]
    for output in _classes(_outputs(call)[1]):
        if of_class is not None:
            numbers = [_number_of(output, of_class)]
        else:
            numbers = [1] if len(output.labels) == 2 else list(range(len(output.labels)))
        for number in numbers:
            curve = ThresholdCurve.of(output.probabilities[:, number], output.truth == number)
            yield output.name, output.labels[number], curve


def _number_of(output: ClassOutput, of_class: str) -> int:
    if of_class not in output.labels:
        raise no_such_class([label for label in output.labels if label is not None], of_class)
    return output.labels.index(of_class)


def _measures(output: ClassOutput | NumberOutput, rows: np.ndarray) -> list[Measure]:
    """Return the measures of some rows, by number."""
    if isinstance(output, NumberOutput):
        return of_numbers(output.numbers[rows], output.truth[rows])
    probabilities = output.probabilities[rows]
    classes = tuple("NULL" if label is None else label for label in output.labels)
    one = Predictions(classes=classes, codes=most_probable(probabilities), probabilities=probabilities)
    every = np.bincount(output.truth, minlength=len(classes)).tolist()  # one rarest class for all slices
    return of_classes(one, output.truth[rows], every)


def _by_slice(call: Call) -> tuple[list[ClassOutput | NumberOutput], list[tuple[str | None, np.ndarray]]]:
    """Predict the rows of a table; return each output, and the rows of each slice of a column."""
    a, session = call.arguments, call.session
    model, preprocessor = model_of_rows(call)
    reader = _SlicedRows(session, preprocessor, a[_WHAT], a["by"])
    scores = []
    with LocalTrainer(session) as trainer:
        for _, found in predicted(trainer, model, read_weights(session, model), reader):
            scores.append(found)
    if not scores:
        raise no_rows(a[_WHAT])
    outputs = [np.concatenate(one) for one in zip(*scores, strict=True)]
    labels = [np.concatenate(one) for one in zip(*reader.labels, strict=True)]
    numbers = np.array(reader.numbers, np.float64) if reader.is_number else None
    parts = slices(reader.texts, numbers, a["max_slices"])
    return measured_outputs(model, outputs, labels, _WHAT), parts


class _SlicedRows:
    """The encoded rows of a table, in batches; while they are read, their targets and their values in a column."""

    def __init__(self, session: CallerSession, preprocessor: Preprocessor, name: str, by: str):
        self._session, self._preprocessor, self._by = session, preprocessor, by
        self._source = read_source(session, name, _WHAT)
        known = {column.name: column for column in session.columns(self._source.relation)}
        if is_packed(set(known)):
            raise InvalidParameter(
                f"by: {self._source.relation} is a packed table, which cannot be sliced. Received: {shown(by)}",
                hint="Pass the table of rows before packing, or leave by out.",
            )
        column = self._source.column(by)
        if column is None or column.field is None:
            names = ", ".join(list(known)[:50])
            raise InvalidParameter(
                f"by: {self._source.relation} has no such column, or none that can be read. Received: {shown(by)}",
                hint=f"Its columns are {names}.",
            )
        needed = needed_fields([*preprocessor.inputs, *preprocessor.targets], self._source, _WHAT)
        self._fields = together([*needed, column.field])
        self.index_inputs = list(preprocessor.index_inputs)
        self.labels: list[list[np.ndarray]] = []
        self.texts: list[str | None] = []
        self.numbers: list[float] = []
        self.is_number = False

    def __iter__(self) -> Iterator[RowBatch]:
        targets, n_before = Targets(self._preprocessor), 0
        names = [field.name for field in self._fields]
        batch_rows = batch_rows_of(self._preprocessor)
        with FileDecoder() as decode:
            encoder = Encoder(self._preprocessor, decode)
            read = read_batches(self._session, self._source, self._fields, unchecked=[self._by], batch_rows=batch_rows)
            with closing(read) as batches:
                for batch, columns in batches:
                    raw = dict(zip(names, columns, strict=True))
                    with naming_rows(names_of(batch, n_before)):
                        tensors = encoder.encode(raw)
                        labels = targets.encode(raw)
                    n_before += batch.n_rows
                    self._add(raw[self._by])
                    self.labels.append(list(labels.values()))
                    yield RowBatch([None] * batch.n_rows, list(tensors.arrays.values()))

    def _add(self, column: Any) -> None:
        if not isinstance(column, Levels | Numbers | Moments):
            raise Unsupported(
                f"by: column {self._by!r} has no single values. Received: {self._by!r}",
                hint="Choose a column of numbers, dates or categories.",
            )
        self.is_number = not isinstance(column, Levels)
        for value in values_of(column):
            self.texts.append(value.text)
            self.numbers.append(value.place)

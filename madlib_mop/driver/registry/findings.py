"""What register finds out about a model for reports: how its predictions of held-out rows are, and which columns
matter. It computes it once, so pages only show it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from mop_backend.held_out import HeldOut

from madlib_mop.catalog.facts.findings import (
    MAX_CLASSES,
    MAX_COLUMNS,
    MAX_CURVES,
    MAX_DEPENDENCES,
    MAX_POINTS,
    MAX_VALUES,
    N_BINS,
    ClassCurve,
    ColumnImportance,
    Confusion,
    CurvePoint,
    DependencePoint,
    Findings,
    OutputFindings,
    OutputImportance,
    PartialDependence,
    Reliability,
    ReliabilityBin,
)
from madlib_mop.certainty.measures import Codes, Floats, ThresholdCurve, calibration_error, confusion, most_probable
from madlib_mop.certainty.measures import reliability as bins_of
from madlib_mop.certainty.scores import calibrate
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn, ImageFit, TermsFit, TextFit, VectorFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.driver.commands.explaining import RowSample, dependence_rows, importance_rows, preprocessor_of
from madlib_mop.driver.inference.measured import ClassOutput
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import Unsupported

#: Rows that are drawn: for partial dependence; for importance, as many as make no more predictions than this, but at
#: least some.
_DEPENDENCE_ROWS, _MOST_ROWS, _LEAST_ROWS, _MOST_PREDICTIONS = 500, 2000, 200, 500_000
_N_REPEATS, _SEED = 5, 0
#: Rows whose probabilities are calibrated, evenly spaced: fewer of many classes.
_CALIBRATED_ROWS, _MOST_CALIBRATED = 10_000, 1_000_000
#: Classes with a partial dependence, if there are more than two: those whose probability varies most.
_MAX_OF_CLASSES = 2
_LONGEST = 100
_EXPLAINED = "explained"


def of_output(output: ClassOutput, held_out: HeldOut) -> OutputFindings:
    """Return how the predictions of held-out rows are.

    Parameters
    ----------
    output : ClassOutput
        Of one row or more.
    held_out : HeldOut
        The record of the same rows.
    """
    by_rows = np.argsort(-np.bincount(output.truth, minlength=len(output.labels)), kind="stable")
    numbers = [1] if len(output.labels) == 2 else by_rows[:MAX_CURVES].tolist()
    return OutputFindings(
        output=output.name,
        n_rows=len(output.truth),
        confusion=_confusion(output, by_rows),
        curves=tuple(_curve(output, number) for number in numbers if np.isfinite(output.probabilities).all()),
        reliability=tuple(_reliability(output, held_out)),
    )


def _confusion(output: ClassOutput, by_rows: Codes) -> Confusion:
    n_classes = len(output.labels)
    shown = np.sort(by_rows[:MAX_CLASSES]) if n_classes > MAX_CLASSES else np.arange(n_classes)
    places = np.full(n_classes, len(shown), np.int64)
    places[shown] = np.arange(len(shown))
    n_others = n_classes - len(shown)
    predicted = places[most_probable(output.probabilities)]
    counts = confusion(places[output.truth], predicted, len(shown) + bool(n_others))  # of many classes, n**2 do not fit
    return Confusion(
        tuple(_short(output.labels[number]) for number in shown.tolist()),
        n_others,
        tuple(tuple(row) for row in counts.tolist()),
    )


def _curve(output: ClassOutput, number: int) -> ClassCurve:
    curve = ThresholdCurve.of(output.probabilities[:, number], output.truth == number)
    limits, false, recall, precision = curve.limits, curve.false_positive_rate, curve.recall, curve.precision
    points = tuple(
        CurvePoint(
            float(limits[place]), int(curve.n_predicted[place]), float(false[place]), float(recall[place]),
            float(precision[place]),
        )
        for place in curve.places(MAX_POINTS)
    )  # fmt: skip
    label = _short(output.labels[number])
    return ClassCurve(label, curve.n_positive, curve.area, curve.average_precision, points)


def _reliability(output: ClassOutput, held_out: HeldOut) -> Iterator[Reliability]:
    """Yield the reliability of the probabilities as they are, then of calibrated ones; none if they are none."""
    probabilities = output.probabilities
    if not (np.isfinite(probabilities).all() and 0 <= probabilities.min() and probabilities.max() <= 1):
        return
    yield _one_reliability(probabilities, output.truth, None)
    if held_out.calibration is None:
        return
    n_rows, n_classes = probabilities.shape
    n_chosen = min(n_rows, max(_LEAST_ROWS, min(_CALIBRATED_ROWS, _MOST_CALIBRATED // n_classes)))
    rows = np.unique(np.linspace(0, n_rows - 1, n_chosen).round().astype(np.int64))
    try:
        found = calibrate(probabilities[rows], held_out)
    except Unsupported:  # a row whose probabilities are all zero has none
        return
    yield _one_reliability(found, output.truth[rows], held_out.calibration)


def _one_reliability(probabilities: Floats, truth: Codes, calibration: str | None) -> Reliability:
    best = most_probable(probabilities)
    bins = bins_of(np.clip(probabilities[np.arange(len(best)), best], 0.0, 1.0), best == truth, N_BINS)
    kept = tuple(ReliabilityBin(one.lower, one.upper, one.n_rows, one.probability, one.share) for one in bins)
    return Reliability(calibration, calibration_error(bins), kept)


def find_columns(
    session: CallerSession, model: TrainedModel, received: str, name: str, held_out: str | None, found: Findings | None
) -> Findings:
    """Add the importance of a model's columns, and the partial dependence on those that matter most.

    Parameters
    ----------
    session : CallerSession
    model : TrainedModel
    received : str
        The name of its table, for messages.
    name : str
        A table of rows, not packed, as written by the caller in the argument ``explained``.
    held_out : str or None
        The table of the held-out rows: the importance is of these rows, if there are some.
    found : Findings or None
        Those of the held-out rows.

    Raises
    ------
    MopError
        If there is no such table, it does not fit the model, or it has too few rows.
    """
    preprocessor = preprocessor_of(model, received)
    others = TextFit | TermsFit | VectorFit | ImageFit
    features = [column for column in preprocessor.inputs if not isinstance(column.fit, others)]
    where, what = (name, _EXPLAINED) if held_out is None else (held_out, "held_out")
    n_rows = max(_LEAST_ROWS, min(_MOST_ROWS, _MOST_PREDICTIONS // (_N_REPEATS * max(len(preprocessor.inputs), 1))))
    rows = importance_rows(session, model, preprocessor, RowSample(where, what, n_rows, _SEED), None, _N_REPEATS)
    places = {row["feature"]: place for place, row in reversed(list(enumerate(rows)))}  # of the first output
    chosen = sorted(features, key=lambda column: places[column.name])[:MAX_DEPENDENCES]
    dependences: list[PartialDependence] = []
    if chosen:
        sample = RowSample(name, _EXPLAINED, _DEPENDENCE_ROWS, _SEED)
        every = dependence_rows(session, model, preprocessor, sample, chosen, MAX_VALUES)
        for column, of_column in zip(chosen, every, strict=True):
            dependences += _dependences(preprocessor, column, of_column)
    return replace(
        found or Findings(),
        explained=str(session.relation(name, _EXPLAINED, any_type=True)),
        importance_of=str(session.relation(where, what, any_type=True)),
        importances=tuple(_importances(rows)),
        dependences=tuple(dependences),
    )


def _importances(rows: list[dict[str, Any]]) -> Iterator[OutputImportance]:
    """Yield the importance of columns of each output whose loss is a number."""
    for output, every in groupby(rows, lambda row: row["output"]):
        of_output = list(every)
        columns = [
            ColumnImportance(row["feature"], row["importance"], row["lower"], row["upper"])
            for row in of_output
            if _is_finite(row["importance"], row["lower"], row["upper"])
        ]
        first = of_output[0]
        if columns and _is_finite(first["loss"]):
            shown = tuple(columns[:MAX_COLUMNS])
            yield OutputImportance(output, first["metric"], first["loss"], first["n_rows"], len(of_output), shown)


def _dependences(
    preprocessor: Preprocessor, column: FittedColumn, rows: list[dict[str, Any]]
) -> Iterator[PartialDependence]:
    """Yield the partial dependence of each output on a column: of two classes that of the second."""
    seconds = {
        target.name: target.fit.classes[1]
        for target in preprocessor.targets
        if isinstance(target.fit, ClassFit) and len(target.fit.classes) == 2
    }
    for output, every in groupby(rows, lambda row: row["output"]):
        found = []
        for of_class, of_one in groupby(every, lambda row: row["class"]):
            points = tuple(
                DependencePoint(_short(row["value"]), row["prediction"], row["lower"], row["upper"])
                for row in of_one
                if _is_finite(row["prediction"], row["lower"], row["upper"])
            )
            if points and seconds.get(output, of_class) == of_class:
                is_number = isinstance(column.fit, NumberFit)
                found.append(PartialDependence(output, column.name, _short(of_class), is_number, points))
        yield from sorted(found, key=_variation, reverse=True)[:_MAX_OF_CLASSES]


def _variation(found: PartialDependence) -> float:
    predictions = [point.prediction for point in found.points]
    return max(predictions) - min(predictions)


def _is_finite(*values: float | str | None) -> bool:
    """Return whether values of explaining.py are numbers or None: it writes NaN and infinity as texts."""
    return not any(isinstance(value, str) for value in values)


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

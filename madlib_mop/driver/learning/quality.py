"""The rows of learn's summary about held-out rows: how good predictions are, how sure, and with which threshold."""

import math
from collections.abc import Sequence

from mop_backend.held_out import PROBABILITY, RESIDUAL, HeldOut, HeldOutError, threshold

from madlib_mop.certainty.balance import label_of
from madlib_mop.certainty.measures import Measure, ThresholdCurve
from madlib_mop.certainty.scores import coverage_error
from madlib_mop.columns.encoding.targets import Predictions
from madlib_mop.driver.inference.measured import ClassOutput

_COVERAGE = 0.9  # the default of predict_interval and predict_set


def of_held_out(model: str, held_out: HeldOut, predicted: Predictions) -> dict[str, str | None]:
    """Return the row of the summary about prediction intervals or sets.

    Parameters
    ----------
    model : str
        Its name, for the statement.
    held_out : HeldOut
    predicted : Predictions
        Of the held-out rows.
    """
    is_set = held_out.score == PROBABILITY
    item, function = ("prediction set", "predict_set") if is_set else ("prediction interval", "predict_interval")
    found: dict[str, str | None] = {"item": item, "value": None, "baseline": None}
    try:
        limit = threshold(held_out, _COVERAGE)
    except HeldOutError as error:
        return {**found, "note": f"{error}. {error.hint}"}
    error_points = 100 * coverage_error(held_out.n_rows, _COVERAGE)
    if is_set:
        assert predicted.probabilities is not None, "they are classes"
        found["value"] = shown(float((predicted.probabilities >= limit).sum(axis=1).mean()))
        what = "mean number of classes of"
    elif held_out.score == RESIDUAL:
        found["value"], what = f"+- {shown(limit)}", "around the number of"
    else:
        found["value"], what = f"*/ {shown(math.exp(limit))}", "times and divided by, for numbers far from 0, of"
    note = (
        f"{what} madlib_mop.{function}('{model}', t.*, {_COVERAGE:g}), which has the truth for {100 * _COVERAGE:g} of"
        f" 100 rows like the held-out ones, give or take {error_points:.1f}"
    )
    return {**found, "note": note}


def of_threshold(
    name: str | None, chosen: ClassOutput, measured: ClassOutput, number: int, again: str
) -> dict[str, str | None]:
    """Return the row of the summary about the threshold of a class.

    Parameters
    ----------
    name : str or None
        The target, if there are several.
    chosen : ClassOutput
        Predictions of the validation rows: the threshold has their highest F1.
    measured : ClassOutput
        Predictions of the held-out rows: what they say of it.
    number : int
        The class.
    again : str
        The statement that chooses it.
    """
    label = label_of(chosen.labels[number])
    item = "threshold" if name is None else f"{name}: threshold"
    found: dict[str, str | None] = {"item": item, "value": None, "baseline": None}
    curve = ThresholdCurve.of(chosen.probabilities[:, number], chosen.truth == number)
    place = curve.highest_f1()
    if place is None:
        return {**found, "note": f"none can be chosen: no validation row has {label}"}
    limit = float(curve.limits[place])
    is_found, is_one = measured.probabilities[:, number] >= limit, measured.truth == number
    n_right, n_found, n_of_class = int((is_found & is_one).sum()), int(is_found.sum()), int(is_one.sum())
    note = (
        f"probability from which on to predict {label}, with the highest F1 of the validation rows: {again} Of the"
        f" {n_of_class:,} held-out rows with {label}, it finds {n_right:,}; it predicts {n_found:,}"
    )
    return {**found, "value": f"{limit:.6g}", "note": note}


def shown(value: float) -> str:
    """Return a figure as text."""
    return f"{value:.4g}"


def rows_of(name: str | None, measures: Sequence[Measure]) -> list[dict[str, str | None]]:
    """Return the measures as rows of the summary; ``name`` is the target, if there are several."""
    prefix = "" if name is None else f"{name}: "
    return [
        {"item": prefix + one.name, "value": shown(one.value), "baseline": shown(one.baseline), "note": one.note}
        for one in measures
    ]

"""The rows of learn's summary about held-out rows: how good predictions are, and how sure."""

import math
from collections.abc import Sequence

from mop_backend.held_out import PROBABILITY, RESIDUAL, HeldOut, HeldOutError, threshold

from madlib_mop.certainty.measures import Measure
from madlib_mop.certainty.scores import coverage_error
from madlib_mop.columns.encoding.targets import Predictions

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

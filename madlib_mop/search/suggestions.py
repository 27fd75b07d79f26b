"""Lets Optuna choose a point of a search space: every list of the grids is a dimension of it; called by `sampled`."""

from __future__ import annotations

import optuna

from madlib_mop.models.parameters.search_grid import Choice, Choices, Value, Values, as_range
from madlib_mop.search.space import Point, SearchSpace


def suggest(trial: optuna.Trial, space: SearchSpace) -> Point:
    """Let a trial choose one point.

    Choices are categories by their number in the list, a list of one is no dimension. A range is a float, or an int
    where the parameter takes whole numbers; 'log' is uniform in the logarithm, 'log_near_one' in that of 1 - value.
    The dicts of ``optimizer_params_list`` are a dimension whose choice says which others there are.
    """
    model_id = _category(trial, "model_id", list(space.model_ids))
    optimizer = which = None
    if alternatives := space.compile_grid.optimizers:
        name = "compile/optimizer_params_list"
        which = _category(trial, name, list(range(len(alternatives))))
        optimizer = _values(trial, f"{name}/{which}", alternatives[which])
    compile_values = _values(trial, "compile", space.compile_grid.choices)
    return Point(model_id, Choice(compile_values, _values(trial, "fit", space.fit_grid.choices), optimizer, which))


def _values(trial: optuna.Trial, prefix: str, choices: Choices) -> Values:
    return {name: _value(trial, f"{prefix}/{name}", name, values) for name, values in choices.items()}


def _value(trial: optuna.Trial, dimension: str, name: str, values: list[Value]) -> Value:
    span = as_range(name, values)
    if span is None:
        return _category(trial, dimension, values)
    if span.distribution == "log_near_one":
        value = 1 - trial.suggest_float(dimension, 1 - span.high, 1 - span.low, log=True)
        value = min(max(value, span.low), span.high)
        return round(value) if span.whole else value
    log = span.distribution == "log"
    if span.whole:
        return trial.suggest_int(dimension, *span.whole_ends, log=log)
    return trial.suggest_float(dimension, span.low, span.high, log=log)


def _category(trial: optuna.Trial, dimension: str, values: list[Value]) -> Value:
    if len(values) == 1:
        return values[0]
    return values[trial.suggest_categorical(dimension, list(range(len(values))))]

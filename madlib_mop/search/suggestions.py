"""Lets Optuna choose a point of a search space, and describes a point as Optuna's choice; called by `studies`.

Every list of the grids is a dimension.
"""

from __future__ import annotations

import optuna

from madlib_mop.models.parameters.literals import canonical
from madlib_mop.models.parameters.search_grid import Choices, GridChoice, Value, Values, as_range
from madlib_mop.search.space import Point, SearchSpace

_OPTIMIZERS = "compile/optimizer_params_list"


def suggest(trial: optuna.trial.BaseTrial, space: SearchSpace) -> Point:
    """Let a trial choose one point.

    Choices are categories by their number in the list, a list of one is no dimension. A range is a float, or an int
    where the parameter takes whole numbers; 'log' is uniform in the logarithm, 'log_near_one' in that of 1 - value.
    The dicts of ``optimizer_params_list`` are a dimension whose choice says which others there are.
    """
    model_id = _category(trial, "model_id", list(space.model_ids))
    optimizer = which = None
    if alternatives := space.compile_grid.optimizers:
        which = _category(trial, _OPTIMIZERS, list(range(len(alternatives))))
        optimizer = _values(trial, f"{_OPTIMIZERS}/{which}", alternatives[which])
    compile_values = _values(trial, "compile", space.compile_grid.choices)
    return Point(model_id, GridChoice(compile_values, _values(trial, "fit", space.fit_grid.choices), optimizer, which))


def fixed_trial(point: Point, space: SearchSpace) -> optuna.trial.FixedTrial:
    """Return a trial with the parameters and distributions with which `suggest` chooses a point."""
    choice = point.choice
    chosen = [("compile", choice.compile, space.compile_grid.choices), ("fit", choice.fit, space.fit_grid.choices)]
    parameters: dict[str, float] = {"model_id": _number(point.model_id, list(space.model_ids))}
    if choice.optimizer is not None and choice.which is not None:
        parameters[_OPTIMIZERS] = choice.which
        alternative = space.compile_grid.optimizers[choice.which]
        chosen.append((f"{_OPTIMIZERS}/{choice.which}", choice.optimizer, alternative))
    for prefix, values, choices in chosen:
        parameters |= {f"{prefix}/{name}": _parameter(name, value, choices[name]) for name, value in values.items()}
    trial = optuna.trial.FixedTrial(parameters)
    suggest(trial, space)
    return trial


def _values(trial: optuna.trial.BaseTrial, prefix: str, choices: Choices) -> Values:
    return {name: _value(trial, f"{prefix}/{name}", name, values) for name, values in choices.items()}


def _value(trial: optuna.trial.BaseTrial, dimension: str, name: str, values: list[Value]) -> Value:
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


def _category(trial: optuna.trial.BaseTrial, dimension: str, values: list[Value]) -> Value:
    if len(values) == 1:
        return values[0]
    return values[trial.suggest_categorical(dimension, list(range(len(values))))]


def _parameter(name: str, value: Value, values: list[Value]) -> float:
    """Return what Optuna chooses for a value: a number of its range, or its place in the list."""
    span = as_range(name, values)
    if span is None:
        return _number(value, values)
    if span.distribution == "log_near_one":
        value = min(max(1 - value, 1 - span.high), 1 - span.low)
    number: float = value
    return number


def _number(value: Value, values: list[Value]) -> int:
    """Return the place of a value in a list; values of other types are others, e.g. 1 and True."""
    return [canonical(item) for item in values].index(canonical(value))

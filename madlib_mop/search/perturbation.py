"""Perturbs a configuration within its space, so that a state of one fits the other; called by `pbt`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from madlib_mop.models.parameters.calls import is_number
from madlib_mop.models.parameters.search_grid import Choices, Value, Values, as_range, draw_value
from madlib_mop.search.space import Point, SearchSpace

RESAMPLE = 0.25  # probability that a value is drawn again instead (appendix A of the paper)
FACTORS = (0.8, 1.2)
_AMOUNT_OF_TRAINING = ("epochs", "initial_epoch", "steps_per_epoch", "verbose")


def perturbed(point: Point, space: SearchSpace, rng: np.random.Generator) -> Point:
    """Return a point near another one.

    A number of a range is drawn anew with probability 0.25, else multiplied by 0.8 or 1.2 and kept within the range.
    A number of a list is drawn anew likewise, else replaced by its neighbour in the sorted list, up or down. All
    else stays: another architecture, optimizer or switch of it would not fit the state that is taken over. For the
    same reason a zero stays zero, and nothing becomes zero (without momentum, SGD has no variables). How much a visit
    trains is no parameter of the model, and stays too.
    """
    choice = point.choice
    changed = replace(
        choice,
        compile=_changed(choice.compile, space.compile_grid.choices, rng, space.drawing),
        fit=_changed(choice.fit, space.fit_grid.choices, rng, space.drawing),
    )
    if choice.which is not None and choice.optimizer is not None:
        alternative = space.compile_grid.optimizers[choice.which]
        optimizer = _changed(choice.optimizer, alternative, rng, space.drawing)
        changed = replace(changed, optimizer=optimizer)
    return replace(point, choice=changed)


def _changed(values: Values, choices: Choices, rng: np.random.Generator, drawing: int) -> Values:
    return {
        name: value if name in _AMOUNT_OF_TRAINING else _near(name, value, choices[name], rng, drawing)
        for name, value in values.items()
    }


def _near(name: str, value: Value, choices: list[Value], rng: np.random.Generator, drawing: int) -> Value:
    if not is_number(value) or not value:
        return value
    span = as_range(name, choices)
    numbers = sorted({item for item in choices if item}) if all(map(is_number, choices)) else []
    if span is None and len(numbers) < 2:
        return value
    if rng.random() < RESAMPLE:
        drawn = draw_value(rng, name, choices if span else numbers, drawing)
        return drawn or value
    up = bool(rng.integers(2))
    if span is None:
        place = numbers.index(value) + (1 if up else -1)
        return numbers[min(max(place, 0), len(numbers) - 1)]
    moved = min(max(value * FACTORS[up], span.low), span.high)
    return (_whole_step(value, moved, *span.whole_ends) if span.whole else moved) or value


def _whole_step(value: float, moved: float, low: int, high: int) -> int:
    """Round a change of a whole number away from it, so that small numbers change too."""
    return min(max(int(np.ceil(moved) if moved > value else np.floor(moved)), low), high)

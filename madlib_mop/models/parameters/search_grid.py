"""Grids and random search over compile and fit parameters: dicts of choices in, texts of parameters out.

Used by ``generate_model_configs`` and by the searches. `parser` parses and checks the resulting
texts.
"""

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from madlib_mop.errors import InvalidParameter, is_missing, not_whole, shown
from madlib_mop.models.parameters.calls import as_spec, find_name, is_int, is_number, suggestion, unknown_parameter
from madlib_mop.models.parameters.keras_names import ARGUMENT_KINDS, OPTIMIZERS
from madlib_mop.models.parameters.literals import CallSpec, read_dict, shorten, write_value
from madlib_mop.models.parameters.parser import COMPILE_KEYS, FIT_KEYS

MAX_CONFIGURATIONS = 100_000
DISTRIBUTIONS = ("linear", "log", "log_near_one")
#: Ways of drawing from ranges; a search keeps the one that it began with. In the earliest one, the ends of a linear
#: range of whole numbers are drawn half as often as the other numbers; in the present one, equally often.
EARLIEST_DRAWING, DRAWING = 1, 2
_OPTIMIZERS = "optimizer_params_list"
_DEFAULT_OPTIMIZER = "RMSprop"
_WHOLE = frozenset(("batch_size", "epochs", "initial_epoch", "steps_per_epoch"))
_HINT = (
    "Write a dict of lists, e.g."
    " {'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam', 'SGD'], 'lr': [0.1, 0.01]}]}."
)
_FIT_HINT = "Write a dict of lists, e.g. {'batch_size': [8, 32], 'epochs': [1]}."


Value = Any  # value of a parameter: any literal that a grid may contain
Values = dict[str, Value]  # parameter -> value
Choices = dict[str, list[Value]]  # parameter -> its values, or in random search [low, high, distribution]


@dataclass(frozen=True)
class Grid:
    """A parsed grid.

    Attributes
    ----------
    choices : dict
        Parameter -> list of values, or in random search ``[low, high, distribution]``.
    optimizers : list of dict
        The dicts of ``optimizer_params_list``: argument (and ``optimizer``) -> list as in ``choices``.
    """

    choices: Choices = field(default_factory=dict)
    optimizers: list[Choices] = field(default_factory=list)


@dataclass(frozen=True)
class Range:
    """A range of a search: ``low`` below ``high``; ``whole`` if the parameter takes whole numbers only."""

    low: float
    high: float
    distribution: str
    whole: bool

    @property
    def whole_ends(self) -> tuple[int, int]:
        """Return both ends as whole numbers; `read_ranges` accepts no others where ``whole``."""
        return int(self.low), int(self.high)


@dataclass(frozen=True)
class GridChoice:
    """One value for every parameter of two grids; `write_choice` writes it as texts.

    Attributes
    ----------
    compile, fit : dict
        Parameter -> value.
    optimizer : dict or None
        Argument -> value of the dict of ``optimizer_params_list`` that was chosen, its number being ``which``.
    """

    compile: Values
    fit: Values
    optimizer: Values | None = None
    which: int | None = None


def search_type(text: str | None) -> str:
    """Return 'grid' or 'random' for any prefix of it, in any case.

    Raises
    ------
    InvalidParameter
        If it is a prefix of neither.
    """
    word = (text or "").strip().lower()
    for known in ("grid", "random"):
        if word and known.startswith(word):
            return known
    raise InvalidParameter(
        f"search_type must be 'grid' or 'random', or the first letters of one. Received: {shown(text)}"
    )


def expand_grid(compile_grid_text: str | None, fit_grid_text: str | None) -> list[tuple[str, str]]:
    """Return every combination of a grid.

    Parameters
    ----------
    compile_grid_text : str
        E.g. ``{'loss': ['mse'], 'metrics': [['mae']], 'optimizer_params_list': [{'lr': [0.1, 0.01]}]}``. Without
        ``optimizer`` in a dict of ``optimizer_params_list``, it is RMSprop, as in MADlib.
    fit_grid_text : str
        E.g. ``{'batch_size': [8, 32], 'epochs': [1]}``.

    Returns
    -------
    list of (str, str)
        Compile and fit parameters; in the order in which the choices are written, the last varying fastest.

    Raises
    ------
    UnreadableText, InvalidParameter
        If a grid is not a dict of lists, has an unknown parameter or a range, or has more than
        ``MAX_CONFIGURATIONS`` combinations.
    """
    compile_grid, fit_grid = _read_grids(compile_grid_text, fit_grid_text)
    for what, grid in (("compile_params_grid", compile_grid), ("fit_params_grid", fit_grid)):
        for choices in (grid.choices, *grid.optimizers):
            for name, values in choices.items():
                if _is_range(values):
                    raise InvalidParameter(
                        f"{what}: {name}: a range can only be used in random search. Received: {shorten(values)}",
                        hint="Use search_type 'random', or write the values to try.",
                    )
    n_optimizers = sum(_n_combinations(choices) for choices in compile_grid.optimizers) or 1
    n = _n_combinations(compile_grid.choices) * n_optimizers * _n_combinations(fit_grid.choices)
    if n > MAX_CONFIGURATIONS:
        raise InvalidParameter(
            f"the grid has more than {MAX_CONFIGURATIONS:,} combinations. Received: {n:,}",
            hint="Use search_type 'random' with num_configs.",
        )
    optimizers: list[Values | None] = [
        chosen for choices in compile_grid.optimizers for chosen in _combinations(choices)
    ] or [None]
    fits = [_text(chosen) for chosen in _combinations(fit_grid.choices)]
    return [
        (_text(chosen, optimizer), fit)
        for optimizer in optimizers
        for chosen in _combinations(compile_grid.choices)
        for fit in fits
    ]


def iterate_random(
    compile_grid_text: str | None, fit_grid_text: str | None, random_state: int | None
) -> Iterator[tuple[str, str]]:
    """Draw configurations at random, without end.

    A list is a choice of its values; ``[low, high, distribution]`` a range: 'linear' draws U(low, high), 'log'
    10^U(log10 low, log10 high), 'log_near_one' 1 - 10^U(log10(1 - high), log10(1 - low)). Ranges of whole-numbered
    parameters give whole numbers. Every dimension has its own stream, ``stream(random_state, its name)``, so adding or
    removing one does not change the draws of the others.

    Returns
    -------
    iterator of (str, str)
        Compile and fit parameters. Errors are raised here, before the first is drawn.
    """
    return map(write_choice, iterate_choices(*read_ranges(compile_grid_text, fit_grid_text), random_state))


def read_ranges(compile_grid_text: str | None, fit_grid_text: str | None) -> tuple[Grid, Grid]:
    """Read the two grids of a search, whose lists may be ranges.

    Raises
    ------
    UnreadableText, InvalidParameter
        If a grid is not a dict of lists, has an unknown parameter, or a range that cannot be drawn from.
    """
    grids = _read_grids(compile_grid_text, fit_grid_text)
    for grid in grids:
        for choices in (grid.choices, *grid.optimizers):
            for name, values in choices.items():
                _check_range(name, values)
    return grids


def as_range(name: str, values: list[Value]) -> Range | None:
    """Return the range of a parameter's list in a grid; None for a list of choices."""
    if not _is_range(values):
        return None
    low, high, distribution = values
    return Range(low, high, distribution, _is_whole(name))


def iterate_choices(
    compile_grid: Grid, fit_grid: Grid, random_state: int | None, drawing: int = DRAWING
) -> Iterator[GridChoice]:
    """Draw as `iterate_random` does, from grids that `read_ranges` has read, and return the values themselves."""
    check_random_state(random_state)
    return _draws(compile_grid, fit_grid, random_state, drawing)


def draw_value(rng: np.random.Generator, name: str, values: list[Value], drawing: int = DRAWING) -> Value:
    """Draw a value of one parameter: one of its choices, or a number of its range.

    Parameters
    ----------
    rng : numpy.random.Generator
    name : str
        The parameter.
    values : list
        As in a `Grid`.
    drawing : int
        `EARLIEST_DRAWING` or `DRAWING`.
    """
    span = as_range(name, values)
    if span is None:
        return values[int(rng.integers(len(values)))]
    low, high = span.low, span.high
    if span.distribution == "linear" and span.whole and drawing > EARLIEST_DRAWING:
        return int(rng.integers(int(low), int(high), endpoint=True))
    if span.distribution == "linear":
        value = rng.uniform(low, high)
    elif span.distribution == "log":
        value = 10 ** rng.uniform(np.log10(low), np.log10(high))
    else:
        value = 1 - 10 ** rng.uniform(np.log10(1 - high), np.log10(1 - low))
    value = min(max(float(value), low), high)
    return round(value) if span.whole else value


def write_choice(choice: GridChoice) -> tuple[str, str]:
    """Write a choice as texts of compile and of fit parameters."""
    return _text(choice.compile, choice.optimizer), _text(choice.fit)


def stream(random_state: int | None, dimension: str) -> np.random.Generator:
    """Return the stream of one dimension of a search: ``default_rng([random_state, crc32(name)])``."""
    if random_state is None:
        return np.random.default_rng()
    return np.random.default_rng([random_state, zlib.crc32(dimension.encode())])


def checked_ids(model_id_list: Sequence[int | None] | None) -> list[int]:
    """Return the ids of a list of architectures. Raises InvalidParameter if there are none, or one is none."""
    ids = [item for item in model_id_list or () if is_int(item)]
    if not ids or len(ids) < len(model_id_list or ()):
        raise InvalidParameter(
            f"model_id_list must be an array of one or more ids, without NULL. Received: {shown(model_id_list)}"
        )
    return ids


def check_random_state(random_state: int | None) -> None:
    """Raise InvalidParameter unless it is None or a whole number of 0 or more."""
    if random_state is not None and (not is_int(random_state) or random_state < 0):
        raise not_whole("random_state", 0, repr(random_state))


def _draws(compile_grid: Grid, fit_grid: Grid, random_state: int | None, drawing: int) -> Iterator[GridChoice]:
    streams: dict[str, np.random.Generator] = {}

    def chosen(choices: Choices, prefix: str) -> Values:
        drawn = {}
        for name, values in choices.items():
            dimension = f"{prefix}/{name}"
            rng = streams.setdefault(dimension, stream(random_state, dimension))
            drawn[name] = draw_value(rng, name, values, drawing)
        return drawn

    which = stream(random_state, f"compile/{_OPTIMIZERS}")
    while True:
        optimizer = index = None
        if compile_grid.optimizers:
            index = int(which.integers(len(compile_grid.optimizers)))
            optimizer = chosen(compile_grid.optimizers[index], f"compile/{_OPTIMIZERS}/{index}")
        yield GridChoice(chosen(compile_grid.choices, "compile"), chosen(fit_grid.choices, "fit"), optimizer, index)


def _check_range(name: str, values: list[Value]) -> None:
    if not _is_range(values):
        if isinstance(values[-1], str) and values[-1] in DISTRIBUTIONS:
            raise InvalidParameter(f"{name}: a range must be [low, high, distribution]. Received: {shorten(values)}")
        return
    low, high, distribution = values
    if distribution not in DISTRIBUTIONS:
        raise InvalidParameter(
            f"{name}: the distribution is unknown. Received: {shorten(distribution)}",
            hint=suggestion(distribution, DISTRIBUTIONS),
        )
    if low >= high:
        raise InvalidParameter(f"{name}: a range must be [low, high, distribution]. Received: {shorten(values)}")
    if distribution == "log" and low <= 0:
        raise InvalidParameter(f"{name}: a 'log' range must be above 0. Received: {shorten(values)}")
    if distribution == "log_near_one" and high >= 1:
        raise InvalidParameter(f"{name}: a 'log_near_one' range must be below 1. Received: {shorten(values)}")
    if _is_whole(name) and not (is_int(low) and is_int(high)):
        raise InvalidParameter(f"{name}: the range must consist of whole numbers. Received: {shorten(values)}")


def _is_range(values: list[Value]) -> bool:
    """Return whether a list is a range and not choices: two numbers, then a string."""
    return len(values) == 3 and is_number(values[0]) and is_number(values[1]) and isinstance(values[2], str)


def _is_whole(name: str) -> bool:
    return name in _WHOLE or ARGUMENT_KINDS.get(name, "").startswith("int")


def _read_grids(compile_grid_text: str | None, fit_grid_text: str | None) -> tuple[Grid, Grid]:
    compile_grid = _read_grid(compile_grid_text, "compile_params_grid", (*COMPILE_KEYS, _OPTIMIZERS), _HINT)
    fit_grid = _read_grid(fit_grid_text, "fit_params_grid", FIT_KEYS, _FIT_HINT)
    return compile_grid, fit_grid


def _read_grid(text: str | None, what: str, keys: tuple[str, ...], hint: str) -> Grid:
    if text is None or not text.strip():
        if what == "fit_params_grid":
            return Grid()
        raise is_missing(what, text, hint)
    choices = read_dict(text, what, hint)
    for name, values in choices.items():
        if name not in keys:
            raise unknown_parameter(what, name, keys)
        _check_list(name, values, what, hint)
    optimizers = choices.pop(_OPTIMIZERS, [])
    for item in optimizers:
        if not isinstance(item, dict) or not item or not all(isinstance(name, str) for name in item):
            raise InvalidParameter(
                f"{what}: {_OPTIMIZERS} must contain dicts of an optimizer's arguments. Received: {shorten(item)}",
                hint=hint,
            )
        if shared := set(item) & set(choices):
            raise InvalidParameter(
                f"{what}: {sorted(shared)[0]} occurs both inside and outside of {_OPTIMIZERS}. Received: "
                f"{shorten(item)}"
            )
        for name, values in item.items():
            _check_list(name, values, what, hint)
    if optimizers and "optimizer" in choices:
        raise InvalidParameter(f"{what}: optimizer and {_OPTIMIZERS} are mutually exclusive", hint=hint)
    return Grid(choices, optimizers)


def _check_list(name: str, values: object, what: str, hint: str) -> None:
    if not isinstance(values, list) or not values:
        raise InvalidParameter(
            f"{what}: the values of {name} must be a list of one or more. Received: {shorten(values)}", hint=hint
        )


def _n_combinations(choices: Choices) -> int:
    n = 1
    for values in choices.values():
        n *= len(values)
    return n


def _combinations(choices: Choices) -> Iterator[Values]:
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _text(chosen: Values, optimizer: Values | None = None) -> str:
    """Write parameters as users do: ``optimizer='Adam(lr=0.01)',loss='mse',metrics=['mae']``."""
    parts = []
    if optimizer is not None:
        spec = as_spec(optimizer.get("optimizer", _DEFAULT_OPTIMIZER), "compile_params_grid: optimizer")
        spec = CallSpec(spec) if isinstance(spec, str) else spec
        if not isinstance(spec, CallSpec):
            raise InvalidParameter(f"compile_params_grid: optimizer must be a name. Received: {shorten(spec)}")
        name = find_name(spec.name, OPTIMIZERS, "compile_params_grid: optimizer")
        arguments = {name: value for name, value in optimizer.items() if name != "optimizer"}
        parts.append(f"optimizer={write_value(CallSpec(name, spec.args, {**spec.kwargs, **arguments}))!r}")
    for name, value in chosen.items():
        if name in ("metrics", "weighted_metrics") and isinstance(value, str | CallSpec):
            value = [value]
        parts.append(f"{name}={write_value(value)}")
    return ",".join(parts)

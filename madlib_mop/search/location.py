"""Finds the point of a search space that has the parameters of an earlier configuration; called by the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from madlib_mop.errors import MopError
from madlib_mop.models.configuration import Configuration, compile_params_of, fit_params_of
from madlib_mop.models.parameters.calls import is_int, is_number
from madlib_mop.models.parameters.literals import CallSpec, canonical, read_keywords, write_value
from madlib_mop.models.parameters.parser import MAX_COUNT, CompileParams, FitParams, check_optimizer
from madlib_mop.models.parameters.search_grid import Choices, GridChoice, Value, Values, as_range
from madlib_mop.search.space import Point, SearchSpace

#: Parameters that change neither the training of a model nor its loss. Early stopping only ends it sooner.
_WITHOUT_EFFECT = ("metrics", "weighted_metrics", "verbose", "early_stopping")
_DEFAULT_OPTIMIZER = "RMSprop"
_RATE = "learning_rate"


class _Outside(Exception):
    """A value is not among those of the space."""


class Locator:
    """Finds configurations in one space.

    A configuration lies in the space if its parameters are equal to those of a point: each value is in the list of its
    parameter, or a number of its range, and it has no others. Other spellings are equal (``lr``, ``Adam(0.01)``).
    Metrics, ``verbose`` and ``early_stopping`` are not compared, because they do not change what is learned.

    Parameters
    ----------
    space : SearchSpace
    """

    def __init__(self, space: SearchSpace):
        self._space = space

    def find(
        self, model_id: int, compile_params: str, fit_params: str | None, custom_names: Iterable[str] = ()
    ) -> Point | None:
        """Return the point of a configuration, or None if it does not lie in the space.

        Parameters
        ----------
        model_id : int
            Its architecture among those of the space.
        compile_params, fit_params : str
        custom_names : iterable of str
            Its custom functions that are the same in this search.
        """
        names = frozenset(custom_names)
        try:
            wanted = _comparable(model_id, (compile_params, fit_params or ""), names)
            key = wanted.key
        except MopError:
            return None
        for choice in self._choices(wanted.compiled, wanted.fit, names):
            point = Point(model_id, choice)
            try:
                if _comparable(model_id, point.texts, names).key == key:
                    return point
            except MopError:
                continue
        return None

    def _choices(self, compiled: CompileParams, fit: FitParams, names: frozenset[str]) -> Iterator[GridChoice]:
        """Yield the choices that can have the parameters: one for each optimizer of the grid with the same name."""
        compile_grid, fit_grid = self._space.compile_grid, self._space.fit_grid
        try:
            compiled_values = self._values(compile_grid.choices, compiled, lambda name, v: _compiled(name, v, names))
            fit_values = self._values(fit_grid.choices, fit, _fitted)
        except _Outside:
            return
        if not compile_grid.optimizers:
            yield GridChoice(compiled_values, fit_values)
        for which, alternative in enumerate(compile_grid.optimizers):
            for optimizer in alternative.get("optimizer", [_DEFAULT_OPTIMIZER]):
                try:
                    chosen = _optimizer_values(alternative, optimizer, compiled.optimizer)
                except (_Outside, MopError):
                    continue
                yield GridChoice(compiled_values, fit_values, chosen, which)

    def _values(self, choices: Choices, parsed: object, read: Callable[[str, Value], Any]) -> Values:
        """Return the value of each list that gives a parsed parameter."""
        return {
            name: values[0] if name in _WITHOUT_EFFECT else _pick(name, values, getattr(parsed, name), read)
            for name, values in choices.items()
        }


def _comparable(model_id: int, texts: tuple[str, str], names: frozenset[str]) -> Configuration:
    """Return a configuration without the parameters that have no effect."""
    compile_params, fit_params = map(_without_effect_removed, texts)
    return Configuration(model_id, compile_params, fit_params, {}, names)


def _pick(name: str, values: list[Value], wanted: Any, read: Callable[[str, Value], Any]) -> Value:
    """Return the value of a list that is read as the wanted one; of a range, the wanted number."""
    span = as_range(name, values)
    if span is not None:
        if is_number(wanted) and span.low <= wanted <= span.high and (is_int(wanted) or not span.whole):
            return wanted
        raise _Outside
    for value in values:
        try:
            if canonical(read(name, value)) == canonical(wanted):
                return value
        except MopError:
            continue
    raise _Outside


def _compiled(name: str, value: Value, names: frozenset[str]) -> Any:
    """Return a compile parameter as it is parsed."""
    given = {"optimizer": "SGD", "loss": "mse", name: value}
    return getattr(compile_params_of(_written(given), names), name)


def _fitted(name: str, value: Value) -> Any:
    """Return a fit parameter as it is parsed; without a greater number of epochs, some first epochs are errors."""
    given = {"epochs": MAX_COUNT, name: value}
    return getattr(fit_params_of(_written(given)), name)


def _optimizer_values(alternative: Choices, optimizer: Value, wanted: CallSpec) -> Values:
    """Return the values of a dict of ``optimizer_params_list`` that give an optimizer."""
    if check_optimizer(optimizer, "optimizer").name != wanted.name:
        raise _Outside
    given = dict(wanted.kwargs)
    if "decay" in alternative:
        given |= _with_decay(given.get(_RATE))
    chosen = {"optimizer": optimizer} if "optimizer" in alternative else {}
    for name, values in alternative.items():
        if name == "optimizer":
            continue
        argument = given.get(_RATE if name == "lr" else name)
        chosen[name] = _pick(name, values, argument, lambda name, value: _argument(wanted.name, name, value))
    return chosen


def _with_decay(rate: Any) -> dict[str, Any]:
    """Return a learning rate as Keras 2 writes it, with its decay."""
    if isinstance(rate, CallSpec) and rate.name == "InverseTimeDecay" and rate.kwargs.get("decay_steps") == 1:
        return {_RATE: rate.kwargs["initial_learning_rate"], "decay": rate.kwargs["decay_rate"]}
    return {"decay": 0.0}


def _argument(optimizer: str, name: str, value: Value) -> Any:
    """Return an optimizer's argument as it is parsed."""
    if name == "decay":
        return float(value)
    parsed = check_optimizer(CallSpec(optimizer, (), {name: value}), "optimizer")
    return parsed.kwargs.get(_RATE if name == "lr" else name)


def _without_effect_removed(text: str) -> str:
    if not text.strip():
        return text
    return _written({name: v for name, v in read_keywords(text, "parameters").items() if name not in _WITHOUT_EFFECT})


def _written(values: Values) -> str:
    return ",".join(f"{name}={write_value(value)}" for name, value in values.items())

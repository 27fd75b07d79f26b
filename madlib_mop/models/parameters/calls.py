"""Checks names and calls of Keras' classes against the tables of `keras_names`, and their arguments against the limits
of Keras' constructors and first steps; used by the parser of parameters.

Planning has no Keras, so the limits are written out here. A test compares them with the installed Keras: what passes
makes an object of Keras (tests/unit/models/test_limits.py).
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.keras_names import ARGUMENT_KINDS, DTYPES, METRICS, REQUIRED
from madlib_mop.models.parameters.literals import CallSpec, read_value, shorten

#: Names that TensorFlow takes for scopes: of layers, losses and schedules. Keras refuses a slash.
NAME = re.compile(r"[A-Za-z0-9_.\\>-]+")
#: Names of models and optimizers, whose scopes are in no other scope.
ROOT_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\>-]*")

_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
_REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none")
_AVERAGES = ("micro", "macro", "weighted")
_AGGREGATIONS = ("uniform_average", "variance_weighted_average")
_CURVES = ("pr", "PR", "roc", "ROC", "prgain", "PRGAIN")
_SUMMATIONS = ("interpolation", "Interpolation", "minoring", "Minoring", "majoring", "Majoring")
#: Whole numbers that Keras takes only as floats, by class.
_FLOATS = {"SGD": ("momentum",), "F1Score": ("threshold",), "FBetaScore": ("beta", "threshold")}


@dataclass(frozen=True)
class _Limit:
    """Which values of an argument Keras takes.

    Attributes
    ----------
    words : str
        After "must be".
    holds : callable
        Gets a value of the argument's kind that is not None, and all arguments.
    """

    words: str
    holds: Callable[[Any, Mapping[str, Any]], bool]


def _least(low: float) -> _Limit:
    return _Limit(f"{low} or more", lambda value, _: value >= low)


def _one_of(names: tuple[str, ...]) -> _Limit:
    return _Limit(f"one of {', '.join(names)}", lambda value, _: value in names)


_SHARE = _Limit("between 0 and 1", lambda value, _: 0 <= value <= 1)
_THRESHOLDS = _Limit(
    "between 0 and 1", lambda value, _: all(0 <= one <= 1 for one in (value if isinstance(value, list) else [value]))
)
_CLASS_IDS = _Limit(
    "a list of class indices, each below the number of classes",
    lambda value, given: isinstance(value, list)
    and bool(value)
    and all(isinstance(one, int) and 0 <= one < given.get("num_classes", 2) for one in value),
)
_NOT_POSITIVE = _Limit("0 or less", lambda value, _: value <= 0)

#: Limits of every class that has the argument.
_OF_ALL: Mapping[str, _Limit] = {
    "gradient_accumulation_steps": _Limit("a whole number of 2 or more", lambda value, _: value == 0 or value >= 2),
    "ema_momentum": _Limit("between 0 and 1", lambda value, given: not given.get("use_ema") or 0 <= value <= 1),
    "ema_overwrite_frequency": _Limit(
        "a whole number of 1 or more", lambda value, given: not given.get("use_ema") or value == 0 or value >= 1
    ),
    "recall": _SHARE,
    "precision": _SHARE,
    "sensitivity": _SHARE,
    "specificity": _SHARE,
    "num_thresholds": _least(1),
    "num_classes": _least(1),
    "k": _least(1),
    "top_k": _least(1),
    "thresholds": _THRESHOLDS,
    "target_class_ids": _CLASS_IDS,
    "num_regressors": _least(0),
    "class_aggregation": _one_of(_AGGREGATIONS),
    "average": _one_of(_AVERAGES),
    "curve": _one_of(_CURVES),
    "summation_method": _one_of(_SUMMATIONS),
    "reduction": _one_of(_REDUCTIONS),
    "dtype": _Limit("a type of Keras, such as 'float32'", lambda value, _: value in DTYPES),
    "q": _Limit("above 0 and below 1", lambda value, _: 0 < value < 1),
    "exclude_layers": _Limit(
        "a list of texts",
        lambda value, _: isinstance(value, list) and all(isinstance(one, str) for one in value),
    ),
    "axis": _Limit(
        "a whole number or a list of whole numbers",
        lambda value, _: all(type(one) is int for one in (value if isinstance(value, list) else [value])),
    ),
}
#: Limits of some classes.
_OF_CLASS: Mapping[tuple[str, str], _Limit] = {
    ("SGD", "momentum"): _SHARE,
    ("Lion", "beta_1"): _Limit("above 0, and at most 1", lambda value, _: 0 < value <= 1),
    ("Ftrl", "initial_accumulator_value"): _least(0),
    ("Ftrl", "learning_rate_power"): _NOT_POSITIVE,
    ("Ftrl", "l1_regularization_strength"): _least(0),
    ("Ftrl", "l2_regularization_strength"): _least(0),
    ("Ftrl", "l2_shrinkage_regularization_strength"): _least(0),
    ("AUC", "num_thresholds"): _Limit(
        "2 or more", lambda value, given: given.get("thresholds") is not None or value >= 2
    ),
    ("AUC", "thresholds"): _Limit(
        "a list of numbers between 0 and 1",
        lambda value, _: isinstance(value, list) and all(0 <= one <= 1 for one in value),
    ),
    ("AUC", "num_labels"): _Limit(
        "a whole number of 1 or more, and omitted without multi_label=True",
        lambda value, given: value == 0 or (value > 0 and bool(given.get("multi_label"))),
    ),
    ("F1Score", "threshold"): _Limit("above 0, and at most 1", lambda value, _: 0 < value <= 1),
    ("FBetaScore", "threshold"): _Limit("above 0, and at most 1", lambda value, _: 0 < value <= 1),
    ("FBetaScore", "beta"): _Limit("above 0", lambda value, _: value > 0),
    ("ReduceLROnPlateau", "factor"): _Limit("below 1", lambda value, _: value < 1),
}
#: Arguments that may not be None, though others of their name may.
_NEVER_NONE = {"AdamW": ("weight_decay",)}


def within_limits(name: str, kwargs: dict[str, Any], what: str) -> dict[str, Any]:
    """Check the arguments of a class, whose kinds are right, and return them as Keras takes them.

    Parameters
    ----------
    name : str
        Of the class.
    kwargs : dict
    what : str
        The beginning of messages.

    Returns
    -------
    dict
        With floats in place of whole numbers, where Keras takes floats only.

    Raises
    ------
    InvalidParameter
        For a value that Keras does not take.
    """
    for argument in _NEVER_NONE.get(name, ()):
        if argument in kwargs and kwargs[argument] is None:
            raise InvalidParameter(f"{what}: {argument} of {name} must be a number. Received: None")
    for argument, value in kwargs.items():
        limit = _OF_CLASS.get((name, argument)) or _OF_ALL.get(argument)
        if value is None or limit is None:
            continue
        if not limit.holds(value, kwargs):
            raise InvalidParameter(
                f"{what}: {argument} of {name} must be {limit.words}. Received: {argument}={shorten(value)}"
            )
    clips = [argument for argument in _CLIPS if kwargs.get(argument) is not None]
    if len(clips) > 1:
        raise InvalidParameter(
            f"{what}: {name} takes only one of {', '.join(_CLIPS)}. Received: {' and '.join(clips)}",
            hint="Keep one of them.",
        )
    for argument in _FLOATS.get(name, ()):
        if isinstance(kwargs.get(argument), int):
            kwargs = {**kwargs, argument: float(kwargs[argument])}
    return kwargs


def check_name(name: Any, what: str) -> None:
    """Raise InvalidParameter if TensorFlow does not take a name in all scopes; None is one that Keras chooses."""
    if isinstance(name, str) and not ROOT_NAME.fullmatch(name):
        raise InvalidParameter(
            f"{what} must begin with an ASCII letter, a digit or a point, and consist of these and _ \\ > -."
            f" Received: {shorten(name)}"
        )


_KIND_WORDS = {
    "bool": "True or False",
    "int": "a whole number",
    "number": "a number",
    "numbers": "a number or a list of numbers",
    "text": "a string",
}


def unknown_parameter(what: str, name: object, allowed: Iterable[str]) -> InvalidParameter:
    """Return the error for a name that is no parameter of ``what``."""
    return InvalidParameter(
        f"{what}: there is no parameter of that name. Received: {shorten(name)}",
        hint=suggestion(str(name), allowed),
    )


def unknown_argument(where: str, function: str, name: str, allowed: Iterable[str]) -> InvalidParameter:
    """Return the error for a name that is no argument of a function or class of Keras."""
    return InvalidParameter(
        f"{where}: {function} has no argument of that name. Received: {name!r}", hint=suggestion(name, allowed)
    )


def suggestion(name: Any, allowed: Iterable[str]) -> str:
    """Return the hint for an unknown name: a close match if there is one, and all allowed names."""
    names = sorted(set(allowed), key=lambda known: (known.lower(), known))
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    start = f"Did you mean {by_lower[close[0]]}? " if close else ""
    return f"{start}Allowed: {', '.join(names)}."


def as_spec(value: Any, what: str) -> Any:
    """Return the call or the name for a value.

    Strings such as ``'Adam(lr=0.1)'`` are read; ``{"class_name": ..., "config": {...}}``, Keras' own form in JSON,
    becomes a call. Other values are returned unchanged.
    """
    if isinstance(value, str) and ("(" in value or "." in value):
        return read_value(value, what)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict) and "class_name" in value:
        name, config = value["class_name"], value.get("config") or {}
        if not isinstance(name, str) or not isinstance(config, dict):
            raise InvalidParameter(
                f"{what}: class_name must be a string and config an object. Received: {shorten(value)}"
            )
        return CallSpec(name, (), config)
    return value


def find_name(name: str, table: Mapping[str, object], what: str) -> str:
    """Return a class's name in Keras' spelling, from any case."""
    by_lower = {known.lower(): known for known in table}
    try:
        return by_lower[name.lower()]
    except KeyError:
        raise InvalidParameter(f"{what} is unknown. Received: {name!r}", hint=suggestion(name, table)) from None


def check_call(spec: CallSpec, table: Mapping[str, tuple[str, ...]], what: str) -> CallSpec:
    """Check a call's arguments and assign names to positional ones.

    Parameters
    ----------
    spec : CallSpec
        A call of a class in ``table``.
    table : mapping
        Class name -> names of its arguments, in order.
    what : str
        The beginning of messages.

    Returns
    -------
    CallSpec
        The same call with ``args`` empty.

    Raises
    ------
    InvalidParameter
        If an argument is unknown, given twice, missing, of a wrong kind, or outside Keras' limits.
    """
    name, allowed = spec.name, table[spec.name]
    if len(spec.args) > len(allowed):
        raise InvalidParameter(f"{what}: {name} takes {len(allowed)} arguments. Received: {len(spec.args)}")
    kwargs = dict(zip(allowed, spec.args, strict=False))
    for argument, value in spec.kwargs.items():
        if argument not in allowed:
            raise unknown_argument(what, name, argument, allowed)
        if argument in kwargs:
            raise InvalidParameter(f"{what}: {name} has argument {argument} twice")
        kwargs[argument] = value
    if missing := [argument for argument in REQUIRED.get(name, ()) if argument not in kwargs]:
        raise InvalidParameter(f"{what}: {name} needs {' and '.join(missing)}. Received: {shorten(list(kwargs))}")
    for argument, value in kwargs.items():
        check_kind(value, ARGUMENT_KINDS.get(argument), f"{what}: {argument} of {name}")
    if table is not METRICS:  # Keras opens no scope of a metric's name
        check_name(kwargs.get("name"), f"{what}: name of {name}")
    return CallSpec(name, (), within_limits(name, kwargs, what))


def check_kind(value: Any, kind: str | None, what: str) -> None:
    """Raise InvalidParameter unless a value is a bool, int, number, numbers or text; ``?`` lets None pass."""
    if kind is None or (kind.endswith("?") and value is None):
        return
    base = kind.removesuffix("?")
    fits = {
        "bool": isinstance(value, bool),
        "int": is_int(value),
        "number": is_number(value),
        "numbers": is_number(value) or (isinstance(value, list) and all(map(is_number, value))),
        "text": isinstance(value, str),
    }
    if not fits[base]:
        or_none = " or None" if kind.endswith("?") else ""
        raise InvalidParameter(f"{what} must be {_KIND_WORDS[base]}{or_none}. Received: {shorten(value)}")


def is_int(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number (True and False are not)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is an int or a float (True and False are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Checks an optimizer and its learning rate in compile parameters, including Keras 2 spellings."""

from typing import Any

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.calls import as_spec, check_call, find_name, is_number
from madlib_mop.models.parameters.keras_names import DEFAULT_LEARNING_RATES, OPTIMIZERS, SCHEDULES
from madlib_mop.models.parameters.literals import CallSpec, shorten

_KERAS_2_SCHEDULE_DECAY = 0.004
_RATES = (
    "initial_learning_rate",
    "end_learning_rate",
    "warmup_target",
    "decay_rate",
    "alpha",
    "power",
    "t_mul",
    "m_mul",
)


def check_optimizer(value: Any, what: str) -> CallSpec:
    """Return the optimizer as a call of a Keras 3 class.

    Parameters
    ----------
    value
        A name in any case (``adam``), a call, a string that holds a call, or Keras' JSON form.
    what : str
        The beginning of messages.

    Returns
    -------
    CallSpec
        ``learning_rate``, if given, is a float or the CallSpec of a schedule. ``lr`` has become ``learning_rate``;
        Keras 2's ``decay`` has become ``InverseTimeDecay(lr, decay_steps=1, decay_rate=decay)``, its equivalent:
        lr / (1 + decay * iterations).

    Raises
    ------
    InvalidParameter
        If the name, an argument or a value is not known to Keras.
    """
    spec = as_spec(value, what)
    if isinstance(spec, str):
        spec = CallSpec(spec)
    if not isinstance(spec, CallSpec):
        raise InvalidParameter(
            f"{what} must be a name or a call such as Adam(learning_rate=0.01). Received: {shorten(value)}"
        )
    name = find_name(spec.name, OPTIMIZERS, what)
    kwargs = dict(spec.kwargs)
    if "lr" in kwargs:
        if "learning_rate" in kwargs:
            raise InvalidParameter(
                f"{what}: lr and learning_rate are the same parameter; use one of them. Received: {shorten(kwargs)}"
            )
        kwargs["learning_rate"] = kwargs.pop("lr")
    decay = kwargs.pop("decay", None)
    _drop_keras_2_defaults(name, kwargs, what)
    rate_first = {"learning_rate": kwargs.pop("learning_rate")} if "learning_rate" in kwargs else {}
    checked = check_call(CallSpec(name, spec.args, {**rate_first, **kwargs}), OPTIMIZERS, what)
    kwargs = dict(checked.kwargs)
    if "learning_rate" in kwargs:
        kwargs["learning_rate"] = check_rate(kwargs["learning_rate"], f"{what}: learning_rate")
    if decay is not None:
        kwargs = {"learning_rate": None, **kwargs}
        kwargs["learning_rate"] = _decayed(name, kwargs["learning_rate"], decay, what)
        if kwargs["learning_rate"] is None:
            del kwargs["learning_rate"]
    return CallSpec(name, (), kwargs)


def check_rate(value: Any, what: str) -> float | CallSpec:
    """Return a learning rate: a float of 0 or more, or the checked call of a schedule."""
    if is_number(value):
        if value < 0:
            raise InvalidParameter(f"{what} must not be negative. Received: {value!r}")
        return float(value)
    spec = as_spec(value, what)
    if not isinstance(spec, CallSpec):
        raise InvalidParameter(
            f"{what} must be a number or a schedule such as ExponentialDecay(0.1, decay_steps=100, decay_rate=0.9). "
            f"Received: {shorten(value)}"
        )
    return check_schedule(spec, what)


def check_schedule(spec: CallSpec, what: str) -> CallSpec:
    """Return a learning-rate schedule as a checked call; rates are floats, because Keras computes in their type."""
    name = find_name(spec.name, SCHEDULES, f"{what}: a schedule of that name")
    kwargs = dict(check_call(CallSpec(name, spec.args, spec.kwargs), SCHEDULES, what).kwargs)
    for argument in _RATES:
        if is_number(kwargs.get(argument)):
            kwargs[argument] = float(kwargs[argument])
    for argument in ("decay_steps", "first_decay_steps"):
        if argument in kwargs and kwargs[argument] <= 0:
            raise InvalidParameter(f"{what}: {argument} of {name} must be above 0. Received: {kwargs[argument]!r}")
    if name == "PiecewiseConstantDecay":
        boundaries, values = kwargs["boundaries"], kwargs["values"]
        if not isinstance(boundaries, list) or not isinstance(values, list) or len(values) != len(boundaries) + 1:
            raise InvalidParameter(
                f"{what}: {name} needs a list of boundaries and a list with one value more. "
                f"Received: boundaries={shorten(boundaries)}, values={shorten(values)}"
            )
        kwargs["values"] = [float(item) for item in values]
    return CallSpec(name, (), kwargs)


def _decayed(name: str, rate: float | CallSpec | None, decay: Any, what: str) -> float | CallSpec | None:
    if not is_number(decay) or decay < 0:
        raise InvalidParameter(f"{what}: decay must be a number of 0 or more. Received: {shorten(decay)}")
    if decay == 0:
        return rate
    if isinstance(rate, CallSpec):
        raise InvalidParameter(
            f"{what}: decay and a learning-rate schedule cannot be used together. Received: decay={decay!r}",
            hint="Remove decay; the schedule alone determines the learning rate.",
        )
    start = DEFAULT_LEARNING_RATES[name] if rate is None else rate
    return CallSpec(
        "InverseTimeDecay",
        (),
        {"initial_learning_rate": start, "decay_steps": 1, "decay_rate": float(decay)},
    )


def _drop_keras_2_defaults(name: str, kwargs: dict[str, Any], what: str) -> None:
    """Remove arguments of Keras 2 that are built into Keras 3: epsilon=None, and Nadam's schedule_decay."""
    if kwargs.get("epsilon", 0) is None:
        del kwargs["epsilon"]
    if name == "Nadam" and "schedule_decay" in kwargs:
        if kwargs["schedule_decay"] != _KERAS_2_SCHEDULE_DECAY:
            raise InvalidParameter(
                f"{what}: schedule_decay of Nadam is always {_KERAS_2_SCHEDULE_DECAY}. "
                f"Received: {shorten(kwargs['schedule_decay'])}"
            )
        del kwargs["schedule_decay"]

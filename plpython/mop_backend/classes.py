"""Converts the outputs of a model to text: the best class, each with its value, a number, an interval or a set of
classes; called by predict_model.py.

The driver (driver/commands/scoring.py) describes each output as a dict: ``name``; ``labels``, the class of each
value, None where the output is a number; ``problem``, why there are no labels where there should be; ``held_out``, the
fields of `HeldOut`, if the version has them. One value for two classes is that of the second.

Only forms that need held-out rows import ``held_out.py``: its dataclasses take a seventh of the time of the first
prediction of a session.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from mop_backend.call import CallError
from mop_backend.frames import Json

if TYPE_CHECKING:
    from mop_backend.held_out import HeldOut

_NULL_CLASS = "NULL"


class DescribedOutput(TypedDict):
    """One output of a model, described by the driver."""

    name: str
    labels: list[str | None] | None
    problem: str | None
    held_out: dict[str, Any] | None


TextOf = Callable[[Sequence[float]], str | None]  # a row's values -> text about its classes


class Functions(NamedTuple):
    """The names of the SQL functions that errors and hints mention."""

    of_class: str
    named: str
    number: str
    values: str


OF_ARRAYS = Functions("predict_class", "predict_named", "predict", "predict")
OF_ROWS = Functions("predict_class", "predict_json", "predict_number", "predict")


def best_class(outputs: Sequence[DescribedOutput], widths: Sequence[int], functions: Functions) -> TextOf:
    """Return a function from a row's values to its class as text: the one with the highest value, the first one of
    equals; None if all values are NaN.

    Parameters
    ----------
    outputs : list of dict
    widths : list of int
        How many values each output has.
    functions : Functions
        Those of the caller's form: of arrays or of rows.

    Raises
    ------
    CallError
        If the model has several outputs, or predicts a number.
    """
    labels = _labels_of_one(functions.of_class, outputs, widths, functions)
    if labels is None:
        raise _refused(
            f"{functions.of_class}: the model predicts a number, {outputs[0]['name']!r}, not a class",
            f"madlib_mop.{functions.number} returns the number.",
        )

    def text_of(values: Sequence[float]) -> str | None:
        best, best_value = None, -math.inf
        for i, value in enumerate(_by_class(values, labels)):
            if value > best_value or (best is None and value == best_value):
                best, best_value = i, value
        return None if best is None else labels[best]

    return text_of


def one_number(outputs: Sequence[DescribedOutput], widths: Sequence[int], functions: Functions) -> TextOf:
    """Return a function from a row's values to the number that is predicted, as text that PostgreSQL reads exactly.

    Raises
    ------
    CallError
        If the model has several outputs, or predicts a class.
    """
    labels = _labels_of_one(functions.number, outputs, widths, functions)
    if labels is not None:
        raise _refused(
            f"{functions.number}: the model predicts a class, {outputs[0]['name']!r}, not a number",
            f"madlib_mop.{functions.of_class} returns the class.",
        )
    if widths[0] != 1:
        raise _refused(
            f"{functions.number}: the model returns {widths[0]} values a row for {outputs[0]['name']!r}, not one",
            f"madlib_mop.{functions.values} returns the values.",
        )
    return lambda values: repr(float(values[0]))


def named(outputs: Sequence[DescribedOutput], widths: Sequence[int], functions: Functions) -> TextOf:
    """Return a function from a row's values to a JSON object of them by class, of several outputs one in another.

    A number that is predicted has the name of its column. See `best_class`.
    """
    if len(outputs) != len(widths):
        raise _refused(
            f"{functions.named}: the model has {len(widths)} outputs, but its summary lists {len(outputs)}", None
        )
    parts, start = [], 0
    for output, width in zip(outputs, widths, strict=True):
        labels = _labels(functions.named, output, width, functions)
        parts.append((output["name"], labels and _keys(labels, functions), start, start + width))
        start += width

    def text_of(values: Sequence[float]) -> str:
        found: dict[str, Json] = {}
        for name, keys, begin, end in parts:
            numbers = [_number(value, keys is None) for value in _by_class(values[begin:end], keys)]
            if keys is not None:
                of_class = {key: number for key, number in zip(keys, numbers, strict=True) if key is not None}
                if len(parts) == 1:
                    return json.dumps(of_class)
                found[name] = of_class
            else:
                found[name] = numbers[0] if len(numbers) == 1 else numbers
        return json.dumps(found)

    return text_of


def interval_of(
    outputs: Sequence[DescribedOutput], widths: Sequence[int], functions: Functions, coverage: float | None
) -> TextOf:
    """Return a function from a row's values to the number that is predicted and the limits of its interval, as text of
    an array.

    Raises
    ------
    CallError
        If the model predicts no single number, or its held-out rows are too few for the coverage.
    """
    from mop_backend.held_out import interval

    function = "predict_interval"
    coverage = _coverage(function, coverage)
    labels = _labels_of_one(function, outputs, widths, functions)
    if labels is not None:
        raise _refused(
            f"{function}: the model predicts a class, {outputs[0]['name']!r}, not a number",
            "madlib_mop.predict_set returns the classes that are likely enough.",
        )
    if widths[0] != 1:
        raise _refused(
            f"{function}: the model returns {widths[0]} values a row for {outputs[0]['name']!r}, not one", None
        )
    held_out = _held_out(function, outputs[0])
    limit = _threshold(function, held_out, coverage)

    def text_of(values: Sequence[float]) -> str:
        bounds = (values[0], *interval(values[0], held_out, limit))
        return "{" + ",".join(map(repr, map(float, bounds))) + "}"

    return text_of


def class_set(
    outputs: Sequence[DescribedOutput], widths: Sequence[int], functions: Functions, coverage: float | None
) -> TextOf:
    """Return a function from a row's values to a JSON array of classes, the most probable one first; see
    `interval_of`."""
    from mop_backend.held_out import covered

    function = "predict_set"
    coverage = _coverage(function, coverage)
    labels = _labels_of_one(function, outputs, widths, functions)
    if labels is None:
        raise _refused(
            f"{function}: the model predicts a number, {outputs[0]['name']!r}, not a class",
            "madlib_mop.predict_interval returns an interval.",
        )
    limit = _threshold(function, _held_out(function, outputs[0]), coverage)
    return lambda values: json.dumps([labels[number] for number in covered(_by_class(values, labels), limit)])


def calibrated_by_class(
    outputs: Sequence[DescribedOutput], widths: Sequence[int], functions: Functions, coverage: float | None
) -> TextOf:
    """Return a function from a row's values to a JSON object of the calibrated probabilities by class."""
    from mop_backend.held_out import HeldOutError, calibrated

    labels = _labels_of_one(functions.named, outputs, widths, functions)
    if labels is None:
        raise _refused(
            f"{functions.named}: calibrated is for classes, and the model predicts a number, {outputs[0]['name']!r}",
            "madlib_mop.predict_interval returns an interval.",
        )
    keys, held_out = _keys(labels, functions), _held_out(functions.named, outputs[0])

    def text_of(values: Sequence[float]) -> str:
        try:
            found = calibrated(_by_class(values, labels), held_out)
        except HeldOutError as error:
            raise _refused(f"{functions.named}: {error}", error.hint) from None
        numbers = [value if math.isfinite(value) else None for value in found]
        return json.dumps({key: value for key, value in zip(keys, numbers, strict=True) if key is not None})

    return text_of


FORMS: dict[str, Callable[[Sequence[DescribedOutput], Sequence[int], Functions], TextOf]] = {
    "class": best_class,
    "number": one_number,
    "named": named,
}
#: Those that need what a version has of held-out rows.
HELD_OUT_FORMS: dict[
    str, Callable[[Sequence[DescribedOutput], Sequence[int], Functions, float | None], TextOf]
] = {
    "interval": interval_of,
    "set": class_set,
    "calibrated": calibrated_by_class,
}


def _coverage(function: str, coverage: float | None) -> float:
    from mop_backend.held_out import HeldOutError, check_coverage

    try:
        return check_coverage(coverage)
    except HeldOutError as error:
        raise _refused(f"{function}: {error}", error.hint) from None


def _held_out(function: str, output: DescribedOutput) -> HeldOut:
    """Return what a version has of held-out rows for its output. Raises CallError if it has nothing."""
    from mop_backend.held_out import HeldOut

    if output["held_out"] is None:
        raise CallError(
            f"{function}: the version was registered without held-out rows",
            "55000",
            hint="Register the model with rows that neither trained nor chose it, for example: SELECT"
            " madlib_mop.register('churn', 'models', 1, held_out => 'packed_test'). pack_columns(..., test => 0.2)"
            " holds such rows out.",
        )
    return HeldOut.of(output["held_out"])


def _threshold(function: str, held_out: HeldOut, coverage: float) -> float:
    from mop_backend.held_out import HeldOutError, threshold

    try:
        return threshold(held_out, coverage)
    except HeldOutError as error:
        raise _refused(f"{function}: {error}", error.hint) from None


def _labels_of_one(
    function: str, outputs: Sequence[DescribedOutput], widths: Sequence[int], functions: Functions
) -> list[str | None] | None:
    """Return the labels of the only output; None if it is a number."""
    if len(outputs) != 1 or len(widths) != 1:
        raise _refused(
            f"{function}: the model has {len(widths)} outputs",
            f"madlib_mop.{functions.named} returns each output by its name.",
        )
    return _labels(function, outputs[0], widths[0], functions)


def _labels(function: str, output: DescribedOutput, width: int, functions: Functions) -> list[str | None] | None:
    if output["problem"] is not None:
        raise _refused(f"{function}: {output['problem']}", None)
    if output["labels"] is not None and len(output["labels"]) != width and (len(output["labels"]), width) != (2, 1):
        raise _refused(
            f"{function}: the model returns {width} values a row for {output['name']!r}, which has"
            f" {len(output['labels'])} classes",
            f"madlib_mop.{functions.values} returns the values.",
        )
    return output["labels"]


def _by_class(values: Sequence[float], labels: Sequence[str | None] | None) -> Sequence[float]:
    """Return the class of a value; labels are None for a number."""
    if labels is not None and len(labels) == 2 and len(values) == 1:
        return [1 - values[0], values[0]]
    return values


def _keys(labels: Sequence[str | None], functions: Functions) -> list[str | None]:
    """Return the key of each value: NULL as a class is the first; further ones are values beyond the classes."""
    if _NULL_CLASS in labels and labels[0] is None:
        raise _refused(
            f"{functions.named}: there is a class {_NULL_CLASS!r}, which is also the key of the class NULL",
            f"madlib_mop.{functions.values} returns the values in the order of the classes.",
        )
    return [_NULL_CLASS if label is None and i == 0 else label for i, label in enumerate(labels)]


def _number(value: float, may_be_float64: bool) -> float | None:
    """Return a number with nine digits, which tell all float32 apart, or with all if it is none; JSON has no NaN."""
    if not math.isfinite(value):
        return None
    return value if may_be_float64 and not _is_float32(value) else float(f"{value:.9g}")


def _is_float32(value: float) -> bool:
    try:
        (nearest,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return False
    return bool(nearest == value)


def _refused(message: str, hint: str | None) -> CallError:
    return CallError(message, "22023", hint=hint)

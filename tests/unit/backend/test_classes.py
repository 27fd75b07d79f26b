"""The texts of a prediction: a number in JSON has the digits that tell it from others; errors name other functions."""

import json
import subprocess
import sys

import numpy as np

from tests.helpers.clones import ROOT

#: Code for a process without PostgreSQL.
_CODE = """
import json, math, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
sys.modules["plpy"] = plpy
from mop_backend.call import CallError
from mop_backend.classes import OF_ARRAYS, OF_ROWS, best_class, named, one_number
{code}
"""
_NUMBERS = """
text_of = named([{{"name": "y", "labels": None, "problem": None}}], [1], OF_ARRAYS)
print(json.dumps([text_of([value]) for value in json.loads({values!r})]))
"""
_BEST = """
nan, inf = math.nan, math.inf
text_of = best_class([{{"name": "y", "labels": {labels}, "problem": None}}], [{width}], OF_ROWS)
print(json.dumps([text_of(values) for values in {rows}]))
"""
_REFUSALS = """
number = {"name": "price", "labels": None, "problem": None}
classes = {"name": "kind", "labels": [None, "NULL"], "problem": None}
found = []
for functions in (OF_ARRAYS, OF_ROWS):
    for form, outputs, widths in (
        (best_class, [number], [1]), (best_class, [number, classes], [1, 2]), (best_class, [classes], [3]),
        (named, [classes], [2]), (named, [classes], [3]), (named, [], [1]),
    ):
        try:
            form(outputs, widths, functions)
        except CallError as error:
            found.append([str(error), error.fields["hint"]])
print(json.dumps(found))
"""
TEXTS = {
    1700000123.46: "1700000123.46",  # of a regression, brought back in float64
    float(np.float32(0.1)): "0.100000001",
    float(np.float32(1 / 3)): "0.333333343",
    0.12345678901: "0.12345678901",
    1e300: "1e+300",
    float("nan"): "null",
}
WIDTH = "the model returns 3 values a row for 'kind', which has 2 classes"
NULLS = "there is a class 'NULL', which is also the key of the class NULL"
VALUES = "madlib_mop.predict returns the values."
IN_ORDER = "madlib_mop.predict returns the values in the order of the classes."


def run(code: str):
    """Return what code prints as JSON, in a process without PostgreSQL."""
    code = _CODE.format(paths=[str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_number_has_the_digits_that_tell_it_from_others():
    assert run(_NUMBERS.format(values=json.dumps(list(TEXTS)))) == [f'{{"y": {text}}}' for text in TEXTS.values()]


def test_a_number_is_exact():
    numbers = [0.1, 1e300, 1700000123.46, float(np.float32(1 / 3))]
    code = f"""
text_of = one_number([{{"name": "y", "labels": None, "problem": None}}], [1], OF_ROWS)
print(json.dumps([text_of([value]) for value in [*{numbers}, math.nan, -math.inf]]))
"""
    assert run(code) == [*map(repr, numbers), "nan", "-inf"]


def test_predict_number_says_what_the_model_predicts():
    """It counted the values of a row, and its hint named a function that fails as well."""
    code = """
number = {"name": "price", "labels": None, "problem": None}
classes = {"name": "kind", "labels": ["a", "b", "c"], "problem": None}
found = []
for outputs, widths in ([classes], [3]), ([classes, number], [3, 1]), ([number, number], [1, 1]), ([number], [2]):
    try:
        one_number(outputs, widths, OF_ROWS)
    except CallError as error:
        found.append([str(error), error.fields["hint"]])
print(json.dumps(found))
"""
    several = ["predict_number: the model has 2 outputs", "madlib_mop.predict_json returns each output by its name."]
    of_class = "predict_number: the model predicts a class, 'kind', not a number"
    assert run(code) == [
        [of_class, "madlib_mop.predict_class returns the class."],
        several,
        several,
        ["predict_number: the model returns 2 values a row for 'price', not one", VALUES],
    ]


def test_a_class_is_the_best_one_and_none_if_all_values_are_nan():
    rows = "[nan, nan, nan], [nan, -inf, -inf], [0.1, nan, 0.1]"
    assert run(_BEST.format(labels=["a", "b", "c"], width=3, rows=f"[{rows}]")) == [None, "b", "a"]
    assert run(_BEST.format(labels=["no", "yes"], width=1, rows="[[nan], [0.5], [0.75]]")) == [None, "no", "yes"]


def test_errors_and_hints_name_functions_that_take_what_the_caller_has():
    assert run(_REFUSALS) == [
        ["predict_class: the model predicts a number, 'price', not a class", "madlib_mop.predict returns the number."],
        ["predict_class: the model has 2 outputs", "madlib_mop.predict_named returns each output by its name."],
        [f"predict_class: {WIDTH}", VALUES],
        [f"predict_named: {NULLS}", IN_ORDER],
        [f"predict_named: {WIDTH}", VALUES],
        ["predict_named: the model has 1 outputs, but its summary lists 0", None],
        [
            "predict_class: the model predicts a number, 'price', not a class",
            "madlib_mop.predict_number returns the number.",
        ],
        ["predict_class: the model has 2 outputs", "madlib_mop.predict_json returns each output by its name."],
        [f"predict_class: {WIDTH}", VALUES],
        [f"predict_json: {NULLS}", IN_ORDER],
        [f"predict_json: {WIDTH}", VALUES],
        ["predict_json: the model has 1 outputs, but its summary lists 0", None],
    ]

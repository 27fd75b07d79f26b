"""The texts of a prediction: a number in JSON has the digits that tell it from others, and no more."""

import json
import subprocess
import sys

import numpy as np

from tests.helpers.clones import ROOT

#: The texts of numbers in a process without PostgreSQL.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
sys.modules["plpy"] = plpy
from mop_backend.classes import named
text_of = named([{{"name": "y", "labels": None, "problem": None}}], [1])
print(json.dumps([text_of([value]) for value in json.loads({values!r})]))
"""
TEXTS = {
    1700000123.46: "1700000123.46",  # of a regression, brought back in float64
    float(np.float32(0.1)): "0.100000001",
    float(np.float32(1 / 3)): "0.333333343",
    0.12345678901: "0.12345678901",
    1e300: "1e+300",
    float("nan"): "null",
}


def test_a_number_has_the_digits_that_tell_it_from_others():
    code = _CODE.format(paths=[str(ROOT / "plpython")], values=json.dumps(list(TEXTS)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [f'{{"y": {text}}}' for text in TEXTS.values()]

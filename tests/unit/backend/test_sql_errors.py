"""Errors of PostgreSQL in PL/Python: their SQLSTATE, users' own too, and texts of any length."""

import json
import subprocess
import sys

from tests.helpers.clones import ROOT

#: A process without PostgreSQL, whose exceptions are those of PL/Python.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
Undefined = type("UndefinedTable", (plpy.SPIError,), {{"sqlstate": "42P01"}})
sys.modules["plpy"] = plpy
from mop_backend import sql_errors
def packed(state):
    return sum((ord(c) - ord("0") & 0x3F) << 6 * place for place, c in enumerate(state))
def raised(state, message="bad", detail=None, hint=None):
    error = plpy.SPIError(message)
    error.spidata = (packed(state), detail, hint, None, 0)
    return error
print(json.dumps({code}))
"""


def value(code: str):
    """Return the value of an expression, as JSON."""
    script = _CODE.format(paths=[str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_state_of_a_user_is_read():
    states = ["MY001", "ZZZZZ", "P0001", "00001", "57014"]
    assert value(f"[sql_errors.sqlstate_of(raised(state)) for state in {states}]") == states
    assert value("sql_errors.sqlstate_of(Undefined('x'))") == "42P01"


def test_an_error_without_a_state_is_internal():
    assert value("sql_errors.fields_of(plpy.SPIError('x'))") == {
        "message": "x", "detail": None, "hint": None, "sqlstate": "XX000",
    }  # fmt: skip


def test_only_a_stop_is_a_stop():
    assert value("[sql_errors.is_stop(raised(s)) for s in ('MY001', '57014', '57P01', '22012')]") == [
        False, True, True, False,
    ]  # fmt: skip


def test_texts_are_cut():
    found = value("sql_errors.fields_of(raised('MY001', 'm' * 10**6, 'd' * 10**6, 'h' * 10**6))")
    assert {name: len(text) for name, text in found.items()} == {
        "message": 10_000, "detail": 10_000, "hint": 10_000, "sqlstate": 5,
    }  # fmt: skip

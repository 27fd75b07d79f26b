"""Predictions by a model that the planner of Greenplum found: no call with it runs a statement."""

import json
import subprocess
import sys

import pytest

from tests.helpers.clones import ROOT

#: A process without PostgreSQL, whose trainer answers each request, and in which any statement is an error.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
plpy.log = print
def execute(*_):
    raise AssertionError("a statement")
plpy.prepare = plpy.execute = plpy.cursor = execute
sys.modules["plpy"] = plpy
from mop_backend import __version__, call, interrupts, predict
from mop_backend.predict_model import FoundModel
class Trainer:
    alive, is_shared = True, False
    def ask(self, header, blobs=()):
        check()
        return {{"ok": True, "widths": [2], "single": True}}, [b"some values"]
    def stop(self):
        self.alive = False
check = interrupts.Interrupts()
interrupts._is_pending = lambda flag: False
session = predict.session(__version__)
def find(name, moment):
    if name[0] != "models":
        raise call.CallError(f"there is no {{name[0]}}", "22023", hint="Look.")
    return FoundModel({{"start": {{}}}}, "table 1")
def load(model):
    session._child, model.key, session._loaded = Trainer(), "a key", frozenset(["a key"])
session._model, session._load = find, load
def use(text):
    predict.note_error(None)
    try:
        work = lambda model, values: values(lambda key: {{"key": key}}, [])
        return bytes(session.use((text, None, ""), work, None)[1]).decode()
    except Exception as error:
        predict.note_error(error)
        return predict.last_error()
plan = lambda table: predict.plan(table, 1, "", __version__)
print(json.dumps({code}))
"""


def value(code: str):
    script = _CODE.format(paths=[str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_call_with_a_planned_model_runs_no_statement():
    assert value("use(plan('models'))") == "some values"


def test_a_check_runs_a_statement_elsewhere():
    """So the test above would see one."""
    with pytest.raises(AssertionError, match="a statement"):
        value("check()")


def test_an_error_of_the_planner_is_that_of_each_call():
    error = value("use(plan('missing'))")
    assert (error["message"], error["sqlstate"], error["hint"]) == ("there is no missing", "22023", "Look.")


@pytest.mark.parametrize("text", ["planned model ", "planned model " + "0" * 32])
def test_a_text_that_no_plan_has_is_an_error(text):
    error = value(f"[plan('models'), use({text!r})][1]")
    assert error["sqlstate"] == "55000" and error["hint"] == "Run the query again."


def test_each_plan_has_a_text_of_its_own_and_the_name_of_the_query():
    texts = value("[plan('models') for _ in range(3)]")
    assert len({*texts}) == 3 and all(len(text) == len("planned model ") + 32 for text in texts)
    assert value("[predict.name_of(plan('models')), predict.name_of('other')]") == ["models", "other"]


def test_a_model_that_the_trainer_no_longer_has_is_an_error():
    """It cannot be read again."""
    error = value("[text := plan('models'), session._forget_trainer(), use(text)][2]")
    assert error["sqlstate"] == "55000"


def test_a_cancel_ends_the_wait():
    """PostgreSQL's flag says so; its own error follows when Python has returned."""
    cancelled = "setattr(interrupts, '_is_pending', lambda flag: flag == 'QueryCancelPending')"
    _, error, trainer = value(f"[{cancelled}, use(plan('models')), session._child]")
    assert error["sqlstate"] == "57014" and "cancelled" in error["message"]
    assert trainer is None  # its answer would be read as that of the next request

"""What a call reports when its driver ends without waiting for answers to requests that it has sent."""

import json
import subprocess
import sys

from mop_backend.frames import Channel

from tests.helpers.clones import ROOT

#: A call in a process without PostgreSQL, whose statements run until the driver has ended.
_CALL = """
import json, sys, time, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
plpy.log = print
sys.modules["plpy"] = plpy
from mop_backend import call, process
started = []
class Driver(process.Child):
    def __init__(self, module, check=None, forkserver=None, **limits):
        super().__init__(module, python={driver!r}, **limits)
        started.append(self)
class Done(list):
    status = lambda self: 7
def execute(plan, values):
    while started[0].alive:
        time.sleep(0.01)
    return Done()
plpy.prepare, plpy.execute = lambda *_: None, execute
call.Child, call.of_this_server = Driver, lambda *_: None
try:
    print(json.dumps({called}))
except Exception as error:
    print(getattr(error, "fields", repr(error)))
"""
#: A call from SQL in a process where any query fails.
_CALL_FROM_SQL = """
import sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
plpy.log = lambda text: None
sys.modules["plpy"] = plpy
from mop_backend import __version__, call
print(call.run({function!r}, "{{}}", "", None, None, __version__))
"""
EXECUTE = {"do": "execute", "sql": "INSERT", "types": [], "params": []}
ERROR = {"do": "error", "sqlstate": "22023", "message": "drift: an image that cannot be decoded"}


_DRIFT = 'call._Conversation("drift").hold({}, [])'
_END_LOST_RUN = 'call._end_lost_run({}, 7, "it died")'


def told(folder, *frames, called=_DRIFT) -> str:
    """Return what a call reports whose driver sends these frames and ends."""
    file, driver = folder / "frames", folder / "driver"
    with file.open("wb") as sent:
        for frame in frames:
            Channel(-1, sent.fileno()).send(frame)
    driver.write_text(f"#!/bin/sh\nhead -c 1 >/dev/null\nexec cat '{file}'\n")  # it reads the call first
    driver.chmod(0o700)
    code = _CALL.format(paths=[str(ROOT / "plpython")], driver=str(driver), called=called)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_an_error_is_told_though_the_driver_waits_for_no_answer(tmp_path):
    """It posts the rows of a table without waiting, and the next rows may be bad."""
    assert told(tmp_path, EXECUTE, EXECUTE, ERROR).startswith("{'message': 'drift: an image that cannot be decoded'")


def test_a_result_too(tmp_path):
    assert json.loads(told(tmp_path, EXECUTE, {"do": "result", "value": 3})) == 3


def test_a_driver_that_ends_without_a_last_frame_is_an_error(tmp_path):
    assert "ChildDied" in told(tmp_path, EXECUTE)


def test_the_end_of_a_lost_run_that_could_not_be_recorded_is_logged(tmp_path):
    failed = {"do": "error", "sqlstate": "55P03", "message": "the table is locked"}
    lines = told(tmp_path, {"do": "log", "text": "a traceback"}, failed, called=_END_LOST_RUN).splitlines()
    assert lines == ["a traceback", "madlib_mop: the end of run 7 was not recorded: the table is locked", "null"]
    assert told(tmp_path, {"do": "result", "value": "ada"}, called=_END_LOST_RUN) == '"ada"\n'


def test_the_command_that_finds_models_for_predictions_cannot_be_called_from_sql():
    """Its result has the architecture and the preprocessor, which a role with the right to predict may not see."""

    def error_of(function: str) -> dict:
        code = _CALL_FROM_SQL.format(paths=[str(ROOT / "plpython")], function=function)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["error"]

    error = error_of("predict")
    assert (error["sqlstate"], error["message"]) == ("0A000", "predict: this command cannot be called from SQL")
    assert error_of("help")["sqlstate"] == "XX000", "the others begin with a query"

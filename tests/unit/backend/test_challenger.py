"""How many rows a session records of a challenger, and of which: rows that were rolled back do not count for ever."""

import json
import subprocess
import sys

from tests.helpers.clones import ROOT

#: A session without PostgreSQL: its queries read and write lists, and its clock stands still.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
plpy.log = print
sys.modules["plpy"] = plpy
from mop_backend import challenger
from mop_backend.registered import Challenger, Found
from mop_backend.registered_names import ModelName
from mop_backend.rights import Moment
clock, rows, statements = [100.0], [], []
challenger.time.monotonic = lambda: clock[0]
def execute(query, values=()):
    if "_record_challenger" in query:
        challenger.write_pending()
    elif query.lstrip().startswith("insert"):
        rows.append(values[5])
    elif "sum(n_rows)" in query:
        return [{{"n": sum(rows)}}]
    return [{{"yes": True}}]
plpy.prepare, plpy.execute = lambda query, types: query, execute
found = Found(ModelName("n", "champion", None), "one", 1, Challenger(7, "two", 2, 1.0, 5))
observed = challenger.ChallengedCall([b"x"], lambda result: [[result]])
recorder = challenger.Recorder()
def predict(n):
    for _ in range(n):
        statements.append(0)
        moment = Moment("ann", "ann", float(len(statements)), None)
        recorder.observe(found, observed, moment, 1.0, lambda: 2.0)
    return sum(rows)
{code}
"""


def told(code: str) -> list:
    """Return what code prints as JSON."""
    code = _CODE.format(paths=[str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_after_a_rollback_rows_are_recorded_again_in_a_minute():
    code = """
seen = [predict(6)]
rows.clear()  # the transaction is rolled back
seen.append(predict(6))
clock[0] += 61
seen.append(predict(10))
clock[0] += 61
seen.append(predict(10))
print(json.dumps(seen))
"""
    assert told(code) == [5, 0, 5, 5]

"""The statements by which a writer reaches its trainer on Greenplum: a state is sent once, to one segment."""

import json
import subprocess
import sys

from tests.helpers.clones import ROOT

#: A writer's side in a process without PostgreSQL, which notes statements, their types and the sizes of their values.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
sys.modules["plpy"] = plpy
run = []
class Rows(list):
    def nrows(self):
        return len(self)
def execute(plan, values=()):
    text, kinds = plan if isinstance(plan, tuple) else (plan, [])
    run.append([text, kinds, [len(value) if isinstance(value, bytes) else value for value in values]])
    value = 3 if "dispatch_open" in text else None
    return Rows([{{"value": value}}])
plpy.execute, plpy.prepare = execute, lambda text, kinds: (text, list(kinds))
from mop_backend.dispatch import Dispatch
from mop_backend.messages import StateWrite
from mop_backend.record import RunRecord
trainer = Dispatch(3, 17, lambda: None)
trainer.send({{"op": "train"}}, [b"x" * 1000])
record = RunRecord(5, keys_as_literals={literals!r})
record.put_part(StateWrite(2, slot=1, version=9), 0, b"y" * 2000)
print(json.dumps(run))
"""


def statements(literals: bool = True) -> list[list]:
    code = _CODE.format(paths=[str(ROOT / "plpython")], literals=literals)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_generic_plans_are_set_before_anything_is_sent():
    """A custom plan has the value as a constant, and the server sends the parameter besides."""
    first, *others = statements()
    assert "'plan_cache_mode', 'force_generic_plan', false" in first[0]
    assert not any("plan_cache_mode" in text for text, _, _ in others)


def test_keys_are_literals_and_the_value_is_the_only_parameter():
    """With a key as a parameter, a generic plan is sent to all segments."""
    (put,) = [one for one in statements() if "dispatch_put" in one[0]]
    assert put[0].endswith("where __dist_key__ = 17") and put[1:] == [["bytea"], [1000]]
    insert = statements()[-1]
    assert insert[0].endswith("values (5, 2, 1, 9, 0, $1, null)") and insert[1:] == [["bytea"], [2000]]


def test_other_servers_have_one_statement_for_all_parts():
    """Its plan is kept in the session."""
    insert = statements(literals=False)[-1]
    assert insert[0].endswith("values ($1, $2, $3, $4, $5, $6, $7)") and insert[2] == [5, 2, 1, 9, 0, 2000, None]

"""The statements by which a writer on Greenplum reaches its trainer, and by which states go from segment to segment."""

import json
import subprocess
import sys

import pytest

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
    if "order by part" in text:
        found = [row for row in {stored!r} if f"__dist_key__ = {{row[0]}} and" in text or "__dist_key__ =" not in text]
        return Rows([dict(zip(["__dist_key__", "part", "n_bytes"], [*row, 90])) for row in found])
    value = 3 if "dispatch_open" in text else None
    if "dispatch_ask" in text:
        value = json.dumps({{"header": {{"op": "trained"}}, "sizes": [70, 30]}})
    if "dispatch_get" in text:
        value = b"z" * 70
    return Rows([{{"value": value}}])
plpy.quote_nullable = lambda value: "null" if value is None else "'" + value.replace("'", "''") + "'"
plpy.execute, plpy.prepare = execute, lambda text, kinds: (text, list(kinds))
from mop_backend.dispatch import Dispatch
from mop_backend.frames import lengths_of
from mop_backend.messages import AverageStates, StateDescription, StateWrite
from mop_backend.record import RunRecord
from mop_backend.refusals import Refused
from mop_backend.segment_states import SegmentStates
from mop_backend.states import States
MODEL = {{"digest": {digest!r}, "mst_key": 2, "state_slot": 11, "state_version": 8, "made_at": 1}}
trainer = Dispatch(3, 17, types.SimpleNamespace(check_client=lambda: None))
record = RunRecord(5)
states = SegmentStates(record, 5, 3, {{1: 4, 2: 9, 3: 17}}) if {is_greenplum!r} else States(record)
{steps}
print(json.dumps(run))
"""
SEND = 'trainer.send({"op": "train"}, [b"x" * 1000])'
PUT = 'states.put(StateWrite(2, slot=1, version=9), [b"y" * 2000])'
VISIT = """
(brought,) = states.bring([MODEL], [None])
assert lengths_of(brought) == [90] * len(brought)
_, parts, times = states.train(trainer, {"op": "train"}, [MODEL], brought, None)
assert lengths_of(parts) == [70, 30]
assert states.put(StateWrite(2, slot=1, version=9), parts[1:]) == 30
assert not any("into madlib_mop.model_state" in text for text, *_ in run), "not in a subtransaction of PL/Python"
record.fail_member(MODEL, "it's $1")
run += [[text, [], []] for text, part in states.take_statements() if part is None]
assert states.take_statements() == []
assert times["pull_s"] >= 0
"""
READ = """
try:
    print(states.bring([MODEL], [{}])[0], file=sys.stderr)
except Refused as refusal:
    print(refusal, file=sys.stderr)
"""


def ran(steps: str, stored=(), digest: str | None = "d", is_greenplum: bool = True) -> subprocess.CompletedProcess:
    names = {"stored": list(stored), "digest": digest, "is_greenplum": is_greenplum, "steps": steps}
    code = _CODE.format(paths=[str(ROOT / "plpython")], **names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def statements(*arguments, **named) -> list[list]:
    return json.loads(ran(*arguments, **named).stdout)


def test_generic_plans_are_set_before_anything_is_sent():
    """A custom plan has the value as a constant, and the server sends the parameter besides."""
    first, *others = statements(SEND)
    assert "'plan_cache_mode', 'force_generic_plan', false" in first[0]
    assert not any("plan_cache_mode" in text for text, _, _ in others)


def test_keys_are_literals_and_the_value_is_the_only_parameter():
    """With a key as a parameter, a generic plan is sent to all segments."""
    put, send = statements(SEND)[-2:]
    assert put[0].endswith("dispatch_put($1) as value from madlib_mop.segment_key where __dist_key__ = 17")
    assert put[1:] == [["bytea"], [1000]]
    assert json.loads(send[2][0]) == {"header": {"op": "train"}, "blobs": [None]}


def test_other_servers_have_one_statement_for_all_parts():
    """Its plan is kept in the session."""
    insert = statements(PUT, is_greenplum=False)[-1]
    assert insert[0].endswith("values ($1, $2, $3, $4, $5, $6, $7)") and insert[2] == [5, 2, 1, 9, 0, 2000, None]


def test_no_bytes_of_a_state_are_in_the_statements_of_a_visit():
    """It comes by a motion from the segment that has it, and its parts stay where the trainer has made them."""
    ran_ones = statements(VISIT, stored=[(4, 0), (4, 1)])
    assert not any("bytea" in types for _, types, _ in ran_ones)
    _, _, where, hop, ask, insert, fail = (text for text, *_ in ran_ones)
    state = "slot = 11 and mst_key = 2 and version = 8 and run_id = 5 and segment_id is null"
    at = "__dist_key__ = 4"
    columns = "__dist_key__, part, pg_catalog.octet_length(data) as n_bytes"
    assert where == f"select {columns} from madlib_mop.model_state where {at} and {state} order by part"
    assert hop == (
        "insert into madlib_mop.state_inbox (__dist_key__, pull, part, data)"
        f" select 17, 1, 0 + part, data from madlib_mop.model_state where __dist_key__ = 4 and {state}"
    )
    assert json.loads(ran_ones[4][2][0])["blobs"] == [[1, 0], [1, 1]] and "dispatch_ask" in ask
    assert insert.endswith(
        "select 5, 2, 1, 9, 0, null, madlib_mop_internal.dispatch_get(1), __dist_key__"
        " from madlib_mop.segment_key where __dist_key__ = 17"
    )
    assert fail == "select madlib_mop_internal.fail_member('5'::int8, '2'::int4, '8'::int8, 'it''s $1'::text)"


def test_nothing_of_an_average_is_written_in_a_subtransaction_of_python():
    """Each statement of PL/Python has one: processes that send rows for queries, of any session, take its rows for
    rolled back ones."""
    steps = f"""
n_run = len(run)
{PUT}
order = AverageStates(StateWrite(2, slot=1, version=9), 4, (7,), 3)
record.keep_average(order, StateDescription("d", "w", 90, 2), 2000)
assert len(run) == n_run
(put, number), (keep, none) = states.take_statements()
assert none is None and states.take_part(number) == b"y" * 2000
print(put, keep, sep="\\n", file=sys.stderr)
{PUT}
states.drop_statements()
assert states.take_statements() == [] and states._parts == {{}}
"""
    put, keep = ran(steps).stderr.splitlines()
    assert put.endswith("values (5, 2, 1, 9, 0, null, $1, 17)")
    assert keep.startswith("select madlib_mop_internal.keep_average('5'::int8, '2'::int4, '{\"epoch\": 4, \"slot\": 1,")


def test_other_servers_write_at_once():
    assert statements('record.fail_member(MODEL, "x")', is_greenplum=False)[-1][2] == [5, 2, 8, "x"]


def test_a_state_that_is_not_where_the_last_visit_was_is_searched_for():
    """Such as that of a clone."""
    texts = [text for text, *_ in statements(VISIT, stored=[(9, 0)])]
    assert ["__dist_key__ = 4 and" in text for text in texts if "order by part" in text] == [True, False]
    (hop,) = [text for text in texts if "state_inbox" in text]
    assert "where __dist_key__ = 9 and slot = 11" in hop


def test_a_state_of_this_segment_is_read_there():
    texts = [text for text, *_ in statements(VISIT, stored=[(17, 0)])]
    assert not any("state_inbox" in text for text in texts)
    (keep,) = [text for text in texts if "dispatch_keep" in text]
    assert "dispatch_keep(1, 0 + part, data) from madlib_mop.model_state where __dist_key__ = 17 and slot = 11" in keep


def test_states_of_several_models_come_with_one_pull():
    """What the process has of one does not go when the next one comes."""
    steps = """
found = states.bring([MODEL, None, {**MODEL, "mst_key": 3}, {**MODEL, "digest": None}], [None, None, 1, None])
print(found, file=sys.stderr)
"""
    done = ran(steps, stored=[(4, 0)])
    part = "ArrivedPart(n_bytes=90, pull=1, part={})"
    assert done.stderr.strip() == f"[[{part.format(0)}], [], [{part.format(1)}], []]"
    hops = [text for text, *_ in json.loads(done.stdout) if "state_inbox" in text]
    assert ["select 17, 1, 0 + part" in hops[0], "select 17, 1, 1 + part" in hops[1]] == [True, True]


def test_a_blob_of_an_answer_is_brought_here_on_demand():
    """Averages are computed at the coordinator."""
    done = ran('print(bytes(trainer.ask({"op": "average_end"})[1][0]), file=sys.stderr)')
    assert done.stderr.strip() == str(b"z" * 70)


@pytest.mark.parametrize(
    "n_parts, stored, found",
    [
        (None, [], "its stored state is gone"),
        (None, [(4, 1)], "its stored state is gone"),
        (2, [(4, 0)], "its stored state is gone"),
        (1, [(4, 0)], "[ArrivedPart(n_bytes=90, pull=1, part=0)]"),
    ],
)
def test_a_state_that_is_not_whole_is_refused(n_parts, stored, found):
    done = ran(READ.format(n_parts), stored=stored)
    assert done.stderr.startswith(found)
    assert ("state_inbox" in done.stdout) == found.startswith("[")


def test_a_model_without_a_state_has_no_parts():
    done = ran(READ.format(None), digest=None)
    assert done.stderr.strip() == "[]" and "model_state" not in done.stdout

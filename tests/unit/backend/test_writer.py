"""What a writer tells its trainer about compiled functions, and what it takes from its answers."""

import json
import subprocess
import sys

from tests.helpers.clones import ROOT

#: A writer in a process without PostgreSQL, whose trainer notes requests and gives one answer.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
sys.modules["plpy"] = plpy
from mop_backend import writer
asked = []
class Trainer:
    alive, shares_functions = True, {shares!r}
    def __init__(self, *_):
        pass
    def send(self, header):
        asked.append([header, []])
    def receive(self):
        return {{"ok": True}}, []
    def ask(self, header, blobs=()):
        asked.append([header, [blob.decode() for blob in blobs]])
        return {{"ok": True, "functions": ["b"], "data_set": "forged", "segment_id": 7, "ended_at": 0}}, [b"B"]
class Record:
    def __init__(self, run_id):
        pass
    def plan(self):
        data_set = {{"segments": [{{"segment_id": 0}}]}}
        return {{"plan": {{"training": data_set, "trainer": {{"threads": 1}}}}, "seed": 1}}
    def custom_functions(self):
        return None
    def model(self, mst_key):
        names = "arch compile_params fit_params seed_key has_weights state_version forward_parts digest".split()
        return dict.fromkeys([*names, "weights_digest"])
    def state(self, model, n_parts):
        return [b"state"]
writer.RunRecord, writer.Local, writer.Interrupts = Record, Trainer, object
writer.with_sample = lambda plan: plan
opened = writer.Writer(1, 0)
opened._shards = {{"training:0"}}
shards = [{{"data_set": "training", "segment_id": 0}}]
task = {{"do": "evaluate", "shards": shards, "mst_key": 1, "functions": {{"a": "QQ=="}}}}
answer = opened.do(task)
print(json.dumps([asked, answer.get("functions"), answer["shards"]]))
"""


def conversation(shares: bool) -> tuple[list, dict | None, list]:
    """Return what the trainer was asked, and the functions and the shards that the writer passes to the driver."""
    code = _CODE.format(paths=[str(ROOT / "plpython")], shares=shares)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_trainer_on_this_server_gets_functions_and_returns_its_own():
    ((start, _), (request, blobs)), functions, _ = conversation(shares=True)
    assert start["op"] == "start" and start["share_functions"] is True
    assert (request["op"], request["functions"], blobs) == ("evaluate", ["a"], ["A", "state"])
    assert functions == {"b": "Qg=="}


def test_a_trainer_elsewhere_gets_none():
    """Its host would refuse the request. Trainers of one run can be here and elsewhere."""
    ((start, _), (request, blobs)), _, _ = conversation(shares=False)
    assert start["share_functions"] is False
    assert "functions" not in request and blobs == ["state"]


def test_machine_code_of_a_host_goes_to_no_other_trainer():
    """The answer of the trainer has a function all the same."""
    _, functions, _ = conversation(shares=False)
    assert functions is None


def test_an_answer_does_not_say_which_shard_it_is_about():
    """Users' code runs in trainers; the driver looks for the shards that it asked for."""
    _, _, (shard,) = conversation(shares=True)
    assert (shard["data_set"], shard["segment_id"]) == ("training", 0) and shard["ended_at"] > 0

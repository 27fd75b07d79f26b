"""What a writer takes from the answers of its trainer."""

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
class Trainer:
    alive = True
    def __init__(self, *_):
        pass
    def send(self, header):
        pass
    def receive(self):
        return {{"ok": True}}, []
    def ask(self, header, blobs=()):
        return {{"ok": True, "data_set": "forged", "segment_id": 7, "ended_at": 0}}, []
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
print(json.dumps(opened.do({{"do": "evaluate", "shards": shards, "mst_key": 1}})["shards"]))
"""


def shards_of_an_answer() -> list:
    """Return the shards that the writer passes to the driver."""
    code = _CODE.format(paths=[str(ROOT / "plpython")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_answer_does_not_say_which_shard_it_is_about():
    """Users' code runs in trainers; the driver looks for the shards that it asked for."""
    (shard,) = shards_of_an_answer()
    assert (shard["data_set"], shard["segment_id"]) == ("training", 0) and shard["ended_at"] > 0

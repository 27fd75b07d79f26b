"""A state comes to a segment's host directly, or through the writer where the hosts cannot connect."""

import json
import subprocess
import sys

from tests.helpers.clones import ROOT

#: A writer's side in a process without PostgreSQL: the segment is at beta, the state at alpha.
_CODE = """
import json, sys, types
sys.path[:0] = {paths!r}
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
sys.modules["plpy"] = plpy
from mop_backend import host_states
from mop_backend.channels import HostLost, HostRefused
from mop_backend.seals import digest_of_all

clock, log = [0.0], []
host_states.time = types.SimpleNamespace(monotonic=lambda: clock[0])
STATE = [b"abc", b"d"]
MODEL = {{"mst_key": 1, "state_server": "alpha", "state_version": 2, "digest": digest_of_all(STATE), "state_bytes": 4}}
REQUEST = {{"op": "train", "members": [{{"n_blobs": 0, "has_state": False}}]}}

class Relay:  # to alpha
    alive, lost_at, after_serve = True, None, {{}}
    def ask(self, request):
        log.append(request["op"])
        if self.lost_at == request["op"]:
            raise HostLost("it is gone")
        if request["op"] == "offer":
            return {{"place": ["192.0.2.1", 5500, None]}}, []
        part = request["part"]
        return {{"n_parts": 2}}, [STATE[part]]
    def send(self, request):
        log.append(request["op"])
    def receive(self):
        if isinstance(self.after_serve, Exception):
            raise self.after_serve
        return self.after_serve, []
    def stop(self):
        log.append("stopped")

class Trainer:  # at beta
    connects = True
    def ask(self, header, blobs=()):
        pulls = header.get("hop", {{}}).get("pulls", [])
        log.append("pull" if pulls else "parts %d" % len(blobs))
        if pulls and not self.connects:
            return {{"hop_failed": "no way" * 100, "pull": 0}}, []
        return {{"members": [], "held": True, "pull_s": 0.0}}, []

opened = []
def connect(server):
    log.append("connect " + server)
    opened.append(Relay())
    return opened[-1]

def ask():
    log.clear()
    states.ask(trainer, REQUEST, [MODEL], [], [None], [(1, 3)])
    return list(log)

states, trainer, result = host_states.HostStates(None, 7, "beta", connect), Trainer(), []
{code}
print(json.dumps(result))
"""
_FETCH = ["held_part", "held_part"]


def result_of(code: str):
    code = _CODE.format(paths=[str(ROOT / "plpython")], code=code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_state_comes_directly_and_the_relay_stays_open():
    first, second, told = result_of("result += [ask(), ask(), states.new_detours()]")
    assert first == ["connect alpha", "offer", "serve", "pull"] and second == first[1:] and not told


def test_where_hosts_do_not_connect_states_come_through_the_writer_for_some_time():
    code = """
trainer.connects = False
for at in (0, 29, 31, 89):
    clock[0] = at
    result.append(ask()[-4:])
told = states.new_detours()
result.append([[d.sender, d.receiver, len(d.reason)] for d in told])
trainer.connects = True
clock[0] = 92
result += [ask(), len(states.new_detours())]
"""
    at_0, at_29, at_31, at_89, told, at_92, n_told = result_of(code)
    assert at_0[1:] == at_31[1:] == [*_FETCH, "parts 2"]
    assert at_29 == at_89 == [*_FETCH, "parts 2"]
    assert told == [["alpha", "beta", 200]] and n_told == 0
    assert at_92 == ["offer", "serve", "pull"]


def test_a_relay_to_a_host_that_has_restarted_is_opened_again():
    code = """
ask()
opened[0].lost_at = "offer"
result.append(ask())
opened[1].lost_at = "offer"
Relay.lost_at = "offer"
try:
    ask()
except host_states.Away as away:
    result += [away.server, list(log)]
"""
    again, away, tried = result_of(code)
    assert again == ["offer", "stopped", "connect alpha", "offer", "serve", "pull"]
    assert away == "alpha" and tried == ["offer", "stopped", "connect alpha", "offer", "stopped"]


def test_what_happens_to_the_sender_after_the_state_has_arrived_does_not_matter():
    code = """
for error in (HostLost("it is gone"), HostRefused({"message": "an error"})):
    Relay.after_serve = error
    result.append(ask())
"""
    assert result_of(code) == 2 * [["connect alpha", "offer", "serve", "pull", "stopped"]]


def test_a_segment_of_the_coordinator_gets_states_through_its_writer():
    code = """
states = host_states.HostStates(None, 7, None, connect)
result += [ask(), states.new_detours()]
"""
    assert result_of(code) == [["connect alpha", *_FETCH, "parts 2"], []]

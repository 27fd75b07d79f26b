"""What a writer does for the orders of the driver, and what it takes from the answers of its trainer."""

import subprocess
import sys

import pytest
from mop_backend.messages import (
    CommittedVisit,
    ComputeMetrics,
    Died,
    Done,
    Evaluate,
    Evaluated,
    EvaluationFigures,
    Failed,
    LoadedRows,
    LoadShard,
    MetricsComputed,
    MetricTotals,
    NeedsRows,
    ReleaseTrainer,
    ShardLoaded,
    ShardName,
    StateWrite,
    Train,
    VisitFigures,
    VisitsCommitted,
    as_text,
    read_answer,
    to_json,
)

from tests.helpers.clones import ROOT

#: A writer in a process without PostgreSQL, whose trainer gives one answer, and which prints what it keeps.
_CODE = """
import contextlib, sys, types
sys.path[:0] = {paths!r}
class Rows(list):
    nrows = list.__len__
plpy = types.ModuleType("plpy")
plpy.SPIError, plpy.Error = type("SPIError", (Exception,), {{}}), type("Error", (Exception,), {{}})
plpy.execute = lambda query, values=(): Rows([{{"t": "now"}}])
@contextlib.contextmanager
def subtransaction():
    try:
        yield
    except BaseException:
        print("rolled back")
        raise
plpy.subtransaction = subtransaction
sys.modules["plpy"] = plpy
from mop_backend import states, writer
from mop_backend.process import ChildDied
from mop_backend.refusals import readable
from mop_backend.frames import ReceivedBlobs
from mop_backend.record import _StoredParts
class Trainer:
    alive, file_header, n_read = True, {{}}, 0
    def __init__(self, *_):
        pass
    def send(self, header, blobs=()):
        if header["op"] != "start":
            print("sent", header["op"], header["shard"], header["epoch"], list(blobs))
    def load_shard(self, shard, source, segment_id, reader_pid):
        print("loaded", shard, reader_pid)
        return readable({answer!r}), []
    def receive(self):
        return {{"ok": True}}, []
    def ask(self, header, blobs=()):
        assert [one and one["model"]["mst_key"] for one in header.get("members", [])] == {asked!r}
        return readable({answer!r}), {blobs!r}
    def ask_in_turn(self, header, blobs=()):
        sent = list(blobs)
        if {is_large!r}:
            print("sent", sent)
        answer, parts = self.ask(header, sent)
        return answer, ReceivedBlobs(list(map(len, parts)), self.read_blob)
    def read_blob(self, length):
        part = {blobs!r}[self.n_read]
        self.n_read += 1
        if self.n_read > {dies_after!r}:
            raise ChildDied(-9, "")
        if {is_large!r}:
            print("read", part)
        return part
    def reader_of(self, source, segment_id):
        return None
    def release(self, seconds):
        print("released", seconds)
        return {can_be_released!r}
    def stop(self):
        print("stopped")
class Record:
    def __init__(self, run_id):
        pass
    def plan(self):
        data_set = {{"segments": [{{"segment_id": 0}}]}}
        plan = {{"training": data_set, "trainer": {{"threads": 1}}}}
        return {{"plan": plan, "seed": 1, "owner": 10, "created": 99.5}}
    def custom_functions(self):
        return None
    def model(self, mst_key):
        names = "arch compile_params fit_params has_weights state_version forward_parts weights_digest".split()
        names.append("state_server")
        return {{**dict.fromkeys(names), "mst_key": mst_key, "seed_key": mst_key, "digest": "in",
                 "state_bytes": (64 << 20) + {is_large!r}}}
    def state(self, model, n_parts):
        return [b"state"]
    def state_in_turn(self, model, n_parts):
        return _StoredParts([3, 4], {{0: b"abc", 1: {second!r}}}.get)
    n_parts = n_bytes = 0
    def put_part(self, write, number, part, segment_id):
        assert (number, segment_id) == (self.n_parts, None)
        print("put", write.mst_key, write.slot, write.version, part)
        self.n_parts, self.n_bytes = number + 1, self.n_bytes + len(part)
    def keep(self, order, write, model, figures, state_bytes, started_at, at, server):
        print("kept", write.mst_key)
        assert state_bytes == self.n_bytes
        self.n_parts = self.n_bytes = 0
    def fail_member(self, model, reason):
        print("failed", model["mst_key"], reason)
writer.RunRecord, writer.Local, writer.Interrupts = Record, Trainer, object
writer.with_sample = lambda plan: plan
if {is_large!r}:
    writer.LARGE_BYTES = states.LARGE_BYTES = 3
writer._writer = writer.Writer(1, 0)
writer._writer._shards = set({shards!r})
{code}
print(writer.do({order!r}))
"""
#: The segment is at a host, where the new states stay; a session there says how large they are.
_AT_HOST = """
from mop_backend.host_states import HostStates, Reply
class FakeStates(HostStates):
    def ask(self, trainer, request, models, blobs, n_parts, new):
        print("new", new.versions, new.origin)
        return Reply({answer!r}, [], {is_held!r}, float({pull_s!r}))
class HostRecord(Record):
    def model(self, mst_key):
        return {{**super().model(mst_key), "state_version": {version!r}, "state_bytes": {last_bytes!r}}}
    state_in_turn = Record.state
    def keep(self, order, write, model, figures, state_bytes, started_at, at, server):
        assert state_bytes == figures.state_bytes
        print("kept", server, figures.timing["pull_s"])
one = writer._writer
one._server, one._record = "beta", HostRecord(1)
one._states = FakeStates(one._record, 1, "beta", None)
one._fingerprints = {{"training:0": "f"}}
"""
SHARD = ShardName("training", 0)
TOTALS = MetricTotals((("loss", 2, True),), "AAAA")
EVALUATED = EvaluationFigures(10, 0.5, {}, {}, TOTALS, {})
TRAINED = VisitFigures("in", "out", "w", 10, 2, 0.5, {}, 8, 8, 1, {"compute_s": 0.5, "trace_s": 2, "state_in_s": 0.25})


def train(*keys: int | None) -> Train:
    """Return the order to train models; the slot of each is its key."""
    members = tuple(None if key is None else StateWrite(key, key, 7) for key in keys)
    return Train(members, SHARD, 1, 1, 1, "epoch 1, position 1, segment 0")


def trained(n_blobs: int = 1, **changes) -> dict:
    """Return a trainer's answer about one model."""
    return {"figures": {**to_json(TRAINED), **changes}, "n_blobs": n_blobs, "error": None}


def did(
    order,
    answer,
    blobs=(),
    shards=("training:0",),
    asked=(1,),
    can_be_released=True,
    code="",
    second=None,
    dies_after=9,
):
    """Return the answer of a writer to an order, and the lines about what it did.

    ``second`` is the second part of a large state. The trainer dies after ``dies_after`` parts of its answer.
    """
    names = {"asked": list(asked), "answer": {"ok": True, **answer}, "blobs": list(blobs), "shards": list(shards)}
    paths = [str(ROOT / "plpython")]
    names |= {"can_be_released": can_be_released, "second": second, "is_large": second is not None}
    names |= {"code": code, "dies_after": dies_after}
    code = _CODE.format(paths=paths, order=as_text(order), **names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, text = done.stdout.splitlines()
    return read_answer(text), lines


def did_at_host(state_bytes, version=7, last_bytes=100, is_held=True, pull_s=0.25):
    """Return the answer of a writer whose new state stays at the host, and the lines about what it did."""
    answer = {"members": [trained(1, state_bytes=state_bytes)]}
    code = _AT_HOST.format(answer=answer, version=version, last_bytes=last_bytes, is_held=is_held, pull_s=str(pull_s))
    order = train(1)
    order.members[0].slot = None
    return did(order, {}, code=code)


def test_a_new_state_that_stays_at_its_host_is_kept_and_named_by_run_and_rows():
    """A host that was restored from a backup may hold states of another run with the same number."""
    answer, lines = did_at_host(400)
    assert answer.committed == (CommittedVisit(1, "out", 400, "beta"),)
    assert lines == ["new [(1, 7)] [99.5, 'f']", "kept beta 0.25"]


MIB, PIB = 1 << 20, 1 << 50


@pytest.mark.parametrize(
    "state_bytes, version, last_bytes, is_believed",
    [
        (64 * MIB, 7, 100, True),
        (64 * MIB + 1, 7, 100, False),
        (64 * MIB + 1, 0, 100, True),  # of a warm start from another backend, for example
        (80 * MIB, 7, 20 * MIB, True),
        (81 * MIB, 7, 20 * MIB, False),
        (PIB, 7, PIB, False),
        (PIB, 0, None, False),
        (0, 7, 100, False),
        (-1, 7, 100, False),
    ],
)
def test_a_host_that_lies_about_the_size_of_a_state_is_not_believed(state_bytes, version, last_bytes, is_believed):
    """The others take as many bytes as the record says."""
    answer, lines = did_at_host(state_bytes, version, last_bytes)
    assert isinstance(answer, VisitsCommitted) is is_believed and len(lines) == 2
    assert is_believed or "larger than they can be" in answer.error["message"]


@pytest.mark.parametrize("what", [{"is_held": False}, {"pull_s": 1e300}, {"pull_s": -1.0}, {"pull_s": float("nan")}])
def test_what_a_host_says_of_a_visit_is_checked(what):
    answer, _ = did_at_host(400, **what)
    assert isinstance(answer, Failed) and answer.kind == "internal"


def test_a_visit_of_one_model_is_kept():
    answer, lines = did(train(1), {"members": [trained(2)]}, [b"abc", b"d"])
    assert answer == VisitsCommitted({"ok": True}, (CommittedVisit(1, "out", 4),), (), 0.75)
    assert lines == ["put 1 1 7 b'abc'", "put 1 1 7 b'd'", "kept 1"]


def test_a_large_state_is_read_while_it_is_sent_and_written_while_it_is_read():
    answer, lines = did(train(1), {"members": [trained(2)]}, [b"abc", b"d"], second=b"defg")
    assert answer.committed == (CommittedVisit(1, "out", 4),)
    assert lines == [
        "sent [b'abc', b'defg']", "read b'abc'", "put 1 1 7 b'abc'", "read b'd'", "put 1 1 7 b'd'", "kept 1",
    ]  # fmt: skip


def test_of_a_large_state_nothing_is_kept_if_the_trainer_dies_while_it_is_read():
    """The answer is that of a statement that commits; of models that are trained together, the first would be kept."""
    members = [trained(1), trained(2)]
    answer, lines = did(
        train(1, 3), {"members": members}, [b"abc", b"d", b"e"], asked=[1, 3], second=b"defg", dies_after=2
    )
    assert isinstance(answer, Died) and answer.status == -9
    kept = [line for line in lines if line.startswith(("put", "kept", "rolled", "stopped"))]
    assert kept == ["put 1 1 7 b'abc'", "kept 1", "put 3 3 7 b'd'", "rolled back", "stopped"]


def test_a_small_state_is_received_before_any_of_it_is_kept():
    answer, lines = did(train(1), {"members": [trained(2)]}, [b"abc", b"d"], dies_after=1)
    assert isinstance(answer, Died) and lines == ["stopped"]


def test_a_large_state_with_a_part_of_another_length_fails_its_model_and_ends_the_trainer():
    """The trainer waits for the rest of a frame that does not come."""
    answer, lines = did(train(1), {"members": [trained(2)]}, [b"abc", b"d"], second=b"def")
    assert isinstance(answer, Failed) and answer.kind == "model"
    assert "its stored state is gone" in answer.error["message"]
    assert lines == ["stopped"]


def test_the_parts_of_a_large_state_that_is_refused_are_read():
    answer, lines = did(train(1), {"members": [trained(2, digest_in="other")]}, [b"abc", b"d"], second=b"defg")
    assert isinstance(answer, Failed) and answer.kind == "model"
    assert lines == ["sent [b'abc', b'defg']", "read b'abc'", "read b'd'"]


#: The recorded size of the newest states, and the smallest limit.
_OF_SIZE = """
class SizedRecord(Record):
    def model(self, mst_key):
        return {{**super().model(mst_key), "state_version": {version!r}, "state_bytes": {n_bytes!r}}}
writer._writer._record = writer._writer._states._record = SizedRecord(1)
writer._SMALL_STATE = 3
"""


@pytest.mark.parametrize("version, n_bytes", [(6, 1), (6, 2), (6, 0), (0, 1), (None, None)])
def test_a_state_of_at_most_four_times_the_size_before_is_kept(version, n_bytes):
    code = _OF_SIZE.format(version=version, n_bytes=n_bytes)
    for second in (None, b"defg"):
        answer, _ = did(train(1), {"members": [trained(2)]}, [b"abc", b"d"], second=second, code=code)
        assert answer.committed == (CommittedVisit(1, "out", 4),)


def test_a_state_that_grows_without_end_is_not_kept():
    """The memory of the session limits only one part of it, so it could fill the disk."""
    members = [trained(1), {"figures": None, "n_blobs": 1, "error": {"message": "no"}}]
    for answer, blobs, asked in (
        ({"members": [trained(2)]}, [b"abc", b"de"], [1]),
        ({"members": members}, [b"abc", b"defgh"], [1, 3]),
    ):
        code = _OF_SIZE.format(version=6, n_bytes=1)
        order = train(*asked)
        failed, lines = did(order, answer, blobs, asked=asked, second=b"defg", code=code)
        assert isinstance(failed, Failed) and "larger than they can be" in failed.error["message"]
        assert lines[1:] == ["stopped"]


def test_of_models_that_are_trained_together_each_is_kept_or_has_failed():
    """Also of a failure, only what can be shown and recorded is taken: a trainer runs what users wrote."""
    error = {"sqlstate": "38000", "message": "the loss became\0 nan" + "x" * 20_000, "more": 5}
    members = [trained(1), None, {"figures": None, "n_blobs": 0, "error": error}, trained(1)]
    answer, lines = did(train(1, None, 3, 4), {"members": members}, [b"a", b"bb"], asked=[1, None, 3, 4])
    assert answer.committed == (CommittedVisit(1, "out", 1), CommittedVisit(4, "out", 2)) and answer.steady_s == 1.5
    (failed,) = answer.failed
    assert failed.mst_key == 3 and failed.reason.startswith("the loss became? nan")
    assert failed.reason.endswith("x (epoch 1, position 1, segment 0)") and len(failed.reason) < 10_100
    assert [line[:8] for line in lines] == ["put 1 1 ", "kept 1", "failed 3", "put 4 4 ", "kept 4"]


@pytest.mark.parametrize(
    "members, blobs, reason",
    [
        ([], 1, "it is not about the models of the request"),
        ([None], 1, "it is not about the models of the request"),
        ([trained(), trained()], 2, "it is not about the models of the request"),
        ([trained(2)], 1, "its states have not the number of parts that it says"),
        ([trained(-1)], 0, "its states have not the number of parts that it says"),
        ([trained(digest_out=5)], 1, "digest_out has not its type. Received: 5"),
        ([trained(timing={"compute_s": "a"})], 1, "has not its type. Received: 'a'"),
        ([trained(timing={"compute_s": 1e300})], 1, "its times are no times of a task"),
        ([trained(timing={"compute_s": -1e300})], 1, "its times are no times of a task"),
        ([trained(timing={"trainer": 1.5})], 1, "its times are no times of a task"),
        ([trained(timing={"fused": 0})], 1, "its times are no times of a task"),
        ([{"n_blobs": 0}], 0, "lacks figures"),
        ("a", 0, "members has not its type"),
    ],
)
def test_an_answer_that_cannot_be_read_ends_the_trainer_and_keeps_nothing(members, blobs, reason):
    answer, lines = did(train(1), {"members": members}, [b"a"] * blobs)
    assert isinstance(answer, Failed) and answer.kind == "internal" and answer.error["sqlstate"] == "XX000"
    assert answer.error["message"].startswith("the trainer's answer is malformed: ")
    assert reason in answer.error["message"] and lines == ["stopped"]


def test_a_model_that_was_trained_from_another_state_fails():
    answer, lines = did(train(1), {"members": [trained(digest_in="other")]}, [b"a"])
    assert isinstance(answer, Failed) and answer.kind == "model" and lines == []
    assert "SHA-256" in answer.error["message"] and "clone_model(1, 1, " in answer.error["hint"]


def test_an_evaluation_has_the_figures_of_each_model_on_the_shards_that_are_loaded():
    order = Evaluate((1, None, 3), (SHARD, ShardName("validation", 0)))
    figures = to_json(EVALUATED)
    answer, _ = did(order, {"members": [figures, None, figures]}, asked=[1, None, 3])
    assert isinstance(answer, Evaluated)
    (shard,) = answer.shards
    assert shard.shard == SHARD and 0 < shard.started_at <= shard.ended_at
    assert [(member.mst_key, member.figures) for member in shard.members] == [(1, EVALUATED), (3, EVALUATED)]


def test_an_answer_does_not_say_which_shard_it_is_about():
    """Users' code runs in trainers; the driver looks for the shards that it asked for."""
    forged = {"data_set": "forged", "segment_id": 7, "ended_at": 0}
    for answer in ({"members": [to_json(EVALUATED)], **forged}, {"members": [{**to_json(EVALUATED), **forged}]}):
        failed, lines = did(Evaluate((1,), (SHARD,)), answer)
        assert isinstance(failed, Failed) and "has no field 'data_set'" in failed.error["message"]
        assert lines == ["stopped"]


@pytest.mark.parametrize("timing", [{"compute_s": 1e300}, {"fused": 0}, {"fused": 2}])
def test_the_times_of_an_evaluation_are_times(timing):
    """Views divide by the number of places and add up the rest, of all runs that a role sees."""
    answer, lines = did(Evaluate((1,), (SHARD,)), {"members": [{**to_json(EVALUATED), "timing": timing}]})
    assert isinstance(answer, Failed) and "its times are no times of a task" in answer.error["message"]
    assert lines == ["stopped"]


@pytest.mark.parametrize("order", [train(1), Evaluate((1,), (SHARD,)), ComputeMetrics(1, SHARD, {"training": TOTALS})])
def test_an_order_waits_for_the_rows_that_the_trainer_lacks(order):
    """Metrics are computed beside rows too, which have the model's shapes; a trainer that died has lost them."""
    assert did(order, {}, shards=[]) == (NeedsRows(SHARD, None), [])


def test_a_visit_is_begun_before_its_rows_are_loaded_and_nothing_of_it_is_kept():
    rows = LoadedRows(10, 80, "f", True, ("training:0",))
    answer, lines = did(LoadShard(SHARD, 7, begin=train(1)), to_json(rows), shards=[])
    assert answer == ShardLoaded({"ok": True}, rows)
    assert lines == ["sent begin_visit training:0 1 [b'state']", "loaded training:0 7"]
    assert did(LoadShard(SHARD, 7), to_json(rows), shards=[])[1] == ["loaded training:0 7"]


def test_a_visit_with_a_large_state_begins_when_its_rows_are_there():
    rows = LoadedRows(10, 80, "f", True, ("training:0",))
    assert did(LoadShard(SHARD, 7, begin=train(1)), to_json(rows), shards=[], second=b"defg")[1] == [
        "loaded training:0 7"
    ]


def test_metrics_are_those_of_the_data_sets_of_the_order():
    order = ComputeMetrics(1, SHARD, {"training": TOTALS, "validation": TOTALS})
    values = [{"loss": 0.5, "metrics": {"auc": 1}}, {"loss": 0.25, "metrics": {}}]
    answer, _ = did(order, {"results": values}, asked=())
    assert isinstance(answer, MetricsComputed)
    assert {name: value.loss for name, value in answer.results.items()} == {"training": 0.5, "validation": 0.25}
    answer, _ = did(order, {"results": values[:1]}, asked=())
    assert isinstance(answer, Failed) and "not those of all data sets" in answer.error["message"]


@pytest.mark.parametrize(
    ("reusable", "can_be_released", "lines"),
    [
        (True, True, ["released 5.0"]),
        (True, False, ["released 5.0", "stopped"]),
        (False, True, ["stopped"]),
        (1, True, ["stopped"]),
    ],
)
def test_a_trainer_is_released_or_stopped(reusable, can_be_released, lines):
    answer, found = did(ReleaseTrainer(5.0), {"reusable": reusable}, asked=[], can_be_released=can_be_released)
    assert answer == Done({}) and found == lines

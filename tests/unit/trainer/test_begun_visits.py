"""A visit that begins while its rows arrive ends with the bits of one that begins later, and takes no row too early."""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from mop_backend.frames import PeerGone

from madlib_mop.trainer.data import shard_file
from madlib_mop.trainer.data.arrival import Arrival
from madlib_mop.trainer.data.shards import Allocated, ShardBuilder, aligned_empty
from madlib_mop.trainer.incoming import IncomingShard
from madlib_mop.trainer.process import lifetime
from madlib_mop.trainer.process.failures import model_failed
from madlib_mop.trainer.recipe import Recipe
from madlib_mop.trainer.requests import Request
from madlib_mop.trainer.server import TrainerService, _handle
from madlib_mop.trainer.visits import Start, Visitor
from tests.helpers.unit.backends import _shard
from tests.helpers.unit.cases import CASES
from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError, member
from tests.unit.trainer.test_features import LEARNS
from tests.unit.trainer.test_fused_visits import fused, of_request
from tests.unit.trainer.test_fused_visits import member as fused_member

CASE = CASES[0]
IN_ORDER = next(case for case in CASES if not case.shuffle)
FILE = {"shard_cache_bytes": 0, "shard_disk_bytes": 1 << 30}
N_ROWS = 53


class OnDemand(Arrival):
    """Rows that come in buffers of ten when they are waited for; before, their arrays are full of what spoils a state.

    Attributes
    ----------
    waited_for : list of (int, int)
        How many rows a stretch has waited for, and how many buffers came for it.
    """

    def __init__(self, case):
        super().__init__()
        xs, ys = case.data(N_ROWS)
        self._columns, self._n_x, self.waited_for = [*xs, *ys], len(xs), []
        indices = [number for number, x in enumerate(xs) if x.dtype == np.int32]
        self._builder = ShardBuilder(
            len(xs), len(ys), 1.0, planned_rows=N_ROWS, index_inputs=indices, arrival=self, allocate=self._spoiled
        )
        self._add()

    @staticmethod
    def _spoiled(forms):
        arrays = [aligned_empty(*form) for form in forms]
        for array in arrays:
            array[...] = np.nan if array.dtype.kind == "f" else 0
        return Allocated(arrays)

    def _add(self):
        rows = [column[self._builder.n_rows : self._builder.n_rows + 10] for column in self._columns]
        self._builder.add([row.shape for row in rows], [row.tobytes() for row in rows])
        if self._builder.n_rows == N_ROWS:
            self.end(self._builder.finish())

    def wait_for(self, n_rows):
        came = 0
        while self._n_rows < n_rows:
            self._add()
            came += 1
        self.waited_for.append((n_rows, came))
        super().wait_for(n_rows)

    def whole(self):
        while not self.has_ended:
            self._add()
        return super().whole()


def test_batches_in_order_need_only_the_rows_before_them(monkeypatch):
    monkeypatch.setattr(shard_file, "_AHEAD_BYTES", 1)
    case = IN_ORDER
    recipe, arrival = Recipe.read(case.request()), OnDemand(case)
    made = Visitor().train(recipe, Start(), arrival.begun(), 1, 0)
    assert arrival.waited_for == [(10, 0), (20, 1), (30, 1), (40, 1), (50, 1), (N_ROWS, 1)]
    expected = Visitor().train(recipe, Start(), _shard(case, N_ROWS), 1, 0)
    assert made.figures.digest_out == expected.figures.digest_out


@pytest.mark.parametrize("case", [CASE, *LEARNS[:1], *(c for c in CASES if c.class_weight)], ids=lambda c: c.name)
def test_other_batches_wait_for_their_rows(monkeypatch, case):
    """Those that are shuffled for nearly all of them; weights of classes and features of frozen layers for all."""
    monkeypatch.setattr(shard_file, "_AHEAD_BYTES", 1)
    recipe, arrival = Recipe.read(case.request()), OnDemand(case)
    made = Visitor(features_room=lambda: 1 << 28).train(recipe, Start(), arrival.begun(), 1, 0)
    expected = Visitor(features_room=lambda: 1 << 28).train(recipe, Start(), _shard(case, N_ROWS), 1, 0)
    assert made.figures.digest_out == expected.figures.digest_out
    assert ("features_s" in made.figures.timing) == ("features_s" in expected.figures.timing)


def test_passes_after_the_first_wait_for_the_whole_shard(monkeypatch):
    """So rows that never end keep nobody training: the run's place is given to others meanwhile."""
    monkeypatch.setattr(shard_file, "_AHEAD_BYTES", 1)
    case = dataclasses.replace(IN_ORDER, passes=3, steps_per_epoch=2)
    recipe, arrival = Recipe.read(case.request()), OnDemand(case)
    made = Visitor().train(recipe, Start(), arrival.begun(), 1, 0)
    assert arrival.waited_for == [(10, 0), (20, 1)]
    expected = Visitor().train(recipe, Start(), _shard(case, N_ROWS), 1, 0)
    assert made.figures.digest_out == expected.figures.digest_out


def test_without_a_thread_rows_arrive_as_usual(monkeypatch):
    """A trainer near its memory limit may get none."""
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    incoming, usual_s = IncomingShard(), sys.getswitchinterval()
    with pytest.raises(RuntimeError), incoming.arriving(None, None):
        pass
    assert sys.getswitchinterval() == usual_s
    xs, ys = CASE.data(N_ROWS)
    head = {"shard": "s", "n_x": 1, "n_y": 1, "normalizing_const": 1.0, "planned_rows": N_ROWS}
    incoming.begin(Request(head))
    incoming.add([xs[0].shape, ys[0].shape], [xs[0].tobytes(), ys[0].tobytes()])
    shard = weakref.ref(incoming.finish("s"))
    assert shard() is None, "nothing but the caller keeps it"


@pytest.mark.parametrize("failure", [model_failed("it does not build"), MemoryError()])
def test_a_begun_visit_that_fails_leaves_its_memory_to_the_request(monkeypatch, failure):
    released, shard = [], _shard(CASE, N_ROWS)

    def fail(*_):
        raise failure

    service = TrainerService(lambda: None, channel=object())
    service.started = True
    service._incoming = SimpleNamespace(arriving=lambda *_: contextlib.nullcontext(shard))
    monkeypatch.setattr(service, "_made", fail)
    monkeypatch.setattr(lifetime, "release_memory", lambda: released.append(True))
    request = {"op": "begin_visit", "shard": "s", "epoch": 1, "segment_id": 0, "members": [member(CASE.request())]}
    assert _handle(service, request, []) == (None, [])
    assert released == [True] and service._begun is None
    assert service.is_reusable == (not isinstance(failure, MemoryError))


def _refuse(*_):
    raise RuntimeError("can't start new thread")


@pytest.fixture(scope="module")
def usual():
    with Trainer() as trainer:
        yield trainer


@pytest.fixture(scope="module", params=["memory", "file"])
def early(request, tmp_path_factory):
    """A trainer in a sandbox, whose rows are in memory or in its file."""
    more = {**FILE, "shard_directory": str(tmp_path_factory.mktemp("files"))} if request.param == "file" else {}
    with Trainer(sandbox=True, **more) as trainer:
        yield trainer


def visits(trainer, case, begins: bool) -> list:
    """Make two epochs of visits of two shards, each of which is sent before; return everything but times."""
    found, parts = [], None
    for epoch in (1, 2):
        for segment_id, n in enumerate((N_ROWS, 80)):
            place = {"epoch": epoch, "segment_id": segment_id, "state": parts}
            if begins:
                trainer.begin(case.request(), str(n), **place)
            shard = trainer.send_shard(str(n), *case.data(n), buffer_size=11, planned_rows=n)
            figures, parts = trainer.train(case.request(), str(n), **place)
            assert ("rows_s" in figures.pop("timing")) == begins
            parts = [bytes(part) for part in parts]
            found += [shard["fingerprint"], shard["cached"], parts, figures]
    return [*found, {**trainer.evaluate(case.request(), "80", state=parts), "timing": {}}]


@pytest.mark.one_case
@pytest.mark.parametrize("case", [*CASES, *LEARNS[:1]], ids=lambda case: case.name)
def test_each_case_has_the_same_bits(usual, early, case):
    assert visits(early, case, begins=True) == visits(usual, case, begins=False)


@pytest.mark.skipif(BACKEND == "torch", reason="models are not trained together on PyTorch")
def test_models_that_train_together_have_the_same_bits(usual, early):
    chance = np.random.default_rng(1)
    rows = [chance.normal(size=(45, 4, 3)).astype(np.float32)], [np.eye(3, dtype=np.int16)[chance.integers(0, 3, 45)]]
    models, found = [fused_member(number, "Adam(lr={rate})") for number in range(3)], []
    for trainer in (usual, early):
        if trainer is early:
            head = {"op": "begin_visit", "shard": "fused", "epoch": 1, "segment_id": 0}
            trainer.channel.send({**head, "members": [of_request(model, None) for model in models]})
        trainer.send_shard("fused", *rows, planned_rows=45, buffer_size=10)
        outcomes = fused(trainer, models, "fused", 1, 0, [None] * 3)
        assert all(("rows_s" in one.answer["timing"]) == (trainer is early) for one in outcomes)
        found.append([(one.digest, one.answer["loss"], one.answer["metrics"]) for one in outcomes])
    assert found[0] == found[1]


def test_another_request_than_the_one_that_was_begun_is_made(usual, early):
    """A begun visit stands for nothing but itself, and only once."""
    usual.send_shard("s", *CASE.data(N_ROWS), planned_rows=N_ROWS)
    expected = [usual.train(CASE.request(), "s", epoch=epoch)[0]["digest_out"] for epoch in (1, 2)]
    for epochs in ([2, 1], [1, 1, 2]):
        early.begin(CASE.request(), "s", epoch=1)
        early.send_shard("s", *CASE.data(N_ROWS), planned_rows=N_ROWS)
        made = [early.train(CASE.request(), "s", epoch=epoch)[0] for epoch in epochs]
        assert [one["digest_out"] for one in made] == [expected[epoch - 1] for epoch in epochs]
        assert ["rows_s" in one["timing"] for one in made] == [epochs == [1, 1, 2], *[False] * (len(epochs) - 1)]


def test_a_visit_of_rows_that_were_replaced_is_made_anew(usual, early):
    xs, ys = CASE.data(N_ROWS)
    early.begin(CASE.request(), "s")
    early.send_shard("s", xs, ys, planned_rows=N_ROWS)
    for trainer in (usual, early):
        trainer.send_shard("s", [x + 1 for x in xs], ys, planned_rows=N_ROWS)
    assert early.train(CASE.request(), "s")[0]["digest_out"] == usual.train(CASE.request(), "s")[0]["digest_out"]


def test_the_wait_for_the_first_rows_is_no_time_of_training(early):
    early.begin(CASE.request(), "s")
    time.sleep(1.0)
    early.send_shard("s", *CASE.data(N_ROWS), planned_rows=N_ROWS)
    assert early.train(CASE.request(), "s")[0]["timing"]["rows_s"] > 0.9


def test_rows_that_are_refused_are_not_trained_on(usual, early):
    xs, ys = CASE.data(N_ROWS)
    (spoiled,) = (x.copy() for x in xs)
    spoiled[40, 5] = np.inf
    early.begin(CASE.request(), "s")
    with pytest.raises(TrainerError, match="column x1 has inf in 1 of the rows 40 to 49"):
        early.send_shard("s", [spoiled], ys, buffer_size=10, planned_rows=N_ROWS)
    with pytest.raises(TrainerError, match="is not in the trainer's memory"):
        early.train(CASE.request(), "s")
    for trainer in (usual, early):
        trainer.send_shard("s", xs, ys, planned_rows=N_ROWS)
    assert early.train(CASE.request(), "s")[0]["digest_out"] == usual.train(CASE.request(), "s")[0]["digest_out"]


@pytest.mark.parametrize("planned", [N_ROWS - 20, N_ROWS + 20, None])
def test_another_number_of_rows_than_planned_is_answered_as_without_a_begun_visit(usual, early, planned):
    found = []
    for trainer in (usual, early):
        if trainer is early:
            trainer.begin(CASE.request(), "s")
        shard = trainer.send_shard("s", *CASE.data(N_ROWS), buffer_size=10, planned_rows=planned)
        found.append((shard["n_rows"], shard["fingerprint"]))
    assert found[0] == found[1] and found[0][0] == N_ROWS
    if planned is None or planned > N_ROWS:  # else there was no room for them, and the run refuses them
        figures = early.train(CASE.request(), "s")[0]
        assert figures["n_rows"] == N_ROWS and "rows_s" not in figures["timing"]


def test_the_error_of_a_begun_visit_is_that_of_its_request(usual, early):
    request = {**CASE.request(), "compile_params": "loss='mse', optimizer='SGD(lr=1e30)'"}
    errors = []
    for trainer in (usual, early):
        if trainer is early:
            trainer.begin(request, "s")
        trainer.send_shard("s", *CASE.data(N_ROWS), planned_rows=N_ROWS)
        with pytest.raises(TrainerError) as caught:
            trainer.train(request, "s")
        errors.append((caught.value.kind, caught.value.message, caught.value.hint))
        assert trainer.train(CASE.request(), "s")[0]["n_rows"] == N_ROWS, "others go on"
    assert errors[0] == errors[1] and errors[0][0] == "model"


def test_a_begun_visit_uses_up_rows_that_are_kept_for_one_visit():
    with Trainer(shard_cache_bytes=1) as trainer:
        trainer.begin(CASE.request(), "s")
        assert not trainer.send_shard("s", *CASE.data(N_ROWS), planned_rows=N_ROWS)["cached"]
        assert "rows_s" in trainer.train(CASE.request(), "s")[0]["timing"]
        with pytest.raises(TrainerError, match="is not in the trainer's memory"):
            trainer.train(CASE.request(), "s")


def test_a_run_that_ends_takes_a_begun_visit_along(tmp_path):
    with Trainer(**FILE, shard_directory=str(tmp_path)) as trainer:
        trainer.begin(CASE.request(), "s")
        trainer.send_shard("s", *CASE.data(N_ROWS), planned_rows=N_ROWS)
        assert trainer.ask({"op": "reset"})[0]["reusable"]
        with pytest.raises(TrainerError, match="is not in the trainer's memory"):
            trainer.train(CASE.request(), "s")


@pytest.mark.parametrize("next_op", ["stats", "train", "nothing"])
def test_what_brings_no_shard_is_refused_after_a_begun_visit(next_op):
    with Trainer() as trainer:
        trainer.begin(CASE.request(), "s")
        with pytest.raises(TrainerError, match="malformed request to the trainer"):
            trainer.ask({"op": next_op})
        trainer.send_shard("s", *CASE.data(N_ROWS), planned_rows=N_ROWS)
        assert "rows_s" not in trainer.train(CASE.request(), "s")[0]["timing"]


@pytest.mark.parametrize("end", ["SIGKILL", "its client has gone"])
def test_a_trainer_that_ends_while_rows_arrive_leaves_nothing(tmp_path, end):
    trainer = Trainer(**FILE, shard_directory=str(tmp_path))
    try:
        files = f"/proc/{trainer.process.pid}/fd"
        (held, *_) = (
            os.open(f"{files}/{fd}", os.O_RDONLY)
            for fd in os.listdir(files)
            if os.readlink(f"{files}/{fd}").startswith(str(tmp_path))
        )
        trainer.begin(IN_ORDER.request(), "s")
        xs, ys = IN_ORDER.data(N_ROWS)
        head = {"op": "shard_begin", "shard": "s", "n_x": 1, "n_y": 1, "normalizing_const": 1.0, "index_inputs": [0]}
        trainer.channel.send({**head, "planned_rows": N_ROWS})
        rows = [column[:20] for column in (*xs, *ys)]
        trainer.channel.send({"op": "shard_rows", "shapes": [row.shape for row in rows]}, rows)
        deadline = time.monotonic() + 30
        while os.fstat(held).st_blocks == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.fstat(held).st_blocks > 0, "rows are in its file"
        if end == "SIGKILL":
            os.kill(trainer.process.pid, signal.SIGKILL)
        else:
            trainer.process.stdin.close()
        trainer.process.wait(20)
        assert os.fstat(held).st_nlink == 0 and not list(tmp_path.iterdir())
        os.close(held)
        if end == "SIGKILL":
            with pytest.raises(PeerGone):
                trainer.ask({"op": "stats"})
    finally:
        trainer.close()


def test_a_shared_trainer_begins_no_visit():
    """Nothing but predictions goes through it; it has several clients, so no rows could follow."""
    service = TrainerService(lambda: None, is_shared=True)
    service.started, service._incoming = True, type("Incoming", (), {"fail": lambda self, failure: None})()
    assert _handle(service, {"op": "begin_visit", "members": [member(CASE.request())]}, []) == (None, [])
    assert service._begun is None

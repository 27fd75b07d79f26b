"""Runs without a server: the real hopper, with segments and a record in memory, and drivers that may die."""

import hashlib
from random import Random
from unittest import mock

import pytest

from madlib_mop.catalog.rows.plan import FusedGroup, FusedPlan
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.running import hopper
from madlib_mop.driver.running.averaging import Averaging
from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.schedule.bulk import AVERAGING
from tests.helpers.unit.fake_segments import FakeSegments, Fault
from tests.helpers.unit.memory_record import MemoryRecord
from tests.helpers.unit.rows import a_model, a_plan, a_run

DENSE = {
    "class_name": "Dense",
    "config": {"name": "d", "units": 3, "activation": "softmax", "batch_input_shape": [None, 4]},
}
ARCH = {"class_name": "Sequential", "config": {"name": "s", "layers": [DENSE]}}
COMPILE = "loss='categorical_crossentropy', optimizer='sgd'"
#: Of each run, so that it has the same history on every machine.
N_PROCESSORS = 2
#: Faults that a run overcomes.
PASSING = {Fault.LOST_BEFORE: 0.1, Fault.LOST_AFTER: 0.1, Fault.LOST_IDLE: 0.02, Fault.KILLED: 0.1}

RULE = {"patience": 1, "metric": "loss", "mode": "min", "min_delta": 0.0, "restore_best": True}


class Died(BaseException):
    """The driver was killed."""


class Driver:
    """Drives runs of one record, one driver after the other, until the run is complete."""

    def __init__(self, seed, n_models=3, n_segments=3, n_epochs=2, faults=None, groups=(), early_stopping=None,
                 any_trainer=False, **run):  # fmt: skip
        self.chance, self.any_trainer = Random(seed), any_trainer
        self.segment_ids = list(range(n_segments))
        fused = FusedPlan(max(map(len, groups), default=0), tuple(FusedGroup(keys, len(keys)) for keys in groups))
        plan = a_plan([(segment, 10) for segment in self.segment_ids], fused_training=fused,
                      any_trainer=any_trainer)  # fmt: skip
        columns = {"num_iterations": n_epochs, "n_models": n_models, **run}
        config = {"model_arch": ARCH, "compile_params": COMPILE, "early_stopping": early_stopping}
        models = [a_model(key, last_epoch=n_epochs, **config) for key in range(1, n_models + 1)]
        self.record = MemoryRecord(a_run(plan, **columns), models)
        self.faults, self.caller = faults or {}, mock.Mock()
        self.between = lambda: None
        self.segments = None

    def drive(self):
        """Drive the run until its end, or an error."""
        self.segments = self.make_segments()
        run = self.record.the_run
        progress = ProgressReporter(self.caller, run, self.record.models(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hopper, "processors", lambda: N_PROCESSORS)
            self.segments.open()
            self.hopper(run, progress).run()
        return self

    def make_segments(self):
        """Return the segments of the next driver."""
        return FakeSegments(
            self.segment_ids, self.record.do, self.chance, self.faults, lambda: self.between(), self.policy_says
        )  # fmt: skip

    def hopper(self, run, progress):
        """Return what drives the run."""
        kind = Averaging if run.schedule == AVERAGING else Hopper
        return kind(self.record, self.segments, run, progress)

    def policy_says(self):
        """Return the result of the policy's query."""
        return "[]"

    def drive_by_several(self, n_deaths=8):
        """Drive the run to its end by drivers that die before some wait, or before some write to the record."""
        left = [self.chance.randint(1, 100) for _ in range(n_deaths)]

        def die():
            if left:
                left[0] -= 1
                if not left[0]:
                    left.pop(0)
                    raise Died

        self.between = self.record.on_write = die
        for _ in range(n_deaths + 1):
            try:
                return self.drive()
            except Died:
                self.segments.orphan()
        raise AssertionError("the last driver does not die")

    @property
    def told(self):
        """What the caller was told."""
        return [call.args[0] for call in self.caller.notice.call_args_list]

    def ends(self):
        """Return what is left of each model."""
        return [(m.mst_key, m.state, m.state_detail, m.epoch, m.digest) for m in self.record.models(1)]

    def assert_complete(self, n_epochs=2, keys=None):
        """Every model has made each visit once, in one chain of states, and its metrics are those of its last state."""
        for key in keys or self.record.rows:
            model, visits = self.record.rows[key], [v for v in self.record.visits(1) if v.mst_key == key]
            assert model.state is ModelState.TRAINED
            places = sorted((v.epoch, v.segment_id) for v in visits)
            assert places == [(e, s) for e in range(1, n_epochs + 1) for s in self.segment_ids]
            digest = None
            for n, visit in enumerate(visits):
                assert (visit.epoch, visit.position) == (1 + n // len(self.segment_ids), 1 + n % len(self.segment_ids))
                place = (key, visit.epoch, visit.segment_id)
                digest = hashlib.sha256(f"{digest} {place} {visit.position}".encode()).hexdigest()
                assert visit.digest_out == digest
            assert model.digest == digest and self.record.states[key, model.state_version] == digest
            metrics = [m for m in self.record.all_metrics if m.mst_key == key]
            assert [m.epoch for m in metrics] == [n_epochs]
            assert metrics[0].value == pytest.approx(self.record.metrics_of(digest)["training", "loss"])
        assert self.record.slots == self.record.used_slots, "spare slots are dropped"
        assert set(self.record.states) == {(m.mst_key, m.state_version) for m in self.record.rows.values() if m.digest}

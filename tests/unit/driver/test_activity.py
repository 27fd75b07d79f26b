"""What segments are doing, as it is written for people who watch: tasks that last, and no more often than needed."""

import json

import pytest
from mop_backend.messages import AverageStates, ComputeMetrics, Evaluate, ShardName, StateWrite, Train

from madlib_mop.driver.running.loop import Activity, task_of

SHARD = ShardName("training", 0)


def train(*mst_keys, epoch=2):
    members = tuple(None if key is None else StateWrite(key, 0, 1) for key in mst_keys)
    return Train(members, SHARD, epoch, position=1, attempt=1, place="")


TRAIN = train(3)


class Written:
    """An activity whose clock a test sets."""

    def __init__(self):
        self.now, self.rows = 100.0, []
        self.activity = Activity(self.rows.append, lambda: self.now)

    def at(self, seconds: float, **flights) -> list:
        """Return what is written at a time, with flights by segment: (start, order)."""
        self.now, self.rows[:] = 100 + seconds, []
        begun = {int(name[1:]): (100 + began, order) for name, (began, order) in flights.items()}
        wrote = self.activity.write_due(begun)
        assert wrote == bool(self.rows)
        return self.rows[0] if self.rows else []


def test_a_task_is_written_once_it_has_lasted_a_second_and_once_only():
    written = Written()
    assert written.at(0.5, s0=(0, TRAIN)) == []
    ((segment, task, seconds),) = written.at(1.5, s0=(0, TRAIN))
    assert (segment, json.loads(task), seconds) == (0, {"kind": "visit", "mst_keys": [3], "epoch": 2}, 1.5)
    assert written.at(9, s0=(0, TRAIN)) == []


def test_a_task_that_has_ended_is_written_as_none():
    written = Written()
    written.at(2, s0=(0, TRAIN), s1=(0, TRAIN))
    ended, begun = written.at(3.5, s0=(2.2, TRAIN), s1=(3, TRAIN))
    assert ended == (1, None, 0.0) and begun[0] == 0 and begun[2] == pytest.approx(1.3)
    assert written.at(5) == [(0, None, 0.0)] and written.at(7) == []


def test_it_is_written_at_most_once_a_second():
    written = Written()
    assert written.at(2, s0=(0, TRAIN)) != []
    assert written.at(2.9, s1=(0, TRAIN)) == [] and len(written.at(3, s1=(0, TRAIN))) == 2


@pytest.mark.parametrize(
    "order, task",
    [
        (Evaluate((4,), (SHARD,)), {"kind": "evaluation", "mst_keys": [4]}),
        (Evaluate((None, 7, 8), (SHARD,)), {"kind": "evaluation", "mst_keys": [7, 8]}),
        (ComputeMetrics(4, SHARD, {}), {"kind": "evaluation", "mst_keys": [4]}),
        (train(5, None, epoch=1), {"kind": "visit", "mst_keys": [5], "epoch": 1}),
        (AverageStates(StateWrite(1, 0, 1), 3, (2,), 2), {"kind": "average", "mst_keys": [1], "epoch": 3}),
    ],
)  # fmt: skip
def test_each_message_to_a_worker_is_a_task(order, task):
    assert task_of(order) == task

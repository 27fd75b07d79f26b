"""The breakdown of a run contains all of the segments' time exactly once."""

import pytest
from breakdown import HANDLING, IDLE, breakdown


class _Record:
    """A cursor that has read tasks: (epoch, started, ended, timing), visits but for those named evaluations."""

    def __init__(self, *visits, evaluations=()):
        self._tasks = [("training", *visit) for visit in visits] + [("evaluating", *task) for task in evaluations]

    def execute(self, query, parameters):
        pass

    def fetchall(self):
        return list(self._tasks)


RECORD = _Record(
    (1, 0.0, 4.0, {"compute_s": 3.0, "trace_s": 0.5}),
    (1, 0.0, 6.0, {"compute_s": 5.0, "state_in_s": 0.5}),
    (2, 5.0, 9.0, {"compute_s": 3.0, "state_in_s": 0.2}),
    (2, 6.0, 10.0, {"compute_s": 3.5}),
)


def test_a_whole_run():
    told = breakdown(RECORD, 1, n_segments=2)
    assert told.seconds["training"] == pytest.approx(14.5) and told.seconds["tracing"] == 0.5
    assert told.seconds[HANDLING] == pytest.approx(0.5 + 0.5 + 0.8 + 0.5)
    assert told.seconds[IDLE] == pytest.approx(2 * 10 - 18)
    assert sum(told.seconds.values()) == pytest.approx(20)
    assert told.outside_share == pytest.approx(1 - 14.5 / 20)


def test_after_the_first_epoch_a_visit_under_way_counts_by_its_part():
    told = breakdown(RECORD, 1, n_segments=2, after_epoch=1)
    assert told.seconds["training"] == pytest.approx(0.75 * 3.0 + 3.5)
    assert sum(told.seconds.values()) == pytest.approx(2 * 4)
    assert "tracing" not in told.seconds


def test_members_of_a_stack_share_their_time():
    record = _Record(*[(1, 0.0, 4.0, {"compute_s": 1.5, "fused": 2})] * 2)
    told = breakdown(record, 1, n_segments=1)
    assert told.seconds == {"training": 3.0, "evaluating": 0.0, HANDLING: 1.0, IDLE: 0.0}


def test_evaluations_are_computing_but_no_training():
    """Their building, tracing and transfers count as in visits; they may end last."""
    record = _Record(
        (1, 0.0, 4.0, {"compute_s": 3.5, "trace_s": 0.25}),
        evaluations=[(1, 4.0, 6.0, {"compute_s": 1.0, "trace_s": 0.5}), (1, 4.5, 5.5, {"compute_s": 0.75})],
    )
    told = breakdown(record, 1, n_segments=2)
    assert told.seconds == {
        "tracing": 0.75, "training": 3.5, "evaluating": 1.75, HANDLING: pytest.approx(1.0), IDLE: pytest.approx(5.0),
    }  # fmt: skip
    assert told.outside_share == pytest.approx(1 - 5.25 / 12)

"""Promises 1, 4 and 6 without a server: what a run does after each event, for random histories of events."""

from random import Random

import pytest
from mop_backend.messages import Evaluate, Failed, Train

from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.errors import Cancelled, MopError
from madlib_mop.models.changes import Stop
from madlib_mop.schedule import SCHEDULES
from madlib_mop.schedule.bulk import AVERAGING
from tests.helpers.unit.fake_segments import Fault
from tests.helpers.unit.memory_runs import PASSING, RULE, Driver


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_model_makes_each_visit_once(schedule):
    Driver(1, schedule=schedule).drive().assert_complete()


@pytest.mark.parametrize("seed", range(100))
def test_lost_sessions_and_killed_trainers_change_nothing(seed):
    chance = Random(seed)
    sizes = {"n_models": chance.randint(1, 6), "n_segments": chance.randint(1, 5)}
    Driver(seed, **sizes, faults=PASSING).drive().assert_complete()


def test_with_one_order_of_visits_the_weights_are_the_same_whatever_happens():
    plain = Driver(1, schedule="rotation").drive()
    for seed in range(20):
        other = Driver(seed, schedule="rotation", faults=PASSING).drive()
        assert {m.mst_key: m.digest for m in other.record.models(1)} == {
            m.mst_key: m.digest for m in plain.record.models(1)
        }


@pytest.mark.parametrize("seed", range(50))
def test_a_driver_that_dies_at_any_moment_is_replaced_and_the_run_is_complete(seed):
    Driver(seed, faults=PASSING).drive_by_several().assert_complete()


@pytest.mark.parametrize("seed", range(30))
def test_fused_models_make_the_same_visits_whatever_happens(seed):
    driver = Driver(seed, n_models=4, groups=[[1, 2], [3, 4]], faults=PASSING).drive_by_several()
    driver.assert_complete()


def test_a_group_that_cannot_be_trained_together_trains_separately():
    driver = Driver(2, n_models=3, groups=[[1, 2]])
    train = driver.record.do

    def do(order):
        if isinstance(order, Train) and len(order.members) > 1 and order.position == 2:
            return Failed({"sqlstate": "53200", "message": "not enough memory", "hint": None}, "memory")
        return train(order)

    driver.record.do = do
    driver.drive().assert_complete()
    assert any(
        "mst_keys 1, 2 train separately from now on: together, not enough memory" in text for text in driver.told
    )
    assert driver.record.the_run.plan.fused_training.dissolved == (0,)


@pytest.mark.parametrize("bad", [{1}, {1, 2}], ids=["one fails", "all fail"])
def test_models_that_cannot_be_evaluated_together_are_evaluated_separately(bad):
    driver, orders = Driver(3, n_models=3, n_segments=2, groups=[[1, 2]]), []
    do = driver.record.do

    def refuse(order):
        if isinstance(order, Evaluate):
            keys = {key for key in order.members if key is not None}
            orders.append(keys)
            if len(keys) > 1 or keys <= bad:
                return Failed({"sqlstate": "53200", "message": "not enough memory", "hint": None}, "model")
        return do(order)

    driver.record.do = refuse
    driver.drive().assert_complete(keys={1, 2, 3} - bad)
    assert {1, 2} in orders and all({key} in orders for key in (1, 2, 3))
    for key in bad:
        failed = driver.record.rows[key]
        assert failed.state is ModelState.FAILED
        assert failed.state_detail.startswith("not enough memory (evaluation, segment ")
    assert driver.record.the_run.plan.fused_training.dissolved == ()


def test_a_member_that_was_stopped_fails_with_its_evaluation_and_the_others_go_on():
    found = {_stop_in_evaluation(seed) for seed in range(40)}
    assert found == {ModelState.TRAINING, ModelState.STOPPED}, "the command is obeyed after the evaluation, or before"


def test_a_group_ends_if_its_last_member_fails_in_a_visit_during_which_the_other_was_stopped():
    ends = {_stop_one_and_fail_the_other(seed) for seed in range(20)}
    assert ends == {(ModelState.STOPPED, ModelState.FAILED, ModelState.TRAINED)}


def _stop_one_and_fail_the_other(seed):
    """Return the states of two models of a group, and of another, at the end of their run."""
    driver = Driver(seed, n_models=3, n_segments=2, n_epochs=3, groups=[[1, 2]])
    stop = Stop(1, "enough", at_once=True)

    def both_train():
        orders = [order for order in driver.segments.orders if isinstance(order, Train)]
        return any([write and write.mst_key for write in order.members] == [1, 2] for order in orders)

    def issue():
        if not driver.record.changes and both_train():
            driver.record.issue(ChangeRow.asked(1, Stop.function, {}, 10).checked(stop))
            driver.segments.is_woken = True

    stopped = (write for write in [False, True])  # of the members of the visit that is in flight then
    driver.record.member_fails = lambda: driver.record.rows[1].state is ModelState.STOPPED and next(stopped, False)
    driver.between = issue
    driver.drive()
    return tuple(model.state for model in driver.record.rows.values())


def _stop_in_evaluation(seed):
    """Return the state of a member of a group when its evaluation failed, during which a command stopped it."""
    driver = Driver(seed, n_models=3, n_segments=2, n_epochs=3, groups=[[1, 2]], metrics_compute_frequency=1)
    do, stop, found = driver.record.do, Stop(1, "enough", at_once=True), []

    def evaluated(order):
        return [key for key in order.members if key is not None] if isinstance(order, Evaluate) else []

    def fail(order):
        if 1 not in evaluated(order):
            return do(order)
        if evaluated(order) == [1]:
            found.append(driver.record.rows[1].state)
        return Failed({"sqlstate": "53200", "message": "not enough memory", "hint": None}, "model")

    def issue():
        if not driver.record.changes and [1] in map(evaluated, driver.segments.orders):
            driver.record.issue(ChangeRow.asked(1, Stop.function, {}, 10).checked(stop))
            driver.segments.is_woken = True

    driver.record.do, driver.between = fail, issue
    driver.drive()
    states = {key: (model.state, model.epoch) for key, model in driver.record.rows.items()}
    trained = (ModelState.TRAINED, 3)
    assert states == {1: (ModelState.FAILED, 1), 2: trained, 3: trained}
    return found[0]


def test_early_stopping_ends_a_model_with_its_best_state_whatever_happens():
    settings = {"n_models": 4, "n_epochs": 8, "metrics_compute_frequency": 1, "early_stopping": RULE}
    plain = Driver(1, **settings).drive()
    for key, model in plain.record.rows.items():
        losses = [m.value for m in plain.record.all_metrics if m.mst_key == key]
        best = losses.index(min(losses)) + 1
        last = next((n + 1 for n in range(1, 8) if losses[n] >= min(losses[:n])), 8)
        assert model.state is ModelState.TRAINED and model.epoch == last == len(losses)
        (of_best,) = [v for v in plain.record.visits(1) if (v.mst_key, v.epoch, v.position) == (key, best, 3)]
        assert model.digest == of_best.digest_out == plain.record.states[key, model.state_version]
    assert any(model.epoch < 8 for model in plain.record.rows.values())
    assert len(plain.record.states) == 4 and plain.record.slots == plain.record.used_slots
    for seed in range(30):
        assert Driver(seed, **settings, faults=PASSING).drive_by_several().ends() == plain.ends()


@pytest.mark.parametrize("seed", range(30))
def test_model_averaging_makes_each_visit_once_and_averages_each_iteration_once(seed):
    settings = {"n_models": 1, "n_epochs": 3, "schedule": AVERAGING}
    plain = Driver(1, **settings).drive()
    (model,) = plain.record.models(1)
    assert (model.state, model.epoch, model.position, model.state_version) == (ModelState.TRAINED, 3, 3, 3)
    assert len(plain.record.visits(1)) == 9 and not plain.record.staged
    driver = Driver(seed, **settings, faults=PASSING).drive_by_several()
    assert driver.ends() == plain.ends() and len(driver.record.visits(1)) == 9
    assert driver.record.slots == driver.record.used_slots


def test_a_model_that_cannot_be_trained_fails_and_the_others_are_complete():
    driver = Driver(3)
    train = driver.record.do

    def do(order):
        if isinstance(order, Train) and order.members[0].mst_key == 2 and order.position == 2:
            error = {"sqlstate": "22023", "message": "the loss is not finite", "hint": "Use a lower learning rate."}
            return Failed(error, "model")
        return train(order)

    driver.record.do = do
    driver.drive().assert_complete(keys=[1, 3])
    failed = driver.record.rows[2]
    assert failed.state is ModelState.FAILED and failed.position == 1
    assert failed.state_detail.startswith("the loss is not finite (epoch 1, position 2, segment")


@pytest.mark.parametrize("fault, text, n_attempts", [
    (Fault.MEMORY, "not enough memory", 2), (Fault.KILLED, "its trainer was killed 100 times", 100),
])  # fmt: skip
def test_a_task_that_always_fails_ends_its_model_after_so_many_attempts(fault, text, n_attempts):
    driver = Driver(4, n_models=1, n_segments=1, faults={fault: 1.0})
    driver.drive()
    model = driver.record.rows[1]
    assert model.state is ModelState.FAILED and model.state_detail.startswith(text)
    assert driver.record.visits(1) == []


def test_a_statement_that_always_fails_ends_the_run_and_no_model():
    driver = Driver(5, n_models=2, faults={Fault.STATEMENT: 1.0})
    with pytest.raises(MopError, match="no space left on device"):
        driver.drive()
    assert all(model.is_alive for model in driver.record.rows.values())
    driver.faults = {}
    driver.drive().assert_complete()


def test_faults_are_counted_over_drivers():
    """A run that is resumed again and again does not repeat a task for ever."""
    driver = Driver(6, n_models=1, n_segments=1, faults={Fault.STATEMENT: 1.0})
    seen = []

    def stop():
        if driver.record.the_run.faults != (seen[-1] if seen else {}):
            seen.append(driver.record.the_run.faults)
            raise KeyboardInterrupt

    driver.between = stop
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            driver.drive()
    assert [list(faults.values())[0]["faults"] for faults in seen] == [1, 2, 3]
    driver.between = lambda: None
    with pytest.raises(MopError, match="no space left on device"):
        driver.drive()


def test_a_cancelled_run_ends_at_the_next_notification_and_keeps_its_visits():
    driver = Driver(7)

    def cancel():
        if len(driver.record.all_visits) >= 3:
            driver.record.cancelled = "ada"

    driver.between = cancel
    with pytest.raises(Cancelled, match="run 1 was cancelled by ada"):
        driver.drive()
    assert 3 <= len(driver.record.all_visits) < 18
    driver.record.cancelled, driver.between = None, lambda: None
    driver.drive().assert_complete()


def test_a_run_that_was_cancelled_before_it_began_starts_nothing():
    driver = Driver(8)
    driver.record.cancelled = "ada"
    with pytest.raises(Cancelled):
        driver.drive()
    assert driver.segments.n_waits == 0


def test_metrics_are_computed_after_the_epochs_that_are_due():
    driver = Driver(9, n_epochs=5, metrics_compute_frequency=2).drive()
    epochs = sorted({(m.mst_key, m.epoch) for m in driver.record.all_metrics})
    assert epochs == [(key, epoch) for key in (1, 2, 3) for epoch in (2, 4, 5)]

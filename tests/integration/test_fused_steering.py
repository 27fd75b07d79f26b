"""Commands to runs with fused training: exactly the models that they name change, and a replay has the same bits."""

import pytest

from tests.helpers.faults import BackgroundFit, newest_run, wait_for
from tests.helpers.steering import GATES, N_EPOCHS, N_SEGMENTS, RUN, SEED, Steered, replayed
from tests.helpers.training import ADAM, digests, fit, load_architectures, load_digits, pack, select_configurations

pytestmark = [pytest.mark.one_session, pytest.mark.slow, pytest.mark.fused]
RATES = ("0.01", "0.02", "0.03", "0.04", "0.05", "0.06")
GROUPS = [[1, 2, 3], [4, 5, 6]]
ON = "SET madlib_mop.fused_training = on"
FUSED = RUN.replace("'mst'", "'alike'").replace("SELECT", f"{ON}; SELECT", 1)


@pytest.fixture(scope="module")
def lab(db):
    """A database with packed digits and six configurations of one shape, which train in two groups."""
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS)
    select_configurations(db, "alike", [(3, ADAM.replace("0.01", rate), "batch_size=16") for rate in RATES])
    db.rows(GATES)
    return db


@pytest.fixture(autouse=True)
def open_gates(lab):
    """Leave no run waiting after a test that has failed."""
    yield
    lab.rows("DELETE FROM gate")


def fused(db, table: str, n_epochs: int = N_EPOCHS) -> int:
    """Train all models, and return the run."""
    options = {"validation_table": "valid", "metrics_compute_frequency": 1, "seed": SEED, "schedule": "rotation"}
    return fit(db, table, "alike", n_epochs, (ON,), **options).run_id


def groups(db, run_id: int) -> tuple[list[list[int]], list[int]]:
    """Return the groups of a run, and the numbers of those that were dissolved."""
    plan = db.value("SELECT plan -> 'fused_training' FROM madlib_mop.run WHERE run_id = %s", [run_id])
    return [group["mst_keys"] for group in plan["groups"]], plan["dissolved"]


def together(db, run_id: int) -> list[tuple]:
    """Return the visits of a run, each with whether it was fused."""
    return db.rows(
        "SELECT mst_key, epoch, position, segment_id, timing ? 'fused' FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY 1, 2, 3",
        [run_id],
    )


def after_the_visit(run: Steered, command: str) -> int:
    """Issue a command that waits for the visit at the gate; return the run when it has ended."""
    issued = BackgroundFit(run.db, f"SELECT madlib_mop.{command}")
    pending = "SELECT 1 FROM madlib_mop.steering WHERE run_id = %s AND state = 'pending'"
    wait_for(lambda: run.db.rows(pending, [run.run_id]), what="the command")
    run.open_gate()
    issued.succeed()
    return run.finish()


def n_visits(db, run_id: int) -> dict[int, int]:
    return dict(db.rows("SELECT mst_key, count(*) FROM madlib_mop.visit WHERE run_id = %s GROUP BY 1", [run_id]))


def ends(db, run_id: int) -> set[tuple]:
    return set(db.rows("SELECT state, epoch = last_epoch FROM madlib_mop.model WHERE run_id = %s", [run_id]))


def assert_replayed(db, run_id: int, table: str) -> None:
    """Assert that a replay has the same bits, by the same visits."""
    assert replayed(db, run_id, table) == digests(db, run_id)
    again = newest_run(db)
    assert together(db, again) == together(db, run_id)
    states = "SELECT mst_key, state, state_detail, epoch, position FROM madlib_mop.model WHERE run_id = %s ORDER BY 1"
    assert db.rows(states, [again]) == db.rows(states, [run_id])
    figures = "SELECT mst_key, epoch, data_set, name FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3, ordinal"
    assert db.rows(figures, [again]) == db.rows(figures, [run_id])


def test_exactly_the_extended_members_of_an_ended_run_train_on(lab):
    """The first of a group, another one, or one after the other."""
    run_id = fused(lab, "ended")
    before = digests(lab, run_id)
    assert groups(lab, run_id) == (GROUPS, [])
    lab.rows("SELECT madlib_mop.extend(%s, 1, 2)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    once = digests(lab, run_id)
    assert {key for key in before if once[key] != before[key]} == {2}
    assert groups(lab, run_id) == (GROUPS, [0])
    lab.rows("SELECT madlib_mop.extend(%s, 2, 4)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    twice = digests(lab, run_id)
    assert {key for key in once if twice[key] != once[key]} == {4}
    usual = N_EPOCHS * N_SEGMENTS
    assert n_visits(lab, run_id) == dict.fromkeys(before, usual) | {2: usual + N_SEGMENTS, 4: usual + 2 * N_SEGMENTS}
    assert ends(lab, run_id) == {("trained", True)}
    assert_replayed(lab, run_id, "ended_again")


def test_all_members_that_are_extended_after_the_end_train_on_together(lab):
    longer = fused(lab, "longer", N_EPOCHS + 1)
    run_id = fused(lab, "all_extended")
    lab.rows("SELECT madlib_mop.extend(%s, 1)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(lab, run_id) == digests(lab, longer)
    assert groups(lab, run_id) == (GROUPS, [])
    assert_replayed(lab, run_id, "all_extended_again")


def test_a_member_that_was_stopped_is_resumed_after_the_end(lab):
    """The others keep their bits; so does a replay, before and after."""
    run = Steered(lab, "stopped", (2,), FUSED, at_gate=1)
    run_id = after_the_visit(run, f"stop_model({run.run_id}, 1)")
    assert run.model(1, "state") == "stopped" and n_visits(lab, run_id)[1] < N_EPOCHS * N_SEGMENTS
    before = digests(lab, run_id)
    assert_replayed(lab, run_id, "stopped_again")
    lab.rows("SELECT madlib_mop.resume_model(%s, 1)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert {key: value for key, value in digests(lab, run_id).items() if before[key] != value}.keys() == {1}
    assert set(n_visits(lab, run_id).values()) == {N_EPOCHS * N_SEGMENTS} and ends(lab, run_id) == {("trained", True)}
    assert groups(lab, run_id) == (GROUPS, [0])
    assert_replayed(lab, run_id, "resumed_again")


def test_a_replay_dissolves_a_group_after_the_same_visit(lab):
    """Also a replay that is cancelled, before and after this visit, and resumed."""
    run = Steered(lab, "separated", (2,), FUSED, at_gate=1)
    run.steer("clone_model", 3, ADAM.replace("0.01", "0.5"))
    run_id = after_the_visit(run, f"extend({run.run_id}, 1, 2)")
    assert groups(lab, run_id) == (GROUPS, [0])
    of_first = [was for key, *_, was in together(lab, run_id) if key == 1]
    assert True in of_first and False in of_first
    assert_replayed(lab, run_id, "separated_again")
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    for epoch in (1, 2, 3):
        lab.rows("INSERT INTO gate VALUES (%s)", [epoch])
        call = BackgroundFit(lab, f"SELECT madlib_mop.replay({run_id}, 'separated_{epoch}')")
        wait_for(lambda: lab.rows(waiting), what="the gate")
        again = newest_run(lab)
        lab.rows("SELECT madlib_mop.cancel(%s)", [again])
        lab.rows("DELETE FROM gate")
        call.join()
        assert call.error is not None and n_visits(lab, again).get(1, 0) < epoch * N_SEGMENTS
        lab.rows("SELECT madlib_mop.resume(%s)", [again])
        assert digests(lab, again) == digests(lab, run_id)
        assert together(lab, again) == together(lab, run_id)


def test_a_group_without_a_member_that_is_alive_makes_no_visit(lab):
    """Where one was stopped, so that it may be resumed, and the others have failed."""
    run = Steered(lab, "nobody", (2,), FUSED, at_gate=1)
    lab.rows("SELECT madlib_mop.cancel(%s)", [run.run_id])
    run.call.join()
    lab.rows("DELETE FROM gate")
    lost = "UPDATE madlib_mop.model SET state = %s WHERE run_id = %s AND mst_key = ANY (%s)"
    for state, keys in (("stopped", [1]), ("failed", [2, 3])):
        lab.rows(lost, [state, run.run_id, keys])
    before = n_visits(lab, run.run_id)
    lab.rows("SELECT madlib_mop.resume(%s)", [run.run_id])
    usual = N_EPOCHS * N_SEGMENTS
    assert n_visits(lab, run.run_id) == {key: before[key] if key < 4 else usual for key in before}
    assert groups(lab, run.run_id) == (GROUPS, [])

"""Commands to a run while it trains: each is obeyed once, recorded, and repeated by a replay."""

import json
import re
import signal
from contextlib import closing

import psycopg2
import pytest

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from tests.helpers.faults import BackgroundFit, assert_nothing_left, kill, newest_run, trainers, wait_for
from tests.helpers.steering import GATES, N_EPOCHS, N_MODELS, N_SEGMENTS, RUN, SEED, Steered, refusal, replayed
from tests.helpers.training import (
    ADAM,
    ALIKE,
    SGD,
    assert_configurations_in_parts,
    digests,
    fit,
    load_architectures,
    load_digits,
    pack,
    select_configurations,
    weights,
)

pytestmark = pytest.mark.one_session


@pytest.fixture(scope="module")
def lab(db):
    """A database with packed digits, configurations, and the digests of a run that nobody steered."""
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS)
    select_configurations(db, "mst", ALIKE)
    db.expected = digests(db, Steered(db, "undisturbed").finish())
    db.rows(GATES)
    return db


@pytest.fixture(autouse=True)
def open_gates(lab):
    """Leave no run waiting after a test that has failed."""
    yield
    lab.rows("DELETE FROM gate")


def test_a_model_that_is_stopped_and_resumed_has_the_bits_of_one_that_was_not(lab):
    run = Steered(lab, "stopped_resumed", (2, 3))
    run.steer("stop_model", 3, "too slow")
    assert run.model(3, "state, state_detail") == ("stopped", "stopped by postgres: too slow")
    at = run.model(3, "epoch, position")
    run.open_gate()
    assert run.model(3, "epoch, position") == at, "no visit after it was stopped"
    run.steer("resume_model", 3)
    run_id = run.finish()
    assert digests(lab, run_id) == lab.expected
    assert replayed(lab, run_id, "stopped_resumed_again") == lab.expected
    assert_nothing_left(lab)


@pytest.mark.slow
def test_a_visit_in_flight_is_committed_when_its_model_is_stopped(lab):
    run = Steered(lab, "in_flight", (2,))
    stop = BackgroundFit(lab, f"SELECT madlib_mop.stop_model({run.run_id}, 1)")
    pending = "SELECT 1 FROM madlib_mop.steering WHERE run_id = %s AND state = 'pending'"
    wait_for(lambda: lab.rows(pending, [run.run_id]), what="the command")
    run.open_gate()
    stop.succeed()
    run_id = run.finish()
    epoch, position, state = run.model(1, "epoch, position, state")
    assert (2, 1) <= (epoch, position) <= (2, 2) and state == "stopped"
    lab.rows("SELECT madlib_mop.resume_model(%s, 1)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(lab, run_id) == lab.expected


@pytest.mark.slow
def test_a_stopped_model_is_not_in_the_output_and_keeps_its_state(lab):
    run = Steered(lab, "stopped", (2,))
    run.steer("stop_model", 3)
    run_id = run.finish()
    assert sorted(weights(lab, "stopped")) == [1, 2, 4]
    assert dict(lab.rows("SELECT mst_key, status FROM stopped_info")) == {
        1: "trained", 2: "trained", 3: "stopped", 4: "trained"
    }  # fmt: skip
    assert {**digests(lab, run_id), 3: lab.expected[3]} == lab.expected
    lab.rows("SELECT madlib_mop.resume_model(%s, 3)", [run_id])
    ((state, detail),) = lab.rows("SELECT state, state_detail FROM madlib_mop.run WHERE run_id = %s", [run_id])
    assert state == "interrupted" and f"madlib_mop.resume({run_id})" in detail
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(lab, run_id) == lab.expected
    assert sorted(weights(lab, "stopped")) == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("mst_key", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_clone_with_the_same_parameters_trains_like_its_original(lab, mst_key):
    run = Steered(lab, f"cloned_{mst_key}", (2,))
    run.steer("stop_model", mst_key)
    clone = run.steer("clone_model", mst_key)
    assert clone == N_MODELS + 1
    run_id = run.finish()
    found = digests(lab, run_id)
    assert found[clone] == lab.expected[mst_key]
    visited = lab.rows(
        "SELECT epoch, segment_id FROM madlib_mop.visit WHERE run_id = %s AND mst_key IN (%s, %s)",
        [run_id, mst_key, clone],
    )
    assert sorted(visited) == [(e, s) for e in range(1, N_EPOCHS + 1) for s in range(N_SEGMENTS)]
    assert replayed(lab, run_id, f"cloned_{mst_key}_again") == found


@pytest.mark.slow
def test_a_clone_of_a_clone_that_has_made_no_visit_trains_like_it(lab):
    """Its state is still that of the first model: with another optimizer, or with another learning rate."""
    changes = [
        {"compile_params": SGD},
        {"compile_params": ADAM.replace("0.01", "0.001")},
        {"fit_params": "batch_size=33", "keep_optimizer": False},
    ]
    run = Steered(lab, "cloned_twice", (2,))
    pairs = []
    for change in changes:
        clone = run.steer("clone_model", 3, **change)
        run.steer("stop_model", clone)
        pairs.append((clone, run.steer("clone_model", clone)))
        run.steer("resume_model", clone)
    details = "SELECT detail FROM madlib_mop.steering WHERE run_id = %s AND command = 'clone_model' ORDER BY ordinal"
    has_new = ["with a new optimizer" in detail for (detail,) in lab.rows(details, [run.run_id])]
    assert has_new == [True, True, False, False, True, True]
    run_id = run.finish()
    found = digests(lab, run_id)
    assert [found[clone] for clone, _ in pairs] == [found.get(again) for _, again in pairs]
    assert len(set(found.values())) == N_MODELS + len(changes)
    assert replayed(lab, run_id, "cloned_twice_again") == found


@pytest.mark.slow
def test_a_clone_that_began_within_an_iteration_visits_all_segments_in_the_next_one(lab):
    """Also if its run is resumed there: then the clone's visits in its first iteration are not those of the next."""
    run = Steered(lab, "cloned_within", (-2, 3))
    run.steer("stop_model", 3)
    clone = run.steer("clone_model", 3)
    assert run.model(clone, "epoch, position") == (2, 1)
    run.open_gate()
    assert run.model(clone, "epoch, position") == (2, N_SEGMENTS)
    lab.rows("SELECT madlib_mop.cancel(%s)", [run.run_id])
    lab.rows("DELETE FROM gate")
    run.call.join()
    lab.rows("SELECT madlib_mop.resume(%s)", [run.run_id])
    assert digests(lab, run.run_id)[clone] == lab.expected[3]


@pytest.mark.slow
def test_a_run_with_every_command_is_replayed_with_the_same_bits(lab):
    select_configurations(lab, "more", [(3, SGD.replace("0.05", "0.01"), "batch_size=25"), (3, SGD, "batch_size=12")])
    run = Steered(lab, "all_of_them", (2, 3))
    slower = run.steer("clone_model", 3, ADAM.replace("0.01", "0.005"))
    run.steer("clone_model", 4, compile_params=ADAM, num_iterations=2)
    again = run.steer("clone_model", 4, from_state=False, fit_params="batch_size=10", num_iterations=1)
    assert run.steer("add_models", "more") == [again + 1, again + 2]
    run.steer("extend", 2, 4)
    run.steer("pin_model", 4)
    run.open_gate()
    of_clone = run.steer("clone_model", slower, fit_params="batch_size=33", keep_optimizer=False, num_iterations=2)
    run.steer("stop_model", 3, reason="enough")
    run_id = run.finish()
    found = digests(lab, run_id)
    assert found[1] == lab.expected[1] and found[2] == lab.expected[2]
    assert len({found[key] for key in found}) == len(found) == N_MODELS + 6
    ends = dict(lab.rows("SELECT mst_key, last_epoch FROM madlib_mop.model WHERE run_id = %s", [run_id]))
    assert (ends[4], ends[slower], ends[again]) == (N_EPOCHS + 2, N_EPOCHS, 1) and of_clone in ends
    assert replayed(lab, run_id, "all_of_them_again") == found
    repeated = "SELECT change, mst_keys FROM madlib_mop.change WHERE run_id = %s AND source = 'replay'"
    assert sorted(lab.rows(repeated, [newest_run(lab)])) == [
        ("clone", [slower]), ("clone", [slower + 1]), ("clone", [of_clone]), ("end", [3])
    ]  # fmt: skip
    assert lab.rows("SELECT 1 FROM madlib_mop.steering WHERE run_id = %s", [newest_run(lab)]) == []
    for recorded in (run_id, newest_run(lab)):
        assert_configurations_in_parts(lab, recorded)
    assert weights(lab, "all_of_them") == weights(lab, "all_of_them_again")
    columns = "command, state, issued_by"
    history = lab.rows(f"SELECT {columns} FROM madlib_mop.steering WHERE run_id = %s ORDER BY ordinal", [run_id])
    assert {row[1:] for row in history} == {("obeyed", "postgres")}
    assert [row[0] for row in history] == [
        *["clone_model"] * 3, "add_models", "extend", "pin_model", "clone_model", "stop_model"
    ]  # fmt: skip
    assert "clone_model by postgres: mst_key 5 is a clone of mst_key 3" in "".join(run.call.connection.notices)


@pytest.mark.slow
def test_a_command_to_a_member_of_a_fused_group_separates_the_group(lab):
    rates = ("0.01", "0.02", "0.03", "0.04")  # two groups of two
    select_configurations(lab, "alike", [(1, ADAM.replace("0.01", rate), "batch_size=16") for rate in rates])
    statement = RUN.replace("'mst'", "'alike'").replace("SELECT", "SET madlib_mop.fused_training = on; SELECT", 1)
    run = Steered(lab, "fused", (2,), statement, at_gate=1)
    clone = run.steer("clone_model", 3, num_iterations=N_EPOCHS)  # its group may be one iteration ahead or not
    longer = BackgroundFit(lab, f"SELECT madlib_mop.extend({run.run_id}, 1, 2)")  # waits for the visit of the group
    pending = "SELECT 1 FROM madlib_mop.steering WHERE run_id = %s AND state = 'pending'"
    wait_for(lambda: lab.rows(pending, [run.run_id]), what="the command")
    run.open_gate()
    longer.succeed()
    run_id = run.finish()
    ends = lab.rows("SELECT mst_key, state, last_epoch FROM madlib_mop.model WHERE run_id = %s ORDER BY 1", [run_id])
    assert ends[:2] == [(1, "trained", N_EPOCHS), (2, "trained", N_EPOCHS + 1)]
    assert ends[-1][:2] == (clone, "trained")
    notices = "".join(run.call.connection.notices)
    assert "train separately from now on: a command changes mst_key 2" in notices, notices


@pytest.mark.slow
def test_extending_a_finished_run_gives_the_bits_of_a_longer_one(lab):
    longer = fit(lab, "longer", "mst", N_EPOCHS + 1, source_table="train", validation_table="valid",
                 metrics_compute_frequency=1, seed=SEED, schedule="rotation")  # fmt: skip
    run_id = Steered(lab, "extended").finish()
    lab.rows("GRANT SELECT ON extended TO PUBLIC")
    lab.rows("SELECT madlib_mop.extend(%s, 1)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(lab, run_id) == digests(lab, longer.run_id)
    assert weights(lab, "extended") == weights(lab, "longer")
    assert lab.value("SELECT has_table_privilege('public', 'extended', 'SELECT')"), "its rows were replaced"
    assert replayed(lab, run_id, "extended_again") == digests(lab, longer.run_id)


@pytest.mark.slow
def test_a_paused_run_gives_its_trainers_back(lab):
    run = Steered(lab, "paused", (2,))
    run.steer("pause")
    assert "paused already, by postgres" in refusal(run, "pause")
    run.open_gate()
    wait_for(lambda: not trainers(lab), 20, "the end of the trainers")
    before = lab.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s", [run.run_id])
    run.steer("stop_model", 1)
    run.steer("resume_model", 1)
    assert lab.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s", [run.run_id]) == before
    run.steer("unpause")
    assert digests(lab, run.finish()) == lab.expected


@pytest.mark.slow
def test_what_cannot_be_obeyed_is_refused_and_recorded(lab):
    run = Steered(lab, "refused", (2,))
    messages = [
        (refusal(run, "stop_model", 77), "has no mst_key 77"),
        (refusal(run, "resume_model", 3), "is not stopped"),
        (refusal(run, "clone_model", 3), "would repeat it"),
        (refusal(run, "clone_model", 3, "optimizer='Adam()'"), "loss is required"),
        (refusal(run, "clone_model", 3, from_state=False), "would repeat it"),
        (refusal(run, "clone_model", 3, fit_params="batch_size=0"), "batch_size"),
        (refusal(run, "clone_model", 3, fit_params="early_stopping='patience=1'"), "stops early like its original"),
        (refusal(run, "add_models", "mst"), "mst_key 1 has the same configuration already"),
        (refusal(run, "extend", 0), "num_iterations must be from 1"),
        (refusal(run, "extend", 10**6), "more than 1,000,000 iterations"),
        (refusal(run, "clone_model", 99, SGD), "Received: mst_key 99"),
        (refusal(run, "unpause"), "is not paused"),
    ]
    for message, expected in messages:
        assert expected in message, message
    run.steer("stop_model", 3)
    assert "it is stopped already" in refusal(run, "stop_model", 3)
    assert "resume it first" in refusal(run, "extend", 1, 3)
    run_id = run.finish()
    assert {**digests(lab, run_id), 3: lab.expected[3]} == lab.expected
    n_refused = lab.value("SELECT count(*) FROM madlib_mop.steering WHERE run_id = %s AND state = 'refused'", [run_id])
    assert n_refused == len(messages) + 1, "all but the extension by 0, which is no number of iterations"
    assert "it has made all its iterations" in refusal(run, "stop_model", 2)
    assert "the run is not training" in refusal(run, "pause")
    assert "Pass num_iterations" in refusal(run, "clone_model", 2)
    lab.rows("SELECT madlib_mop.replay(%s, 'refused_again')", [run_id])
    run.run_id = newest_run(lab)
    assert "is a replay" in refusal(run, "extend", 1)


@pytest.mark.slow
def test_a_clone_without_the_metric_of_its_early_stopping_is_refused(lab):
    rule = "early_stopping => 'patience=1, metric=val_accuracy', schedule =>"
    run = Steered(lab, "measured", (2,), RUN.replace("schedule =>", rule))
    message = refusal(run, "clone_model", 3, ADAM.replace(", metrics=['accuracy']", ""))
    assert "has no such metric. Received: metric=val_accuracy" in message
    run.finish()


@pytest.mark.slow
def test_a_warm_started_run_with_a_clone_that_begins_anew_is_replayed(lab):
    Steered(lab, "earlier").finish()
    run = Steered(lab, "earlier", (N_EPOCHS + 2,), RUN.replace("schedule =>", "warm_start => true, schedule =>"))
    clone = run.steer("clone_model", 3, from_state=False, fit_params="batch_size=10", num_iterations=2)
    run_id = run.finish()
    found = digests(lab, run_id)
    assert clone in found and replayed(lab, run_id, "earlier_again") == found


def test_rows_issue_commands(lab):
    run = Steered(lab, "by_rows", (2,))
    issue = (
        "INSERT INTO madlib_mop.command (run_id, command, arguments) VALUES (%s, %s, %s)"
        " RETURNING state, detail, mst_keys"
    )
    ((state, detail, keys),) = lab.rows(issue, [run.run_id, "stop_model", '{"mst_key": 3, "reason": "by a row"}'])
    assert (state, keys) == ("obeyed", [3]) and re.fullmatch("mst_key 3 is stopped .*: by a row", detail)
    ((state, detail, keys),) = lab.rows(issue, [run.run_id, "stop_model", '{"mst_key": 3}'])
    assert (state, keys) == ("refused", None) and "stopped already" in detail
    ((state, detail, keys),) = lab.rows(issue, [run.run_id, "extend", '{"num_iterations": "x"}'])
    assert state == "refused" and "num_iterations must be of type integer" in detail
    ((state, detail, keys),) = lab.rows(issue, [run.run_id, "extend", '{"num_iterations": 1, "model": 1}'])
    assert state == "refused" and "extend has no argument 'model'" in detail
    of_clone = json.dumps({"mst_key": 4, "compile_params": ADAM})
    ((state, _, keys),) = lab.rows(issue, [run.run_id, "clone_model", of_clone])
    assert (state, keys) == ("obeyed", [N_MODELS + 1])
    for values, message in (
        ((run.run_id, "explode", "{}"), "unknown command"),
        ((run.run_id, "pause", "[]"), "must be a JSON object"),
        ((run.run_id, "pause", '{"run_id": 1}'), "must be a JSON object"),
        ((None, "pause", "{}"), "run_id"),
    ):
        with pytest.raises(psycopg2.Error, match=message):
            lab.rows(issue, list(values))
    run.finish()
    refused = "SELECT count(*) FROM madlib_mop.command WHERE run_id = %s AND state = 'refused'"
    assert lab.value(refused, [run.run_id]) == 3


@pytest.mark.slow
def test_a_call_that_is_cancelled_withdraws_its_command(lab):
    run = Steered(lab, "withdrawn", (2,))
    pid = lab.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run.run_id])
    kill(pid, signal.SIGSTOP)  # so that it does not obey
    try:
        with pytest.raises(psycopg2.Error, match="statement timeout"):
            lab.rows(f"SET statement_timeout = '2s'; SELECT madlib_mop.stop_model({run.run_id}, 3)")
    finally:
        kill(pid, signal.SIGCONT)
    run_id = run.finish()
    states = "SELECT state FROM madlib_mop.steering WHERE run_id = %s AND command = 'stop_model'"
    assert lab.rows(states, [run_id]) == [("withdrawn",)]
    assert digests(lab, run_id) == lab.expected


def test_other_roles_cannot_steer(lab):
    run = Steered(lab, "not_theirs", (2,))
    lab.cluster.create_role("stranger")
    lab.rows("SELECT madlib_mop.grant_use('stranger')")
    with pytest.raises(psycopg2.Error, match="you have no run with this run_id"):
        lab.rows("SELECT madlib_mop.stop_model(%s, 3)", [run.run_id], "stranger")
    with pytest.raises(psycopg2.Error, match="you have no run with this run_id"):
        lab.rows("INSERT INTO madlib_mop.command (run_id, command) VALUES (%s, 'pause')", [run.run_id], "stranger")
    assert lab.rows("SELECT * FROM madlib_mop.steering WHERE run_id = %s", [run.run_id], "stranger") == []
    with pytest.raises(psycopg2.Error, match="permission denied"):
        lab.rows("INSERT INTO madlib_mop.change (run_id, change, command, source, issued_by, state) VALUES"
                 " (%s, 'pause', 'pause', 'person', 'stranger', 'pending')", [run.run_id], "stranger")  # fmt: skip
    assert digests(lab, run.finish()) == lab.expected


def test_a_visit_that_is_committed_after_its_model_was_stopped_leaves_it_stopped(lab):
    """The driver may die before it hears of the commit; whoever continues the run reads the state."""
    connection = lab.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_id, digest, state_version FROM madlib_mop.model WHERE mst_key = 1 LIMIT 1")
        run_id, digest, version = cursor.fetchone()
        visit = {"old_version": version, "version": version + 1, "digest_in": digest, "digest_out": "d", "epoch": 99,
                 "position": 1, "segment_id": 0, "slot": 0, "state_bytes": 1, "n_rows": 1, "attempt": 1,
                 "started_at": "2026-01-01"}  # fmt: skip
        for state, after in (("training", "training"), ("stopped", "stopped")):
            cursor.execute("UPDATE madlib_mop.model SET state = %s WHERE run_id = %s AND mst_key = 1", [state, run_id])
            cursor.execute("SELECT madlib_mop_internal.keep_visit(%s, 1, %s)", [run_id, json.dumps(visit)])
            cursor.execute("SELECT state, digest FROM madlib_mop.model WHERE run_id = %s AND mst_key = 1", [run_id])
            assert cursor.fetchone() == (after, "d")
            connection.rollback()
    connection.close()


@pytest.mark.slow
def test_a_command_that_comes_while_the_output_tables_are_written_is_not_lost(lab):
    """The driver marks its run as finished then, but a command has prepared it."""
    run_id = Steered(lab, "meanwhile").finish()
    lab.rows("UPDATE madlib_mop.run SET state = 'trained' WHERE run_id = %s", [run_id])
    lab.rows("SELECT madlib_mop.extend(%s, 1, 2)", [run_id])
    state = "SELECT state, reopened FROM madlib_mop.run WHERE run_id = %s"
    assert lab.rows(state, [run_id]) == [("interrupted", True)]
    engine, raw = connect_by_dsn(lab.dsn)
    with closing(raw):
        Record(engine, raw).finish(run_id)
    assert lab.rows(state, [run_id]) == [("interrupted", True)]
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert lab.rows(state, [run_id]) == [("finished", True)]
    last = "SELECT last_epoch, state FROM madlib_mop.model WHERE run_id = %s AND mst_key = 2"
    assert lab.rows(last, [run_id]) == [(N_EPOCHS + 1, "trained")]


@pytest.mark.slow
def test_a_reopened_run_does_not_replace_the_models_of_a_newer_run(lab):
    run_id = Steered(lab, "taken").finish()
    newer = Steered(lab, "taken", statement=RUN.replace("schedule =>", "replace => true, schedule =>")).finish()
    lab.rows("SELECT madlib_mop.extend(%s, 1, 2)", [run_id])
    with pytest.raises(psycopg2.Error, match=f"would replace the models of run {newer}"):
        lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s, 'taken_longer')", [run_id])
    assert weights(lab, "taken") == weights(lab, "undisturbed") != weights(lab, "taken_longer")

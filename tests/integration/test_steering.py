"""Commands to a run while it trains: each is obeyed once, recorded, and repeated by a replay."""

import re

import psycopg2
import pytest

from tests.helpers.faults import BackgroundFit, assert_nothing_left, newest_run, trainers, wait_for
from tests.helpers.training import (
    ADAM,
    MIXED,
    SGD,
    digests,
    fit,
    load_architectures,
    load_digits,
    pack,
    select_configurations,
    weights,
)

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 4, 2, 4, 11
RUN = f"""
SELECT madlib.madlib_keras_fit_multiple_model('train', '{{table}}', 'mst', {N_EPOCHS}, validation_table => 'valid',
    metrics_compute_frequency => 1, seed => {SEED}, schedule => 'rotation')
"""


@pytest.fixture(scope="module")
def lab(db):
    """A database with packed digits, configurations, and the digests of a run that nobody steered."""
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS)
    select_configurations(db, "mst", MIXED[:N_MODELS])
    db.expected = digests(db, begin(db, "undisturbed").finish())
    return db


class Steered:
    """A run that is paused after its first visits."""

    def __init__(self, db, call: BackgroundFit, run_id: int):
        self.db, self.call, self.run_id = db, call, run_id

    def steer(self, function: str, *arguments, **named):
        """Call a steering function of this run; return its result."""
        names = "".join(f", {name} => %s" for name in named)
        statement = f"SELECT madlib_mop.{function}(%s{', %s' * len(arguments)}{names})"
        return self.db.value(statement, [self.run_id, *arguments, *named.values()])

    def finish(self) -> int:
        """Let the run continue to its end; return its number."""
        if self.db.value("SELECT paused_by FROM madlib_mop.run WHERE run_id = %s", [self.run_id]):
            self.steer("unpause")
        self.call.succeed()
        return self.run_id

    def model(self, mst_key: int, columns: str):
        """Return columns of a model."""
        (row,) = self.db.rows(
            f"SELECT {columns} FROM madlib_mop.model WHERE run_id = %s AND mst_key = %s", [self.run_id, mst_key]
        )
        return row if len(row) > 1 else row[0]

    def at_visit(self, mst_key: int, epoch: int, position: int) -> None:
        """Let the run continue until a model has made a visit, and pause it again; it may have made more."""
        self.steer("unpause")
        wait_for(lambda: self.model(mst_key, "epoch, position") >= (epoch, position), what="a visit")
        self.steer("pause")


def begin(db, table: str, statement: str = RUN) -> Steered:
    """Begin a run and pause it as soon as it trains."""
    before = newest_run(db) or 0
    call = BackgroundFit(db, statement.format(table=table))
    live = "SELECT run_id FROM madlib_mop.run WHERE run_id > %s AND driver_pid IS NOT NULL"
    (row,) = wait_for(lambda: db.rows(live, [before]), what="the run's driver")
    run = Steered(db, call, row[0])
    run.steer("pause")
    return run


def refusal(run: Steered, function: str, *arguments, **named) -> str:
    """Return the message of a refused command."""
    with pytest.raises(psycopg2.Error) as raised:
        run.steer(function, *arguments, **named)
    assert "Traceback" not in str(raised.value)
    return raised.value.diag.message_primary


def replayed(db, run_id: int, table: str) -> dict[int, str]:
    """Replay a run; return the digests of the replay."""
    db.rows("SELECT madlib_mop.replay(%s, %s)", [run_id, table])
    return digests(db, newest_run(db))


def test_a_model_that_is_stopped_and_resumed_has_the_bits_of_one_that_was_not(lab):
    run = begin(lab, "stopped_resumed")
    run.steer("stop_model", 2, "too slow")
    assert run.model(2, "state, state_detail") == ("stopped", "stopped by postgres: too slow")
    at = run.model(2, "epoch, position")
    run.at_visit(1, 2, 1)
    assert run.model(2, "epoch, position") == at, "no visit after it was stopped"
    run.steer("resume_model", 2)
    run_id = run.finish()
    assert digests(lab, run_id) == lab.expected
    assert replayed(lab, run_id, "stopped_resumed_again") == lab.expected
    assert_nothing_left(lab)


def test_a_stopped_model_is_not_in_the_output_and_keeps_its_state(lab):
    run = begin(lab, "stopped")
    run.at_visit(3, 1, 2)
    run.steer("stop_model", 3)
    run_id = run.finish()
    assert sorted(weights(lab, "stopped")) == [1, 2, 4]
    assert dict(lab.rows("SELECT mst_key, status FROM stopped_info")) == {
        1: "trained", 2: "trained", 3: "stopped", 4: "trained"
    }  # fmt: skip
    assert {key: d for key, d in digests(lab, run_id).items() if key != 3} == {
        key: d for key, d in lab.expected.items() if key != 3
    }
    lab.rows("SELECT madlib_mop.resume_model(%s, 3)", [run_id])
    state, detail = lab.rows("SELECT state, state_detail FROM madlib_mop.run WHERE run_id = %s", [run_id])[0]
    assert state == "interrupted" and f"madlib_mop.resume({run_id})" in detail
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(lab, run_id) == lab.expected
    assert sorted(weights(lab, "stopped")) == [1, 2, 3, 4]


@pytest.mark.parametrize("mst_key", [1, 4])
def test_a_clone_with_the_same_parameters_trains_like_its_original(lab, mst_key):
    run = begin(lab, f"cloned_{mst_key}")
    run.at_visit(mst_key, 2, 1)
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


def test_a_run_with_every_command_is_replayed_with_the_same_bits(lab):
    select_configurations(lab, "more", [(2, SGD.replace("0.05", "0.01"), "batch_size=25"), (1, SGD, "batch_size=12")])
    run = begin(lab, "all_of_them")
    run.at_visit(1, 1, 2)
    slower = run.steer("clone_model", 1, ADAM.replace("0.01", "0.005"))
    run.steer("clone_model", 2, compile_params=ADAM, num_iterations=2)
    again = run.steer("clone_model", 4, from_state=False, fit_params="batch_size=10", num_iterations=1)
    assert run.steer("add_models", "more") == [again + 1, again + 2]
    run.steer("extend", 2, 1)
    run.steer("stop_model", 3, reason="enough")
    run.steer("pin_model", 4)
    run.at_visit(slower, 2, 2)
    of_clone = run.steer("clone_model", slower, fit_params="batch_size=33", keep_optimizer=False)
    run_id = run.finish()
    found = digests(lab, run_id)
    assert found[2] == lab.expected[2] and found[4] == lab.expected[4]
    assert len({found[key] for key in found}) == len(found) == N_MODELS + 6
    ends = dict(lab.rows("SELECT mst_key, last_epoch FROM madlib_mop.model WHERE run_id = %s", [run_id]))
    assert (ends[1], ends[slower], ends[again], ends[of_clone]) == (N_EPOCHS + 2, N_EPOCHS, 1, N_EPOCHS)
    assert replayed(lab, run_id, "all_of_them_again") == found
    assert sorted(weights(lab, "all_of_them")) == sorted(weights(lab, "all_of_them_again"))
    columns = "command, state, issued_by"
    history = lab.rows(f"SELECT {columns} FROM madlib_mop.steering WHERE run_id = %s ORDER BY ordinal", [run_id])
    assert {row[1:] for row in history} == {("obeyed", "postgres")}
    assert [row[0] for row in history if row[0] not in ("pause", "unpause")] == [
        *["clone_model"] * 3, "add_models", "extend", "stop_model", "pin_model", "clone_model"
    ]  # fmt: skip


def test_extending_a_finished_run_gives_the_bits_of_a_longer_one(lab):
    longer = fit(lab, "longer", "mst", N_EPOCHS + 2, source_table="train", validation_table="valid",
                 metrics_compute_frequency=1, seed=SEED, schedule="rotation")  # fmt: skip
    run = begin(lab, "extended")
    run_id = run.finish()
    lab.rows("GRANT SELECT ON extended TO PUBLIC")
    lab.rows("SELECT madlib_mop.extend(%s, 2)", [run_id])
    lab.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(lab, run_id) == digests(lab, longer.run_id)
    assert weights(lab, "extended") == weights(lab, "longer")
    assert lab.value("SELECT has_table_privilege('public', 'extended', 'SELECT')"), "its rows were replaced"
    assert replayed(lab, run_id, "extended_again") == digests(lab, longer.run_id)


def test_a_paused_run_gives_its_trainers_back(lab):
    run = begin(lab, "paused")
    wait_for(lambda: not trainers(lab), 20, "the end of the trainers")
    before = lab.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s", [run.run_id])
    assert "paused already, by postgres" in refusal(run, "pause")
    assert lab.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s", [run.run_id]) == before
    assert digests(lab, run.finish()) == lab.expected


def test_what_cannot_be_obeyed_is_refused_and_recorded(lab):
    run = begin(lab, "refused")
    run.at_visit(1, 1, 1)
    messages = [
        (refusal(run, "stop_model", 77), "has no mst_key 77"),
        (refusal(run, "resume_model", 1), "is not stopped"),
        (refusal(run, "clone_model", 1), "would repeat it"),
        (refusal(run, "clone_model", 1, "optimizer='Adam()'"), "loss is required"),
        (refusal(run, "clone_model", 1, from_state=False), "would repeat it"),
        (refusal(run, "clone_model", 1, fit_params="batch_size=0"), "batch_size"),
        (refusal(run, "add_models", "mst"), "mst_key 1 has the same configuration already"),
        (refusal(run, "extend", 0), "num_iterations must be from 1"),
        (refusal(run, "extend", 10**6), "more than 1,000,000 iterations"),
        (refusal(run, "clone_model", 99, SGD), "Received: mst_key 99"),
    ]
    for message, expected in messages:
        assert expected in message, message
    run.steer("stop_model", 1)
    assert "it is stopped already" in refusal(run, "stop_model", 1)
    assert "resume it first" in refusal(run, "extend", 1, 1)
    run_id = run.finish()
    assert {key: d for key, d in digests(lab, run_id).items() if key != 1} == {
        key: d for key, d in lab.expected.items() if key != 1
    }
    n_refused = lab.value("SELECT count(*) FROM madlib_mop.steering WHERE run_id = %s AND state = 'refused'", [run_id])
    assert n_refused >= 9
    done = Steered(lab, run.call, run_id)
    assert "it has made all its iterations" in refusal(done, "stop_model", 2)
    assert "the run is not training" in refusal(done, "pause")
    assert "Pass num_iterations" in refusal(done, "clone_model", 2)


def test_rows_issue_commands(lab):
    run = begin(lab, "by_rows")
    issue = (
        "INSERT INTO madlib_mop.command (run_id, command, arguments) VALUES (%s, %s, %s)"
        " RETURNING state, detail, mst_keys"
    )
    ((state, detail, keys),) = lab.rows(issue, [run.run_id, "stop_model", '{"mst_key": 1, "reason": "by a row"}'])
    assert (state, keys) == ("obeyed", [1]) and re.fullmatch("mst_key 1 is stopped .*: by a row", detail)
    ((state, detail, keys),) = lab.rows(issue, [run.run_id, "stop_model", '{"mst_key": 1}'])
    assert (state, keys) == ("refused", None) and "stopped already" in detail
    ((state, detail, keys),) = lab.rows(issue, [run.run_id, "extend", '{"num_iterations": "x"}'])
    assert state == "refused" and "num_iterations must be of type integer" in detail
    ((state, _, keys),) = lab.rows(issue, [run.run_id, "clone_model", f'{{"mst_key": 2, "compile_params": "{ADAM}"}}'])
    assert (state, keys) == ("obeyed", [N_MODELS + 1])
    for values, message in (
        ((run.run_id, "explode", "{}"), "unknown command"),
        ((run.run_id, "pause", "[]"), "must be a JSON object"),
        ((None, "pause", "{}"), "run_id"),
    ):
        with pytest.raises(psycopg2.Error, match=message):
            lab.rows(issue, list(values))
    run.finish()
    refused = "SELECT count(*) FROM madlib_mop.command WHERE run_id = %s AND state = 'refused'"
    assert lab.value(refused, [run.run_id]) == 2


def test_a_call_that_is_cancelled_withdraws_its_command(lab):
    """The driver is held by a lock, so that it cannot obey."""
    run = begin(lab, "withdrawn")
    wait_for(lambda: not trainers(lab), 20, "the pause")
    holder = lab.connect(autocommit=False)
    with holder.cursor() as cursor:
        cursor.execute("SELECT 1 FROM madlib_mop.model WHERE run_id = %s FOR UPDATE", [run.run_id])
        with pytest.raises(psycopg2.Error, match="statement timeout"):
            lab.rows(f"SET statement_timeout = '2s'; SELECT madlib_mop.stop_model({run.run_id}, 1)")
    holder.close()
    state = "SELECT state FROM madlib_mop.steering WHERE run_id = %s AND command = 'stop_model'"
    found = wait_for(lambda: [s for (s,) in lab.rows(state, [run.run_id]) if s != "pending"], what="its outcome")
    assert found in (["withdrawn"], ["obeyed"])
    run.finish()


def test_other_roles_cannot_steer(lab):
    run = begin(lab, "not_theirs")
    lab.rows("SELECT madlib_mop.grant_use('stranger')" if lab.cluster.create_role("stranger") else "")
    with pytest.raises(psycopg2.Error, match="you have no run with this run_id"):
        lab.rows("SELECT madlib_mop.stop_model(%s, 1)", [run.run_id], "stranger")
    with pytest.raises(psycopg2.Error, match="you have no run with this run_id"):
        lab.rows("INSERT INTO madlib_mop.command (run_id, command) VALUES (%s, 'pause')", [run.run_id], "stranger")
    assert lab.rows("SELECT * FROM madlib_mop.steering WHERE run_id = %s", [run.run_id], "stranger") == []
    with pytest.raises(psycopg2.Error, match="permission denied"):
        lab.rows("INSERT INTO madlib_mop.steering_command (run_id, command, source, issued_by, state)"
                 " VALUES (%s, 'pause', 'person', 'stranger', 'pending')", [run.run_id], "stranger")  # fmt: skip
    assert digests(lab, run.finish()) == lab.expected


def test_the_caller_reads_what_commands_did(lab):
    run = begin(lab, "told")
    run.steer("stop_model", 1, "no hope")
    run.finish()
    notices = "".join(run.call.connection.notices)
    assert re.search(r"stop_model by postgres: mst_key 1 is stopped .*: no hope", notices), notices

"""Commands from several sessions while processes are killed: each accepted one is obeyed exactly once.

``MOP_FAULTS=100 make test ARGS="tests/faults/test_steered_killed.py -m slow"`` steers a hundred runs.
"""

import os
import random
import threading
import time

import psycopg2
import pytest

from madlib_mop.schedule import SCHEDULES
from tests.helpers.faults import (
    BackgroundFit,
    answers,
    assert_nothing_left,
    kill,
    newest_run,
    trainers,
    wait_for,
    workers,
)
from tests.helpers.training import (
    ADAM,
    ALIKE,
    MIXED,
    SGD,
    digests,
    load_architectures,
    load_digits,
    pack,
    select_configurations,
    weights,
)

pytestmark = pytest.mark.slow

N_SEGMENTS, N_EPOCHS, N_VERBS = 2, 6, 20
RUN = """
SELECT madlib.madlib_keras_fit_multiple_model('train', '{table}', '{selection}', {epochs}, validation_table => 'valid',
    metrics_compute_frequency => 2, seed => {seed}, schedule => '{schedule}')
"""


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS)
    select_configurations(db, "four", ALIKE)
    select_configurations(db, "eight", [*MIXED, (2, SGD, "batch_size=50")])
    select_configurations(db, "more", [(1, SGD.replace("0.05", "0.02"), "batch_size=40")])
    return db


class Person(threading.Thread):
    """Issues random commands in a session of its own until told to stop."""

    def __init__(self, db, run_id: int, seed: int, n_verbs: int):
        super().__init__(daemon=True)
        self._db, self._run_id, self._n_verbs = db, run_id, n_verbs
        self._chance = random.Random(seed)

    def run(self):
        for _ in range(self._n_verbs):
            try:
                of_run = "SELECT mst_key FROM madlib_mop.model WHERE run_id = %s"
                keys = [key for (key,) in self._db.rows(of_run, [self._run_id])]
                self._db.rows(self._statement(self._chance.choice(keys)), [self._run_id])
            except psycopg2.Error:
                time.sleep(0.1)  # refused, or the server was killed
            time.sleep(self._chance.uniform(0, 0.3))

    def _statement(self, key: int) -> str:
        rate = self._chance.choice([0.001, 0.003, 0.03])
        return "SELECT madlib_mop." + self._chance.choice(
            [
                f"stop_model(%s, {key}, 'by chance')",
                f"resume_model(%s, {key})",
                f"resume_model(%s, {key})",
                f"clone_model(%s, {key}, compile_params => $${ADAM.replace('0.01', str(rate))}$$)",
                f"clone_model(%s, {key}, fit_params => 'batch_size=17', keep_optimizer => false, num_iterations => 2)",
                f"extend(%s, 1, {key})",
                f"pin_model(%s, {key})",
                "add_models(%s, 'more')",
                "pause(%s)",
                "unpause(%s)",
                "unpause(%s)",
            ]
        )


def strike(db, call: BackgroundFit, run_id: int, chance: random.Random, may_stop_server: bool) -> None:
    """Kill one process of the run, or the whole server."""
    what = chance.choice(["trainer", "worker", "driver", "caller", *["server"] * may_stop_server])
    if what == "server":
        db.cluster.stop_immediate()
        db.cluster.start()
        wait_for(lambda: answers(db), what="the server", log=db.cluster.log_tail)
        return
    try:
        if what == "trainer" and (found := trainers(db)):
            kill(chance.choice(found))
        elif what == "worker" and (found := workers(db)):
            db.rows("SELECT pg_terminate_backend(%s)", [chance.choice(found)])
        elif what == "driver":
            pid = db.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id])
            if pid is not None:
                kill(pid)
        elif what == "caller":
            db.rows("SELECT pg_terminate_backend(%s)", [call.pid])
    except psycopg2.Error:
        pass


def finish(db, run_id: int) -> None:
    """Resume the run until nothing is left to train."""
    state = "SELECT state FROM madlib_mop.run WHERE run_id = %s"
    for _ in range(20):
        if db.value(state, [run_id]) == "finished":
            return
        try:
            db.rows("SELECT madlib_mop.resume(%s)", [run_id])
        except psycopg2.Error as error:
            assert "in progress" in str(error) or "XX000" != error.pgcode, error
            time.sleep(0.3)
    raise AssertionError(f"run {run_id} is {db.value(state, [run_id])}")


def check_obeyed_once(db, run_id: int) -> None:
    """Compare what the record says of the commands with what became of the models."""
    commands = db.rows(
        "SELECT command, state, command_id, mst_keys, arguments FROM madlib_mop.steering WHERE run_id = %s"
        " ORDER BY ordinal, command_id",
        [run_id],
    )
    assert {state for _, state, *_ in commands} <= {"obeyed", "refused", "withdrawn"}
    why_failed = "SELECT mst_key, epoch, state_detail FROM madlib_mop.model WHERE run_id = %s AND state = 'failed'"
    failed = db.rows(why_failed, [run_id])
    assert not failed, (failed, db.cluster.log_tail())
    models = db.rows(
        "SELECT mst_key, command_id, state, last_epoch, cloned_from, pinned FROM madlib_mop.model WHERE run_id = %s",
        [run_id],
    )
    made = {}
    for key, command_id, *_ in models:
        if command_id is not None:
            made.setdefault(command_id, []).append(key)
    adding = {c[2]: sorted(c[3]) for c in commands if c[0] in ("clone_model", "add_models") and c[1] == "obeyed"}
    assert {command_id: sorted(keys) for command_id, keys in made.items()} == adding
    stopped, pinned = set(), set()
    for command, state, _, keys, _ in commands:
        if state == "obeyed":
            if command == "stop_model":
                stopped |= set(keys)
            elif command == "resume_model":
                stopped -= set(keys)
            elif command == "pin_model":
                pinned |= set(keys)
    assert {key for key, _, state, *_ in models if state == "stopped"} == stopped
    assert {key for key, *_, is_pinned in models if is_pinned} == pinned
    assert {state for _, _, state, *_ in models} <= {"trained", "stopped"}
    extended = {key: 0 for key, *_ in models}
    for command, state, _, keys, arguments in commands:
        if command == "extend" and state == "obeyed":
            for key in keys:
                extended[key] += arguments["num_iterations"]
    for key, command_id, _, last_epoch, cloned_from, _ in models:
        if cloned_from is None and command_id is None:
            assert last_epoch == N_EPOCHS + extended[key], key


def check_visits(db, run_id: int) -> None:
    """Each model has each visit once, those of its original included, and each begins with the state before it."""
    rows = db.rows(
        "SELECT mst_key, epoch, position, segment_id, digest_in, digest_out FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY mst_key, epoch, position",
        [run_id],
    )
    for before, after in zip(rows, rows[1:], strict=False):
        if before[0] == after[0]:
            assert before[5] == after[4], after
            assert after[1:3] in ((before[1], before[2] + 1), (before[1] + 1, 1)), (before, after)
    of_clones = "SELECT mst_key, cloned_from FROM madlib_mop.model WHERE run_id = %s AND cloned_from IS NOT NULL"
    places = {(key, came["epoch"]): list(came["segments"]) for key, came in db.rows(of_clones, [run_id])}
    for key, epoch, _, segment, *_ in rows:
        places.setdefault((key, epoch), []).append(segment)
    for (key, epoch), segments in places.items():
        assert len(segments) == len(set(segments)), (key, epoch, segments)


def steered(db, number: int, selection: str, n_people: int, n_verbs: int, n_strikes: int) -> None:
    """Steer one run to its end, check it, and replay it."""
    chance = random.Random(number)
    table, before = f"steered_{number}", newest_run(db) or 0
    schedule = chance.choice([name for name in SCHEDULES if name != "auto"])
    call = BackgroundFit(
        db, RUN.format(table=table, selection=selection, epochs=N_EPOCHS, seed=number, schedule=schedule)
    )
    run_id = wait_for(lambda: (run := newest_run(db) or 0) > before and run, what="the run")
    people = [Person(db, run_id, 100 * number + k, n_verbs) for k in range(n_people)]
    for person in people:
        person.start()
    for _ in range(n_strikes):
        time.sleep(chance.uniform(0.2, 1.5))
        strike(db, call, run_id, chance, may_stop_server=True)
    for person in people:
        person.join(120)
        assert not person.is_alive(), "a command did not come back"
    try:
        db.rows("SELECT madlib_mop.unpause(%s)", [run_id])
    except psycopg2.Error as error:
        assert error.pgcode != "XX000", error
    call.join()
    assert call.error is None or call.error.pgcode != "XX000", call.error
    finish(db, run_id)
    check_obeyed_once(db, run_id)
    check_visits(db, run_id)
    found = digests(db, run_id)
    db.rows("SELECT madlib_mop.replay(%s, %s)", [run_id, f"{table}_again"])
    assert digests(db, newest_run(db)) == found
    assert weights(db, table) == weights(db, f"{table}_again")
    assert_nothing_left(db)
    for each in (newest_run(db), run_id):
        db.rows("SELECT madlib_mop.drop_run(%s)", [each])


def test_a_run_that_is_steered_and_killed(bench):
    steered(bench, 1, "four", n_people=2, n_verbs=8, n_strikes=3)


@pytest.mark.timeout(86_400)
def test_runs_that_three_sessions_steer_while_everything_is_killed(bench):
    for number in range(2, 2 + int(os.environ.get("MOP_FAULTS", "3"))):
        steered(bench, number, "eight", n_people=3, n_verbs=N_VERBS, n_strikes=6)

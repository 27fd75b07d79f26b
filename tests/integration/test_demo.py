"""`make demo`: sixteen networks, a leaderboard, 0.97 on validation data, predictions; and it can be run again.

The page docs/first_steps.md continues from there: its statements are run too.
"""

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.helpers.faults import wait_for
from tests.helpers.jobs import JobWorker
from tests.helpers.pages import examples
from tests.helpers.plain_keras import assert_keras_reads_them

DEMO = Path(__file__).resolve().parents[2] / "demo"
pytestmark = pytest.mark.timeout(900)  # trainers start and trace slowly on a busy machine


@pytest.fixture(scope="module")
def demo(db):
    """The part of `make demo` after its set-up; the value is psql's output."""
    load = subprocess.run([sys.executable, DEMO / "digits.py"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return psql(db, load + (DEMO / "digits.sql").read_text())


def psql(db, script: str) -> str:
    """Run a script as make/demo.sh does."""
    command = [db.cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", db.dsn]
    done = subprocess.run(command, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_the_data_are_the_digits_each_in_one_part(demo, db):
    assert db.value("SELECT count(*) FROM demo.digits") == 1797
    parts = " UNION ALL ".join(f"SELECT id FROM demo.digits_{part}" for part in ("train", "valid", "held_out"))
    assert db.rows(f"SELECT count(*), count(DISTINCT id) FROM ({parts}) p") == [(1797, 1797)]


def test_sixteen_configurations_are_trained_on_three_segments(demo, db):
    ((run_id, state, n_models, n_segments, n_failed),) = db.rows(
        "SELECT run_id, state, n_models, n_segments, n_failed FROM madlib_mop.progress"
    )
    why = "SELECT mst_key, state_detail FROM madlib_mop.model WHERE run_id = %s AND state = 'failed'"
    reasons = db.rows(why, [run_id])
    assert not reasons, reasons
    assert (state, n_models, n_segments, n_failed) == ("finished", 16, 3, 0)
    choices = db.rows(
        "SELECT name, description, compile_params, fit_params FROM demo.configs JOIN demo.networks USING (model_id)"
    )
    assert [len(set(values)) for values in zip(*choices, strict=True)] == [2, 2, 2, 2]
    assert db.value("SELECT max(validation_metric) FROM madlib_mop.leaderboard WHERE run_id = %s", [run_id]) >= 0.97


def test_progress_leaderboard_schedule_and_predictions_are_printed(demo):
    progress = r"^NOTICE: +run \d+: iteration (\d+) of 12 done by 16 of 16 models, best validation accuracy"
    assert [int(number) for number in re.findall(progress, demo, re.MULTILINE)] == list(range(1, 13))
    board = demo[demo.index("== 5.") : demo.index("== 6.")]
    places = re.findall(r"^ +(\d+) \| +\d+ \| (?:perceptron|convolutional)", board, re.MULTILINE)
    assert [int(place) for place in places] == list(range(1, 17))
    figures = re.search(r"576" + r" \| +([\d.]+)" * 4 + "\n", demo).groups()
    makespan, bound, ratio, idle = map(float, figures)
    assert makespan >= bound > 0 and ratio >= 1 and 0 <= idle < 1
    held_out, right = re.search(r"held_out \| read_right.*\n.*\n +(\d+) \| +(\d+)", demo).groups()
    assert int(held_out) == 199 and int(right) > 0.9 * 199


def test_predictions_are_those_of_the_best_network(demo, db):
    rows = db.rows("SELECT digit, class_value FROM demo.digits_held_out LEFT JOIN demo.predictions USING (id)")
    assert len(rows) == 199
    assert sum(str(digit) == value for digit, value in rows) > 0.9 * 199


@pytest.mark.slow
def test_plain_keras_reads_every_architecture_as_it_is(demo, db):
    with closing(db.connect()) as connection:
        assert assert_keras_reads_them(connection) == 4 + 16


@pytest.mark.slow
def test_the_statements_of_the_page_after_the_demo_print_what_it_says_and_leave_nothing(demo, db):
    board, submit, jobs, steer, colleague, view, probabilities, cancel, clean = (
        example.text for example in examples("docs/first_steps.md", "sql")
    )
    assert len(re.findall(r"^ +[123] \| +\d+ \| trained \|   0\.9\d", psql(db, board), re.MULTILINE)) == 3
    with JobWorker(db):
        psql(db, submit)
        wait_for(lambda: db.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = 2"), 120, "visits of run 2")
        assert re.search(r" running \| +2\n", psql(db, jobs))
        assert re.search(r"stop_model \| obeyed \| mst_key 14 is stopped .*: low accuracy", psql(db, steer))
        seen = "SET ROLE colleague; SELECT count(*) AS models FROM madlib_mop.leaderboard WHERE run_id = 2;"
        assert re.search(r"models \n-+\n +16\n", psql(db, colleague + seen))
        n_wrong = int(re.search(r"\((\d+) rows?\)", psql(db, view))[1])
        assert 0 < n_wrong < 0.1 * 199
        assert '"8": 0.' in psql(db, probabilities)
        psql(db, cancel)
        wait_for(lambda: db.value("SELECT state FROM madlib_mop.run WHERE run_id = 2") == "cancelled", 60, "the end")
        wait_for(lambda: db.value("SELECT bool_and(ended_at IS NOT NULL) FROM madlib_mop.job_record"), 60, "the job")
    psql(db, clean)
    assert db.rows("SELECT run_id FROM madlib_mop.run") == [(1,)]
    assert db.value("SELECT count(*) FROM madlib_mop.job_record") == 0
    assert db.value("SELECT to_regnamespace('first_steps') IS NULL AND to_regrole('colleague') IS NULL")


@pytest.mark.slow
def test_it_can_be_run_again_and_gives_the_same_bits(demo, db):
    weights = "SELECT mst_key, sha256(model_weights) FROM demo.models ORDER BY mst_key"
    before = db.rows(weights)
    psql(db, (DEMO / "digits.sql").read_text())
    assert db.rows(weights) == before
    assert db.value("SELECT count(*) FROM madlib_mop.run") == 1

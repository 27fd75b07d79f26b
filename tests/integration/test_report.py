"""Reports of a real run: by SQL and by the command line, for everyone who may see the run and for nobody else."""

import json
import os
import subprocess
import sys

import pytest

from madlib_mop.cli.extras import SERVER
from tests.helpers.commands import run as madlib_mop
from tests.helpers.pages import ROOT
from tests.helpers.pages_of_runs import Page
from tests.helpers.reports import CLASS, MODELS, N_CONFIGURATIONS, PACKED, REASON, record_large_run, train_hostile_run
from tests.helpers.security.attacks import refusal_of, user

pytestmark = pytest.mark.one_session

OWNER, VIEWER, STRANGER = "owner_of_report", "viewer_of_report", "stranger_to_report"
REPORT = "SELECT madlib_mop.report(%s)"


@pytest.fixture(scope="module")
def lab(db):
    for role in (OWNER, STRANGER):
        user(db, role)
    db.cluster.create_role(VIEWER)
    db.run_id = train_hostile_run(db, OWNER)
    db.rows(f"SELECT madlib_mop.grant_read('{VIEWER}', '{OWNER}')")
    return db


@pytest.fixture(scope="module")
def page(lab):
    return Page(lab.value(REPORT, [lab.run_id], role=OWNER))


def test_the_leaderboard_has_the_models_in_the_order_of_the_view(page, lab):
    rows = lab.rows(
        "SELECT l.rank::text, l.mst_key::text, l.state FROM madlib_mop.leaderboard l"
        " WHERE l.run_id = %s ORDER BY l.rank",
        [lab.run_id],
    )
    assert [tuple(row[:3]) for row in page.table("leaderboard")] == rows
    assert len(rows) == N_CONFIGURATIONS + 1


def test_failed_and_stopped_models_have_their_reasons(page, lab):
    rows = {(row[0], row[3].strip()): row[2] for row in page.table("failures and stops")}
    assert "nan" in rows["failed", "13"] and REASON in rows["stopped", "2"]
    assert page.number("failed models") == "1"


def test_curves_of_iterations_and_of_visits_are_the_recorded_metrics(page, lab):
    points = page.data("curve-loss-iteration")["points"]
    recorded = lab.rows(
        "SELECT mst_key, data_set, epoch, value FROM madlib_mop.metric WHERE run_id = %s AND ordinal = 0", [lab.run_id]
    )
    drawn = {(p["m"], p["d"], p["x"]): p["v"] for p in points if "sample" not in p["d"]}
    assert drawn == pytest.approx({(m, d, float(e)): v for m, d, e, v in recorded}, rel=1e-5)
    finite = "SELECT count(*) FROM madlib_mop.visit_metric WHERE run_id = %s AND ordinal = 0 AND value < 'Infinity'"
    sampled = lab.value(finite, [lab.run_id])
    assert sum("sample" in p["d"] for p in points) == sampled > N_CONFIGURATIONS
    rows = {p["m"]: p["x"] for p in page.data("curve-loss-rows")["points"] if p["d"] == "validation"}
    assert rows[1] == lab.value(
        "SELECT sum(n_rows)::int FROM madlib_mop.visit WHERE run_id = %s AND mst_key = 1", [lab.run_id]
    )


def test_every_visit_is_a_bar_of_its_segment(page, lab):
    bars = page.data("gantt")["bars"]
    visits = lab.rows("SELECT trainer, mst_key FROM madlib_mop.timeline WHERE run_id = %s", [lab.run_id])
    assert sorted((b["g"], b["m"]) for b in bars if b["k"] != "evaluation") == sorted(visits)
    evaluations = lab.value("SELECT count(*) FROM madlib_mop.evaluation WHERE run_id = %s", [lab.run_id])
    assert sum(b["k"] == "evaluation" for b in bars) == evaluations
    assert all(b["a"] <= b["b"] for b in bars)


def test_the_clone_the_commands_and_the_policy_are_told(page):
    assert [row[:3] for row in page.table("origins of weights")] == [[str(N_CONFIGURATIONS + 1), "clone", "model 1"]]
    commands = page.table("commands")
    assert [row[1] for row in commands] == ["stop_model", "clone_model"]
    assert commands[0][2] == f"{OWNER} (policy)" and json.loads(commands[0][5])["reason"] == REASON
    assert "stop_model" in page.code["The policy"]


def test_the_data_are_told_with_balance_and_fingerprints(page, lab):
    classes = {row[0]: row[1] for row in page.table("classes of y")}
    counts = dict(lab.rows("SELECT y, count(*)::text FROM points GROUP BY y", role=OWNER))
    assert classes == counts and CLASS in classes
    digests = {row[5] for row in page.table("shards")}
    recorded = lab.rows("SELECT fingerprint FROM madlib_mop.segment WHERE run_id = %s", [lab.run_id])
    assert digests == {digest or "not loaded yet" for (digest,) in recorded}


def test_names_that_are_code_are_text(page):
    text = page.text
    for name in (PACKED, MODELS, CLASS, REASON):
        assert name in text
    assert {"b", "img"} & page.tags == set() and page.n_scripts == 2


@pytest.mark.slow
def test_the_sql_repeats_the_run_with_the_same_weights(page, lab):
    replay = page.code["SQL of the replay"]
    lab.rows(replay.replace("%", "%%"), role=OWNER)
    weights = "SELECT weights_digest FROM madlib_mop.model WHERE run_id = %s AND state = 'trained' ORDER BY mst_key"
    repeated = lab.value("SELECT max(run_id) FROM madlib_mop.run WHERE kind = 'replay'")
    assert lab.rows(weights, [repeated]) == lab.rows(weights, [lab.run_id])
    assert "SQL of the call" not in Page(lab.value(REPORT, [repeated], role=OWNER)).code


def test_the_call_is_read_by_the_server_as_it_is_written(page, lab):
    call = page.code["SQL of the call"]
    assert "seed => 3" in call and "metrics_every => 'visit'" in call
    lab.rows("PREPARE again AS " + call.replace("%", "%%"), role=OWNER)


@pytest.mark.slow
def test_one_who_was_granted_to_see_the_run_has_the_report_too(lab, page):
    other = Page(lab.value(REPORT, [lab.run_id], role=VIEWER))
    assert other.table("leaderboard") == page.table("leaderboard")
    assert f"for {VIEWER}." in other.text.replace("\n", " ")


@pytest.mark.parametrize("run_id", ["own", 999_999])
def test_a_stranger_cannot_tell_a_run_of_others_from_none(lab, run_id):
    number = lab.run_id if run_id == "own" else run_id
    error = refusal_of(lab, REPORT, [number], role=STRANGER)
    assert error.sqlstate == "22023"
    assert error.message == f"report: you have no run with this run_id. Received: {number}"


def test_a_role_without_rights_is_refused(lab):
    lab.cluster.create_role("nobody_of_report")
    assert refusal_of(lab, REPORT, [lab.run_id], role="nobody_of_report").sqlstate == "42501"


def test_one_who_may_only_see_runs_can_start_no_other_command(lab):
    for statement in (
        "SELECT madlib_mop_calls.call('report', '{\"run_id\": 1}', NULL)",
        "SELECT madlib_mop_calls._call('drop_run', '{\"run_id\": 1}', NULL, NULL, NULL)",
    ):
        assert refusal_of(lab, statement, role=VIEWER).sqlstate == "42501"
    answer = json.loads(lab.value("SELECT madlib_mop_calls._report('{\"function\": \"drop_run\"}')", role=VIEWER))
    assert "run_id is missing" in answer["error"]["message"]


def test_a_missing_number_is_one_clear_error(lab):
    assert refusal_of(lab, REPORT, [None]).message == "report: run_id is missing. Received: NULL"


def test_a_report_works_in_a_read_only_transaction_and_writes_nothing(lab):
    text = lab.rows("SET default_transaction_read_only = on; SELECT length(madlib_mop.report(%s))", [lab.run_id])
    assert text[0][0] > 1_000_000


@pytest.mark.slow
def test_the_command_writes_one_file_with_an_ordinary_login(lab, tmp_path, page):
    path = tmp_path / "run.html"
    done = madlib_mop(lab, "report", str(lab.run_id), "--output", str(path), dsn=lab.dsn_of(VIEWER))
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", str(path))
    assert Page(path.read_text()).table("leaderboard") == page.table("leaderboard")
    assert os.listdir(tmp_path) == ["run.html"], "no other file is left"


def test_the_command_needs_no_package_of_a_server(lab, tmp_path, page):
    path = tmp_path / "run.html"
    code = f"""
import sys
sys.modules |= dict.fromkeys({sorted(SERVER.values())!r})
sys.path[:0] = {[str(ROOT), str(ROOT / "plpython")]!r}
sys.argv = ["madlib-mop", "report", "{lab.run_id}", "--output", {str(path)!r}, "--dsn", {lab.dsn_of(VIEWER)!r}]
from madlib_mop.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{path}\n")
    assert Page(path.read_text()).table("leaderboard") == page.table("leaderboard")


@pytest.mark.slow
def test_the_command_refuses_what_it_cannot_write_and_who_may_not_see(lab, tmp_path):
    target = tmp_path / "target"
    link = tmp_path / "link.html"
    link.symlink_to(target)
    for words, message in (
        (["--output", str(link)], f"--output must be a file. {link} is a link"),
        (["--output", str(tmp_path / "no" / "run.html")], "the directory of --output does not exist"),
    ):
        done = madlib_mop(lab, "report", str(lab.run_id), *words)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    done = madlib_mop(lab, "report", str(lab.run_id), "--output", "-", dsn=lab.dsn_of(STRANGER))
    assert (done.returncode, done.stdout) == (1, "") and "you have no run with this run_id" in done.stderr
    assert not target.exists()


@pytest.mark.slow
def test_a_hundred_models_take_less_than_five_megabytes(lab):
    run_id = record_large_run(lab, 5100, OWNER, 100)
    text = lab.value(REPORT, [run_id], role=OWNER)
    assert len(text.encode()) < 5e6
    assert len(Page(text).table("leaderboard")) == 100


@pytest.mark.slow
def test_ten_thousand_models_take_less_than_twenty_seconds_and_megabytes(lab):
    run_id = record_large_run(lab, 5101, OWNER, 10_000)
    text = lab.value(f"SET statement_timeout = '20s'; {REPORT}", [run_id], role=OWNER)
    page = Page(text)
    assert len(text.encode()) < 20e6
    assert "The best 500 of 10,000 models." in page.text
    assert len({line["m"] for line in page.data("parallel")["lines"]}) >= 480
    assert page.data("gantt")["bins"] and page.data("curve-loss-iteration")["bands"]

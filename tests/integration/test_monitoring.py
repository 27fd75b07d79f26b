"""Monitoring of a run: views for BI tools, their rights and comments, the signal for live pages, the server's log."""

import json
import os
import time

import psycopg2
import pytest

from tests.conftest import Cluster, run
from tests.helpers.faults import wait_for
from tests.helpers.monitoring import (
    N_EPOCHS,
    N_SEGMENTS,
    N_TRAINED,
    OTHER,
    OWNER,
    TABLE,
    VIEWER,
    Signals,
    lines_of,
    make_monitored,
    train_monitored,
)

pytestmark = pytest.mark.one_session

VIEWS = ("metric_series", "model_summary", "visit_gantt")
N_VISITS = N_TRAINED * N_EPOCHS * N_SEGMENTS
STATE_CHANGES = 12  # of the run's own row, each with a signal


@pytest.fixture(scope="module")
def watched(db):
    """A database with a run, its number, the signals that came, and the seconds that it took."""
    make_monitored(db)
    begun = time.monotonic()
    with Signals(db, VIEWER) as signals:
        db.run_id = train_monitored(db)
        db.seconds = time.monotonic() - begun
        time.sleep(0.3)
    db.signals = signals.seen
    return db


def test_metrics_of_epochs_and_visits_have_their_times(watched):
    rows = watched.rows(
        "SELECT mst_key, data_set, name, epoch, visits, sample_rows, value, s.time BETWEEN r.created_at AND r.ended_at"
        " FROM madlib_mop.metric_series s JOIN madlib_mop.run r USING (run_id) WHERE run_id = %s ORDER BY s.time",
        [watched.run_id],
    )
    assert all(value is not None and within for *_, value, within in rows)
    of_epochs = [row[:5] for row in rows if row[5] is None]
    assert sorted(of_epochs) == [
        (mst_key, data_set, name, epoch, epoch * N_SEGMENTS)
        for mst_key in (1, 2) for data_set in ("training", "validation") for name in ("accuracy", "loss")
        for epoch in (1, 2)
    ]  # fmt: skip
    of_visits = sorted(row[:3] + row[4:6] for row in rows if row[5] is not None and row[2] == "loss")
    assert of_visits == [
        (mst_key, "validation", "loss", visits, 10) for mst_key in (1, 2) for visits in range(1, 1 + N_VISITS // 2)
    ]
    of_one = [row[4] for row in rows if row[0] == 1 and row[2] == "loss" and row[5] is not None]
    assert of_one == sorted(of_one), "visits are in the order of their times"


def test_a_metric_is_written_after_the_visits_that_it_follows(watched):
    early = watched.value(
        "SELECT count(*) FROM madlib_mop.metric x JOIN madlib_mop.visit v USING (run_id, mst_key, epoch)"
        " WHERE x.run_id = %s AND x.at < v.ended_at",
        [watched.run_id],
    )
    assert early == 0


def test_a_summary_has_parameters_newest_metrics_and_work(watched):
    rows = watched.rows(
        "SELECT mst_key, state, hyper_parameters, metric_name, validation_metric, validation_loss, training_metric,"
        " training_loss, metric_epoch, epoch, visits, seconds, state_bytes, failure_reason"
        " FROM madlib_mop.model_summary WHERE run_id = %s ORDER BY mst_key",
        [watched.run_id],
    )
    assert [row[:2] for row in rows] == [(1, "trained"), (2, "trained"), (3, "failed")]
    assert rows[0][2] == {
        "architecture": 1, "optimizer": "Adam", "learning_rate": 0.01, "loss": "categorical_crossentropy",
        "batch_size": 16, "epochs": 1, "l2": 0.001,
    }  # fmt: skip
    assert rows[1][2]["optimizer"] == "SGD" and rows[1][2]["momentum"] == 0.9 and rows[2][2]["loss"] == "broken"
    newest = watched.rows(
        "SELECT data_set, ordinal, value FROM madlib_mop.metric WHERE run_id = %s AND mst_key = 1 AND epoch = %s",
        [watched.run_id, N_EPOCHS],
    )
    value = {(data_set, ordinal): value for data_set, ordinal, value in newest}
    order = ("validation", 1), ("validation", 0), ("training", 1), ("training", 0)
    assert rows[0][3:9] == ("accuracy", *(value[key] for key in order), N_EPOCHS)
    assert rows[0][9:11] == (N_EPOCHS, N_EPOCHS * N_SEGMENTS) and rows[0][11] > 0 and rows[0][12] > 1000
    assert rows[0][13] is None and "custom function 'broken' failed" in rows[2][13]
    assert rows[2][3:9] == (None,) * 6 and rows[2][10:12] == (0, 0)


def test_the_gantt_chart_has_every_visit_and_every_evaluation(watched):
    chart = "SELECT {} FROM madlib_mop.visit_gantt WHERE run_id = %s"
    kinds = dict(watched.rows(chart.format("kind, count(*)") + " GROUP BY 1", [watched.run_id]))
    n_evaluations = watched.value("SELECT count(*) FROM madlib_mop.evaluation WHERE run_id = %s", [watched.run_id])
    assert kinds == {"visit": N_VISITS, "evaluation": n_evaluations} and n_evaluations > 0
    assert watched.value(chart.format("bool_and(seconds >= 0 AND ended_at >= started_at)"), [watched.run_id])
    for of in ("mst_key", "segment_id"):
        overlaps = watched.value(
            f"SELECT count(*) FROM madlib_mop.visit_gantt a JOIN madlib_mop.visit_gantt b USING (run_id, {of})"
            " WHERE run_id = %s AND a.kind = 'visit' AND b.kind = 'visit' AND a.started_at < b.started_at"
            " AND b.started_at < a.ended_at",
            [watched.run_id],
        )
        assert overlaps == 0, f"{of}: one visit at a time"


@pytest.mark.parametrize("view", VIEWS)
def test_those_who_may_see_the_run_see_it_and_no_others(watched, view):
    count = f"SELECT count(*) FROM madlib_mop.{view}"
    n = watched.value(f"SELECT count(*) FROM madlib_mop.{view} WHERE run_id = %s", [watched.run_id])
    assert n > 0
    assert (watched.value(count, role=OWNER), watched.value(count, role=VIEWER)) == (n, n)
    assert watched.value(count, role=OTHER) == 0
    watched.cluster.create_role("without_rights")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        watched.rows(count, role="without_rights")


def test_every_column_of_every_view_has_a_comment(db):
    missing = db.rows(
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
        " WHERE c.relnamespace = 'madlib_mop'::regnamespace AND c.relkind = 'v'"
        " AND coalesce(col_description(c.oid, a.attnum), '') = ''"
    )
    assert missing == []


def test_live_pages_are_notified_of_changes_and_of_the_end(watched):
    assert {run_id for run_id, _, _ in watched.signals} == {str(watched.run_id)}
    assert watched.signals[-1][1:] == ("finished", N_VISITS)
    n_visits = [n for _, _, n in watched.signals]  # all visits of so short a run can lie between two signals
    assert n_visits == sorted(n_visits) and ("running", 0) in {signal[1:] for signal in watched.signals}
    assert len(watched.signals) <= 2 * watched.seconds + STATE_CHANGES


def test_the_log_has_two_lines_of_a_run_which_a_name_cannot_forge(watched):
    started, ended = lines_of(watched, watched.run_id)
    assert (started["what"], started["state"], ended["what"], ended["state"]) == (
        "started", "running", "ended", "finished",
    )  # fmt: skip
    for line in (started, ended):
        assert (line["kind"], line["owner"]) == ("fit_multiple_model", OWNER)
        assert TABLE.replace("\n", " ") in line["output"].replace("\n", " ") and "\n" in line["output"]
        assert not line["next"].startswith(("\t", "CONTEXT", "STATEMENT")) and "STATEMENT:" not in line["next"]
    assert float(ended["seconds"]) > 0
    assert "\nLOG:  madlib_mop: run 1 ended" not in watched.cluster.log_tail(100_000)


def test_live_pages_are_notified_of_a_command(watched):
    with Signals(watched, VIEWER) as signals:
        watched.rows("SELECT madlib_mop.pin_model(%s, 1)", [watched.run_id], OWNER)
        wait_for(lambda: signals.seen, what="a notification")
    assert {run_id for run_id, _, _ in signals.seen} == {str(watched.run_id)}


@pytest.fixture(scope="module")
def json_cluster(state):
    """A server that logs JSON."""
    cluster = Cluster(f"test-{os.getpid()}-json", "logging_collector = on", "log_destination = 'jsonlog'")
    cluster.start()
    yield cluster
    cluster.destroy()


def test_where_the_server_logs_json_the_line_is_a_message_without_its_statement(json_cluster):
    run(json_cluster.connect(), "CREATE EXTENSION madlib_mop CASCADE")
    text = 'madlib_mop: run 7 started kind=fit owner="a" output="b" state=running seconds=0.000'
    run(json_cluster.connect(), f"SELECT madlib_mop_internal.log_line('{text}')")

    def entries() -> list[dict]:
        files = (json_cluster.datadir / "log").glob("*.json")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [entry for entry in map(json.loads, lines) if entry.get("message") == text]

    (entry,) = wait_for(entries, what="the line in the log")
    assert entry["error_severity"] == "LOG" and "statement" not in entry

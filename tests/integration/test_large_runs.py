"""Reports and views of runs that are too large to show everything: what they leave out, and what they never do."""

from contextlib import closing

import psycopg
import pytest

from madlib_mop.catalog.facts.curves import MAX_POINTS, read_curves
from madlib_mop.catalog.facts.history import MAX_DECISIONS, read_search
from madlib_mop.catalog.facts.now import read_runs, read_status
from madlib_mop.catalog.facts.reader import one_snapshot
from tests.helpers.reports import record_large_run

N_MODELS, N_EPOCHS, N_SEGMENTS = 50, 60, 3
KEYS = list(range(N_MODELS, 0, -1))


@pytest.fixture(scope="module")
def run_id(db):
    number = record_large_run(db, 4100, db.cluster.superuser, N_MODELS, N_EPOCHS, N_SEGMENTS)
    db.rows(
        "INSERT INTO madlib_mop.visit_metric (run_id, mst_key, visits, epoch, position, data_set, n_rows, ordinal,"
        " name, value) SELECT run_id, mst_key, (epoch - 1) * %s + position, epoch, position, 'validation', 10, o,"
        " 'loss', 1"
        " FROM madlib_mop.visit, generate_series(0, 1) AS o WHERE run_id = %s",
        [N_SEGMENTS, number],
    )
    return number


@pytest.fixture
def reader(db):
    with closing(psycopg.connect(db.dsn)) as connection, one_snapshot(connection) as reader:
        yield reader


@pytest.mark.parametrize("is_sample", [False, True])
def test_every_model_has_its_curve_from_the_first_to_the_last_point(run_id, reader, is_sample):
    points = [p for p in read_curves(reader, run_id, KEYS) if p.is_sample is is_sample]
    assert len(points) <= MAX_POINTS
    assert {p.mst_key for p in points} == set(KEYS)
    first = 1 / N_SEGMENTS if is_sample else 1.0
    for key in KEYS:
        iterations = [p.iteration(N_SEGMENTS) for p in points if p.mst_key == key]
        assert len(iterations) >= 30 and (min(iterations), max(iterations)) == (pytest.approx(first), N_EPOCHS)
    (rows,) = {p.rows for p in points if p.iteration(N_SEGMENTS) == N_EPOCHS}
    assert rows == N_EPOCHS * N_SEGMENTS * 1000.0


def test_a_search_is_shown_to_its_end_with_its_lowest_loss(db, run_id, reader):
    for table in ("search_event", "change"):
        db.rows(f"DELETE FROM madlib_mop.{table} WHERE run_id = %s", [run_id])
    db.rows(
        "INSERT INTO madlib_mop.search_event (run_id, ordinal, event, mst_key, epoch, loss)"
        " SELECT %s, n, CASE WHEN n %% 100 = 50 THEN 'failed' ELSE 'result' END, n, 1,"
        " CASE WHEN n = 1235 THEN 0.5 WHEN n %% 100 <> 50 THEN 1 + n END FROM generate_series(1, 2000) AS n",
        [run_id],
    )
    db.rows(
        "INSERT INTO madlib_mop.change (run_id, source, change, event, number, state)"
        " SELECT %s, 'search', c.change, n, c.number, 'obeyed' FROM generate_series(2, 2000, 2) AS n,"
        " (VALUES (1, 'stop'), (2, 'add')) AS c (number, change)",
        [run_id],
    )
    events, n_decisions, n_results = read_search(reader, run_id)
    assert (n_decisions, n_results) == (3000, 1980)
    assert MAX_DECISIONS / 2 < len(events) <= MAX_DECISIONS + 3
    assert (events[0].ordinal, events[-1].ordinal) == (1, 2000)
    assert min(e.loss for e in events if e.loss is not None) == 0.5


@pytest.mark.parametrize("ended", ["failed", "stopped"])
def test_models_that_have_failed_count_neither_as_done_nor_as_work(db, run_id, ended):
    db.rows("UPDATE madlib_mop.run SET state = 'running', ended_at = NULL WHERE run_id = %s", [run_id])
    db.rows(
        "UPDATE madlib_mop.model SET state = CASE WHEN mst_key > 10 THEN %s ELSE 'training' END,"
        " epoch = 30, position = 3 WHERE run_id = %s",
        [ended, run_id],
    )
    shown = db.rows(
        "SELECT visits_done, visits_total, percent_done, time_left > '0 s' FROM madlib_mop.progress WHERE run_id = %s",
        [run_id],
    )
    assert shown == [(10 * 30 * N_SEGMENTS, 10 * N_EPOCHS * N_SEGMENTS, 50, True)]
    status = read_status(db.rows, run_id)
    assert (status.visits_done, status.visits_total) == shown[0][:2]
    assert [run.percent_done for run in read_runs(db.rows, 5) if run.run_id == run_id] == [50]

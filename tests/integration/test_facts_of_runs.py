"""What pages, trackers and the command line say of one run is the same, because one reading serves them."""

from contextlib import closing
from dataclasses import fields
from statistics import median

import psycopg
import pytest

from madlib_mop.catalog.facts.head import RunHead
from madlib_mop.catalog.facts.models import ModelLine, read_all_models
from madlib_mop.catalog.facts.now import read_models, read_runs, read_segments, read_status
from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.facts.run import read_run
from madlib_mop.catalog.facts.tracked import read_tracked
from tests.helpers.commands import run_here
from tests.helpers.invented import invent_run

pytestmark = pytest.mark.one_session

N_MODELS, N_SEGMENTS, N_EPOCHS, VISIT_S = 6, 2, 3, 0.02


@pytest.fixture
def run_id(db):
    return invent_run(db, N_MODELS, N_SEGMENTS, N_EPOCHS, owner=db.cluster.superuser)


@pytest.fixture
def reader(db):
    with closing(psycopg.connect(db.dsn)) as connection, one_snapshot(connection) as reader:
        yield reader


def test_seconds_of_models_that_train_together_are_divided_among_them(db, run_id, reader):
    db.rows("""UPDATE madlib_mop.visit SET timing = '{"fused": 2}' WHERE run_id = %s""", [run_id])
    whole = N_MODELS * N_SEGMENTS * N_EPOCHS * VISIT_S / 2
    segments = read_segments(db.rows, read_status(db.rows, run_id))
    assert sum(segment.busy_s for segment in segments) == pytest.approx(whole)
    assert sum(model.seconds for model in read_all_models(reader, run_id)) == pytest.approx(whole)
    facts = read_run(reader, run_id)
    assert sum(model.seconds for model in facts.models) == pytest.approx(whole)
    assert sum(load.visit_s for load in facts.timeline.loads) == pytest.approx(whole)


def test_the_longest_tasks_are_those_of_the_record(db, run_id, reader):
    """Also at another trainer than the segment's own; and of models that train together, each has its share."""
    db.rows(
        """UPDATE madlib_mop.visit SET ended_at = started_at + (12 * epoch + 6 * position + mst_key) * interval '10 ms',
               timing = CASE WHEN mst_key > 4 THEN '{"fused": 2}' WHEN segment_id = 1 THEN '{"trainer": 0}'
                             ELSE '{}' END::jsonb
           WHERE run_id = %s""",
        [run_id],
    )
    db.rows(
        """INSERT INTO madlib_mop.evaluation (run_id, mst_key, epoch, data_set, shard, segment_id, started_at, ended_at,
               n_rows)
           SELECT run_id, m, 1, 'validation', 0, 1, created_at + m * interval '1 s', created_at + m * interval '3 s', 9
           FROM madlib_mop.run, generate_series(1, 3) AS m WHERE run_id = %s""",
        [run_id],
    )
    tasks = [("evaluation", key, 1, 1, float(key), 2.0 * key) for key in (1, 2, 3)] + db.rows(
        """SELECT 'visit', mst_key, trainer, epoch, start_s, seconds / CASE WHEN mst_key > 4 THEN 2 ELSE 1 END
           FROM madlib_mop.timeline WHERE run_id = %s""",
        [run_id],
    )
    medians = {kind: median(task[-1] for task in tasks if task[0] == kind) for kind in ("visit", "evaluation")}
    expected = sorted(tasks, key=lambda task: -task[-1])[:10]
    longest = read_run(reader, run_id).timeline.longest
    assert [(task.kind, task.mst_key, task.segment_id, task.epoch) for task in longest] == [t[:4] for t in expected]
    assert [task.start_s for task in longest] == pytest.approx([task[4] for task in expected])
    assert [task.seconds for task in longest] == pytest.approx([task[5] for task in expected])
    of_median = [task[5] / medians[task[0]] for task in expected]
    assert [task.of_median for task in longest] == pytest.approx(of_median)
    assert {task.kind for task in longest} == {"visit", "evaluation"} and medians["evaluation"] == 4


def test_a_run_is_as_done_in_the_list_of_the_command_line_as_elsewhere(db, run_id):
    db.rows("UPDATE madlib_mop.model SET state = 'failed' WHERE run_id = %s", [run_id])
    (listed,) = [line.percent_done for line in read_runs(db.rows, 50) if line.run_id == run_id]
    printed = next(line for line in run_here(db, "runs").stdout.splitlines() if line.split()[:1] == [str(run_id)])
    assert listed == read_status(db.rows, run_id).percent_done == 100 and "100.0%" in printed


def test_figures_that_are_nan_are_known_to_all_readers(db, run_id, reader):
    db.rows("UPDATE madlib_mop.metric SET value = 'NaN' WHERE run_id = %s AND name = 'accuracy'", [run_id])
    db.rows("UPDATE madlib_mop.metric SET value = 'Infinity' WHERE run_id = %s AND name = 'loss'", [run_id])
    names = [field.name for field in fields(ModelLine)]
    boards = [
        [[str(getattr(model, name)) for name in names] for model in models]
        for models in (read_models(db.rows, run_id), read_run(reader, run_id).models)
    ]
    assert boards[0] == boards[1]
    assert {model.score for model in read_all_models(reader, run_id)} == {None}
    assert db.value("SELECT madlib_mop.report(%s)", [run_id]).count(">nan<") >= N_MODELS


def test_a_report_and_a_tracker_read_the_same_row_of_the_run(run_id, reader):
    report, tracked = read_run(reader, run_id), read_tracked(reader, run_id)
    same = [field.name for field in fields(RunHead)]
    assert [getattr(report, name) for name in same] == [getattr(tracked, name) for name in same]

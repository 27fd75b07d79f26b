"""The time of a run that its budget counts."""

import time
from unittest import mock

from madlib_mop.catalog.rows.of_run import SearchEvent
from madlib_mop.driver.changes.search_progress import SearchProgress
from madlib_mop.driver.session.progress import ProgressReporter
from tests.helpers.unit.rows import a_plan, a_run, a_search


def test_pauses_do_not_count():
    run = mock.Mock(training_s=100.0, n_segments=2)
    with mock.patch.object(time, "monotonic") as clock:
        clock.return_value = 5.0
        progress = ProgressReporter(mock.Mock(), run, [])
        clock.return_value = 8.0
        assert (progress.elapsed_s, progress.spent_s) == (103.0, 3.0)
        progress.pause()
        clock.return_value = 500.0
        assert progress.elapsed_s == 103.0
        progress.resume()
        clock.return_value = 501.0
        assert (progress.elapsed_s, progress.spent_s) == (104.0, 4.0)


def test_a_budget_that_is_short_for_new_models_is_told_once():
    session = mock.Mock()
    progress = SearchProgress(session, a_run(a_plan(search=a_search("asha")), kind="automl"), [])
    for ordinal, left in enumerate((2, 1, 3, 0)):
        progress.decided(SearchEvent(run_id=1, ordinal=ordinal, event="budget", epoch=left))
    ((said,),) = [call.args for call in session.notice.call_args_list]
    assert said.startswith("run 1: the rest of the time budget is too short for a new model to go on")

"""The time of a run that its budget counts."""

import time
from unittest import mock

from madlib_mop.driver.session.progress import ProgressReporter


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

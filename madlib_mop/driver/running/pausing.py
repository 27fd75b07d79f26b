"""The pause of a run: no task starts; when none is in flight, the trainers end, until the run continues."""

from madlib_mop.driver.running.segments import Segments
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.schedule import Scheduler


class RunPause:
    """Whether a run pauses.

    Parameters
    ----------
    wanted : bool
        Whether the run is paused at its start.
    segments : Segments
    scheduler : Scheduler
    progress : ProgressReporter
        It does not count the time of a pause.
    """

    def __init__(self, wanted: bool, segments: Segments, scheduler: Scheduler, progress: ProgressReporter):
        self._wanted = wanted
        self._segments = segments
        self._scheduler = scheduler
        self._progress = progress
        self._closed = False

    def begin(self) -> None:
        """Start no further task."""
        self._wanted = True

    def end(self) -> None:
        """Continue; the trainers start again."""
        self._wanted = False
        if self._closed:
            self._closed = False
            self._progress.resume()
            self._segments.open()

    def keeps(self, in_flight: bool) -> bool:
        """Return whether no task may start; give the trainers back once none is in flight.

        Parameters
        ----------
        in_flight : bool
            Whether a task is in flight.
        """
        if self._wanted and not in_flight and not self._closed:
            self._closed = True
            for segment in self._scheduler.segments:
                self._scheduler.segment_down(segment)
            self._segments.pause()
            self._progress.pause()
        return self._wanted

"""Bugs that are put into a copy of the library: random histories of runs find each of them."""

from typing import NamedTuple


class Bug(NamedTuple):
    """A bug: ``new`` in place of ``old``, which is in ``file`` once."""

    name: str
    file: str
    old: str
    new: str


_RUNNING, _CHANGES = "madlib_mop/driver/running", "madlib_mop/driver/changes"
BUGS = (
    Bug(
        "a task is forgotten if its session is lost",
        f"{_RUNNING}/loop.py",
        "                    self._plan.requeue(lost.task)\n",
        "",
    ),
    Bug(
        "a visit that was committed before its session was lost is repeated",
        f"{_RUNNING}/loop.py",
        "if lost is not None and not self._was_kept(lost):",
        "if lost is not None:",
    ),
    Bug(
        "the slot of a lost visit is never free again",
        f"{_RUNNING}/loop.py",
        "    self._end_write(lost)\n",
        "    pass\n",
    ),
    Bug(
        "the next driver does not know of an early stop",
        f"{_RUNNING}/loop.py",
        "for mst_key in self._stops.resume():",
        "for mst_key in ():",
    ),
    Bug(
        "the next driver does not compute missing metrics",
        f"{_RUNNING}/loop.py",
        "        self._evaluations.add_missing()\n",
        "",
    ),
    Bug(
        "a stopped model goes on",
        f"{_RUNNING}/models.py",
        "            self.scheduler.drop(unit)\n        self.evaluations.forget(mst_key)\n",
        "            self.evaluations.forget(mst_key)\n",
    ),
    Bug(
        "a resumed model misses the metrics of the epoch that it had completed",
        f"{_RUNNING}/models.py",
        "        self.progress.model_added(self.models[mst_key])\n        self.evaluations.end_epoch(mst_key)\n",
        "        self.progress.model_added(self.models[mst_key])\n",
    ),
    Bug(
        "an extended model does not go on",
        f"{_RUNNING}/models.py",
        "        self.scheduler.extend((mst_key,), self.models[mst_key].last_epoch)\n",
        "",
    ),
    Bug("unpause does not open the segments", f"{_RUNNING}/pausing.py", "            self._segments.open()\n", ""),
    Bug(
        "the next driver applies a command again",
        f"{_CHANGES}/changes.py",
        "                self._record.record_outcome(command, outcome)\n                self._side.recorded()\n",
        "                self._side.recorded()\n            self._record.record_outcome(command, outcome)\n",
    ),
    Bug(
        "a clone has the state that its original had before",
        f"{_CHANGES}/changes.py",
        "            newest = self._record.lock_model(self._run_id, source.mst_key)\n",
        "            newest = source\n",
    ),
    Bug(
        "the policy stops a model that people have pinned",
        f"{_CHANGES}/changes.py",
        "if model.pinned and issuer.source is ChangeSource.POLICY:",
        "if False:",
    ),
    Bug(
        "the next driver does not repeat the newest event of the search",
        f"{_CHANGES}/search.py",
        "        for event in self._history.events:\n            self._repeat",
        "        for event in self._history.events[:-1]:\n            self._repeat",
    ),
    Bug(
        "the first state is kept as the best one",
        "madlib_mop/driver/evaluation/early_stopping.py",
        "if rule.restore_best and course.best_epoch == epoch:",
        "if rule.restore_best and model.best_state is None:",
    ),
    Bug(
        "a model whose statements fail is failed",
        f"{_RUNNING}/retries.py",
        "n_faults < MAX_FAULTS, n_faults >= MAX_FAULTS, error)",
        "n_faults < MAX_FAULTS, False, error)",
    ),
    Bug(
        "a resumed model has no visits to make",
        "madlib_mop/schedule/scheduler.py",
        "        self._n_unfinished += 1\n        if not model.left and",
        "        if not model.left and",
    ),
)

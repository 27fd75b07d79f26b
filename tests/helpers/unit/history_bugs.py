"""Bugs that are put into a copy of the library: random histories of runs (`histories`) find each of them.

The last ones of each list are bugs of writers: of `simulated_segments` and `memory_record`, which do what the server's
writers do.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parents[3]
_FIND = """
from tests.helpers.unit.histories import {kind}, lived
for seed in {seeds}:
    print(seed, flush=True)
    lived(seed, kind={kind})
"""


class Bug(NamedTuple):
    """A bug: ``new`` in place of ``old``, which is in ``file`` once."""

    name: str
    file: str
    old: str
    new: str


_RUNNING, _CHANGES = "madlib_mop/driver/running", "madlib_mop/driver/changes"
_EVALUATION, _CATALOG = "madlib_mop/driver/evaluation", "madlib_mop/catalog"
_WRITERS = "tests/helpers/unit/simulated_segments.py"
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
        f"{_RUNNING}/hopper.py",
        "            self.scheduler.drop(unit)\n        self.evaluations.forget(mst_key)\n",
        "            self.evaluations.forget(mst_key)\n",
    ),
    Bug(
        "a model begins iterations when the time of its run is over",
        f"{_RUNNING}/hopper.py",
        "        self.scheduler.finish_early(self.groups.unit_of(mst_key))\n",
        "",
    ),
    Bug(
        "the next driver does not know that the time of its run was over",
        f"{_CHANGES}/deciders.py",
        "limit_s is not None and limit_s in record.time_limits_over(run.run_id)",
        "False",
    ),
    Bug(
        "a resumed model misses the metrics of the epoch that it had completed",
        f"{_RUNNING}/hopper.py",
        "        self.progress.model_added(self.models[mst_key])\n        self.evaluations.end_epoch(mst_key)\n",
        "        self.progress.model_added(self.models[mst_key])\n",
    ),
    Bug(
        "an extended model does not go on",
        f"{_RUNNING}/hopper.py",
        "        self.scheduler.extend((mst_key,), self.models[mst_key].last_epoch)\n",
        "",
    ),
    Bug("unpause does not open the segments", f"{_RUNNING}/hopper.py", "            self._segments.open()\n", ""),
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
        f"{_EVALUATION}/early_stopping.py",
        "if rule.restore_best and course.best_epoch == epoch:",
        "if rule.restore_best and model.best_state is None:",
    ),
    Bug(
        "a model whose statements fail is failed",
        f"{_RUNNING}/loop.py",
        "n_faults < MAX_FAULTS, n_faults >= MAX_FAULTS, error)",
        "n_faults < MAX_FAULTS, False, error)",
    ),
    Bug(
        "a resumed model has no visits to make",
        "madlib_mop/schedule/scheduler.py",
        "        self._n_unfinished += 1\n        if not model.left and",
        "        if not model.left and",
    ),
    Bug(
        "a clone that has waited for a visit leaves its slot behind",
        f"{_CHANGES}/changes.py",
        "        except NotYet:\n            effect.cleanup()\n",
        "        except NotYet:\n",
    ),
    Bug(
        "a clone that was withdrawn leaves its slot behind",
        f"{_CHANGES}/changes.py",
        "        except _Withdrawn:\n            effect.cleanup()\n",
        "        except _Withdrawn:\n",
    ),
    Bug(
        "a replay clones a model that has copied a state before it has copied it",
        "madlib_mop/catalog/rows/model.py",
        "return visit == (self.epoch, self.position) and self.version in (None, model.state_version)",
        "return visit == (self.epoch, self.position)",
    ),
    Bug(
        "a replay does not clone a model that has just copied a state",
        f"{_CHANGES}/replay.py",
        "if mst_key in self._models and self._models[mst_key].is_just_taken_over:",
        "if False:",
    ),
    Bug(
        "a model is extended before its last metrics have decided whether it stops early",
        f"{_CHANGES}/changes.py",
        "if self._side.trains and model.early_stopping is not None and self._awaits_end(model):",
        "if False:",
    ),
    Bug(
        "a driver begins its tasks before it obeys pending commands",
        f"{_RUNNING}/hopper.py",
        "self._changes.make_all(decider.begin(self._models))\n        self._apply_commands()\n",
        "self._changes.make_all(decider.begin(self._models))\n",
    ),
    Bug(
        "a command that was withdrawn is obeyed",
        f"{_CHANGES}/changes.py",
        "                if not self._record.lock_command(command):\n                    raise _Withdrawn\n",
        "",
    ),
    Bug(
        "a clone makes fewer iterations than it was asked for if a visit has just been committed",
        f"{_CHANGES}/changes.py",
        "if newest.state_version != source.state_version:",
        "if self._complete_epochs(newest) >= last_epoch:",
    ),
    Bug(
        "a search gets the loss on the training data although there are validation data",
        f"{_CHANGES}/search.py",
        'return losses["validation"] if "validation" in losses else losses["training"]',
        'return losses["training"]',
    ),
    Bug(
        "shards that did not fit into the trainer's memory are not evaluated",
        f"{_EVALUATION}/evaluations.py",
        "if left and any(key in self._open for key in of.mst_keys):",
        "if False:",
    ),
    Bug(
        "metrics that are no means are computed only if there are no others",
        f"{_EVALUATION}/evaluations.py",
        "if all(sums.all_means for sums in self._sums.values()):",
        "if True:",
    ),
    Bug(
        "a metric that is NaN is the best one",
        "madlib_mop/models/parameters/early_stopping.py",
        "if not math.isnan(value) and (best is None or",
        "if (best is None or",
    ),
    Bug(
        "visits between metrics on the sample are counted from the first epoch, also after a warm start",
        f"{_RUNNING}/hopper.py",
        "first = min(self._models[key].first_epoch for key in visit.unit)",
        "first = 1",
    ),
    Bug(
        "the policy does not see metrics on the sample",
        f"{_RUNNING}/hopper.py",
        "        if self._sample_of(task) is not None:\n            self._metrics_came()\n",
        "",
    ),
    Bug(
        "iterations between metrics are counted from the first epoch, also after a warm start",
        f"{_EVALUATION}/evaluations.py",
        "(epoch - first_epoch + 1) % frequency == 0",
        "epoch % frequency == 0",
    ),
    Bug(
        "a clone of a warm start that has made no visit makes one iteration less",
        f"{_CHANGES}/changes.py",
        "else max(model.epoch, model.first_epoch) - 1",
        "else max(model.epoch, 1) - 1",
    ),
    Bug(
        "a model whose newest state is damaged loses its best one",
        f"{_RUNNING}/hopper.py",
        "if best is None or decision.error.get(",
        "if True or decision.error.get(",
    ),
    Bug(
        "the slot of the best state of a model that fails is never free again",
        f"{_EVALUATION}/early_stopping.py",
        "            self._slots.release(best_key(mst_key))\n",
        "            pass\n",
    ),
    Bug(
        "a visit that was committed before an error of its session is repeated",
        f"{_RUNNING}/loop.py",
        "                if not self._was_kept(flight):\n                    self._no_result",
        "                if True:\n                    self._no_result",
    ),
    Bug(
        "a task is given to a segment whose sessions were lost",
        f"{_RUNNING}/loop.py",
        "                self._plan.segment_down(segment)\n",
        "",
    ),
    Bug(
        "the failure of a member is forgotten if the answer is lost",
        f"{_RUNNING}/hopper.py",
        "if len(order.members) > 1:  # the failure",
        "if False:  # the failure",
    ),
    Bug(
        "a resumed model waits for its first visit, although it was committed meanwhile",
        f"{_CATALOG}/run_models.py",
        "has_visits = self._record.lock_model(self._run_id, mst_key).has_own_visits",
        "has_visits = self._models[mst_key].has_own_visits",
    ),
    Bug(
        "a slot is emptied while a visit writes its state to it",
        f"{_CATALOG}/state_slots.py",
        "return not slot.writers and not self._keys_in(slot.number)",
        "return not self._keys_in(slot.number)",
    ),
    Bug(
        "a state is moved while a visit replaces it",
        f"{_RUNNING}/hopper.py",
        "self._slots.compact({*self._models, *kept} - busy)",
        "self._slots.compact({*self._models, *kept})",
    ),
    Bug(
        "a cancelled run goes on",
        f"{_RUNNING}/loop.py",
        "                self._check_cancelled()\n                self._notified()\n",
        "                self._notified()\n",
    ),
    Bug(
        "the next driver does not ask the policy about metrics that nobody has seen",
        f"{_RUNNING}/hopper.py",
        "        if any(model.has_own_visits for model in self._models.values()):\n            self._metrics_came()",
        "        if False:\n            self._metrics_came()",
    ),
    Bug(
        "commands that come while the last task ends are refused",
        f"{_RUNNING}/hopper.py",
        "            return False\n        self._apply_commands()\n        return self._plan.done\n",
        "            return False\n        return self._plan.done\n",
    ),
    Bug(
        "a visit is committed a second time",
        _WRITERS,
        "            or self._record.has_visit(model.mst_key, *place)\n",
        "",
    ),
    Bug(
        "a writer can commit after the driver was told that its session is lost",
        _WRITERS,
        "        session.is_lost = True\n        session.end()\n        self._world.say(",
        "        session.is_lost = True\n        self._world.say(",
    ),
)
#: Bugs that histories of runs with direct hops find.
HOP_BUGS = (
    Bug(
        "a task whose state is away is forgotten",
        f"{_RUNNING}/hopper.py",
        "        self._plan.requeue(task)\n        if isinstance(answer, StateAway):",
        "        if isinstance(answer, StateAway):",
    ),
    Bug(
        "a model that waits for a host is never tried again",
        f"{_RUNNING}/states_at_hosts.py",
        "            if now >= wait.retry_at and key not in self._lost:\n                self._let_go_on(key)\n",
        "            pass\n",
    ),
    Bug(
        "a state that a host has lost is looked for there again",
        f"{_RUNNING}/states_at_hosts.py",
        "            self._record.copy_lost(self._run.run_id, key, lost, answer.server)\n",
        "",
    ),
    Bug(
        "a lost state is given up if the visit that makes it again fails",
        f"{_RUNNING}/hopper.py",
        "        self._at_hosts.not_made(again)\n",
        "",
    ),
    Bug(
        "a visit that is made again begins with the newest state",
        f"{_RUNNING}/hopper.py",
        "again_from=again.from_version,",
        "again_from=None,",
    ),
    Bug(
        "one visit too few is made again",
        f"{_RUNNING}/states_at_hosts.py",
        "if (v.epoch, v.position) > place)",
        "if (v.epoch, v.position) >= place)",
    ),
    Bug(
        "a segment that makes a visit again is given other tasks",
        f"{_RUNNING}/hopper.py",
        "            self._plan.segment_down(segment)\n            visit = again.visit\n",
        "            visit = again.visit\n",
    ),
    Bug(
        "a visit is made again at a segment whose session was lost",
        f"{_RUNNING}/hopper.py",
        "            self._up.discard(event.segment)\n",
        "            pass\n",
    ),
    Bug(
        "a run ends while hosts hold states",
        f"{_RUNNING}/hopper.py",
        "if self._again or (self._at_hosts is not None and not self._at_hosts.all_home()):",
        "if self._again:",
    ),
    Bug(
        "a run ends before its hosts are told that it needs no states any more",
        f"{_RUNNING}/hopper.py",
        "            self._at_hosts.end()\n",
        "            pass\n",
    ),
    Bug(
        "states of complete iterations that may be restored stay at hosts",
        f"{_RUNNING}/hopper.py",
        'is_due or bool((model.early_stopping or {}).get("restore_best"))',
        "is_due",
    ),
    Bug(
        "a clone copies the state that its original had at home",
        f"{_CHANGES}/changes.py",
        "new.has_optimizer_of(old)\n        self._bring_home(source.mst_key)\n",
        "new.has_optimizer_of(old)\n",
    ),
    Bug(
        "the slot of a state that was fetched is never free again",
        f"{_RUNNING}/states_at_hosts.py",
        "            self._slots.rename(key, mst_key)\n",
        "            pass\n",
    ),
    Bug(
        "a new state releases those that it follows at once",
        "tests/helpers/unit/memory_record.py",
        "if len(newer) >= n_copies and (len(set(newer)) >= n_copies or old.server in newer):",
        "if newer:",
    ),
    Bug(
        "a visit that was made again is recorded although its result is another one",
        _WRITERS,
        "            return visit is None or visit.digest_out != self._record.digest_after(order, write.mst_key)\n",
        "            return False\n",
    ),
)


def seed_that_finds(bug: Bug, folder: Path, seeds: Iterable[int], kind: str = "History") -> int:
    """Return the first seed whose history does not keep a promise in a copy of the library with a bug.

    Parameters
    ----------
    bug : Bug
    folder : Path
        An empty one, for the copy.
    seeds : iterable of int
    kind : str
        Of the histories.
    """
    for name in ("madlib_mop", "tests/helpers"):
        shutil.copytree(_ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "plpython").symlink_to(_ROOT / "plpython")
    file = folder / bug.file
    assert file.read_text().count(bug.old) == 1
    file.write_text(file.read_text().replace(bug.old, bug.new))
    places = {**os.environ, "PYTHONPATH": f"{folder}:{folder / 'plpython'}"}
    command = [sys.executable, "-B", "-c", _FIND.format(seeds=list(seeds), kind=kind)]
    found = subprocess.run(command, cwd=folder, env=places, capture_output=True, text=True)
    assert found.returncode == 1 and "in lived" in found.stderr, found.stderr
    return int(found.stdout.split()[-1])

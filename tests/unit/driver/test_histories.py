"""A thousand random histories of a run, without a server: each keeps the promises, and its replay repeats it."""

import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mop_backend.refusals import STATE_DAMAGED

from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState
from madlib_mop.models.changes import BY_FUNCTION
from tests.helpers.unit.histories import History, live_and_check
from tests.helpers.unit.history_bugs import BUGS
from tests.helpers.unit.memory_record import NO_MEAN

ROOT = Path(__file__).resolve().parents[3]
N_HISTORIES, N_AT_ONCE = 1000, 50
_FIND = "from tests.helpers.unit.histories import live_and_check\nfor seed in range(int(__import__('sys').argv[1])): "


@pytest.mark.parametrize("first", range(0, N_HISTORIES, N_AT_ONCE))
def test_whatever_happens_a_run_keeps_its_promises_and_is_replayed(first):
    for seed in range(first, first + N_AT_ONCE):
        live_and_check(seed)


def test_histories_have_commands_of_each_kind_and_changes_of_each_decider():
    commands, sources, kinds, methods = Counter(), Counter(), Counter(), set()
    for seed in range(100):
        history = History(seed).live()
        run, changes = history.record.the_run, history.record.changes
        commands.update((row.command, row.state) for row in changes if row.command is not None)
        sources.update(row.source for row in changes)
        kinds[history.kind] += 1
        methods |= {run.search_plan.method} if run.is_search else set()
    assert {command for command, state in commands if state is ChangeState.OBEYED} == set(BY_FUNCTION)
    assert {command for command, state in commands if state is ChangeState.REFUSED} >= {
        "stop_model", "resume_model", "clone_model", "extend", "pause", "unpause"
    }  # fmt: skip
    assert set(sources) == set(ChangeSource) - {ChangeSource.REPLAY}
    assert min(kinds.values()) >= 10 and len(methods) == 4


def test_histories_have_what_a_run_can_have():
    found = Counter()
    for seed in range(200):
        history = History(seed).live()
        record = history.record
        models, plan = record.rows.values(), record.the_run.plan
        found["commands that were withdrawn"] += any(row.state is ChangeState.WITHDRAWN for row in record.changes)
        found["commands that a driver found at its beginning"] += history.has_begun_with_commands
        found["commands without a driver"] += bool(history.undriven)
        found["validation data"] += plan.validation is not None
        found["a sample"] += bool(record.visit_metrics)
        found["metrics that are no means"] += any(m.name == NO_MEAN for m in record.all_metrics)
        found["losses that are NaN"] += any(math.isnan(m.value) for m in record.all_metrics)
        found["states of an earlier run"] += bool(record.earlier)
        found["weights of an earlier run"] += any(m.first_epoch > 1 and m.start_weights is not None for m in models)
        found["best states"] += any(m.is_restored and m.state is ModelState.TRAINED for m in models)
        found["damaged states"] += any(STATE_DAMAGED in (m.state_detail or "") for m in models)
        found["best states instead of damaged ones"] += any(m.is_restored and not m.is_alive for m in models)
    assert len(found) == 12 and min(found.values()) > 0, found


@pytest.mark.mutation
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_histories_find_a_bug(bug, tmp_path):
    """A copy of the library has the bug; some history then does not keep a promise."""
    shutil.copytree(ROOT / "madlib_mop", tmp_path / "madlib_mop", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "plpython"):
        (tmp_path / name).symlink_to(ROOT / name)
    file = tmp_path / bug.file
    assert file.read_text().count(bug.old) == 1
    file.write_text(file.read_text().replace(bug.old, bug.new))
    places = {**os.environ, "PYTHONPATH": f"{tmp_path}:{tmp_path / 'plpython'}"}
    command = [sys.executable, "-B", "-c", f"{_FIND}live_and_check(seed)", str(N_HISTORIES)]
    found = subprocess.run(command, cwd=tmp_path, env=places, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 1 and "\nhistory " in found.stderr, found.stderr

"""`madlib-mop watch`: a run in a terminal, as lines and as JSON, with keys that steer it."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from tests.helpers.commands import command, run, run_here
from tests.helpers.faults import wait_for
from tests.helpers.invented import HOSTILE, invent_run
from tests.helpers.steering import GATES, N_SEGMENTS, RUN, Steered
from tests.helpers.terminal import Terminal
from tests.helpers.training import ALIKE, load_architectures, load_digits, pack, select_configurations


@pytest.fixture(scope="module")
def lab(db):
    """A database with what a run needs, whose visits can wait at gates."""
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS)
    select_configurations(db, "mst", ALIKE)
    db.rows(GATES)
    for role in ("ann", "bob"):
        db.cluster.create_role(role)
        db.rows(f"SELECT madlib_mop.grant_use('{role}')")
    return db


@pytest.fixture(autouse=True)
def open_gates(lab):
    """Leave no run waiting after a test that has failed."""
    yield
    lab.rows("DELETE FROM gate")


def in_background(db, *words: str, dsn: str | None = None) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command(db, *words, dsn=dsn), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip


def selected(terminal: Terminal) -> int:
    return int(re.findall(r"> +\d+ +(\d+)", terminal.text)[-1])


def test_a_run_is_watched_and_steered_until_it_is_finished(lab):
    """One run, watched in a terminal, as lines and as JSON at once; keys stop a model, resume it and extend it."""
    # without room for the rows of both segments, so that no trainer makes all visits of models 3 and 4 first
    steered = Steered(lab, "watched", gates=(2,), statement=f"SET madlib_mop.shard_cache_mb = 0; {RUN}")
    number = str(steered.run_id)
    as_lines, as_json = in_background(lab, "watch", number), in_background(lab, "watch", number, "--json")
    lines, printed = as_lines.stdout.readline(), as_json.stdout.readline()  # both watch by now
    with closing(Terminal(*command(lab, "watch", number))) as terminal:
        terminal.shows(rf"run {number} running")
        terminal.shows(r"\(\d+ of \d+ visits\), \d+ models: .* elaps")
        terminal.shows(r"rank +model +state")
        terminal.shows(r"segment +rows +visits +work")
        terminal.shows(r"visit of model [12], iteration 2, since \d\d:\d\d:\d\d")
        while (chosen := selected(terminal)) <= 2:  # these wait at the gate
            at = terminal.press("j")
            terminal.shows(rf"> +\d+ +(?!{chosen} )\d+", at)
        at = terminal.press("s")
        at = terminal.shows(rf"stop model {chosen}\? y/n", at)
        terminal.press("n")
        at = terminal.shows("up/down select", at)
        assert lab.value("SELECT count(*) FROM madlib_mop.change WHERE run_id = %s", [steered.run_id]) == 0

        terminal.press("sy")
        wait_for(
            lambda: steered.model(chosen, "state") == "stopped",
            what=f"the stop of model {chosen} by a key",
            log=lambda: terminal.text[-6000:],
        )
        terminal.shows("stop_model: done", at)
        while f"model {chosen} stopped by {lab.cluster.superuser}" not in lines:
            lines += as_lines.stdout.readline()
        at = terminal.press("r")
        terminal.shows(rf"resume model {chosen}\? y/n", at)
        terminal.press("y")
        wait_for(lambda: steered.model(chosen, "state") != "stopped", what="the resume by a key")
        terminal.shows("resume_model: done", at)
        last = steered.model(chosen, "last_epoch")
        terminal.press("e1\ry")
        wait_for(lambda: steered.model(chosen, "last_epoch") == last + 1, what="the extension by a key")
        terminal.shows("extend: done", at)
        at = terminal.press("ezwei\ry")
        terminal.shows("num_iterations must be a whole number", at)
        steered.finish()
        assert terminal.ends() == 0 and terminal.is_restored
        assert f"run {number} finished: 100 %" in terminal.text

    lines += as_lines.stdout.read()  # communicate would lose what readline has buffered
    errors = as_lines.stderr.read()
    as_lines.wait(60)
    assert (as_lines.returncode, errors) == (0, "")
    assert f"run {number} running" in lines and f"run {number} finished: 100 %" in lines
    assert "command stop_model" in lines and "leads by accuracy: iteration" in lines
    printed += as_json.stdout.read()
    errors = as_json.stderr.read()
    as_json.wait(60)
    states = [json.loads(line) for line in printed.splitlines()]
    assert (as_json.returncode, errors) == (0, "") and len(states) > 2
    assert states[0]["status"]["state"] == "running" and states[-1]["status"]["state"] == "finished"
    assert states[-1]["status"]["percent_done"] == 100 and states[-1].keys() == {
        "status", "models", "segments", "failures", "commands", "baselines",
    }  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize(("ending", "expected"), [("finished", 0), ("failed", 1), ("cancelled", 1), ("interrupted", 1)])
def test_the_exit_status_tells_how_the_run_ended(lab, ending, expected):
    watched = run(lab, "watch", str(invent_run(lab, state=ending)))
    assert (watched.returncode, watched.stderr) == (expected, "") and ending in watched.stdout


def test_one_look_returns_at_once(lab):
    running = str(invent_run(lab, state="running"))
    for words in ((), ("--json",)):
        looked = run_here(lab, "watch", running, "--once", *words)
        assert (looked.returncode, looked.stderr) == (0, "") and "running" in looked.stdout


def test_it_hears_of_a_change_at_once(lab):
    """The quiet time between two readings is five seconds; a notification ends it."""
    run_id = invent_run(lab, state="running")
    process = in_background(lab, "watch", str(run_id))
    for _ in range(2):
        process.stdout.readline()
    lab.rows("UPDATE madlib_mop.run SET state = 'failed', state_detail = 'a reason' WHERE run_id = %s", [run_id])
    lab.rows("SELECT pg_notify('madlib_mop_runs', %s)", [str(run_id)])
    printed, _ = process.communicate(timeout=4)
    assert process.returncode == 1 and "failed: a reason" in printed


@pytest.mark.slow
def test_a_run_of_another_role_is_like_one_that_is_not_there(lab):
    theirs = run(lab, "watch", str(invent_run(lab, owner="bob")), dsn=lab.dsn_of("ann"))
    assert (theirs.returncode, theirs.stdout) == (1, "") and "there is no run" in theirs.stderr
    assert run(lab, "watch", str(invent_run(lab, owner="ann")), dsn=lab.dsn_of("ann")).returncode == 0


@pytest.mark.one_case
@pytest.mark.parametrize("words", [(), ("--json",), ("terminal",)], ids=str)
def test_hostile_names_are_text(lab, words):
    run_id = str(invent_run(lab, n_models=50, state="running", output=HOSTILE, source=HOSTILE, detail=HOSTILE))
    if words != ("terminal",):
        printed = run_here(lab, "watch", run_id, "--once", *words).stdout
        assert "\x1b" not in printed and "<script>" in printed and "[red]" in printed
        return
    with closing(Terminal(*command(lab, "watch", run_id))) as terminal:
        terminal.shows(r"\[red\]\\x1b\[31m")
        assert "\x1b[31m\"'&" not in terminal.output
        terminal.press("q")
        assert terminal.ends() == 0


def test_a_terminal_of_80_columns_shows_whole_headings_and_the_selected_model(lab):
    run_id = str(invent_run(lab, n_models=3, state="running"))
    with closing(Terminal(*command(lab, "watch", run_id), columns=80)) as terminal:
        terminal.shows(r"rank  model  state     iteration  valid\. accuracy  valid\. loss  param")
        terminal.shows(r"> +1 +\d+ +training")
        assert "train. " not in terminal.text
        terminal.press("q")
        assert terminal.ends() == 0


@pytest.mark.one_case
@pytest.mark.parametrize(("end", "expected"), [("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=str)
def test_the_terminal_is_as_before(lab, end, expected):
    with closing(Terminal(*command(lab, "watch", str(invent_run(lab, state="running"))))) as terminal:
        terminal.shows("up/down select")
        assert not terminal.is_restored
        if end == "q":
            terminal.press("q")
        elif end == signal.SIGINT:
            terminal.press("\x03")
        else:
            terminal.process.send_signal(end)
        assert terminal.ends() == expected and terminal.is_restored and "Traceback" not in terminal.text


_IN_A_FINALIZER = """
import os, select, signal
from madlib_mop.cli.watching.keyboard import Keyboard, Terminated
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
with Keyboard() as keyboard:
    Late()
    try:
        keyboard.read(select.select(keyboard.fds, [], [], 30)[0])
    except Terminated as signal:
        print("ended by", signal.number)
"""


def test_an_interrupt_within_a_finalizer_is_not_lost():
    with closing(Terminal(sys.executable, "-c", _IN_A_FINALIZER)) as terminal:
        terminal.shows("ended by 2")
        assert terminal.ends() == 0


def test_operators_of_other_roles_do_not_serve_its_queries(lab):
    run_id = str(invent_run(lab, state="running"))
    lab.rows(
        "CREATE FUNCTION public.trap(double precision, bigint) RETURNS double precision LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'trapped'; END $$;"
        " CREATE OPERATOR public.* (LEFTARG = double precision, RIGHTARG = bigint, FUNCTION = public.trap)"
    )
    try:
        done = run_here(lab, "watch", run_id, "--once")
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        lab.rows("DROP FUNCTION public.trap CASCADE")


def test_who_does_not_own_the_run_cannot_steer_it(lab):
    lab.rows("SELECT madlib_mop.grant_read('bob', 'ann')")
    run_id = str(invent_run(lab, owner="ann", state="running"))
    with closing(Terminal(*command(lab, "watch", run_id, dsn=lab.dsn_of("bob")))) as terminal:
        terminal.shows("q quit")
        at = terminal.press("s")
        terminal.shows("only members of the role that owns the run steer it", at)
        terminal.press("q")
        assert terminal.ends() == 0

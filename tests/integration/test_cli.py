"""`madlib-mop` calls the functions that train: the run's number on stdout, progress and errors on stderr."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.helpers.commands import command, run, run_here
from tests.helpers.faults import assert_nothing_left, newest_run, visits, wait_for
from tests.helpers.invented import HOSTILE, invent_run
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.monitoring import lines_of
from tests.helpers.no_gpu import NO_GPU
from tests.helpers.training import digests, fit, script, weights

FIT = ("fit", "iris_train_packed", "by_cli", "mst", "2")


@pytest.fixture(scope="module")
def bench(db):
    load_iris(db)
    pack_iris(db, 2)
    load_perceptrons(db, "arch")
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], %s, ARRAY['batch_size=20'])",
        [[ADAM.format(0.1), ADAM.format(0.01)]],
    )
    return db


@pytest.fixture(scope="module")
def fitted(bench):
    return run(bench, *FIT, "--seed", "3", "--schedule", "rotation", "--set", "trainer_memory_mb=1500")


@pytest.mark.slow
def test_fit_prints_the_runs_number_and_gives_the_bits_of_the_sql_function(fitted, bench):
    assert fitted.returncode == 0, fitted.stderr
    run_id = int(fitted.stdout)
    assert f"NOTICE:  run {run_id}: 2 configurations on 2 segments" in fitted.stderr
    assert re.search("iteration 2 of 2 done by 2 of 2 models, best training accuracy", fitted.stderr)
    by_sql = fit(bench, "by_sql", "mst", 2, source_table="iris_train_packed", seed=3, schedule="rotation")
    assert weights(bench, "by_cli") == weights(bench, "by_sql")
    assert digests(bench, run_id) == digests(bench, by_sql.run_id)
    plan = bench.value("SELECT plan -> 'trainer' FROM madlib_mop.run WHERE run_id = %s", [run_id])
    assert plan["memory_limit_bytes"] == 1500 << 20
    assert_nothing_left(bench)


def test_runs_lists_them(fitted, bench):
    listed = run_here(bench, "runs")
    assert listed.returncode == 0
    assert re.search(
        rf"^ *{int(fitted.stdout)} +fit_multiple_model +finished .*public\.by_cli .* 100", listed.stdout, re.M
    )


def test_names_in_the_list_are_text(bench):
    run_id = invent_run(bench, output=f'public."m[/x]{HOSTILE}"', owner=bench.cluster.superuser)
    listed = run_here(bench, "runs")
    bench.rows("DELETE FROM madlib_mop.run WHERE run_id = %s", [run_id])
    assert (listed.returncode, listed.stderr) == (0, "")
    assert 'public."m[/x]<script>alert(1)</script>[red]\\x1b[31m' in listed.stdout and "\x1b" not in listed.stdout


@pytest.mark.slow
def test_a_stopped_run_is_resumed_and_replayed(bench, fitted):
    before = newest_run(bench)
    words = ("fit", "iris_train_packed", "stopped", "mst", "30", "--seed", "3", "--schedule", "rotation")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command(bench, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    run_id = wait_for(lambda: newest_run(bench) != before and newest_run(bench), what="the run's start")
    wait_for(lambda: visits(bench, run_id) > 2, what="visits")
    assert f"NOTICE:  run {run_id}: 2 configurations on 2 segments" in process.stderr.readline(), "while it trains"
    process.send_signal(signal.SIGINT)
    printed, told = process.communicate(timeout=30)
    assert (process.returncode, printed) == (130, "")
    assert told.splitlines()[-1] == f"stopped; madlib-mop resume {run_id} continues the run"
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "interrupted"
    assert_nothing_left(bench, within_s=5)

    resumed = run(bench, "resume", str(run_id))
    assert (resumed.returncode, resumed.stdout) == (0, f"{run_id}\n"), resumed.stderr
    replayed = run(bench, "replay", str(int(fitted.stdout)), "again")
    assert replayed.returncode == 0, replayed.stderr
    assert weights(bench, "again") == weights(bench, "by_cli")
    finished = run(bench, "resume", str(run_id))
    assert finished.returncode == 0 and "is finished" in finished.stderr

    lines = lines_of(bench, run_id)
    assert [(line["what"], line["state"]) for line in lines] == [
        ("started", "running"), ("ended", "interrupted"), ("resumed", "interrupted"), ("ended", "finished"),
    ]  # fmt: skip
    assert {(line["owner"], line["output"]) for line in lines} == {(bench.cluster.superuser, "public.stopped")}
    seconds = [float(line["seconds"]) for line in lines]
    assert seconds[0] == 0 < seconds[1] == seconds[2] < seconds[3], "of all drivers"


GRIDS = (
    "{'loss': ['categorical_crossentropy'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.1, 0.01]}]}",
    "{'batch_size': [20]}",
)


@pytest.mark.one_case
@pytest.mark.parametrize("kind, words, options", [
    ("fit", ("fit-model", "iris_train_packed", "cli_one", "arch", "1", ADAM.format(0.1), "batch_size=20", "1"), ()),
    ("automl", ("automl", "iris_train_packed", "cli_found", "arch", "cli_best", "1", *GRIDS),
     ("--automl-method", "tpe", "--automl-params", "num_configs=2, num_iterations=1")),
])  # fmt: skip
def test_the_other_functions_that_train_are_commands_too(bench, kind, words, options):
    done = run(bench, *words, *options, "--seed", "3", "--name", "by cli")
    assert done.returncode == 0, done.stderr
    found = bench.rows(
        "SELECT kind, state, seed, arguments ->> 'name' FROM madlib_mop.run WHERE run_id = %s", [int(done.stdout)]
    )
    assert found == [(kind, "finished", 3, "by cli")]
    assert bench.value(f"SELECT name FROM {words[2]}_summary") == "by cli"


def test_an_argument_that_the_command_line_lacked_is_obeyed(fitted, bench):
    refused = run_here(bench, *FIT[:2], "on_gpu", *FIT[3:], "--use-gpus")
    assert refused.returncode == 1 and f"use_gpus => true: {NO_GPU}" in refused.stderr


def test_cancel_says_whether_there_was_something_to_stop(bench, fitted):
    done = run(bench, "cancel", fitted.stdout.strip())
    assert (done.returncode, done.stdout) == (1, f"run {int(fitted.stdout)} is not running\n")


@pytest.mark.one_case
@pytest.mark.parametrize(
    "words, message, hint",
    [
        (FIT, "tables public.by_cli, public.by_cli_info and public.by_cli_summary exist already", "another name"),
        ((*FIT[:2], "new", "nothing", "2"), "model_selection_table does not exist. Received: 'nothing'", "schema"),
        ((*FIT[:4], "0"), "num_iterations must be at least 1. Received: 0", "whole number"),
        ((*FIT, "--set", "nonsense"), "--set takes name=value. Received: 'nonsense'", "trainer_memory_mb"),
        (("resume", "4711"), "you have no run with this run_id. Received: 4711", "madlib_mop.progress"),
        (("cancel", "4711"), "cancel: you have no run with this run_id. Received: 4711", "madlib_mop"),
    ],
)
def test_an_error_is_one_line_and_a_hint(fitted, bench, words, message, hint):
    done = run_here(bench, *words)
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert first.startswith("madlib-mop: ") and message in first and hint in second


@pytest.mark.slow
def test_the_run_belongs_to_the_role_of_the_login(bench, fitted):
    bench.cluster.create_role("cli_user")
    bench.rows("SELECT madlib_mop.grant_use('cli_user'); GRANT CREATE ON SCHEMA public TO cli_user")
    bench.rows("GRANT SELECT ON ALL TABLES IN SCHEMA public TO cli_user")
    words = (*FIT[:2], "by_user", *FIT[3:])
    done = run(bench, *words, "--catalog-dsn", "not used", dsn=bench.dsn_of("cli_user"))
    assert done.returncode == 0, done.stderr
    owner = "SELECT owner, (SELECT tableowner FROM pg_tables WHERE tablename = 'by_user') FROM madlib_mop.run"
    assert bench.rows(f"{owner} WHERE run_id = %s", [int(done.stdout)]) == [("cli_user", "cli_user")]


def test_a_server_that_is_not_there_is_one_line(bench):
    done = run_here(bench, "runs", dsn="host=/nowhere dbname=none")
    assert done.returncode == 1 and done.stderr.startswith("madlib-mop: cannot log in: ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_settings_of_the_database_neither_end_nor_silence_it(bench):
    settings = ("idle_in_transaction_session_timeout = '300ms'", "idle_session_timeout = '300ms'",
                "statement_timeout = '2s'", "default_transaction_read_only = on",
                "client_min_messages = error")  # fmt: skip
    script(bench, *[f'ALTER DATABASE "{bench.name}" SET {setting}' for setting in settings])
    try:
        done = run(bench, "fit", "iris_train_packed", "unseen", "mst", "30", "--seed", "3")
    finally:
        script(bench, "SET default_transaction_read_only = off", f'ALTER DATABASE "{bench.name}" RESET ALL')
    assert done.returncode == 0, done.stderr
    assert f"NOTICE:  run {int(done.stdout)}: 2 configurations on 2 segments" in done.stderr
    assert bench.value("SELECT count(*) FROM unseen") == 2

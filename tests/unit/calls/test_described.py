"""Help texts, the manual's tables and the command line agree with the argument specifications."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from madlib_mop.calls import FUNCTIONS, USER_FUNCTIONS
from madlib_mop.calls.tables import markdown, usage
from madlib_mop.cli import runs
from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.calls import command_for
from madlib_mop.driver.commands.help import show_help
from madlib_mop.schedule import SCHEDULES

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = {"settings": (runs.Settings, None), "dsn": (Dsn, "")}
spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "make" / "docs_tables.py")
docs_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs_tables)


def test_the_manuals_tables_are_current():
    assert docs_tables.outdated(ROOT) == {}, "run: make docs-tables"


def test_the_manual_has_a_table_for_every_function():
    text = (ROOT / "docs" / "arguments.md").read_text()
    found = re.findall(r"### ([\w.]+)\n\n(.*)\n\n<!-- arguments: (\w+) -->", text)
    assert found == [(f"{f.schema}.{f.name}", f.purpose, f.name) for f in USER_FUNCTIONS]


def test_schedules_are_in_the_help_text_and_in_the_manual_each_in_words_of_its_own():
    shown = show_help(SimpleNamespace(arguments={"topic": "madlib_keras_fit_multiple_model", "option": "usage"}))
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs" / "exactness.md").read_text(), re.MULTILINE)
    assert rows == [(name, rule.summary) for name, rule in SCHEDULES.items()]
    assert len(set(dict(rows).values())) == len(rows)
    listed = shown.split("\nSCHEDULE\n")[1].split("\nThe order")[0]
    assert re.findall(r"^    (\w+)  ", listed, re.MULTILINE) == [*SCHEDULES]


def test_a_table_of_the_manual_is_one_row_an_argument():
    lines = markdown(FUNCTIONS["madlib_keras_predict"]).splitlines()
    assert len(lines) == 2 + len(FUNCTIONS["madlib_keras_predict"].arguments)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in lines)


def test_a_long_meaning_stands_at_the_first_table_of_the_page_that_needs_it():
    earlier = {}
    markdown(FUNCTIONS["madlib_keras_fit_multiple_model"], earlier)
    link = "| `max_seconds` | `double precision` | `NULL` | [as above](#madlibmadlib_keras_fit_multiple_model) |"
    assert link in markdown(FUNCTIONS["madlib_keras_fit"], earlier)
    assert "as above" not in markdown(FUNCTIONS["madlib_keras_fit"])
    rows = re.findall(r"^\| `(\w+)` \|.* \| (.*) \|$", (ROOT / "docs" / "arguments.md").read_text(), re.MULTILINE)
    long = [row for row in rows if len(row[1].split()) >= 12]
    assert len(long) == len(set(long)) > 50


@pytest.mark.parametrize("topic", [file.stem for file in (ROOT / "madlib_mop/driver/help").glob("*.txt")])
def test_a_help_text_has_the_call_with_every_argument(topic):
    text = show_help(SimpleNamespace(arguments={"topic": topic, "option": "usage"}))
    assert usage(FUNCTIONS[topic]) in text
    assert all(re.search(rf"^ +{a.name},? +-- {re.escape(a.type)}", text, re.MULTILINE)
               for a in FUNCTIONS[topic].arguments)  # fmt: skip
    assert max(map(len, usage(FUNCTIONS[topic]).splitlines())) <= 120
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize("command, name", runs.TRAINING.items())
def test_a_command_has_every_argument_of_its_function_and_their_help(command, name):
    function, made = FUNCTIONS[name], get_command(app).commands[command]
    by_name = {parameter.name: parameter for parameter in made.params}
    for argument in function.arguments:
        assert by_name[argument.name].required is argument.is_required
        assert by_name[argument.name].help.startswith(argument.help)
    others = {"settings", "dsn", "catalog_dsn"}
    assert set(by_name) - others == {a.name for a in function.arguments}


def test_arguments_of_the_command_line_reach_the_call_as_json_has_them():
    seen = []
    made = typer.Typer()
    made.command()(command_for(FUNCTIONS["madlib_keras_automl"], lambda *a, **b: seen.append((a, b)), OPTIONS, "Text."))
    words = ["train", "models", "arch", "mst", "1, 2", "{}", "{}", "--use-gpus", "--seed", "7", "--set", "a=b"]
    done = CliRunner().invoke(made, [*words, "--dsn", "dbname=x"])
    assert done.exit_code == 0, done.output
    (((function, arguments), options),) = seen
    assert (function, options) == ("madlib_keras_automl", {"settings": ["a=b"], "dsn": "dbname=x"})
    assert arguments["model_id_list"] == [1, 2] and arguments["use_gpus"] is True and arguments["seed"] == 7
    assert arguments["schedule"] == "rotation" and arguments["replace"] is False and arguments["name"] is None

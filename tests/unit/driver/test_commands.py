"""Each SQL function has a command and a help text, each error a SQLSTATE; no name selects another file or module."""

import re
from types import SimpleNamespace

import pytest

from madlib_mop import errors
from madlib_mop.calls import FUNCTIONS
from madlib_mop.driver.commands import COMMANDS, find_command
from madlib_mop.driver.commands.help import show_help
from madlib_mop.driver.session.opening import find_run
from madlib_mop.errors import InvalidParameter, MopError, Unsupported, from_dict
from tests.helpers.unit.rows import a_plan, a_run
from tests.unit.test_build_extension import ROOT, build_extension

SQL = build_extension.source_sql(ROOT, "postgres")
TOPICS = sorted(re.findall(r"'topic', '(\w+)'", SQL))
# SQLSTATEs of users' errors.
SQLSTATES = {"22023", "22P02", "42P01", "42703", "42P07", "42501", "0A000"}


def test_every_function_has_a_command_and_every_command_a_function():
    called = {*re.findall(r"madlib_mop_calls\.call\('(\w+)'|call\.run(?:_for_bytes|_for_parts)?\(\"(\w+)\"", SQL)}
    # "predict" is called by mop_backend/predict.py alone, for models that the session has not cached,
    # "explain_prediction" by mop_backend/explain.py, for the rows of the background, and "end_lost_run" by
    # mop_backend/call.py, for a run whose driver it has killed
    internal = {"predict", "explain_prediction", "end_lost_run"}
    assert {*map("".join, called), *internal} == set(COMMANDS) and not internal & {*map("".join, called)}
    assert set(FUNCTIONS) == set(COMMANDS)
    for name in COMMANDS:
        assert callable(find_command(name))


@pytest.mark.parametrize("name", ["", "os:system", "..runs", "resume ", "RESUME"])
def test_a_name_is_looked_up_not_imported(name):
    with pytest.raises(Unsupported, match="there is no command"):
        find_command(name)


def ask(topic, option=None) -> str:
    """Return a help text."""
    return show_help(SimpleNamespace(arguments={"topic": topic, "option": option}))


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_a_short_and_a_whole_text(topic):
    short, whole = ask(topic), ask(topic, "usage")
    assert "{usage}" not in whole and f".{topic}(\n" in whole
    assert topic in short and f"SELECT madlib.{topic}('usage');" in short and len(short) < len(whole)
    for word in ("", "help", "?", "USAGE ", "example", "examples"):
        assert ask(topic, word) == whole
    with pytest.raises(InvalidParameter) as caught:
        ask(topic, "recipes")
    assert "Received: 'recipes'" in caught.value.message and caught.value.hint


@pytest.mark.parametrize("topic", ["../errors", "/etc/hostname", "madlib_keras_predict.txt", "", None, 1, [], {}])
def test_a_topic_is_looked_up_not_opened(topic):
    with pytest.raises(InvalidParameter, match="there is no help for this topic"):
        ask(topic)


def test_every_class_of_error_has_a_sqlstate_of_its_own_and_travels():
    classes = MopError.__subclasses__()
    assert len({cls.sqlstate for cls in classes}) == len(classes) and {cls.sqlstate for cls in classes} >= SQLSTATES
    for cls in classes:
        error = cls("what was wrong", hint="do this", detail="more")
        again = from_dict(error.as_dict())
        assert type(again) is cls and again.as_dict() == error.as_dict()
        assert cls.sqlstate in errors.__doc__


def test_another_sqlstate_travels_as_it_is():
    again = from_dict({"sqlstate": "55P03", "message": "locked"})
    assert type(again) is MopError and again.sqlstate == "55P03"
    assert from_dict({"sqlstate": None, "message": "lost"}).sqlstate == "XX000"


@pytest.mark.parametrize("run_id", [None, "5", 5.5, [5], {"run_id": 5}, 5])
def test_a_run_that_is_not_there_and_one_that_is_not_a_number_are_refused_alike(run_id):
    run = a_run(a_plan(), owner="carol", owner_oid=7)
    record = SimpleNamespace(run=lambda run_id: run, may_see=lambda role, owner: False)
    call = SimpleNamespace(arguments={"run_id": run_id}, info=SimpleNamespace(role="alice", role_oid=5))
    with pytest.raises(InvalidParameter) as caught:
        find_run(record, call)
    assert caught.value.message == f"you have no run with this run_id. Received: {run_id}"

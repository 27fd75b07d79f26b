"""Statements are built from the specification of the calls, and checked before they are sent."""

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest

from madlib_mop.calls import USER_FUNCTIONS, Argument, Function
from madlib_mop.client.calling import statements
from madlib_mop.client.calling.statements import arguments_of, call_of
from madlib_mop.errors import InvalidParameter
from tests.helpers.unit.findings import assert_none, place_of


def test_a_call_names_its_arguments_and_casts_their_values():
    call = call_of("extend", {"run_id": np.int64(7), "num_iterations": 2})
    assert call.text == (
        'SELECT * FROM madlib_mop.extend("run_id" => CAST(%s AS bigint), "num_iterations" => CAST(%s AS integer))'
    )
    assert call.values == (7, 2) and type(call.values[0]) is int


def test_a_value_chooses_among_the_types_of_an_argument():
    given = {"source_table": "t", "output_table": "p", "dependent": "y"}
    share = call_of("pack_columns", {**given, "validation": 0.2})
    rule = call_of("pack_columns", {**given, "validation": "last 20% by day"})
    assert '"validation" => CAST(%s AS double precision)' in share.text
    assert '"validation" => CAST(%s AS text)' in rule.text


def test_a_new_argument_of_a_function_reaches_the_client_without_a_change(monkeypatch):
    function = statements.function_of("cancel")
    new = replace(function, arguments=(*function.arguments, Argument("why", "text", "a reason", default=None)))
    monkeypatch.setitem(statements._BY_NAME, "cancel", new)
    assert call_of("cancel", {"run_id": 1, "why": "late"}).values == (1, "late")


@pytest.mark.parametrize(
    "name, given, message",
    [
        ("fit", {}, "no function 'fit'"),
        ("cancel", {}, "cancel needs run_id"),
        ("cancel", {"run_id": 1, "force": True}, "no argument 'force'"),
        ("cancel", {"run_id": "seven"}, "run_id must be of type bigint"),
        ("extend", {"run_id": 1, "num_iterations": 0}, "from 1 to 1,000,000"),
        ("stop_model", {"run_id": 1, "mst_key": 1, "reason": "a\0b"}, "cannot store"),
    ],
)
def test_bad_arguments_are_refused_before_any_session(name, given, message):
    with pytest.raises(InvalidParameter, match=message):
        call_of(name, given)


def test_hints_are_notes_so_that_tracebacks_show_them():
    with pytest.raises(InvalidParameter) as raised:
        call_of("cancel", {"run_id": 1, "force": True})
    assert raised.value.__notes__ == ["Hint: Its arguments are run_id."]


def test_times_and_documents_are_converted():
    at = dt.datetime(2030, 1, 2, tzinfo=dt.UTC)
    call = call_of(
        "submit", {"statement": "resume", "arguments": {"run_id": 1}, "at": at, "time_limit": dt.timedelta(minutes=2)}
    )
    assert call.values == ("resume", '{"run_id": 1}', "2030-01-02T00:00:00+00:00", "120.0 seconds")
    assert arguments_of("extend", {"run_id": np.int32(1), "num_iterations": 2}) == {"run_id": 1, "num_iterations": 2}


def is_known(function: Function) -> bool:
    """Return whether the client finds the specification of a function by its name."""
    try:
        return statements.function_of(function.name) is function
    except InvalidParameter:
        return False


def test_every_function_of_the_manual_can_be_called():
    assert_none(f"{place_of(function)}: {function.name}" for function in USER_FUNCTIONS if not is_known(function))

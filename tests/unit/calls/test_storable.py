"""JSON of users that the server cannot store is refused with one clear error, before it reaches the record."""

import json

import pytest

from madlib_mop.calls import check_storable
from madlib_mop.errors import InvalidParameter


@pytest.mark.parametrize(
    "text, message",
    [
        (r'{"a": ["\u0000"]}', "arguments has a character that the server cannot store"),
        (r'{"\ud800": 1}', "arguments has a character that the server cannot store"),
        ('{"a": 1e400}', "arguments has a number that the server cannot store. Received: inf"),
        ("[" * 900 + "]" * 900, "arguments is nested more than 100 levels deep"),
    ],
)
def test_what_jsonb_has_no_place_for_is_refused(text, message):
    with pytest.raises(InvalidParameter) as refused:
        check_storable("arguments", json.loads(text))
    assert refused.value.message.startswith(message)


def test_everything_else_is_storable():
    check_storable("arguments", json.loads('{"a": [1, 2.5, null, true, "\\ud83d\\ude00", {"b": []}], "": 1e300}'))

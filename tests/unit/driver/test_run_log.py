"""A run's line in the server's log: one line, whatever the names in it."""

import json
import re

import pytest

from madlib_mop.driver.running.driving import line
from tests.helpers.unit.rows import a_plan, a_run

FORM = re.compile(
    r'madlib_mop: run (\d+) (started|resumed|ended) kind=(\w+) owner=(".*?(?<!\\)") output=(".*(?<!\\)")'
    r" state=(\w+) seconds=(\d+\.\d{3})"
)


@pytest.mark.parametrize("name", ["alice", 'a "b"', "new\nline: LOG", "tab\t\x1b[2J\x7f", "größe \u2028\x85", "a=b c"])
def test_a_name_cannot_forge_a_line_and_can_be_read_again(name):
    text = line(a_run(a_plan(), run_id=7, owner=name, model_output_table=f"public.{name}"), "ended")
    assert text.isascii() and text.isprintable()
    found = FORM.fullmatch(text)
    assert found is not None, text
    assert found[1] == "7" and json.loads(found[4]) == name and json.loads(found[5]) == f"public.{name}"

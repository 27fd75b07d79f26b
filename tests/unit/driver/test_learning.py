"""What learn does with tables of an earlier call."""

from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.learning import command
from madlib_mop.errors import NotReady


@pytest.mark.parametrize("oid_of_the_name", [8, None])
def test_a_table_that_has_got_the_name_of_another_is_not_dropped(monkeypatch, oid_of_the_name):
    """Whoever may rename schemas can do it after the check."""
    monkeypatch.setattr(command, "check_droppable", lambda *arguments: None)
    done = []

    def execute(statement, values=()):
        done.append(statement)
        return oid_of_the_name if values else 1

    found = Relation("public", "old", 7)
    caller = SimpleNamespace(placed=lambda name, what: found, existing=lambda sql: found)
    steps = SimpleNamespace(call=SimpleNamespace(session=caller), session=SimpleNamespace(execute=execute))
    with pytest.raises(NotReady, match="was changed"):
        command._drop_proposals(steps, "old")
    assert not any("DROP" in statement for statement in done) and "LOCK TABLE" in done[0]

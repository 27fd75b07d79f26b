"""Output tables of an earlier call that a call replaces."""

from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.outputs import writers
from madlib_mop.driver.session.relations import RelationLookup
from madlib_mop.errors import DuplicateTable, NotReady
from tests.helpers.unit.rows import a_plan, a_run


@pytest.mark.parametrize("now", [Relation("public", "old", 8), None])
def test_a_table_that_has_got_the_name_of_another_is_not_dropped(now):
    """Whoever may rename schemas can do it after the check."""
    done = []
    session = SimpleNamespace(execute=done.append, existing=lambda sql: now)
    with pytest.raises(NotReady, match="was changed"):
        RelationLookup.drop_checked(session, Relation("public", "old", 7))
    assert not any("DROP" in statement for statement in done) and "LOCK TABLE" in done[0]


def test_the_table_that_was_checked_is_dropped():
    done = []
    checked = Relation("public", "old", 7)
    session = SimpleNamespace(execute=done.append, existing=lambda sql: checked)
    RelationLookup.drop_checked(session, checked)
    assert done[-1] == 'DROP TABLE "public"."old"'


def test_a_new_table_does_not_take_parts_of_weights_that_are_there(monkeypatch):
    """Somebody has made the table while the run trained; its rows are of another model."""
    made = []
    monkeypatch.setattr(writers, "create_table", lambda *given: made.append(given))
    there = Relation("public", "models_weights", 7)
    session = SimpleNamespace(existing=lambda sql, any_type=False: there if sql.endswith('_weights"') else None)
    with pytest.raises(DuplicateTable, match="models_weights exists already"):
        writers._make_tables(session, a_run(a_plan()))
    assert not made

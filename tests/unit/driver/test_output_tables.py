"""Output tables of an earlier call that a call replaces."""

from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.session.relations import RelationLookup
from madlib_mop.errors import NotReady


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

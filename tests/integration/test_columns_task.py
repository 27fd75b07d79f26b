"""Whether a target is classes or numbers: one rule for the proposal and the split, or the argument task."""

import pytest

from tests.helpers.columns import content, pack_with

pytestmark = pytest.mark.one_session

_TABLE = "CREATE TABLE measures AS SELECT {} AS y, random() AS x FROM generate_series(0, 1999) AS g"


def pack(db, target, validation, more=""):
    """Pack a table with this target; return the rows of both sides, and the notice about the target."""
    db.rows("DROP TABLE IF EXISTS measures, m, m_summary, m_validation, m_validation_summary")
    db.rows(_TABLE.format(target))
    pack_with(db, 1, f"pack_columns('measures', 'm', 'y', validation => {validation}, seed => 1{more})")
    classes = db.value("SELECT count(*) FROM pg_attribute WHERE attrelid = 'm_summary'::regclass"
                       " AND attname = 'y_class_values' AND NOT attisdropped")  # fmt: skip
    n_classes = db.value("SELECT cardinality(y_class_values) FROM m_summary") if classes else None
    return len(content(db, "m")["y"]), len(content(db, "m_validation")["y"]), n_classes


@pytest.mark.parametrize("share", [0.04, 0.05, 0.2])
@pytest.mark.parametrize("target", ["g % 200", "(g % 200)::numeric", "g % 11", "(g % 7) / 2.0"])
def test_the_share_of_a_regression_is_that_of_all_rows(db, target, share):
    """Whole numbers with ten rows each were taken by class: 5 % became 10 %, and 4 % was refused with "200 classes"."""
    training, held_out, n_classes = pack(db, target, share)
    assert (training, held_out, n_classes) == (2000 - 2000 * share, 2000 * share, None)


def test_a_classification_has_the_share_of_each_class(db):
    assert pack(db, "(g % 200 = 0)::integer", 0.2) == (1600, 400, 2)
    held_out = content(db, "m_validation")["y"]
    assert held_out.sum(axis=0).tolist() == [398, 2]


@pytest.mark.parametrize(
    ("target", "task", "n_classes"),
    [("g % 3", "regression", None), ("g % 3", "classification", 3), ("g % 20", "classification", 20),
     ("(g % 4) / 2.0", "classification", 4), ("g % 2 = 0", "regression", None), ("(g % 9)::text", "classification", 9)],
)  # fmt: skip
def test_the_argument_decides(db, target, task, n_classes):
    found = pack(db, target, 0.2, f", task => '{task}'")
    assert found[2] == n_classes and found[0] + found[1] == 2000
    assert found[1] == 400 if task == "regression" else 380 <= found[1] <= 420
    db.rows("DROP TABLE IF EXISTS of_measures")
    pack_with(db, 1, f"propose_columns('measures', 'of_measures', 'y', task => '{task}')")
    kind, encode = db.rows("SELECT kind, encode FROM of_measures WHERE role = 'target'")[0]
    assert (kind == "number", encode == "identity") == (n_classes is None, n_classes is None)
    db.rows("DROP TABLE m, m_summary, m_validation, m_validation_summary")
    more = f"seed => 1, columns => 'of_measures', task => '{task}'"
    pack_with(db, 1, f"pack_columns('measures', 'm', 'y', validation => 0.2, {more})")
    assert len(content(db, "m_validation")["y"]) == found[1]


def test_an_edited_proposal_decides_for_the_split_too(db):
    pack(db, "g % 3", 0.2)
    db.rows("DROP TABLE IF EXISTS of_measures, m, m_summary, m_validation, m_validation_summary")
    pack_with(db, 1, "propose_columns('measures', 'of_measures', 'y')")
    db.rows("UPDATE of_measures SET kind = 'number', encode = 'identity', scale = 'standard' WHERE role = 'target'")
    pack_with(
        db, 1, "pack_columns('measures', 'm', 'y', validation => 0.001, seed => 1, columns => 'of_measures')"
    )
    assert len(content(db, "m_validation")["y"]) == 2

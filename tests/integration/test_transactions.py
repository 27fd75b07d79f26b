"""Transactions of the driver's own session, and the execution of a call's statements."""

import pytest

from tests.helpers.direct import record_on
from tests.helpers.security.attacks import record_run
from tests.helpers.unit.rows import a_model

RUN = 9


@pytest.fixture
def record(db):
    """Return the record, opened as in a driver, with a run without models."""
    record_run(db, RUN, db.cluster.superuser)
    connection = db.connect()
    yield record_on(connection)
    connection.close()
    db.rows("DELETE FROM madlib_mop.run")
    db.rows(f"DROP TABLE madlib_mop.model_state_{RUN}_0")


def test_a_transaction_within_another_is_kept_with_all_of_it_or_not_at_all(db, record):
    models = "SELECT mst_key FROM madlib_mop.model ORDER BY mst_key"
    before = db.rows(models)
    with pytest.raises(ZeroDivisionError), record.transaction():
        with record.transaction():
            record.add_models(RUN, [a_model(7)])
        assert db.rows(models) == before, "committed before the end of the whole"
        1 / 0  # noqa: B018
    assert db.rows(models) == before
    with record.transaction():
        with record.transaction():
            record.add_models(RUN, [a_model(7)])
        record.set_run(RUN, state_detail="both")
    assert db.rows(models) == [*before, (7,)]
    assert db.value("SELECT state_detail FROM madlib_mop.run") == "both"


def test_statements_of_a_call_are_not_compiled(db):
    db.rows("CREATE TABLE numbers AS SELECT ARRAY[i]::real[] AS x FROM generate_series(1, 8) AS i")
    db.rows("CREATE VIEW seen AS SELECT x, current_setting('jit') AS jit FROM numbers")
    db.rows("SELECT madlib.training_preprocessor_dl('seen', 'seen_packed', 'jit', 'x')")
    assert db.value("SELECT jit_class_values::text FROM seen_packed_summary") == "{off}"

"""Promise 7 for drift: it reads with the caller's rights, and tells of the training rows only who may see the model."""

import pytest

from tests.helpers.columns import train_churn
from tests.helpers.drift import by_feature
from tests.helpers.inference import User
from tests.helpers.security.attacks import refusal_of, user

PREDICTS, SEES, BOTH, DEPLOYS, STRANGER = (
    f"{word}_of_drift" for word in ("predicts", "sees", "both", "deploys", "stranger")
)
DRIFT = "SELECT * FROM madlib_mop.drift('churn@champion', 'customers', predictions => false)"


@pytest.fixture(scope="module")
def models(db):
    """A registered model of the superuser's; roles that may use the extension, with rights on the name."""
    train_churn(db, 1, n_segments=1)
    db.rows("SELECT madlib_mop.register('churn', 'churn', 1, baseline => 'packed_validation')")
    db.rows("SELECT madlib_mop.set_alias('churn', 'champion', 1)")
    for role in (PREDICTS, SEES, BOTH, DEPLOYS, STRANGER):
        user(db, role)
        db.rows(f"GRANT SELECT ON customers TO {role}")
    granted = ((PREDICTS, "predict"), (SEES, "see"), (BOTH, "predict"), (BOTH, "see"), (DEPLOYS, "deploy"))
    for role, privilege in granted:
        db.rows("SELECT madlib_mop.grant_model('churn', %s, %s)", [role, privilege])
    db.rows("CREATE TABLE secret_rows AS TABLE customers")
    yield db


def test_a_role_that_may_only_predict_learns_nothing_of_the_training_rows(models):
    error = refusal_of(models, DRIFT, role=PREDICTS)
    assert error.sqlstate == "42501" and "may predict with registered model churn, but not see it" in error.message
    assert "'see'" in error.hint
    error = refusal_of(models, DRIFT, role=SEES)
    assert (error.sqlstate, "but not predict with it" in error.message) == ("42501", True)
    assert refusal_of(models, DRIFT, role=STRANGER).sqlstate == "22023"


@pytest.mark.parametrize("role", [BOTH, DEPLOYS])
def test_a_role_that_may_predict_and_see_may_ask(models, role):
    session = User(models.connect(role))
    found = by_feature(session, DRIFT.replace(", predictions => false", ""))
    assert found["input age"]["verdict"] == "stable" and found["prediction churned"]["baseline_rows"] == 120
    assert session.rows("SELECT * FROM madlib_mop.version_content") == []
    session.connection.close()


def test_tables_are_read_with_the_callers_rights(models):
    for call in ("'churn@champion', 'secret_rows'", "'churn@champion', 'customers', baseline => 'secret_rows'",
                 "'churn', 'customers', 1"):  # fmt: skip
        error = refusal_of(models, f"SELECT * FROM madlib_mop.drift({call})", role=BOTH)
        assert error.sqlstate == "42501" and "permission denied" in error.message, error
    models.rows(f"ALTER TABLE secret_rows ENABLE ROW LEVEL SECURITY; GRANT SELECT ON secret_rows TO {BOTH};"
                f" CREATE POLICY first_rows ON secret_rows TO {BOTH} USING (id <= 50)")  # fmt: skip
    session = User(models.connect(BOTH))
    for more in ("", ", max_rows => 50"):
        found = by_feature(session, DRIFT.replace("customers'", f"secret_rows'{more}"))
        assert {row["n_rows"] for row in found.values()} == {50}
    session.connection.close()


def test_a_role_with_the_functions_of_predict_only_cannot_call_it(models):
    models.cluster.create_role("serves_of_drift")
    models.rows("SELECT madlib_mop.grant_predict('serves_of_drift', 'churn')")
    error = refusal_of(models, "SELECT * FROM madlib_mop.drift('churn', 'customers', 1)", role="serves_of_drift")
    assert (error.sqlstate, error.message) == ("42501", "permission denied for function drift")


def test_rare_levels_of_training_rows_are_in_no_summary(models):
    models.rows("CREATE TABLE people AS SELECT CASE WHEN i = 7 THEN 'Jane Doe' ELSE 'staff' || i % 3 END AS who,"
                " i % 2 = 0 AS y FROM generate_series(1, 300) AS i")  # fmt: skip
    models.rows("SELECT madlib_mop.pack_columns('people', 'people_packed', 'y', seed => 1)")
    document = models.value("SELECT preprocessor FROM people_packed_summary")
    assert "staff0" in document and '"others":[' in document and "Jane" not in document
